//! The usage of cards by pods, as metrics with the labels of NVIDIA's dcgm-exporter.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use daemon::Registry;
use placement::units::NodeName;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use super::rows::{ProcessOwner, Usage, rows};
use super::{CardProcesses, Snapshot};
use crate::pods::PodCache;

/// The metrics, made from the last snapshot at each scrape.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    /// The node, for the label `Hostname`.
    pub node: NodeName,
    /// The last snapshot.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The node's pods, for their names.
    pub pods: Arc<PodCache>,
}

/// dcgm-exporter's labels, and the label `owner`.
type Labels<'r> = [(&'static str, Cow<'r, str>); 9];

impl ProcessMetrics {
    /// Registers them under the prefix `gpu`.
    pub(crate) fn register(self, registry: &mut Registry) {
        registry.sub_registry_with_prefix("gpu").register_collector(Box::new(self));
    }

    fn labels<'r>(&'r self, card: &'r CardProcesses, owner: &'r ProcessOwner) -> Labels<'r> {
        let (namespace, pod, container) = match owner {
            ProcessOwner::Container { namespace, pod, container, .. } => {
                (&**namespace, &**pod, &**container)
            }
            _ => ("", "", ""),
        };
        let card = &card.card;
        let device = card.minor.map(|minor| format!("nvidia{minor}")).unwrap_or_default();
        [
            ("gpu", card.index.to_string().into()),
            ("UUID", card.uuid.as_str().into()),
            ("device", device.into()),
            ("modelName", card.model.as_deref().unwrap_or_default().into()),
            ("Hostname", self.node.as_str().into()),
            ("container", container.into()),
            ("namespace", namespace.into()),
            ("pod", pod.into()),
            ("owner", owner.label().into()),
        ]
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let snapshot = self.snapshot.borrow().clone();
        let pods = if self.pods.is_listed() { Some(self.pods.by_uids()) } else { None };
        let mut all = Vec::new();
        for (card, rows) in rows(&snapshot, pods.as_ref()) {
            all.extend(rows.into_iter().map(|(owner, usage)| (card, owner, usage)));
        }

        let help = "Memory of a card that a container's processes have";
        let mut family =
            encoder.encode_descriptor("memory_used_bytes", help, None, MetricType::Gauge)?;
        for (card, owner, Usage { bytes, .. }) in &all {
            if let Some(bytes) = bytes.and_then(|bytes| i64::try_from(bytes).ok()) {
                let labels = self.labels(card, owner);
                ConstGauge::new(bytes).encode(family.encode_family(&labels)?)?;
            }
        }

        let help = "Part of the time in which a container's processes ran on a card's SMs";
        let mut family =
            encoder.encode_descriptor("sm_used_ratio", help, None, MetricType::Gauge)?;
        for (card, owner, Usage { sm_percent, .. }) in &all {
            if let Some(percent) = sm_percent {
                let labels = self.labels(card, owner);
                let ratio = f64::from(*percent) / 100.0;
                ConstGauge::new(ratio).encode(family.encode_family(&labels)?)?;
            }
        }

        let help = "Cards whose processes are unknown, and why";
        let mut family =
            encoder.encode_descriptor("processes_unknown", help, None, MetricType::Gauge)?;
        for card in snapshot.iter() {
            if let Err(why) = card.processes {
                let labels = [("uuid", card.card.uuid.as_str()), ("reason", why.label())];
                ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
