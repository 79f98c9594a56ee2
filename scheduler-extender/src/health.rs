//! What the extender says of its health: whether it leads, is asked, and knows the cluster.
//!
//! Pure but for [`publish`]: from what other modules know to a [`Status`] with what to do. Looked at before each answer
//! and each scrape.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use daemon::tls::TlsMetrics;
use daemon::{Context, Status, few};
use jiff::Timestamp;
use placement::gpu::Closed;
use placement::load::{Evaluation, PodToPlace, ReadingStatus};

use crate::replicas::Replicas;
use crate::view::{Index, Snapshot, View};

/// How long ago a call was at most that tells of the present, in seconds.
const PRESENT: i64 = 600;
/// How long a call with whole nodes counts although others have names: of several schedulers one may be wrong, in
/// seconds.
const BESIDE_OTHERS: i64 = 60;
/// A process that runs for so long has been asked, in a cluster in which anything is scheduled, in seconds.
const ASKED_WITHIN: i64 = 600;
/// The calls of kube-scheduler: its verbs alone, no reports.
#[derive(Debug)]
pub(crate) struct Calls {
    /// When the process started, in Unix time, as the others.
    started: i64,
    all: AtomicU64,
    filter: AtomicU64,
    failed_filter: AtomicU64,
    /// 0 before the first.
    last: AtomicI64,
    /// The last of Filter that did not fail; 0 before the first.
    last_good: AtomicI64,
    /// The last that had whole nodes in place of names; 0 before the first.
    whole_nodes: AtomicI64,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            started: Timestamp::now().as_second(),
            all: AtomicU64::default(),
            filter: AtomicU64::default(),
            failed_filter: AtomicU64::default(),
            last: AtomicI64::default(),
            last_good: AtomicI64::default(),
            whole_nodes: AtomicI64::default(),
        }
    }
}

impl Calls {
    /// Counts a call of this path, as `load-aware/filter`.
    pub(crate) fn count(&self, path: &str, outcome: &str) {
        if !path.starts_with("load-aware/") && !path.starts_with("gpushare-scheduler/") {
            return;
        }
        self.all.fetch_add(1, Ordering::Relaxed);
        let now = Timestamp::now().as_second();
        self.last.store(now, Ordering::Relaxed);
        if path.ends_with("/filter") {
            self.filter.fetch_add(1, Ordering::Relaxed);
            if outcome == "error" {
                self.failed_filter.fetch_add(1, Ordering::Relaxed);
            } else {
                self.last_good.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Notes that a call had whole nodes.
    pub(crate) fn note_whole_nodes(&self) {
        self.whole_nodes.store(Timestamp::now().as_second(), Ordering::Relaxed);
    }

    fn status(&self, failed_handshakes: u64, now: i64) -> Status {
        let [all, filter, failed] = [&self.all, &self.filter, &self.failed_filter]
            .map(|count| count.load(Ordering::Relaxed));
        let [last, good, whole] =
            [&self.last, &self.last_good, &self.whole_nodes].map(|at| at.load(Ordering::Relaxed));
        let counts = if good > whole { BESIDE_OTHERS } else { PRESENT };
        if whole > 0 && now.saturating_sub(whole) < counts {
            return Status::failed(
                "kube-scheduler sends whole nodes: nodeCacheCapable is false",
                "set nodeCacheCapable: true in each extender's entry, or write the configuration anew: kubectl plimsoll \
                 scheduler-config",
            );
        }
        if filter > 0 && failed >= filter {
            return Status::failed(
                format!("all {filter} calls of Filter failed"),
                "see kube-scheduler's log for the extender's answer; is nodeCacheCapable true in each extender's entry?",
            );
        }
        if all > 0 {
            let ago = now.saturating_sub(last).max(0);
            return Status::ok(format!(
                "{all} calls answered since the start, the last {ago} s ago"
            ));
        }
        if failed_handshakes > 0 {
            return Status::failed(
                format!("no call was answered, and {failed_handshakes} TLS handshakes failed"),
                "run `plimsoll scheduler enable` on each control-plane node: it has another certificate than the \
                 extender",
            );
        }
        let runs = now.saturating_sub(self.started);
        if runs <= ASKED_WITHIN {
            return Status::warning(
                "no kube-scheduler has called the extender yet, which has just started",
                "create a pod, and look again",
            );
        }
        Status::unknown(
            format!("no kube-scheduler has called the extender in its {} min", runs / 60),
            "create a pod, and look again; see the check `kube-scheduler`",
        )
    }
}

/// Publishes what is known.
pub(crate) fn publish(
    context: &Context,
    calls: &Arc<Calls>,
    tls: &TlsMetrics,
    view: &Arc<View>,
    replicas: &Arc<Replicas>,
) {
    let health = context.health();
    let (calls, tls, lease) = (Arc::clone(calls), tls.clone(), Arc::clone(replicas));
    health.look("requests", move || {
        calls.status(tls.failed_handshakes(), Timestamp::now().as_second())
    });
    let of_view = Arc::clone(view);
    health.look("leader", move || {
        leader(&lease.described(of_view.is_complete()), lease.lost_leader().as_deref())
    });
    let by_view: [(&str, Look); 7] = [
        ("cards", gpus),
        ("cdi", cdi),
        ("ledger", ledger),
        ("other-plugins", dra),
        ("policy-warnings", policy_warnings),
        ("readings", readings),
        ("refused-objects", refused_objects),
    ];
    for (id, look) in by_view {
        let view = Arc::clone(view);
        health.look(id, move || look(&view, Timestamp::now()));
    }
}

/// Judges one condition by the view.
type Look = fn(&View, Timestamp) -> Status;

fn leader(replica: &api::state::Replica, lost: Option<&str>) -> Status {
    const TODO: &str = "does the API server answer in time (docs/operations.md#a-slow-api-server)? See the check `rights` too";
    match (&replica.leader, lost) {
        _ if replica.leads => Status::ok("leads"),
        (_, Some(lost)) => {
            Status::failed(format!("no replica leads: {lost} did not renew its Lease"), TODO)
        }
        (Some(leader), None) => Status::ok(format!("stands by for {leader}")),
        (None, None) => Status::failed("no replica leads, so GPU pods wait", TODO),
    }
}

fn ledger(view: &View, _: Timestamp) -> Status {
    match view.read().totals().overbooked {
        0 => Status::ok("no GPU holds more units than it has"),
        overbooked => Status::failed(
            format!("pods hold {overbooked} units more than their GPUs have"),
            "look for pods that were not bound by the extender: kubectl plimsoll gpus",
        ),
    }
}

/// Why nothing is said of nodes: not all are known.
fn not_known(view: &View, snapshot: &Snapshot) -> Option<Status> {
    if !view.is_complete() {
        return Some(Status::unknown(
            "not all nodes and pods are listed yet",
            "look again in a minute; if it stays, see the check `rights`",
        ));
    }
    snapshot
        .names()
        .is_empty()
        .then(|| Status::unknown("no node is known", "see the check `rights`"))
}

fn gpus(view: &View, now: Timestamp) -> Status {
    let snapshot = view.read();
    if let Some(not_known) = not_known(view, &snapshot) {
        return not_known;
    }
    let totals = snapshot.totals();
    let (all, unhealthy) = (totals.gpus, totals.unhealthy);
    let closed = closed_nodes(&snapshot, |_| true);
    let mut backed_off: Vec<String> = Vec::new();
    for (node, back_off) in snapshot.back_offs.iter() {
        if back_off.is_on(now) {
            backed_off.push(node.to_string());
        }
    }
    if !backed_off.is_empty() {
        return Status::failed(
            format!(
                "nodes take no GPU pods for a while, since their kubelets refused several: {}",
                few(&backed_off)
            ),
            "the events of the refused pods say why: kubectl plimsoll events",
        );
    }
    if !closed.is_empty() {
        return Status::warning(
            format!("nodes have healthy GPUs that take no new pods: {}", few(&closed)),
            "kubectl plimsoll gpus shows which, and why; the device plugins of these nodes say what to do",
        );
    }
    if unhealthy > 0 {
        return Status::warning(
            format!("{unhealthy} GPUs unhealthy of {all}"),
            "kubectl plimsoll gpus shows which; their nodes' events say why (docs/troubleshoot.md#a-gpu-node)",
        );
    }
    Status::ok(format!("{all} healthy"))
}

/// The nodes with healthy GPUs that are closed for one of these reasons.
fn closed_nodes(snapshot: &Snapshot, is_asked: fn(Closed) -> bool) -> Vec<String> {
    let mut nodes = Vec::new();
    for (node, gpus) in snapshot.nodes_with_gpus() {
        let mut gpus = gpus.accounts().iter().map(|account| &account.gpu);
        if gpus.any(|gpu| gpu.healthy && gpu.closed.is_some_and(is_asked)) {
            nodes.push(node.to_string());
        }
    }
    nodes
}

fn cdi(view: &View, _: Timestamp) -> Status {
    let is_cdi = |why| matches!(why, Closed::Cdi | Closed::CdiFolder);
    match closed_nodes(&view.read(), is_cdi).as_slice() {
        [] => Status::ok("no GPU is closed for want of CDI"),
        nodes => Status::failed(
            format!(
                "a CDI specification is missing or stale, so that GPUs take no pods: {}",
                few(nodes)
            ),
            "the events of these nodes and their device plugins say what is wrong (docs/troubleshoot.md#a-gpu-node)",
        ),
    }
}

fn dra(view: &View, _: Timestamp) -> Status {
    match closed_nodes(&view.read(), |why| why == Closed::Dra).as_slice() {
        [] => Status::ok("no DRA driver offers the same GPUs"),
        nodes => Status::failed(
            format!("a DRA driver offers the same GPUs, which take no new pods: {}", few(nodes)),
            "disable the driver's GPUs there (NVIDIA's: resources.gpus.enabled=false), or label these nodes \
             gpushare=false (docs/gpu.md#beside-a-dra-driver)",
        ),
    }
}

fn policy_warnings(view: &View, _: Timestamp) -> Status {
    let snapshot = view.read();
    match snapshot.policy.policy.warnings_of_any_source().first() {
        None => Status::ok("no warning"),
        Some(first) => Status::warning(
            format!("parts of the policy are probably not meant: {first}"),
            "kubectl plimsoll policy show | kubectl plimsoll policy check -",
        ),
    }
}

fn readings(view: &View, now: Timestamp) -> Status {
    let snapshot = view.read();
    if let Some(not_known) = not_known(view, &snapshot) {
        return not_known;
    }
    let is_missing =
        |reading: ReadingStatus| reading.fresh().is_none() && reading != ReadingStatus::NotFetched;
    let mut all = 0;
    let mut without = Vec::new();
    for (name, node) in snapshot.loads() {
        let of_node = Evaluation { policy: &snapshot.policy, node, pod: PodToPlace::ORDINARY, now };
        all += 1;
        if of_node.terms().any(|term| is_missing(term.load.reading))
            || of_node.limits().any(|check| is_missing(check.load.reading))
        {
            without.push(name.to_string());
        }
    }
    let refused = view.ask(Index::refused_readings);
    let ahead = refused.iter().find(|(cause, _)| *cause == "ahead").map_or(0, |(_, count)| *count);
    readings_status(all, &without, ahead)
}

/// `ahead`: readings of the future since the start.
fn readings_status(all: usize, without: &[String], ahead: u64) -> Status {
    const CLOCKS: &str =
        "look at the clock of the annotator's node, and at its --time-zone and the extender's";
    match (without, ahead) {
        ([], 0) => Status::ok(format!("{all} nodes fresh")),
        ([], ahead) => Status::warning(
            format!(
                "since the start {ahead} readings were of the future and did not count; those of now are not"
            ),
            CLOCKS,
        ),
        (without, 0) => Status::warning(
            format!(
                "{} of {all} nodes lack a fresh reading of a metric of the policy: {}",
                without.len(),
                few(without)
            ),
            "after an install they come within minutes (docs/operations.md#after-a-first-install); else kubectl plimsoll \
             top nodes -o wide, and docs/troubleshoot.md#readings",
        ),
        (without, ahead) => Status::failed(
            format!(
                "{ahead} readings were of the future and do not count; nodes without a fresh one: {}",
                few(without)
            ),
            CLOCKS,
        ),
    }
}

fn refused_objects(view: &View, _: Timestamp) -> Status {
    match view.ask(Index::refused_objects) {
        0 => Status::ok("none since the start"),
        refused => Status::warning(
            format!(
                "{refused} events of pods and nodes had a GPU request, claim or GPUs that cannot be read"
            ),
            "the extender's log names them; is a device plugin newer than the extender?",
        ),
    }
}

#[cfg(test)]
mod tests {
    use api::health::ConditionState::{self, Failed, Ok, Unknown, Warning};

    use super::*;

    fn state(calls: &Calls, handshakes: u64, after: i64) -> ConditionState {
        calls.status(handshakes, calls.started + after).state
    }

    #[test]
    fn an_extender_that_is_not_called_says_so_once_it_would_have_been() {
        let calls = Calls::default();
        calls.count("report", "ok");
        assert_eq!([60, 601].map(|after| state(&calls, 0, after)), [Warning, Unknown]);
        assert_eq!(state(&calls, 4, 60), Failed);
        calls.count("load-aware/prioritize", "ok");
        assert_eq!(state(&calls, 4, 601), Ok);
    }

    #[test]
    fn calls_that_all_fail_or_send_whole_nodes_are_a_fault() {
        let calls = Calls::default();
        calls.count("gpushare-scheduler/filter", "error");
        assert!(calls.status(0, calls.started).text.contains("all 1 calls of Filter failed"));
        calls.count("load-aware/filter", "ok");
        assert_eq!(state(&calls, 0, 1), Ok);
        calls.note_whole_nodes();
        assert!(calls.status(0, calls.started).text.contains("nodeCacheCapable is false"));
        assert_eq!(state(&calls, 0, PRESENT + 60), Ok, "it was mended since");
        calls.last_good.store(calls.started + 10, Ordering::Relaxed);
        assert_eq!([30, 90].map(|after| state(&calls, 0, after)), [Failed, Ok]);
    }

    #[test]
    fn a_replica_leads_stands_by_or_knows_no_leader() {
        let replica = |leads: bool, leader: Option<&str>| api::state::Replica {
            name: "a".to_owned(),
            program: "1".to_owned(),
            leads,
            leader: leader.map(str::to_owned),
            complete: true,
        };
        assert_eq!(leader(&replica(true, None), None), Status::ok("leads"));
        assert_eq!(leader(&replica(false, Some("b")), None), Status::ok("stands by for b"));
        assert_eq!(leader(&replica(false, None), None).state, Failed);
        let lost = leader(&replica(false, Some("b")), Some("b"));
        assert_eq!(lost.state, Failed);
        assert_eq!(lost.text, "no replica leads: b did not renew its Lease");
    }

    #[test]
    fn readings_of_the_future_are_a_fault_while_nodes_lack_one() {
        let node = ["n-1".to_owned()];
        assert_eq!(readings_status(2, &[], 0).state, Ok);
        assert_eq!(readings_status(2, &[], 3).state, Warning);
        assert_eq!(readings_status(2, &node, 3).state, Failed);
        let text = readings_status(2, &node, 0).text;
        assert!(text.starts_with("1 of 2 nodes lack a fresh reading") && text.ends_with("n-1"));
    }
}
