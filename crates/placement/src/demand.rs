//! Network and disk as demand: what pods declare, and what nodes can do, in bytes a second.
//!
//! Invariant: a rate is read strictly and is bounded; a text with any fault is an error and never a rate of 0.
//!
//! The rules for rates are those of the CNI bandwidth plugin's annotations in Kubernetes (`pkg/util/bandwidth`):
//! quantities from 1k to 1P, rounded up to whole ones.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::names::{self, Names};
use crate::quantity;
use crate::units::MetricName;

/// The smallest and the largest rate that is read, in the unit of its text.
const LEAST: f64 = 1e3;
const MOST: f64 = 1e15;

/// Bits in a byte.
const BITS: u64 = 8;

/// Something that pods declare to need of a node, and that the node has so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Demand {
    /// What pods receive from the network.
    Ingress,
    /// What pods send to the network.
    Egress,
    /// What pods read from disks.
    DiskRead,
    /// What pods write to disks.
    DiskWrite,
}

impl Demand {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ingress, Self::Egress, Self::DiskRead, Self::DiskWrite];

    /// Its field in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
            Self::DiskRead => "diskRead",
            Self::DiskWrite => "diskWrite",
        }
    }

    /// The name under which it is limited and scored, beside the metrics that are measured.
    #[must_use]
    pub fn metric(self) -> MetricName {
        MetricName::from(match self {
            Self::Ingress => "ingress_demand",
            Self::Egress => "egress_demand",
            Self::DiskRead => "disk_read_demand",
            Self::DiskWrite => "disk_write_demand",
        })
    }

    /// The demand that has this [name](Demand::metric) beside the metrics.
    #[must_use]
    pub fn of_metric(metric: &MetricName) -> Option<Self> {
        Self::ALL.into_iter().find(|demand| demand.metric() == *metric)
    }

    /// The exporter's signal that measures it, in bytes a second.
    #[must_use]
    pub fn signal(self) -> &'static str {
        match self {
            Self::Ingress => "network_receive_bytes",
            Self::Egress => "network_transmit_bytes",
            Self::DiskRead => "disk_read_bytes",
            Self::DiskWrite => "disk_written_bytes",
        }
    }

    /// Whether it is of the network, whose speed exporters serve.
    #[must_use]
    pub fn is_of_network(self) -> bool {
        matches!(self, Self::Ingress | Self::Egress)
    }

    /// The annotation of a pod that declares it.
    #[must_use]
    pub fn pod_annotation(self, names: &Names) -> String {
        match self {
            Self::Ingress => names::INGRESS_BANDWIDTH.to_owned(),
            Self::Egress => names::EGRESS_BANDWIDTH.to_owned(),
            Self::DiskRead => names.disk_read(),
            Self::DiskWrite => names.disk_write(),
        }
    }

    /// The annotation of a Node that says how much of it the node can do.
    #[must_use]
    pub fn node_annotation(self, names: &Names) -> String {
        match self {
            Self::Ingress => names.ingress_bandwidth(),
            Self::Egress => names.egress_bandwidth(),
            Self::DiskRead => names.disk_read(),
            Self::DiskWrite => names.disk_write(),
        }
    }

    /// Reads a rate, in bytes a second, rounded up: of the network from bits a second, of disks from bytes a second.
    ///
    /// # Errors
    ///
    /// If the text is no quantity from 1k to 1P.
    ///
    /// # Examples
    ///
    /// ```
    /// use placement::demand::Demand;
    ///
    /// assert_eq!(Demand::Egress.rate("10M"), Ok(1_250_000));
    /// assert_eq!(Demand::DiskRead.rate("10M"), Ok(10_000_000));
    /// assert!(Demand::DiskRead.rate("0").is_err());
    /// ```
    pub fn rate(self, text: &str) -> Result<u64, RateError> {
        let (unit, in_a_byte) = if self.is_of_network() { ("bits", BITS) } else { ("bytes", 1) };
        let amount = quantity::amount(text).filter(|amount| (LEAST..=MOST).contains(amount));
        // In this range a cast cuts nothing off.
        let rate = amount.map(|amount| (amount.ceil() as u64).div_ceil(in_a_byte));
        rate.ok_or_else(|| RateError {
            unit,
            found: text.chars().take(64).flat_map(char::escape_debug).collect(),
        })
    }
}

/// Why a text is no rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a quantity of {unit} a second from `1k` to `1P`, such as `10M`, found `{found}`")]
pub struct RateError {
    unit: &'static str,
    /// At most 64 characters of the text.
    found: String,
}

/// One value for each demand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerDemand<T> {
    /// For [`Demand::Ingress`].
    pub ingress: T,
    /// For [`Demand::Egress`].
    pub egress: T,
    /// For [`Demand::DiskRead`].
    pub disk_read: T,
    /// For [`Demand::DiskWrite`].
    pub disk_write: T,
}

/// What a pod declares, in bytes a second; 0 of what it does not declare.
pub type Rates = PerDemand<u64>;

impl<T> PerDemand<T> {
    /// The value of each demand.
    pub fn of(mut value: impl FnMut(Demand) -> T) -> Self {
        Self {
            ingress: value(Demand::Ingress),
            egress: value(Demand::Egress),
            disk_read: value(Demand::DiskRead),
            disk_write: value(Demand::DiskWrite),
        }
    }

    /// The value for `demand`.
    pub fn get(&self, demand: Demand) -> &T {
        match demand {
            Demand::Ingress => &self.ingress,
            Demand::Egress => &self.egress,
            Demand::DiskRead => &self.disk_read,
            Demand::DiskWrite => &self.disk_write,
        }
    }
}

impl Rates {
    /// Nothing is declared.
    pub const NONE: Self = Self { ingress: 0, egress: 0, disk_read: 0, disk_write: 0 };

    /// Whether nothing is declared.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_are_read_as_the_bandwidth_plugin_reads_them() {
        for (text, bytes) in [
            ("1k", 125),
            ("1000", 125),
            ("1001", 126),
            ("1000500m", 126),
            ("10M", 1_250_000),
            ("1Mi", 131_072),
            ("1e9", 125_000_000),
            ("1P", 125_000_000_000_000),
        ] {
            assert_eq!(Demand::Ingress.rate(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "999", "-1M", "1001T", "1Pi", "10 M", "10Mbit", "NaN", "1e999"] {
            for demand in Demand::ALL {
                assert!(demand.rate(text).is_err(), "{text}");
            }
        }
        assert_eq!(
            Demand::DiskWrite.rate("fast\n").unwrap_err().to_string(),
            "expected a quantity of bytes a second from `1k` to `1P`, such as `10M`, found `fast\\n`"
        );
    }

    proptest! {
        #[test]
        fn a_whole_rate_is_read_as_it_is_written(rate in 1_000_u64..=1_000_000_000_000_000) {
            prop_assert_eq!(Demand::DiskRead.rate(&rate.to_string()), Ok(rate));
            prop_assert_eq!(Demand::Egress.rate(&rate.to_string()), Ok(rate.div_ceil(8)));
            prop_assert_eq!(Demand::DiskRead.rate(&format!("{rate}000m")), Ok(rate));
        }

        #[test]
        fn no_text_gives_a_rate_out_of_bounds_or_a_long_error(text in "\\PC{0,200}|[0-9.eEmkMGTPi+-]{0,20}") {
            for demand in Demand::ALL {
                match demand.rate(&text) {
                    Ok(rate) => prop_assert!((125..=1_000_000_000_000_000).contains(&rate)),
                    Err(error) => prop_assert!(error.to_string().len() < 2_000),
                }
            }
        }
    }
}
