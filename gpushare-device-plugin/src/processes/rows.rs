//! Sums over processes by GPU and container, with the names of pods and containers.
//!
//! Invariant: a GPU has a row for each container of a pod that the API server shows, and at most one for each other
//! [`ProcessOwner`].

use std::collections::{BTreeMap, HashMap};

use placement::units::PodUid;

use super::host::Membership;
use super::{GpuProcesses, Snapshot};
use crate::pods::NodePod;

/// The owner of the processes of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProcessOwner {
    /// A container of a pod.
    Container {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
        /// The container's name; empty where the kubelet has not reported it.
        container: String,
        /// The pod's UID.
        uid: PodUid,
    },
    /// Processes of pods that the API server does not show: pods deleted by force, and static pods, which it shows
    /// under other UIDs.
    Gone,
    /// Processes outside of all pods.
    Unmanaged,
    /// Processes whose control group could not be read, and those in pods while the pods are not listed yet.
    Unknown,
}

impl ProcessOwner {
    /// One word, for the label `owner`.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Container { .. } => "pod",
            Self::Gone => "gone",
            Self::Unmanaged => "unmanaged",
            Self::Unknown => "unknown",
        }
    }
}

/// The usage of one GPU by some processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Memory of the GPU, in bytes.
    pub bytes: Option<u64>,
    /// Percent of the last sample period on the GPU's SMs, the sum over the processes.
    pub sm_percent: Option<u32>,
    /// The number of processes.
    pub processes: u32,
}

impl Usage {
    /// The sum of both. An amount that is unknown in one is unknown in the sum.
    fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.zip(other.bytes).map(|(a, b)| a.saturating_add(b));
        let sm_percent = self.sm_percent.zip(other.sm_percent).map(|(a, b)| a.saturating_add(b));
        Self { bytes, sm_percent, processes: self.processes + other.processes }
    }
}

impl From<nvml::Process> for Usage {
    fn from(process: nvml::Process) -> Self {
        Self { bytes: process.used_bytes, sm_percent: process.sm_percent, processes: 1 }
    }
}

/// The node's pods by UID; `None` before the first list.
pub(crate) type KnownPods<'p> = Option<&'p HashMap<PodUid, NodePod>>;

/// The rows of each GPU whose processes are known.
pub(crate) fn rows<'s>(
    snapshot: &'s Snapshot,
    pods: KnownPods<'_>,
) -> Vec<(&'s GpuProcesses, BTreeMap<ProcessOwner, Usage>)> {
    let mut all = Vec::new();
    for gpu in snapshot {
        let Ok(processes) = &gpu.processes else { continue };
        let mut rows: BTreeMap<ProcessOwner, Usage> = BTreeMap::new();
        for process in processes {
            let used = Usage::from(process.process);
            let row = rows.entry(owner(&process.of, pods));
            row.and_modify(|row| *row = row.plus(used)).or_insert(used);
        }
        all.push((gpu, rows));
    }
    all
}

/// Whose a process is. A container whose name is not known has none.
pub(crate) fn owner(of: &Membership, pods: KnownPods<'_>) -> ProcessOwner {
    let group = match of {
        Membership::NoPod => return ProcessOwner::Unmanaged,
        Membership::Unknown => return ProcessOwner::Unknown,
        Membership::Pod(group) => group,
    };
    let Some(pods) = pods else { return ProcessOwner::Unknown };
    let Some(pod) = pods.get(&group.pod) else { return ProcessOwner::Gone };
    let name = group.container.as_ref().and_then(|id| pod.containers.get(id));
    ProcessOwner::Container {
        namespace: pod.facts.namespace.clone(),
        pod: pod.facts.name.clone(),
        container: name.cloned().unwrap_or_default(),
        uid: pod.facts.uid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::PodFacts;

    use super::super::group::PodGroup;
    use super::super::{GpuProcess, Unknown};
    use super::*;
    use crate::fixtures::{A, B, simple};
    use crate::pods::ContainerId;

    fn id(digit: &str) -> ContainerId {
        ContainerId::of_status(&format!("containerd://{}", digit.repeat(64))).unwrap()
    }

    fn in_pod(pod: &str, container: Option<&str>) -> Membership {
        Membership::Pod(PodGroup { pod: pod.into(), container: container.map(id) })
    }

    fn process(of: Membership, bytes: Option<u64>, sm_percent: Option<u32>) -> GpuProcess {
        GpuProcess {
            process: nvml::Process { pid: 1, used_bytes: bytes, sm_percent, mps: None },
            of,
        }
    }

    fn on(uuid: &str, processes: Result<Vec<GpuProcess>, Unknown>) -> GpuProcesses {
        let gpu = nvml::Gpu { uuid: uuid.to_owned(), ..nvml::Gpu::default() };
        GpuProcesses { gpu, processes }
    }

    fn pods() -> HashMap<PodUid, NodePod> {
        let containers = Arc::new([(id("a"), "train".to_owned())].into());
        let pod = NodePod { containers, ..NodePod::from(PodFacts::clone(&simple("p", A, 1))) };
        [("p".into(), pod)].into()
    }

    fn container(name: &str) -> ProcessOwner {
        ProcessOwner::Container {
            namespace: "default".to_owned(),
            pod: "p".to_owned(),
            container: name.to_owned(),
            uid: "p".into(),
        }
    }

    /// A process of the container `train`.
    fn of_train(bytes: Option<u64>, sm_percent: Option<u32>) -> GpuProcess {
        process(in_pod("p", Some("a")), bytes, sm_percent)
    }

    fn bytes_of_owners(snapshot: &Snapshot, pods: KnownPods<'_>) -> Vec<(ProcessOwner, u64)> {
        let rows = rows(snapshot, pods).remove(0).1;
        rows.into_iter().map(|(owner, used)| (owner, used.bytes.unwrap())).collect()
    }

    #[test]
    fn processes_of_a_container_are_summed_up_on_each_gpu() {
        let on_a = vec![of_train(Some(5), Some(10)), of_train(Some(7), Some(20))];
        let snapshot = vec![on(A, Ok(on_a)), on(B, Ok(vec![of_train(Some(1), Some(0))]))];
        let rows = rows(&snapshot, Some(&pods()));
        let usage_of_a = Usage { bytes: Some(12), sm_percent: Some(30), processes: 2 };
        assert_eq!(rows[0].1, [(container("train"), usage_of_a)].into());
        let usage_of_b = Usage { bytes: Some(1), sm_percent: Some(0), processes: 1 };
        assert_eq!(rows[1].1, [(container("train"), usage_of_b)].into());
    }

    #[test]
    fn what_is_unknown_of_one_process_is_unknown_of_the_sum() {
        let no_bytes = of_train(None, Some(1));
        let no_percent = of_train(Some(7), None);
        for both in [[&no_bytes, &no_percent], [&no_percent, &no_bytes]] {
            let snapshot = vec![on(A, Ok(both.map(Clone::clone).into()))];
            assert_eq!(
                rows(&snapshot, Some(&pods()))[0].1,
                [(container("train"), Usage { processes: 2, ..Usage::default() })].into()
            );
        }
    }

    #[test]
    fn each_process_belongs_to_one_owner_and_others_than_pods_have_a_row_a_gpu() {
        let all = [
            in_pod("p", Some("a")),
            in_pod("p", Some("b")),
            in_pod("p", None),
            in_pod("gone", Some("a")),
            in_pod("another", None),
            Membership::NoPod,
            Membership::NoPod,
            Membership::Unknown,
        ];
        let all = all.into_iter().map(|of| process(of, Some(1), None));
        let snapshot = vec![on(A, Ok(all.collect()))];
        let listed = [
            (container(""), 2),
            (container("train"), 1),
            (ProcessOwner::Gone, 2),
            (ProcessOwner::Unmanaged, 2),
            (ProcessOwner::Unknown, 1),
        ];
        assert_eq!(bytes_of_owners(&snapshot, Some(&pods())), listed);
        let not_listed = [(ProcessOwner::Unmanaged, 2), (ProcessOwner::Unknown, 6)];
        assert_eq!(bytes_of_owners(&snapshot, None), not_listed);
    }

    #[test]
    fn unknown_processes_give_no_rows_and_none_give_empty_ones() {
        let snapshot = vec![on(A, Err(Unknown::Mig)), on(B, Ok(vec![]))];
        let rows = rows(&snapshot, Some(&pods()));
        assert_eq!((rows.len(), rows[0].0.id().as_str(), rows[0].1.len()), (1, B, 0));
    }
}
