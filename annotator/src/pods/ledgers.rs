//! The ledgers of all nodes: how many units pods hold on each GPU.
//!
//! Invariant: shares are unknown (`None`) until all pods were listed once.

use std::collections::{HashMap, HashSet};

use api::share::GpuShare;
use placement::gpu::{Account, Gpu, NodeLedger};
use placement::units::{NodeName, PodUid};

use super::{BoundPod, GpuCharge};

/// One ledger for each node. A node's ledger stays without GPUs while pods are charged on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledgers {
    nodes: HashMap<NodeName, NodeLedger>,
    /// The node of each pod that is charged.
    pods: HashMap<PodUid, NodeName>,
    listed: bool,
}

impl Ledgers {
    /// Applies a complete list of bound pods. Returns the nodes whose shares may have changed.
    pub(crate) fn replace(&mut self, pods: &[BoundPod]) -> HashSet<NodeName> {
        let present: HashSet<&PodUid> = pods.iter().map(|pod| &pod.uid).collect();
        let gone: Vec<PodUid> =
            self.pods.keys().filter(|uid| !present.contains(uid)).cloned().collect();
        let mut changed = HashSet::new();
        if !self.listed {
            // The first list turns the shares of all nodes from unknown to known.
            changed.extend(self.nodes.keys().cloned());
        }
        self.listed = true;
        changed.extend(gone.iter().filter_map(|uid| self.remove(uid)));
        changed.extend(pods.iter().filter_map(|pod| self.apply(pod)));
        changed
    }

    /// Applies a new or changed pod. Returns its node if the node's shares may have changed.
    pub(crate) fn apply(&mut self, pod: &BoundPod) -> Option<NodeName> {
        match &pod.gpu {
            Some(charge) => Some(self.charge(pod, charge)),
            None => self.remove(&pod.uid),
        }
    }

    /// Removes a pod. Returns the node on which it was charged, if it was.
    pub(crate) fn remove(&mut self, uid: &PodUid) -> Option<NodeName> {
        let node = self.pods.remove(uid)?;
        if let Some(ledger) = self.nodes.get_mut(&node) {
            ledger.release(uid);
        }
        self.drop_empty(&node);
        Some(node)
    }

    fn charge(&mut self, pod: &BoundPod, charge: &GpuCharge) -> NodeName {
        let ledger = self.nodes.entry(pod.node.clone()).or_default();
        ledger.bind(&pod.uid, &charge.request, charge.claim.as_ref());
        if charge.admitted {
            ledger.admit(&pod.uid);
        }
        self.pods.insert(pod.uid.clone(), pod.node.clone());
        pod.node.clone()
    }

    /// Sets the GPUs that a node reports.
    pub(crate) fn set_gpus(&mut self, node: &NodeName, gpus: Vec<Gpu>) {
        self.nodes.entry(node.clone()).or_default().set_gpus(gpus);
    }

    /// The node was deleted, or no longer reports GPUs. The charges of its pods are kept.
    pub(crate) fn remove_gpus(&mut self, node: &NodeName) {
        if let Some(ledger) = self.nodes.get_mut(node) {
            ledger.set_gpus(Vec::new());
        }
        self.drop_empty(node);
    }

    fn drop_empty(&mut self, node: &NodeName) {
        if self.nodes.get(node).is_some_and(NodeLedger::is_empty) {
            self.nodes.remove(node);
        }
    }

    /// Each GPU's share, by index; empty for a node without GPUs. `None` before the first list of pods.
    pub(crate) fn shares(&self, node: &NodeName) -> Option<Vec<GpuShare>> {
        let accounts = self.nodes.get(node).map_or(&[][..], |ledger| ledger.read().accounts());
        self.listed.then(|| accounts.iter().map(share).collect())
    }
}

fn share(account: &Account) -> GpuShare {
    GpuShare {
        uuid: account.gpu.uuid.clone(),
        units: account.gpu.units,
        allocated: account.held(),
        used: None,
        utilisation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::gpu::{Claim, GpuIsolation, GpuRequest, Topology};
    use placement::units::{GpuId, MiB, Units};

    fn gpu(uuid: &str, index: u32) -> Gpu {
        Gpu {
            uuid: uuid.into(),
            index,
            model: "NVIDIA A10".into(),
            memory: MiB(16384),
            units: Units(16),
            topology: Topology::default(),
            healthy: true,
            closed: None,
            isolation: GpuIsolation::default(),
            outside_mps: Vec::new(),
            pods: Default::default(),
        }
    }

    fn pod(uid: &str, gpu: &str, units: u32) -> BoundPod {
        let request = GpuRequest::single("main", Units(units)).unwrap();
        let claim = Some(Claim::on_gpu(&request, &GpuId::from(gpu)));
        let gpu = Some(GpuCharge { request, claim, admitted: true });
        BoundPod { uid: uid.into(), node: "a".into(), bound_at: None, gpu, workload: None }
    }

    fn allocated(ledgers: &Ledgers) -> Vec<u32> {
        let shares = ledgers.shares(&"a".into()).unwrap();
        shares.iter().map(|share| share.allocated.0).collect()
    }

    fn two_gpus() -> Ledgers {
        let mut ledgers = Ledgers::default();
        ledgers.set_gpus(&"a".into(), vec![gpu("GPU-0", 0), gpu("GPU-1", 1)]);
        ledgers
    }

    #[test]
    fn shares_are_unknown_before_the_pods_were_listed() {
        let mut ledgers = two_gpus();
        assert_eq!(ledgers.shares(&"a".into()), None);
        assert_eq!(ledgers.replace(&[]), HashSet::from(["a".into()]));
        assert_eq!(allocated(&ledgers), [0, 0]);
    }

    #[test]
    fn pods_count_on_their_gpu_until_they_end() {
        let mut ledgers = two_gpus();
        ledgers.replace(&[pod("p", "GPU-0", 3), pod("q", "GPU-1", 4)]);
        assert_eq!(ledgers.apply(&pod("r", "GPU-1", 2)), Some("a".into()));
        assert_eq!(allocated(&ledgers), [3, 6]);
        let ended = BoundPod { gpu: None, ..pod("q", "GPU-1", 4) };
        assert_eq!(ledgers.apply(&ended), Some("a".into()));
        assert_eq!(allocated(&ledgers), [3, 2]);
    }

    #[test]
    fn a_pod_that_a_later_list_lacks_is_removed() {
        let mut ledgers = two_gpus();
        ledgers.replace(&[pod("p", "GPU-0", 3), pod("q", "GPU-1", 4)]);
        assert_eq!(ledgers.replace(&[pod("q", "GPU-1", 4)]), HashSet::from(["a".into()]));
        assert_eq!(allocated(&ledgers), [0, 4]);
    }

    #[test]
    fn a_pod_without_gpu_memory_changes_no_node() {
        let mut ledgers = two_gpus();
        ledgers.replace(&[]);
        let plain = BoundPod { gpu: None, ..pod("p", "GPU-0", 3) };
        assert_eq!(ledgers.apply(&plain), None);
    }

    #[test]
    fn a_node_that_comes_back_is_charged_with_its_pods() {
        let mut ledgers = two_gpus();
        ledgers.replace(&[pod("p", "GPU-0", 3)]);
        ledgers.remove_gpus(&"a".into());
        assert_eq!(allocated(&ledgers), [0_u32; 0]);
        ledgers.set_gpus(&"a".into(), vec![gpu("GPU-0", 0)]);
        assert_eq!(allocated(&ledgers), [3]);
    }

    #[test]
    fn no_ledger_outlives_its_node() {
        let mut ledgers = two_gpus();
        ledgers.replace(&[pod("p", "GPU-0", 3)]);
        ledgers.remove_gpus(&"a".into());
        ledgers.remove(&"p".into());
        assert!(ledgers.nodes.is_empty(), "{ledgers:?}");
    }
}
