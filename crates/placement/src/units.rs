//! Quantities as types, so that MiB, units of GPU memory and fractions cannot be mixed up.

use std::fmt;
use std::iter::Sum;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! count_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug,
            Clone,
            Copy,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// None.
            pub const ZERO: Self = Self(0);

            /// `self - other`, or none left.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// `self + other`, capped at the largest count; a forged request can then only ever be too big.
            #[must_use]
            pub fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Self::saturating_add)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

count_type! {
    /// Units of GPU memory as pods request them and the kubelet counts them. How many MiB a unit holds
    /// is the node's setting (1024 by default), so units of two nodes compare only by count.
    Units
}
count_type! {
    /// A part of a GPU's compute, in percent.
    Cores
}

impl Units {
    /// Whether this is no unit at all.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Cores {
    /// A whole GPU's.
    pub const ALL: Self = Self(100);
}

/// Memory in MiB (2^20 bytes).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MiB(pub u64);

impl MiB {
    /// The least that holds so many bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use placement::units::MiB;
    ///
    /// assert_eq!(MiB::holding(3 << 20), MiB(3));
    /// assert_eq!(MiB::holding((3 << 20) + 1), MiB(4));
    /// ```
    #[must_use]
    pub fn holding(bytes: u64) -> Self {
        Self(bytes.div_ceil(1 << 20))
    }
}

impl fmt::Display for MiB {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0)
    }
}

/// A part of a whole: 0 is idle, 1 is full. May exceed 1 where a source says so; never negative,
/// never NaN.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// The ratio, or `None` where `value` is negative, infinite or not a number.
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && value >= 0.0).then_some(Self(value))
    }

    /// As [`Ratio::new`], and infinity too.
    pub fn or_infinite(value: f64) -> Option<Self> {
        (value >= 0.0).then_some(Self(value))
    }

    /// The ratio of a percentage, under the same conditions as [`Ratio::new`].
    pub fn from_percent(percent: f64) -> Option<Self> {
        Self::new(percent / 100.0)
    }

    /// The bare number, 0 to 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}%", self.0 * 100.0)
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type! {
    /// A node's name; cheap to clone.
    NodeName
}
name_type! {
    /// A pod's UID: the only name of a pod that is never used twice.
    PodUid
}
name_type! {
    /// The UID of a ResourceClaim.
    ResourceClaimUid
}
name_type! {
    /// A GPU's UUID as NVML prints it, `GPU-…`. Indexes change across reboots, UUIDs do not.
    GpuId
}
name_type! {
    /// A GPU's product name, e.g. `NVIDIA A10`.
    GpuModel
}
name_type! {
    /// A metric's name as policies and annotations spell it, e.g. `cpu_usage_avg_5m`.
    MetricName
}

impl MetricName {
    /// The name, or `None` where it is no valid annotation key without a domain: 1 to 63 letters,
    /// digits, `_`, `-` or `.`, the first and the last a letter or digit. One invalid key makes the
    /// API server refuse a node's whole patch.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let first = bytes.first()?;
        let last = bytes.last()?;
        let edges = first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric();
        let all =
            bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
        (edges && bytes.len() <= 63 && all).then(|| Self::from(text))
    }
}
