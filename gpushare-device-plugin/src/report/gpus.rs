//! The GPUs of the node's annotation.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::PodFacts;
use placement::gpu::Isolation;
use placement::units::{GpuId, PodUid, Units};

use crate::gpus::closed::ClosedGpus;
use crate::gpus::ids::Ids;
use crate::gpus::{Gpus, units_of};
use crate::isolation::support::IsolationSupport;
use crate::records::at_peak;

/// The units that are counted for a pod on each GPU.
pub(super) type PodCharge = (PodUid, BTreeMap<GpuId, Units>);

/// The GPUs for the node's annotation, each with why it takes no new pods, what the node can enforce, and the units
/// that pods hold on it. `pods` hold ids of ours. `others` are the charges of pods that linger, and of pods that hold
/// GPUs through another plugin's resource.
pub(super) fn report(
    gpus: &Gpus,
    closed: &ClosedGpus,
    support: Option<&IsolationSupport>,
    pods: &[(Arc<PodFacts>, Ids)],
    others: Vec<PodCharge>,
) -> api::gpus::Gpus {
    let mut charges = others;
    for (facts, ids) in pods {
        let peak = facts.gpu_pod().map(|gpu| gpu.request.peak()).unwrap_or_default();
        charges.push((facts.uid.clone(), at_peak(units_of(ids, gpus), peak)));
    }
    let strongest = support.map(IsolationSupport::strongest);
    let mut reported = Vec::new();
    for gpu in gpus.iter() {
        reported.push(api::gpus::Gpu {
            pods: charged_on(&gpu.uuid, &charges),
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            model: gpu.model.clone(),
            memory: gpu.memory,
            units: gpu.units,
            numa_node: gpu.numa_node,
            linked: gpu.linked.clone(),
            healthy: gpu.is_healthy(),
            closed: closed.of(&gpu.uuid),
            isolation: strongest.map(|(isolation, _)| wire_isolation(isolation)),
            mps_clients: strongest.and_then(|(_, clients)| clients),
            outside_mps: Vec::new(),
            mps_drain: support.and_then(|support| support.drains_clients),
        });
    }
    api::gpus::Gpus(reported)
}

/// The units that are counted for each pod on one GPU: the largest of its charges.
fn charged_on(gpu: &GpuId, charges: &[PodCharge]) -> BTreeMap<PodUid, Units> {
    let mut charged: BTreeMap<PodUid, Units> = BTreeMap::new();
    for (pod, gpus) in charges {
        if let Some(units) = gpus.get(gpu) {
            let most = charged.entry(pod.clone()).or_default();
            *most = (*most).max(*units);
        }
    }
    charged
}

fn wire_isolation(isolation: Isolation) -> api::gpus::Isolation {
    match isolation {
        Isolation::None => api::gpus::Isolation::None,
        Isolation::Mps => api::gpus::Isolation::Mps,
        Isolation::Driver => api::gpus::Isolation::Driver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, gpus, ids, simple, with_init};

    /// A pod that holds units of GPU A.
    fn charge(pod: &str, units: u32) -> PodCharge {
        (PodUid::from(pod), [(GpuId::from(A), Units(units))].into())
    }

    #[test]
    fn a_pod_counts_its_peak_on_the_gpu_of_the_kubelets_record() {
        let pods = [
            (with_init("init", B, 3, 1), ids(["bbbbbbbb-0"])),
            (simple("elsewhere", A, 1), ids(["bbbbbbbb-3"])),
        ];
        let others = vec![charge("gone", 2), charge("whole", 4), charge("whole", 1)];
        let report =
            report(&gpus(&[(A, 4), (B, 4)]), &ClosedGpus::default(), None, &pods, others).0;
        let others = [("gone".into(), Units(2)), ("whole".into(), Units(4))];
        assert_eq!(report[0].pods, others.into());
        assert_eq!(
            report[1].pods,
            [("init".into(), Units(3)), ("elsewhere".into(), Units(1))].into()
        );
    }
}
