//! The last decision about each of the last thousand pods.
//!
//! Invariants: a pod has one record, its newest; records are bounded by number and by the memory that they hold
//! together, in which each namespace has a share, and the oldest of a namespace are removed first. Removed records are
//! freed after the lock is released.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::decisions::Decided;
use jiff::{SignedDuration, Timestamp};
use placement::names::limits;
use placement::shares::SharedTable;
use placement::units::PodUid;

use super::held::HeldBytes;
use super::kept::KeptDecision;
use super::{DecidedPod, Decision};
use crate::tables::Table;

/// Pods at most.
pub const MAX_PODS: usize = Table::Decisions.most();

/// Bytes that all records together hold at most, with what the view holds too at the moment. Only the newest record may
/// hold more: in a cluster that takes so much by itself, the log has that record alone. A record takes a bit for each
/// node of the cluster, and for each that changed since the previous record a kilobyte and its share of the list of
/// nodes. With 5,000 nodes, each with new readings every 3 minutes, this suffices for the last thousand
/// pods at 60 placed pods a minute.
pub const MAX_BYTES: usize = 72 << 20;

/// The age up to which a record belongs to the current scheduling attempt: from Filter to Prioritize.
const SAME_ATTEMPT: SignedDuration = SignedDuration::from_secs(1);

/// How long after kube-scheduler's last request a pod counts as waiting. It tries each waiting pod again every 5
/// minutes at least.
const WAITS_FOR: SignedDuration = SignedDuration::from_mins(11);

/// Which decisions to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The newest, at most this number.
    Newest(usize),
    /// Those about pods that wait at this time.
    Waiting(Timestamp),
}

/// The last decision about each of the last pods.
#[derive(Debug, Default)]
pub struct DecisionLog(Mutex<Records>);

#[derive(Debug)]
struct Records {
    table: SharedTable<PodUid, Arc<KeptDecision>>,
    held: HeldBytes,
}

impl Default for Records {
    fn default() -> Self {
        Self { table: Table::Decisions.empty(), held: HeldBytes::default() }
    }
}

/// The size of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSize {
    /// Pods.
    pub pods: usize,
    /// Bytes that all records together hold.
    pub bytes: usize,
}

impl DecisionLog {
    /// Adds a decision, and removes the pod's previous one. Ignores pods without valid names.
    pub fn record(&self, decision: &Decision) {
        if !is_named(&decision.pod) {
            return;
        }
        let kept = KeptDecision::new(decision);
        if kept.own_bytes() > MAX_BYTES {
            return;
        }
        let mut removed = Vec::new();
        let mut records = self.records();
        records.insert(Arc::new(kept), MAX_BYTES, &mut removed);
        drop(records);
        drop(removed);
    }

    /// Whether the pod has a record of its current scheduling attempt at `now`.
    pub fn has_current(&self, pod: &PodUid, now: Timestamp) -> bool {
        let records = self.records();
        let age = records.table.get(pod).map(|decision| now.duration_since(decision.time()));
        age.is_some_and(|age| !age.is_negative() && age < SAME_ATTEMPT)
    }

    /// Sets the node of a pod. Does nothing for a pod without a record.
    pub fn set_node(&self, pod: &PodUid, node: &str) {
        if let Some(decision) = self.records().table.get(pod) {
            decision.pod().set_node(node);
        }
    }

    /// Notes that a pod was deleted. Does nothing for a pod without a record.
    pub fn set_gone(&self, pod: &PodUid) {
        if let Some(decision) = self.records().table.get(pod) {
            decision.pod().set_gone();
        }
    }

    /// Decisions in short, the newest first. Each is computed when it is first asked for, without the lock.
    pub fn summaries(&self, which: Which) -> Vec<Decided> {
        let decisions = self.newest(which);
        decisions.iter().map(|decision| decision.summary().clone()).collect()
    }

    fn newest(&self, which: Which) -> Vec<Arc<KeptDecision>> {
        let records = self.records();
        let mut newest = Vec::new();
        for (_, decision) in records.table.iter().rev() {
            let is_asked_for = match which {
                Which::Newest(most) if newest.len() == most => break,
                Which::Newest(_) => true,
                Which::Waiting(now) => {
                    let age = now.duration_since(decision.time()).abs();
                    decision.pod().waits() && age < WAITS_FOR
                }
            };
            if is_asked_for {
                newest.push(Arc::clone(decision));
            }
        }
        newest
    }

    /// The last decision about the pod of this name; of several such pods, about the newest.
    pub fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Decision> {
        let records = self.records();
        let newest = records.table.of(namespace).rfind(|(of, decision)| {
            decision.pod().name == name && uid.is_none_or(|uid| of.as_str() == uid)
        });
        let decision = newest.map(|(_, decision)| Arc::clone(decision));
        drop(records);
        decision.map(|decision| decision.restored())
    }

    /// The size of the log.
    pub fn size(&self) -> LogSize {
        let records = self.records();
        LogSize { pods: records.table.len(), bytes: records.held.bytes() }
    }

    // Every change is complete when the lock is released, except after a panic of the allocator.
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    /// Adds a record, in place of the pod's previous one. All of them hold at most `bytes` then, unless the new one
    /// alone holds more.
    fn insert(
        &mut self,
        decision: Arc<KeptDecision>,
        bytes: usize,
        removed: &mut Vec<Arc<KeptDecision>>,
    ) {
        let (namespace, uid) = (decision.pod().namespace.clone(), decision.pod().uid.clone());
        let last = self.table.remove(&uid);
        self.held.add(&decision);
        last.into_iter().for_each(|last| self.forget(last, removed));
        while self.held.bytes() > bytes
            && let Some((_, lost)) = self.table.make_room_for(&namespace)
        {
            self.forget(lost, removed);
        }
        if let Some((_, lost)) = self.table.insert(&namespace, uid, decision) {
            self.forget(lost, removed);
        }
    }

    fn forget(&mut self, decision: Arc<KeptDecision>, removed: &mut Vec<Arc<KeptDecision>>) {
        self.held.remove(&decision);
        removed.push(decision);
    }
}

#[cfg(test)]
impl crate::tables::Tabled for DecisionLog {
    fn add(&mut self, namespace: &str, name: &str) {
        self.record(&tests::decision_about(namespace, name));
    }

    fn has(&self, name: &str) -> bool {
        self.records().table.get(&name.into()).is_some()
    }
}

fn is_named(pod: &DecidedPod) -> bool {
    is_within(&pod.namespace, limits::LABEL)
        && is_within(&pod.name, limits::NAME)
        && is_within(pod.uid.as_str(), limits::UID)
        && pod.priority_class.len() <= limits::NAME
}

/// Whether the text is not empty, and not longer than the limit.
fn is_within(text: &str, limit: usize) -> bool {
    (1..=limit).contains(&text.len())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::LazyLock;

    use cluster::Pod;
    use placement::gpu::Gpu;
    use serde_json::json;

    use super::super::kept::UNKNOWN_NAME;
    use super::*;
    use crate::node_request::CandidateNodes;
    use crate::tables::Tabled;
    use crate::view::{PodEstimates, Snapshot, fixtures};

    /// What a decision holds for a node of a short name that is not known.
    const NODE: usize = UNKNOWN_NAME + 1;
    /// What it holds between no nodes.
    const DECISION: usize = size_of::<KeptDecision>();

    fn decision(uid: &str, number: i64, nodes: usize) -> Arc<Decision> {
        decision_of(uid, number, "n", nodes)
    }

    /// A decision about pod `number` at second `number`, between `nodes` nodes that are not known.
    fn decision_of(uid: &str, number: i64, name: &str, nodes: usize) -> Arc<Decision> {
        decision_by(&snapshot(), uid, number, &vec![name; nodes])
    }

    fn decision_by(
        snapshot: &Arc<Snapshot>,
        uid: &str,
        number: i64,
        names: &[&str],
    ) -> Arc<Decision> {
        let meta = json!({ "namespace": "a", "name": format!("p{}", number % 2), "uid": uid });
        let pod: Pod = serde_json::from_value(json!({ "metadata": meta })).unwrap();
        let time = Timestamp::from_second(number).unwrap();
        let pod = DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO);
        let nodes = CandidateNodes::new(snapshot.names(), names.iter().copied());
        Arc::new(Decision::new(Arc::clone(snapshot), pod, None, nodes, time))
    }

    /// A decision about a pod whose name is its UID.
    pub(super) fn decision_about(namespace: &str, name: &str) -> Decision {
        let meta = json!({ "namespace": namespace, "name": name, "uid": name });
        let pod: Pod = serde_json::from_value(json!({ "metadata": meta })).unwrap();
        let pod = DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO);
        let nodes = CandidateNodes::new(snapshot().names(), []);
        Decision::new(snapshot(), pod, None, nodes, Timestamp::UNIX_EPOCH)
    }

    /// A cluster without nodes.
    fn snapshot() -> Arc<Snapshot> {
        static EMPTY: LazyLock<Arc<Snapshot>> = LazyLock::new(|| fixtures::view().read());
        Arc::clone(&EMPTY)
    }

    /// What a snapshot without nodes takes.
    fn empty() -> usize {
        size_of::<Snapshot>() + snapshot().names().bytes()
    }

    fn uid(number: i64) -> String {
        format!("u{number}")
    }

    #[test]
    fn the_oldest_of_more_than_a_thousand_pods_go() {
        let log = DecisionLog::default();
        (0..1_010).for_each(|number| log.record(&decision(&uid(number), number, 1)));
        assert_eq!(
            log.size(),
            LogSize { pods: MAX_PODS, bytes: empty() + MAX_PODS * (DECISION + NODE) }
        );
        assert!(!log.has("u9"));
        assert!(log.has("u10"));
    }

    #[test]
    fn the_oldest_go_where_records_name_many_nodes() {
        let log = DecisionLog::default();
        let tenth = (MAX_BYTES - empty() - 10 * DECISION) / NODE / 10;
        (0..15).for_each(|number| log.record(&decision(&uid(number), number, tenth)));
        assert_eq!(
            log.size(),
            LogSize { pods: 10, bytes: empty() + 10 * (DECISION + tenth * NODE) }
        );
        assert!(log.has("u14"));
        log.record(&decision("too-many", 31, 11 * tenth));
        assert_eq!(log.size().pods, 10);
    }

    #[test]
    fn a_pod_that_is_decided_again_has_one_record_and_is_the_newest() {
        let log = DecisionLog::default();
        (0..MAX_PODS).for_each(|n| log.record(&decision(&uid(n as i64), n as i64, 2)));
        log.record(&decision("u0", 5_000, 3));
        assert_eq!(
            log.size(),
            LogSize {
                pods: MAX_PODS,
                bytes: empty() + MAX_PODS * DECISION + (2 * MAX_PODS + 1) * NODE,
            }
        );
        log.record(&decision("new", 5_001, 2));
        assert!(log.has("u0"));
        assert!(!log.has("u1"));
    }

    #[test]
    fn of_two_pods_of_a_name_the_newer_is_found() {
        let log = DecisionLog::default();
        [0, 2, 1].into_iter().for_each(|number| log.record(&decision(&uid(number), number, 1)));
        assert_eq!(log.find("a", "p0", None).unwrap().pod.uid, "u2".into());
        assert!(log.find("b", "p0", None).is_none());
        let of_uid = |uid| log.find("a", "p0", Some(uid)).map(|found| found.pod.uid.to_string());
        assert_eq!((of_uid("u0").as_deref(), of_uid("u1")), (Some("u0"), None));
    }

    #[test]
    fn a_decision_is_being_made_for_a_second() {
        let log = DecisionLog::default();
        log.record(&decision("u", 10, 1));
        let is = |uid: &str, milliseconds| {
            log.has_current(&uid.into(), Timestamp::from_millisecond(milliseconds).unwrap())
        };
        assert!(is("u", 10_000) && is("u", 10_999));
        assert!(!is("u", 11_000) && !is("u", 9_999) && !is("other", 10_000));
    }

    #[test]
    fn names_that_no_pod_has_take_no_memory() {
        let log = DecisionLog::default();
        log.record(&decision(&"u".repeat(64), 0, 1));
        log.record(&decision("", 0, 1));
        assert_eq!(log.size().pods, 0);
    }

    #[test]
    fn a_pods_node_stays_as_it_was_first_known() {
        let log = DecisionLog::default();
        log.record(&decision("u0", 0, 1));
        log.set_node(&"u0".into(), "node-a");
        log.set_node(&"u0".into(), "node-b");
        log.set_node(&"other".into(), "node-b");
        assert_eq!(log.find("a", "p0", None).unwrap().pod.node(), Some(&"node-a".into()));
    }

    #[test]
    fn names_of_unknown_nodes_count_by_their_length() {
        let log = DecisionLog::default();
        log.record(&decision_of("u0", 0, &"n".repeat(6_400), 1));
        assert_eq!(log.size().bytes, empty() + DECISION + NODE + 6_399);
    }

    /// The bytes of everything that these decisions hold, each value once.
    fn bytes_of(decisions: &[Arc<Decision>]) -> usize {
        let mut held = HeldBytes::default();
        decisions.iter().for_each(|decision| held.add(&KeptDecision::new(decision)));
        held.bytes()
    }

    /// Nodes change with each step, and pods are decided about again: what is counted is what a count from the start
    /// finds.
    #[test]
    fn what_is_counted_is_what_is_held_however_often_pods_are_decided_about_while_nodes_change() {
        let (log, view) = (DecisionLog::default(), fixtures::view());
        let nodes: Vec<String> = (0..200).map(|number| format!("n{number}")).collect();
        for node in &nodes {
            fixtures::join(&view, node, vec![fixtures::gpu()]);
        }
        let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let mut last: HashMap<String, Arc<Decision>> = HashMap::new();
        for step in 0..600_usize {
            // One node changes, and each tenth time another leaves and joins again.
            let gpu = Gpu { healthy: step % 2 == 0, ..fixtures::gpu() };
            fixtures::join(&view, &nodes[step * 37 % 200], vec![gpu]);
            if step % 10 == 0 {
                fixtures::leave(&view, &nodes[step % 200]);
                fixtures::join(&view, &nodes[step % 200], vec![fixtures::gpu()]);
            }
            let uid = format!("u{}", step * 7 % 20);
            let decision = decision_by(&view.read(), &uid, step as i64, &names[..step % 50]);
            log.record(&decision);
            last.insert(uid, decision);
            let kept: Vec<_> = last.values().cloned().collect();
            assert_eq!(log.size(), LogSize { pods: kept.len(), bytes: bytes_of(&kept) });
        }
        // Everything is freed with the last decision.
        let mut records = log.records();
        let mut removed = Vec::new();
        for (_, decision) in records.table.take_all() {
            records.forget(decision, &mut removed);
        }
        assert_eq!(records.held.bytes(), 0);
    }

    #[test]
    fn the_newest_record_stays_in_a_cluster_that_takes_more_than_the_bound_by_itself() {
        let (log, view) = (DecisionLog::default(), fixtures::view());
        for step in 0..3_u8 {
            let gpu = Gpu { healthy: step % 2 == 0, ..fixtures::gpu() };
            fixtures::list(&view, &["a".to_owned(), "b".to_owned()], &gpu);
            log.record(&decision_by(&view.read(), &uid(step.into()), step.into(), &["a"]));
        }
        let (mut records, mut removed) = (log.records(), Vec::new());
        let newest = decision_by(&view.read(), "u3", 3, &["a"]);
        records.insert(Arc::new(KeptDecision::new(&newest)), 1, &mut removed);
        assert_eq!((records.table.len(), removed.len()), (1, 3));
        assert!(records.table.get(&"u3".into()).is_some());
    }

    #[test]
    fn the_bound_holds_where_every_decision_sees_other_nodes() {
        let (log, view) = (DecisionLog::default(), fixtures::view());
        let nodes: Vec<String> = (0..640).map(|number| format!("n{number}")).collect();
        for step in 0..300_i64 {
            let gpu = Gpu { healthy: step % 2 == 0, ..fixtures::gpu() };
            fixtures::list(&view, &nodes, &gpu);
            log.record(&decision_by(&view.read(), &uid(step), step, &[]));
            assert!(log.size().bytes <= MAX_BYTES);
        }
        // 640 nodes take more than 600 bytes each, so the decisions of before were dropped.
        assert!((100..250).contains(&log.size().pods), "{:?}", log.size());
    }
}
