//! The pods for which others were moved, so that none are moved for the same pod in vain a second time.
//!
//! Invariant: until the pod is bound, others are moved for it again only under other circumstances: another policy,
//! other rules of the pod, or other nodes with GPUs. The pods of one workload count as one, since they are alike.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use cluster::{Pod, controller};
use placement::load::ResolvedPolicy;
use placement::moves::Controller;
use placement::shares::SharedTable;
use placement::units::PodUid;

use crate::tables::Table;
use crate::view::Snapshot;

/// The pods that others were moved for.
pub(crate) struct MovedFor(SharedTable<Beneficiary, Moved>);

/// A pod, or all of its workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Beneficiary {
    Workload(Controller),
    Pod(PodUid),
}

/// When others were moved.
struct Moved {
    pod: PodUid,
    circumstances: Circumstances,
}

/// What decides where a pod may go, beside the room.
#[derive(Clone)]
pub(super) struct Circumstances {
    policy: Arc<ResolvedPolicy>,
    /// Of the pod's spec.
    generation: i64,
    /// A hash of the nodes with GPUs, with their labels and GPUs.
    nodes: u64,
}

impl Default for MovedFor {
    fn default() -> Self {
        Self(Table::MovedFor.empty())
    }
}

impl MovedFor {
    /// Others are moved for the pod.
    pub(super) fn record(&mut self, pod: &Pod, circumstances: Circumstances) {
        let moved = Moved { pod: pod.uid(), circumstances };
        self.0.insert(pod.namespace(), Beneficiary::of(pod), moved);
    }

    /// The pod was bound: moves do help it.
    pub(super) fn remove(&mut self, pod: &Pod) {
        self.0.remove(&Beneficiary::of(pod));
    }

    /// The pod that others were moved for under the same circumstances.
    pub(super) fn same(&self, pod: &Pod, now: &Circumstances) -> Option<&PodUid> {
        let moved = self.0.get(&Beneficiary::of(pod))?;
        moved.circumstances.are(now).then_some(&moved.pod)
    }
}

impl Beneficiary {
    fn of(pod: &Pod) -> Self {
        controller(pod).map_or_else(|| Self::Pod(pod.uid()), Self::Workload)
    }
}

impl Circumstances {
    pub(super) fn of(pod: &Pod, snapshot: &Snapshot) -> Self {
        let mut nodes = DefaultHasher::new();
        for (name, gpus) in snapshot.nodes_with_gpus() {
            name.hash(&mut nodes);
            snapshot.load(name.as_str()).map(|node| &node.labels).hash(&mut nodes);
            for account in gpus.accounts() {
                let gpu = &account.gpu;
                (&gpu.uuid, gpu.healthy, gpu.closed.is_none()).hash(&mut nodes);
            }
        }
        let (policy, generation) = (Arc::clone(&snapshot.policy), pod.generation());
        Self { policy, generation, nodes: nodes.finish() }
    }

    fn are(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.policy, &other.policy)
            && (self.generation, self.nodes) == (other.generation, other.nodes)
    }
}

#[cfg(test)]
impl crate::tables::Tabled for MovedFor {
    fn add(&mut self, namespace: &str, name: &str) {
        self.record(&tests::pod(namespace, name, 1), tests::circumstances(name));
    }

    fn has(&self, name: &str) -> bool {
        self.0.get(&Beneficiary::Pod(name.into())).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::{self, gpu};

    pub(super) fn pod(namespace: &str, uid: &str, generation: i64) -> Pod {
        let meta =
            json!({ "namespace": namespace, "name": uid, "uid": uid, "generation": generation });
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    pub(super) fn circumstances(uid: &str) -> Circumstances {
        Circumstances::of(&pod("ml", uid, 1), &fixtures::view().read())
    }

    #[test]
    fn only_under_other_circumstances_are_others_moved_for_a_pod_again() {
        let view = fixtures::view();
        fixtures::join(&view, "a", vec![gpu()]);
        let mut moved = MovedFor::default();
        let now = |generation| Circumstances::of(&pod("ml", "p", generation), &view.read());
        let p = pod("ml", "p", 1);
        assert_eq!(moved.same(&p, &now(1)), None);
        moved.record(&p, now(1));
        assert_eq!(moved.same(&p, &now(1)), Some(&"p".into()));
        assert_eq!(moved.same(&pod("ml", "q", 1), &now(1)), None);
        assert_eq!(moved.same(&p, &now(2)), None, "its spec has changed");
        fixtures::join(&view, "b", vec![gpu()]);
        assert_eq!(moved.same(&p, &now(1)), None, "a node has joined");
        fixtures::leave(&view, "b");
        assert_eq!(moved.same(&p, &now(1)), Some(&"p".into()));
        moved.remove(&p);
        assert_eq!(moved.same(&p, &now(1)), None);
    }
}
