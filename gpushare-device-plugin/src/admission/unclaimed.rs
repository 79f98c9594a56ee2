//! GPUs for pods without a claim, which were not bound by the scheduler-extender.
//!
//! Invariant: a GPU is chosen by the same rule as at Bind. Its used units are the ids that containers hold, and the
//! claims of the node's other pods that hold no ids yet. A running pod with neither may be on any GPU: another plugin
//! started it. Reservations of the extender that are not bound yet are not visible here.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::ValueEnum;
use cluster::{GpuPod, PodFacts};
use placement::gpu::{
    ChoiceRule, FreeGpu, GpuIsolation, GpuShare, Isolation, NoFit, Reservation, Sharers, Topology,
    choose,
};
use placement::units::{Cores, GpuModel, Units};

use crate::gpus::closed::ClosedGpus;
use crate::gpus::ids::Ids;
use crate::gpus::{Gpu, Gpus, units_of};
use crate::records::Records;

/// What happens to a pod without a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnclaimedAction {
    /// It is refused.
    Refuse,
    /// It is put on a GPU with room, and its claim is written.
    Place,
}

/// A pod that is bound to this node, with the ids that it holds.
type PodWithIds = (Arc<PodFacts>, Ids);

/// What is known of the node when a GPU is chosen.
pub struct NodeView<'n> {
    /// Which container holds which ids.
    pub records: &'n Records,
    /// The node's GPUs.
    pub gpus: &'n Gpus,
    /// Those that take no new pods.
    pub closed: &'n ClosedGpus,
    /// The node's pods, as the API server shows them.
    pub pods: &'n [Arc<PodFacts>],
}

/// The other pods of the node, which use units of the GPUs.
#[derive(Debug, Default)]
struct OtherPods {
    pods: Vec<PodWithIds>,
    /// Ids of containers of unknown pods.
    others: Ids,
}

impl OtherPods {
    /// All pods except `facts`: those that the API server shows, and those of the records.
    fn of(facts: &PodFacts, node: &NodeView<'_>) -> Self {
        let mut seen = BTreeSet::from([facts.uid.clone()]);
        let mut pods: Vec<PodWithIds> = Vec::new();
        // The watch may not show a pod yet that holds ids.
        let granted = node.records.all_granted().map(|granted| &granted.facts);
        for pod in node.pods.iter().filter(|pod| !pod.finished).chain(granted) {
            if seen.insert(pod.uid.clone()) {
                pods.push((pod.clone(), node.records.held_by(pod)));
            }
        }
        let mut others = node.records.in_use();
        others.retain(|id| !pods.iter().any(|(_, ids)| ids.contains(id)));
        Self { pods, others }
    }
}

/// The pod with a claim: the one that its containers were granted ids for already, or a new one on GPUs with enough
/// free units.
///
/// # Errors
/// If no GPU has enough free units, or the pod's annotations have a fault.
pub fn place(facts: &PodFacts, gpu: &GpuPod, node: &NodeView<'_>) -> Result<Arc<PodFacts>, String> {
    if let Some(granted) = node.records.granted(&facts.uid) {
        return Ok(granted.facts.clone());
    }
    if let Some(fault) = &gpu.fault {
        return Err(fault.to_string());
    }
    let other_pods = OtherPods::of(facts, node);
    let mut free: Vec<FreeGpu> = Vec::new();
    for gpu in node.gpus.iter() {
        let elsewhere = node.records.elsewhere().any(|held| held.gpu == gpu.uuid);
        if !elsewhere && !node.records.resource_claims.is_on(&gpu.uuid) {
            free.push(free_gpu(gpu, node, &other_pods));
        }
    }
    let choice = choose(&free, None, &gpu.request, &ChoiceRule::BEST_FIT)
        .map_err(|no_fit: NoFit| no_fit.label().to_owned())?;
    let claim = Ok(Some(Reservation::new(&gpu.request, choice).claim));
    let gpu = Ok(Some(GpuPod { claim, ..gpu.clone() }));
    Ok(Arc::new(PodFacts { gpu, ..facts.clone() }))
}

/// What the other pods leave of a GPU.
fn free_gpu(gpu: &Gpu, node: &NodeView<'_>, other_pods: &OtherPods) -> FreeGpu {
    let mut taken = GpuShare::of(held(gpu, node.gpus, &other_pods.others));
    for (pod, ids) in &other_pods.pods {
        taken = taken.plus(taken_by(pod, ids, gpu, node.gpus));
    }
    let left = gpu.units.saturating_sub(taken.units);
    FreeGpu {
        uuid: gpu.uuid.clone(),
        index: gpu.index,
        model: GpuModel::from(gpu.model.as_str()),
        topology: Topology {
            numa_node: gpu.numa_node,
            linked: gpu.linked.iter().copied().collect(),
        },
        units: gpu.units,
        free: if taken.exclusive { Units::ZERO } else { left },
        free_cores: Cores::ALL.saturating_sub(taken.cores),
        idle: taken.is_zero(),
        healthy: gpu.is_healthy(),
        closed: node.closed.of(&gpu.uuid),
        // Allocate checks what the pod requires. How the other pods share the GPU does not count here.
        isolation: GpuIsolation { strongest: Some(Isolation::Driver), ..GpuIsolation::default() },
        sharers: Sharers::None,
        clients: 0,
    }
}

/// What a pod uses of a GPU: the larger of its claim and its ids there. An admitted pod without a claim and without
/// ids of ours, such as one that Aliyun's plugin started, counts the units of its largest share on every GPU.
fn taken_by(facts: &PodFacts, ids: &Ids, gpu: &Gpu, gpus: &Gpus) -> GpuShare {
    let claimed = match (facts.claim(), facts.gpu_pod()) {
        (Some(claim), _) => claim.gpus().get(&gpu.uuid).copied(),
        (None, Some(gpu)) if facts.admitted && ids.is_empty() => {
            Some(GpuShare::of(gpu.request.largest().units))
        }
        (None, _) => None,
    };
    claimed.unwrap_or_default().larger(GpuShare::of(held(gpu, gpus, ids)))
}

fn held(gpu: &Gpu, gpus: &Gpus, ids: &Ids) -> Units {
    units_of(ids, gpus).remove(&gpu.uuid).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use placement::gpu::Closed;
    use placement::units::GpuId;

    use super::*;
    use crate::fixtures::{A, B, gpus, ids, simple};
    use crate::pods::PodCache;
    use crate::records::checkpoint::{Checkpoint, OtherPluginGpu};

    fn without_claim(name: &str, units: u32) -> PodFacts {
        let facts = PodFacts::clone(&simple(name, A, units));
        let gpu = facts.gpu.clone().map(|gpu| gpu.map(|gpu| GpuPod { claim: Ok(None), ..gpu }));
        PodFacts { gpu, ..facts }
    }

    fn gpu(pod: &PodFacts, records: &Records, known: &[Arc<PodFacts>]) -> Result<String, String> {
        gpu_beside(&ClosedGpus::default(), pod, records, known)
    }

    /// The GPU of the pod, where these GPUs are closed.
    fn gpu_beside(
        closed: &ClosedGpus,
        pod: &PodFacts,
        records: &Records,
        known: &[Arc<PodFacts>],
    ) -> Result<String, String> {
        let gpu = pod.gpu.clone().unwrap().unwrap();
        let gpus = gpus(&[(A, 4), (B, 4)]);
        let node = NodeView { records, gpus: &gpus, closed, pods: known };
        let placed = place(pod, &gpu, &node)?;
        let gpu = placed.gpu.clone().unwrap().unwrap();
        let claim = gpu.claim.unwrap().unwrap();
        Ok(claim.gpus().keys().map(GpuId::as_str).collect())
    }

    #[test]
    fn a_pod_goes_to_a_gpu_with_room_beside_what_is_held_and_what_is_claimed() {
        let pod = without_claim("p", 2);
        let mut records = Records::default();
        let waiting = simple("waiting", B, 3);
        assert_eq!(gpu(&pod, &records, std::slice::from_ref(&waiting)).as_deref(), Ok(A));
        let three = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"]);
        records.grant(&simple("unseen", A, 3), "main", three.clone());
        assert_eq!(gpu(&pod, &records, &[]).as_deref(), Ok(B));
        let full = gpu(&pod, &records, &[waiting]);
        assert!(full.is_err(), "{full:?}");
        let mut unknown = Records::default();
        let listed = crate::fixtures::listed("unknown", ["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"]);
        unknown.relist(vec![listed], None, &PodCache::default());
        assert_eq!(gpu(&pod, &unknown, &[]).as_deref(), Ok(B));
    }

    #[test]
    fn a_pod_goes_to_no_gpu_that_another_plugin_gave_away() {
        let pod = without_claim("p", 2);
        let mut records = Records::default();
        assert_eq!(gpu(&pod, &records, &[]).as_deref(), Ok(A));
        let held = OtherPluginGpu {
            pod: "static".into(),
            container: "main".to_owned(),
            resource: "nvidia.com/gpu".to_owned(),
            gpu: A.into(),
        };
        let checkpoint = Checkpoint { other_plugin_gpus: vec![held], ..Checkpoint::default() };
        records.set_elsewhere(&checkpoint, &PodCache::default());
        assert_eq!(gpu(&pod, &records, &[]).as_deref(), Ok(B));
    }

    #[test]
    fn a_pod_that_another_plugin_started_counts_on_every_gpu() {
        let pod = without_claim("p", 2);
        let mut records = Records::default();
        let waiting = Arc::new(without_claim("foreign", 3));
        let running = Arc::new(PodFacts { admitted: true, ..without_claim("foreign", 3) });
        let full = gpu(&pod, &records, std::slice::from_ref(&running));
        assert!(full.is_err(), "{full:?}");
        assert_eq!(gpu(&pod, &records, &[waiting]).as_deref(), Ok(A), "not let in");
        records.grant(&running, "main", ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"]));
        assert_eq!(gpu(&pod, &records, &[running]).as_deref(), Ok(B), "ours by its ids");
    }

    #[test]
    fn a_pod_goes_to_no_gpu_that_takes_no_new_pods() {
        let pod = without_claim("p", 2);
        let records = Records::default();
        let first = ClosedGpus { gpus: [(A.into(), Closed::Cdi)].into(), ..ClosedGpus::default() };
        assert_eq!(gpu_beside(&first, &pod, &records, &[]).as_deref(), Ok(B));
        let all = ClosedGpus { all: Some(Closed::CdiFolder), ..ClosedGpus::default() };
        assert_eq!(gpu_beside(&all, &pod, &records, &[]).unwrap_err(), NoFit::Closed.label());
    }

    #[test]
    fn the_next_container_goes_where_the_pod_is() {
        let pod = without_claim("p", 1);
        let mut records = Records::default();
        records.grant(&simple("p", B, 1), "main", ids(["bbbbbbbb-0"]));
        assert_eq!(gpu(&pod, &records, &[]).as_deref(), Ok(B));
    }
}
