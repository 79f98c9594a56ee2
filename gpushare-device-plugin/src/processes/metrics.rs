//! The usage of cards by pods, as metrics with the labels of NVIDIA's dcgm-exporter.

use std::sync::Arc;

use placement::units::NodeName;
use tokio::sync::watch;

use super::rows::{ProcessOwner, Usage, rows};
use super::{CardProcesses, Snapshot};
use crate::metrics::Metrics;
use crate::pods::PodCache;

/// What the metrics are made from at each scrape.
#[derive(Debug)]
pub(crate) struct CardUse {
    /// The node, for the label `Hostname`.
    pub node: NodeName,
    /// The last snapshot.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The node's pods, for their names.
    pub pods: Arc<PodCache>,
}

/// Sets the metrics to the last snapshot. What is unknown is absent.
pub(crate) fn set_card_use(metrics: &Metrics, card_use: &CardUse) {
    metrics.memory_used.clear();
    metrics.sm_used.clear();
    metrics.processes_unknown.clear();
    let snapshot = card_use.snapshot.borrow().clone();
    let pods = if card_use.pods.is_listed() { Some(card_use.pods.by_uids()) } else { None };
    for (card, rows) in rows(&snapshot, pods.as_ref()) {
        for (owner, Usage { bytes, sm_percent, .. }) in rows {
            let labels = card_use.labels(card, &owner);
            if let Some(bytes) = bytes.and_then(|bytes| i64::try_from(bytes).ok()) {
                metrics.memory_used.with(labels.clone()).set(bytes);
            }
            if let Some(percent) = sm_percent {
                metrics.sm_used.with(labels).set(f64::from(percent) / 100.0);
            }
        }
    }
    for card in snapshot.iter() {
        if let Err(why) = card.processes {
            let labels = [card.card.uuid.clone(), why.label().to_owned()];
            metrics.processes_unknown.with(labels).set(1);
        }
    }
}

impl CardUse {
    /// The values of the labels of [`Metrics::memory_used`] and [`Metrics::sm_used`].
    fn labels(&self, card: &CardProcesses, owner: &ProcessOwner) -> [String; 9] {
        let (namespace, pod, container) = match owner {
            ProcessOwner::Container { namespace, pod, container, .. } => {
                (namespace.clone(), pod.clone(), container.clone())
            }
            _ => Default::default(),
        };
        let card = &card.card;
        let device = card.minor.map(|minor| format!("nvidia{minor}")).unwrap_or_default();
        [
            card.index.to_string(),
            card.uuid.clone(),
            device,
            card.model.clone().unwrap_or_default(),
            self.node.to_string(),
            container,
            namespace,
            pod,
            owner.label().to_owned(),
        ]
    }
}
