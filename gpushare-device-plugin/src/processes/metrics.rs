//! The usage of GPUs by pods, as metrics with the labels of NVIDIA's dcgm-exporter.

use std::sync::Arc;

use placement::units::NodeName;
use tokio::sync::watch;

use super::rows::{ProcessOwner, Usage, rows};
use super::{GpuProcesses, Snapshot};
use crate::metrics::Metrics;
use crate::pods::PodCache;

/// What the metrics are made from at each scrape.
#[derive(Debug)]
pub(crate) struct GpuUse {
    /// The node, for the label `Hostname`.
    pub node: NodeName,
    /// The last snapshot.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The node's pods, for their names.
    pub pods: Arc<PodCache>,
}

/// Sets the metrics to the last snapshot. What is unknown is absent.
pub(crate) fn set_gpu_use(metrics: &Metrics, gpu_use: &GpuUse) {
    metrics.memory_used.clear();
    metrics.sm_used.clear();
    metrics.processes_unknown.clear();
    let snapshot = gpu_use.snapshot.borrow().clone();
    let pods = if gpu_use.pods.is_listed() { Some(gpu_use.pods.by_uids()) } else { None };
    for (gpu, rows) in rows(&snapshot, pods.as_ref()) {
        for (owner, Usage { bytes, sm_percent, .. }) in rows {
            let labels = gpu_use.labels(gpu, &owner);
            if let Some(bytes) = bytes.and_then(|bytes| i64::try_from(bytes).ok()) {
                metrics.memory_used.with(labels.clone()).set(bytes);
            }
            if let Some(percent) = sm_percent {
                metrics.sm_used.with(labels).set(f64::from(percent) / 100.0);
            }
        }
    }
    for gpu in snapshot.iter() {
        if let Err(why) = gpu.processes {
            let labels = [gpu.gpu.uuid.clone(), why.label().to_owned()];
            metrics.processes_unknown.with(labels).set(1);
        }
    }
}

impl GpuUse {
    /// The values of the labels of [`Metrics::memory_used`] and [`Metrics::sm_used`].
    fn labels(&self, gpu: &GpuProcesses, owner: &ProcessOwner) -> [String; 9] {
        let (namespace, pod, container) = match owner {
            ProcessOwner::Container { namespace, pod, container, .. } => {
                (namespace.clone(), pod.clone(), container.clone())
            }
            _ => Default::default(),
        };
        let gpu = &gpu.gpu;
        let device = gpu.minor.map(|minor| format!("nvidia{minor}")).unwrap_or_default();
        [
            gpu.index.to_string(),
            gpu.uuid.clone(),
            device,
            gpu.model.clone().unwrap_or_default(),
            self.node.to_string(),
            container,
            namespace,
            pod,
            owner.label().to_owned(),
        ]
    }
}
