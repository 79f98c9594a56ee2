//! The last decision about each of the last thousand pods.
//!
//! Invariants: a pod has one record, its newest; records are bounded by number and by the memory that they hold
//! together, and the oldest are removed first. Removed records are freed after the lock is released.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::decisions::Decided;
use jiff::{SignedDuration, Timestamp};
use placement::names::limits;
use placement::units::PodUid;

use super::held::HeldBytes;
use super::kept::KeptDecision;
use super::{DecidedPod, Decision};

/// Pods at most.
pub const MAX_PODS: usize = 1_000;

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

#[derive(Debug, Default)]
struct Records {
    by_pod: HashMap<PodUid, Record>,
    /// The pods by the number of their record, oldest first.
    order: BTreeMap<u64, PodUid>,
    next: u64,
    held: HeldBytes,
}

#[derive(Debug)]
struct Record {
    number: u64,
    decision: Arc<KeptDecision>,
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
        records.insert(Arc::new(kept), &mut removed);
        records.remove_down_to(MAX_BYTES, &mut removed);
        drop(records);
        drop(removed);
    }

    /// Whether the pod has a record of its current scheduling attempt at `now`.
    pub fn has_current(&self, pod: &PodUid, now: Timestamp) -> bool {
        let records = self.records();
        let age = records.by_pod.get(pod).map(|record| now.duration_since(record.decision.time()));
        age.is_some_and(|age| !age.is_negative() && age < SAME_ATTEMPT)
    }

    /// Sets the node of a pod. Does nothing for a pod without a record.
    pub fn set_node(&self, pod: &PodUid, node: &str) {
        if let Some(record) = self.records().by_pod.get(pod) {
            record.decision.pod().set_node(node);
        }
    }

    /// Notes that a pod was deleted. Does nothing for a pod without a record.
    pub fn set_gone(&self, pod: &PodUid) {
        if let Some(record) = self.records().by_pod.get(pod) {
            record.decision.pod().set_gone();
        }
    }

    /// Decisions in short, the newest first. Each is computed when it is first asked for, without the lock.
    pub fn summaries(&self, which: Which) -> Vec<Decided> {
        let decisions = self.newest(which);
        decisions.iter().map(|decision| decision.summary().clone()).collect()
    }

    fn newest(&self, which: Which) -> Vec<Arc<KeptDecision>> {
        let records = self.records();
        let newest = records.order.values().rev().filter_map(|pod| records.by_pod.get(pod));
        let newest = newest.map(|record| &record.decision);
        match which {
            Which::Newest(most) => newest.take(most).cloned().collect(),
            Which::Waiting(now) => newest
                .filter(|decision| {
                    let age = now.duration_since(decision.time()).abs();
                    decision.pod().waits() && age < WAITS_FOR
                })
                .cloned()
                .collect(),
        }
    }

    /// The last decision about the pod of this name; of several such pods, about the newest.
    pub fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Decision> {
        let records = self.records();
        let of_name = records.by_pod.values().filter(|record| {
            let pod = record.decision.pod();
            let is_meant = uid.is_none_or(|uid| *pod.uid.as_str() == *uid);
            pod.name == name && pod.namespace == namespace && is_meant
        });
        let newest = of_name.max_by_key(|record| record.number);
        let decision = newest.map(|record| Arc::clone(&record.decision));
        drop(records);
        decision.map(|decision| decision.restored())
    }

    /// The size of the log.
    pub fn size(&self) -> LogSize {
        let records = self.records();
        LogSize { pods: records.order.len(), bytes: records.held.bytes() }
    }

    // Every change is complete when the lock is released, except after a panic of the allocator.
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    fn insert(&mut self, decision: Arc<KeptDecision>, removed: &mut Vec<Record>) {
        let (number, pod) = (self.next, decision.pod().uid.clone());
        self.next += 1;
        self.held.add(&decision);
        self.order.insert(number, pod.clone());
        if let Some(last) = self.by_pod.insert(pod, Record { number, decision }) {
            self.order.remove(&last.number);
            self.held.remove(&last.decision);
            removed.push(last);
        }
    }

    /// Removes the oldest until those that are left are few enough and hold at most `bytes`. The newest stays.
    fn remove_down_to(&mut self, bytes: usize, removed: &mut Vec<Record>) {
        while self.order.len() > MAX_PODS || self.order.len() > 1 && self.held.bytes() > bytes {
            self.remove_oldest(removed);
        }
    }

    fn remove_oldest(&mut self, removed: &mut Vec<Record>) {
        let oldest = self.order.pop_first().and_then(|(_, pod)| self.by_pod.remove(&pod));
        if let Some(oldest) = oldest {
            self.held.remove(&oldest.decision);
            removed.push(oldest);
        }
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
    use std::sync::LazyLock;

    use cluster::Pod;
    use placement::gpu::Card;
    use serde_json::json;

    use super::super::kept::UNKNOWN_NAME;
    use super::*;
    use crate::node_request::CandidateNodes;
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
        assert!(!log.records().by_pod.contains_key("u9"));
        assert!(log.records().by_pod.contains_key("u10"));
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
        assert!(log.records().by_pod.contains_key("u14"));
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
        assert!(log.records().by_pod.contains_key("u0"));
        assert!(!log.records().by_pod.contains_key("u1"));
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
            fixtures::join(&view, node, vec![fixtures::card()]);
        }
        let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let mut last: HashMap<String, Arc<Decision>> = HashMap::new();
        for step in 0..600_usize {
            // One node changes, and each tenth time another leaves and joins again.
            let card = Card { healthy: step % 2 == 0, ..fixtures::card() };
            fixtures::join(&view, &nodes[step * 37 % 200], vec![card]);
            if step % 10 == 0 {
                fixtures::leave(&view, &nodes[step % 200]);
                fixtures::join(&view, &nodes[step % 200], vec![fixtures::card()]);
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
        (0..20).for_each(|_| records.remove_oldest(&mut removed));
        assert_eq!(records.held.bytes(), 0);
    }

    #[test]
    fn the_newest_record_stays_in_a_cluster_that_takes_more_than_the_bound_by_itself() {
        let (log, view) = (DecisionLog::default(), fixtures::view());
        for step in 0..3_u8 {
            let card = Card { healthy: step % 2 == 0, ..fixtures::card() };
            fixtures::list(&view, &["a".to_owned(), "b".to_owned()], &card);
            log.record(&decision_by(&view.read(), &uid(step.into()), step.into(), &["a"]));
        }
        let (mut records, mut removed) = (log.records(), Vec::new());
        records.remove_down_to(1, &mut removed);
        assert_eq!((records.order.len(), removed.len()), (1, 2));
        assert!(records.by_pod.contains_key("u2"));
    }

    #[test]
    fn the_bound_holds_where_every_decision_sees_other_nodes() {
        let (log, view) = (DecisionLog::default(), fixtures::view());
        let nodes: Vec<String> = (0..640).map(|number| format!("n{number}")).collect();
        for step in 0..300_i64 {
            let card = Card { healthy: step % 2 == 0, ..fixtures::card() };
            fixtures::list(&view, &nodes, &card);
            log.record(&decision_by(&view.read(), &uid(step), step, &[]));
            assert!(log.size().bytes <= MAX_BYTES);
        }
        // 640 nodes take more than 600 bytes each, so the decisions of before were dropped.
        assert!((100..250).contains(&log.size().pods), "{:?}", log.size());
    }
}
