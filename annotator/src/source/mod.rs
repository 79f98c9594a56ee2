//! One source of readings for the whole cluster, in place of an exporter on each node.
//!
//! A source is asked for all nodes at once and fills a [`Table`]; a node's poll looks its readings up there and asks
//! nothing. Invariants: what a source does not tell is absent, never 0; a reading has the time of its sample, so an outage of
//! the source takes nothing away: what is known grows old.

pub mod prometheus;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use placement::reading::Reading;
use placement::units::{MetricName, NodeName};

/// One metric of all nodes, by the node's name or its host.
pub type Column = HashMap<String, Reading>;

/// What a source told last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table(BTreeMap<MetricName, Arc<Column>>);

impl Table {
    /// Replaces a metric of all nodes. A node that `column` lacks has no reading of it any more.
    pub fn set(&mut self, metric: MetricName, column: Column) {
        self.0.insert(metric, Arc::new(column));
    }

    /// The readings of the `wanted` metrics for the node with this name, or else this host.
    #[must_use]
    pub fn readings(
        &self,
        node: &NodeName,
        host: Option<&str>,
        wanted: &[MetricName],
    ) -> Vec<(MetricName, Reading)> {
        let of = |metric: &MetricName| {
            let column = self.0.get(metric)?;
            let by_host = || host.and_then(|host| column.get(host));
            let reading = column.get(node.as_str()).or_else(by_host)?;
            Some((metric.clone(), *reading))
        };
        wanted.iter().filter_map(of).collect()
    }
}

/// A host without its port, and an IPv6 address without its brackets.
#[must_use]
pub fn host(address: &str) -> &str {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    // A bare IPv6 address has more colons.
    let host = if is_port && (!host.contains(':') || host.ends_with(']')) { host } else { address };
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use placement::units::Ratio;

    use super::*;

    #[test]
    fn a_node_is_found_by_its_name_before_its_host() {
        let reading = |value| Reading::new(Ratio::new(value).unwrap(), Timestamp::UNIX_EPOCH);
        let column = [("a", 0.5), ("10.0.0.1", 0.1), ("fd00::3", 0.3)]
            .map(|(key, value)| (key.to_owned(), reading(value)));
        let mut table = Table::default();
        table.set("cpu".into(), Column::from(column));
        let wanted = ["cpu".into(), "mem".into()];
        let told = |node: &str, host| table.readings(&node.into(), host, &wanted);
        assert_eq!(told("a", Some("10.0.0.1")), [("cpu".into(), reading(0.5))]);
        assert_eq!(told("b", Some("10.0.0.1")), [("cpu".into(), reading(0.1))]);
        assert_eq!(told("c", Some("fd00::3")), [("cpu".into(), reading(0.3))]);
        assert_eq!((told("d", Some("10.0.0.9")), told("d", None)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_host_has_neither_port_nor_brackets() {
        for (address, expected) in [
            ("node-1", "node-1"),
            ("node-1:9100", "node-1"),
            ("10.0.0.1:9100", "10.0.0.1"),
            ("[fd00::3]:9100", "fd00::3"),
            ("fd00::3", "fd00::3"),
            ("a:b", "a:b"),
            ("", ""),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
