//! The pods that wait for a GPU: when each is due, and how long GPUs are kept for it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Occupants, PodReference};
use dashmap::DashSet;
use placement::gpu::GpuRequest;
use placement::shares::SharedTable;
use placement::units::{GpuId, NodeName, PodUid};
use tokio::time::Instant;

use super::reports::Report;
use crate::tables::Table;
use crate::view::{GpuPodId, View};

/// How long GPUs are kept for a pod: longer than the usual grace period of 30 s of the evicted pods.
pub(super) const KEEP_FOR: Duration = Duration::from_secs(60);

/// How long GPUs are kept at most, while evicted pods are still ending.
const MAX_KEEP: Duration = Duration::from_secs(10 * 60);

/// The longest pause between two rounds for a pod. The first is as long as it has to wait
/// before others are evicted for it.
const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);

/// The age at which a report expires: kube-scheduler retries a pod after 5 minutes at most, so a pod without a newer
/// report no longer lacks only a GPU.
const REPORT_MAX_AGE: Duration = Duration::from_secs(6 * 60);

/// Pods at most that are left out for one waiting pod, since their eviction was refused.
const MAX_LEFT_OUT: usize = 256;

/// A pod that waits for a GPU.
pub(super) struct PodWithoutGpu {
    pub(super) pod: PodReference,
    priority: i32,
    /// The nodes that lack only a GPU, by the last report; empty after a withdrawal.
    pub(super) nodes: Vec<NodeName>,
    /// What its ResourceClaim asks for; `None` for a pod that asks for units.
    pub(super) by_claim: Option<GpuRequest>,
    /// Nodes where no eviction helped in the last rounds.
    pub(super) of_no_use: BTreeSet<NodeName>,
    /// Pods whose eviction was refused.
    pub(super) left_out: BTreeSet<PodUid>,
    /// The GPUs that are kept for it.
    pub(super) kept: Option<KeptGpus>,
    reported: Instant,
    /// Whether it was found among the pods that wait, and not by a report of Filter.
    is_seen_waiting: bool,
    /// The time of its next round.
    due: Instant,
    /// The pause before the round after that.
    pause: Duration,
}

/// GPUs that are kept for a pod.
pub(super) struct KeptGpus {
    node: NodeName,
    gpus: Vec<GpuId>,
    since: Instant,
    /// Whether ending pods held units of them in the last round.
    ending: bool,
}

impl KeptGpus {
    pub(super) fn new(node: NodeName, gpus: Vec<GpuId>) -> Self {
        Self { node, gpus, since: Instant::now(), ending: false }
    }

    /// Whether they stay kept after their time: while pods are ending there, and for one more round.
    pub(super) fn check_stays(&mut self, view: &View) -> bool {
        let ending = view.ask(|index| index.has_ending_pods_on(&self.node, &self.gpus));
        let stay = (ending || self.ending) && self.since.elapsed() < MAX_KEEP;
        self.ending = ending;
        stay
    }
}

impl PodWithoutGpu {
    fn new(report: Report, after: Duration) -> Self {
        let Report { pod, priority, nodes } = report;
        let now = Instant::now();
        Self {
            pod,
            priority,
            nodes,
            by_claim: None,
            of_no_use: BTreeSet::new(),
            left_out: BTreeSet::new(),
            kept: None,
            reported: now,
            is_seen_waiting: false,
            due: now + after,
            pause: after,
        }
    }

    /// Whether it no longer lacks only a GPU, by Filter's reports.
    pub(super) fn is_over(&self) -> bool {
        (self.nodes.is_empty() && !self.is_seen_waiting) || self.reported.elapsed() > REPORT_MAX_AGE
    }

    /// Of due pods, the greatest has the next round.
    fn rank(&self) -> (i32, Reverse<Instant>) {
        (self.priority, Reverse(self.due))
    }

    /// Sets its next round after the pause, and doubles the pause.
    pub(super) fn set_next_round(&mut self) {
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }

    /// Sets its next round to when its kept GPUs expire. The pause doubles as after any other round.
    pub(super) fn set_next_round_after_keeping(&mut self) {
        self.set_next_round();
        self.set_next_round_when_gpus_expire();
    }

    pub(super) fn set_next_round_when_gpus_expire(&mut self) {
        self.due = Instant::now() + KEEP_FOR;
    }

    /// Leaves out a pod whose eviction was refused.
    pub(super) fn leave_out(&mut self, victim: PodUid) {
        if self.left_out.len() >= MAX_LEFT_OUT {
            self.left_out.clear();
        }
        self.left_out.insert(victim);
    }

    /// Whether kube-scheduler keeps off a node on which its claim fits, for what is not known here: it did so at an
    /// earlier round. While pods are ending there, once the pauses are the longest.
    pub(super) fn fits_in_vain(&self, node: &NodeName, occupants: &Occupants) -> bool {
        self.by_claim.is_some()
            && self.of_no_use.contains(node)
            && (occupants.ending.is_empty() || self.pause >= MAX_PAUSE)
    }

    /// Records nodes where no eviction helped. If one of them was recorded before, all nodes have had a round, and the
    /// record starts again.
    pub(super) fn record_no_use(&mut self, nodes: Vec<NodeName>) {
        if nodes.iter().any(|node| self.of_no_use.contains(node)) {
            self.of_no_use.clear();
        }
        self.of_no_use.extend(nodes);
    }
}

/// The pods that wait for a GPU, by UID.
pub(crate) struct PodsWithoutGpu {
    pods: SharedTable<PodUid, PodWithoutGpu>,
    /// Their UIDs, for Filter.
    known: Arc<DashSet<PodUid>>,
}

impl PodsWithoutGpu {
    pub(crate) fn new(known: Arc<DashSet<PodUid>>) -> Self {
        Self { pods: Table::WithoutGpu.empty(), known }
    }

    /// Adds or updates a report. If there are too many pods, it replaces the least important one without kept GPUs of
    /// the namespace that gives way: of its own only a less important one.
    pub(super) fn insert(&mut self, report: Report, after: Duration) {
        let uid = PodUid::from(report.pod.uid.as_str());
        if let Some(known) = self.pods.get_mut(&uid) {
            known.nodes = report.nodes;
            known.priority = report.priority;
            known.reported = Instant::now();
        } else if self.makes_room_for(&report) {
            self.known.insert(uid.clone());
            let namespace = report.pod.namespace.clone();
            self.pods.insert(&namespace, uid, PodWithoutGpu::new(report, after));
        } else {
            self.known.remove(&uid);
        }
    }

    /// Adds or renews a pod that waits, of which Filter has reported nothing: kube-scheduler may not have asked.
    pub(super) fn insert_waiting(&mut self, pod: GpuPodId, priority: i32, after: Duration) {
        let GpuPodId { uid, namespace, name } = pod;
        if self.pods.get(&uid).is_none() {
            let pod = PodReference { namespace, name, uid: uid.to_string() };
            self.insert(Report { pod, priority, nodes: Vec::new() }, after);
        }
        if let Some(known) = self.pods.get_mut(&uid) {
            known.is_seen_waiting = true;
            known.reported = Instant::now();
        }
    }

    fn makes_room_for(&mut self, report: &Report) -> bool {
        let namespace = report.pod.namespace.as_str();
        let Some(loses) = self.pods.gives_way_to(namespace) else { return true };
        let least =
            self.pods.of(loses).filter(|(_, it)| it.kept.is_none()).min_by_key(|(_, it)| it.rank());
        let Some((uid, pod)) = least else { return false };
        if **loses == *namespace && pod.priority >= report.priority {
            return false;
        }
        self.remove(&uid.clone());
        true
    }

    /// Withdraws the report of a pod for which a node has passed. Kept GPUs stay kept for their time.
    pub(super) fn withdraw(&mut self, uid: &PodUid) {
        match self.pods.get_mut(uid) {
            Some(pod) if pod.kept.is_some() => {
                pod.nodes.clear();
                pod.is_seen_waiting = false;
            }
            // Its report may not have been read.
            _ => self.remove(uid),
        }
    }

    /// The time of the next round.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pods.iter().map(|(_, pod)| pod.due).min()
    }

    /// The due pod of the highest priority, of the namespace whose turn it is: a round can take seconds, so pods of one
    /// namespace do not keep those of others from having one.
    pub(super) fn due(&mut self) -> Option<(PodUid, &mut PodWithoutGpu)> {
        let now = Instant::now();
        let first = self.pods.in_turn().find_map(|namespace| {
            let (uid, _) = self
                .pods
                .of(namespace)
                .filter(|(_, it)| it.due <= now)
                .max_by_key(|(_, it)| it.rank())?;
            Some((Arc::clone(namespace), uid.clone()))
        });
        let (namespace, uid) = first?;
        self.pods.had_turn(&namespace);
        self.pods.get_mut(&uid).map(|pod| (uid, pod))
    }

    pub(super) fn remove(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.known.remove(uid);
    }
}

#[cfg(test)]
impl crate::tables::Tabled for PodsWithoutGpu {
    fn add(&mut self, namespace: &str, name: &str) {
        let (namespace, name, uid) = (namespace.to_owned(), name.to_owned(), name.to_owned());
        let pod = PodReference { namespace, name, uid };
        self.insert(Report { pod, priority: 0, nodes: Vec::new() }, Duration::ZERO);
    }

    fn has(&self, name: &str) -> bool {
        self.pods.get(&name.into()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use cluster::Pod;
    use placement::names::Names;
    use serde_json::json;
    use tokio::time::advance;

    use super::*;
    use crate::view::fixtures::{self, gpu};

    const AFTER: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    fn report(uid: &str, priority: i32) -> Report {
        let [namespace, name, uid] = ["ml", uid, uid].map(str::to_owned);
        Report { pod: PodReference { namespace, name, uid }, priority, nodes: vec!["a".into()] }
    }

    /// As many pods as are looked at, of priority 1.
    fn full() -> PodsWithoutGpu {
        let mut pods = PodsWithoutGpu::new(Arc::default());
        for at in 0..Table::WithoutGpu.most() {
            pods.insert(report(&at.to_string(), 1), AFTER);
        }
        pods
    }

    #[tokio::test(start_paused = true)]
    async fn more_important_pods_replace_others_without_gpus_and_are_looked_at_first() {
        let mut pods = full();
        for at in 0..Table::WithoutGpu.most() {
            let pod = pods.pods.get_mut(&at.to_string().into()).unwrap();
            pod.kept = Some(KeptGpus::new("a".into(), Vec::new()));
        }
        pods.insert(report("new", 5), AFTER);
        assert!(!pods.known.contains(&PodUid::from("new")));
        pods.pods.get_mut(&PodUid::from("7")).unwrap().kept = None;
        for (uid, priority, noted) in [("same", 1, false), ("new", 5, true), ("next", 9, true)] {
            pods.insert(report(uid, priority), AFTER);
            assert_eq!(pods.known.contains(&PodUid::from(uid)), noted, "{uid}");
        }
        let most = Table::WithoutGpu.most();
        assert_eq!((pods.pods.len(), pods.known.len()), (most, most));
        assert!(pods.due().is_none());
        advance(AFTER).await;
        assert_eq!(pods.due().unwrap().0, "next".into());
    }

    #[tokio::test(start_paused = true)]
    async fn each_namespace_has_its_turn_and_its_most_important_pod_comes_first() {
        let mut pods = full();
        for (uid, priority) in [("x", 0), ("y", -5), ("z", 0)] {
            let mut report = report(uid, priority);
            report.pod.namespace = "other".to_owned();
            pods.insert(report, AFTER);
        }
        advance(AFTER).await;
        let mut seen = Vec::new();
        for _ in 0..6 {
            let (uid, pod) = pods.due().unwrap();
            pod.set_next_round();
            seen.push((pod.pod.namespace.clone(), pod.priority, uid.to_string()));
        }
        let turns: Vec<&str> = seen.iter().map(|(namespace, ..)| namespace.as_str()).collect();
        assert_eq!(turns, ["ml", "other", "ml", "other", "ml", "other"]);
        assert_eq!((seen[1].1, seen[3].1, seen[5].2.as_str()), (0, 0, "y"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_is_old_or_withdrawn_is_none() {
        let mut pods = full();
        pods.withdraw(&"1".into());
        assert!(pods.pods.get(&"1".into()).is_none());
        let two = PodUid::from("2");
        pods.pods.get_mut(&two).unwrap().kept = Some(KeptGpus::new("a".into(), Vec::new()));
        pods.withdraw(&two);
        let is_over =
            |pods: &PodsWithoutGpu, uid: &str| pods.pods.get(&uid.into()).unwrap().is_over();
        assert!(is_over(&pods, "2"));
        pods.insert(report("2", 1), AFTER);
        advance(REPORT_MAX_AGE).await;
        assert!(!is_over(&pods, "2"));
        pods.insert(report("3", 1), AFTER);
        advance(SECOND).await;
        assert!(is_over(&pods, "2") && !is_over(&pods, "3"));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_shortens_the_pauses_of_a_pod() {
        let mut pods = PodsWithoutGpu::new(Arc::default());
        pods.insert(report("a", 1), AFTER);
        let pod = pods.pods.get_mut(&PodUid::from("a")).unwrap();
        pod.set_next_round();
        pod.set_next_round_after_keeping();
        assert_eq!((pod.due, pod.pause), (Instant::now() + KEEP_FOR, 4 * AFTER));
        (0..9).for_each(|_| pod.set_next_round());
        assert_eq!((pod.due, pod.pause), (Instant::now() + MAX_PAUSE, MAX_PAUSE));
    }

    #[test]
    fn nodes_of_no_use_are_left_out_until_all_were() {
        let mut pod = PodWithoutGpu::new(report("a", 1), AFTER);
        pod.record_no_use(vec!["a".into(), "b".into()]);
        pod.record_no_use(vec!["c".into()]);
        assert_eq!(pod.of_no_use.len(), 3);
        pod.record_no_use(vec!["a".into(), "d".into()]);
        assert_eq!(pod.of_no_use, ["a", "d"].map(NodeName::from).into());
    }

    fn shown(view: &View, deleting: Option<&str>) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "victim", "namespace": "ml", "uid": "victim", "deletionTimestamp": deleting,
                "annotations": {},
            },
            "spec": { "nodeName": "a", "containers": [
                { "name": "c", "resources": { "limits": { "aliyun.com/gpu-mem": "4" } } },
            ] },
            "status": { "startTime": "2026-11-20T08:00:00Z" },
        }))
        .unwrap();
        let facts = pod.facts(&Names::default());
        view.change(|index| index.apply(&facts, facts.gpu_pod().unwrap()));
    }

    fn kept() -> KeptGpus {
        KeptGpus::new("a".into(), vec!["GPU-0".into()])
    }

    #[tokio::test(start_paused = true)]
    async fn gpus_stay_kept_while_pods_are_ending_there_and_once_more_but_not_for_ever() {
        let view = fixtures::view();
        fixtures::join(&view, "a", vec![gpu()]);
        shown(&view, None);
        assert!(!kept().check_stays(&view));
        shown(&view, Some("2026-11-20T09:00:00Z"));
        let mut ends = kept();
        assert!(
            ends.check_stays(&view) && !KeptGpus::new("a".into(), Vec::new()).check_stays(&view)
        );
        let mut lasts = kept();
        advance(MAX_KEEP - SECOND).await;
        assert!(lasts.check_stays(&view));
        advance(SECOND).await;
        assert!(!lasts.check_stays(&view));
        let mut ends = KeptGpus { ending: ends.ending, ..kept() };
        view.change(|index| index.forget(&"victim".into()));
        assert!(ends.check_stays(&view));
        assert!(!ends.check_stays(&view));
    }
}
