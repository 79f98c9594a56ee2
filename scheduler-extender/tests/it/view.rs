//! The view under every order in which events, lists and bindings can come.

use std::collections::{BTreeMap, HashSet};

use cluster::{Event, GpuRequestError, NodeFacts, Pod, PodFacts};
use jiff::{SignedDuration, Timestamp};
use placement::gpu::{
    ChoiceRule, Claim, ContainerRequest, Gpu, GpuRequest, GpuUse, NoFit, RequestError,
};
use placement::load::{Evaluation, PodToPlace};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{Cores, NodeName, PodUid, Units};
use scheduler_extender::view::{
    GpuPodId, HeldByDeleted, Index, PodUse, ReservationError, View, WatchedPod, select_pod,
};
use serde_json::{Value, json};

use crate::rig::{GPU, POLICY, empty_view, gpu_node, loaded_node};

struct Cluster {
    view: View,
    settled: HashSet<PodUid>,
    now: Timestamp,
}

impl Cluster {
    /// Two nodes with one GPU each, no pods.
    fn new() -> Self {
        let view = empty_view();
        let nodes = ["n1", "n2"].map(|name| facts(gpu_node(name, 1).into()));
        view.apply_nodes(Event::Listed(nodes.into()), Timestamp::now());
        let mut cluster = Self { view, settled: HashSet::new(), now: Timestamp::now() };
        cluster.list(&[]);
        cluster
    }

    /// Returns the pods that have to be looked up.
    fn apply(&mut self, event: Event<WatchedPod>) -> Vec<GpuPodId> {
        self.view.apply_pods(event, &mut self.settled, self.now)
    }

    fn list(&mut self, pods: &[&PodFacts]) {
        self.apply(Event::Listing);
        let listed = Event::Listed(pods.iter().map(|pod| watched(pod)).collect());
        assert_eq!(self.apply(listed), []);
    }

    fn reserve(&self, pod: &PodFacts, node: &str) -> placement::gpu::Claim {
        let gpu = pod.gpu.clone().unwrap().unwrap();
        let rule = self.view.choice_rule();
        self.view
            .change(|index| index.reserve(&id(pod), &gpu.request, &NodeName::from(node), &rule))
            .unwrap()
            .claim
    }

    /// The API server has answered a binding.
    fn confirm(&self, pod: &str, node: &str, claim: &placement::gpu::Claim) {
        self.view.change(|index| index.confirm(&pod.into(), &node.into(), claim));
    }

    /// The pod was read from the API server.
    fn read(&self, pod: &PodFacts) {
        self.view.apply_known(pod, &pod.gpu.clone().unwrap().unwrap());
    }

    fn used(&self) -> [u64; 2] {
        ["n1", "n2"].map(|node| {
            let index = self.view.read();
            let gpus = index.gpus(node);
            let gpus = gpus.iter().flat_map(|gpus| gpus.accounts());
            gpus.map(|account| u64::from(account.held().0)).sum()
        })
    }
}

fn facts(node: Value) -> NodeFacts {
    let node: cluster::Node = serde_json::from_value(node).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default())
}

/// The nodes that have GPUs, or pods on GPUs.
fn nodes_with_gpus(view: &View) -> Vec<NodeName> {
    view.read().nodes_with_gpus().map(|(name, _)| name.clone()).collect()
}

fn id(pod: &PodFacts) -> GpuPodId {
    GpuPodId { uid: pod.uid.clone(), namespace: pod.namespace.clone(), name: pod.name.clone() }
}

fn watched(pod: &PodFacts) -> WatchedPod {
    WatchedPod::Gpu(Box::new(pod.clone()), PodUse::default())
}

fn pending(name: &str) -> PodFacts {
    pod(name, None)
}

fn bound(name: &str, node: &str) -> PodFacts {
    pod(name, Some(node))
}

fn pod(name: &str, node: Option<&str>) -> PodFacts {
    let pod = json!({
        "metadata": { "name": name, "namespace": "ml", "uid": name, "annotations": {
            "plimsoll.dev/gpu-claim": node.map(|node| format!(r#"{{"c":{{"GPU-{node}-0":4}}}}"#)),
        }},
        "spec": { "nodeName": node, "containers": [{ "name": "c", "resources": { "limits": { GPU: "4" } } }] },
    });
    let mut pod = pod;
    if node.is_none() {
        pod["metadata"]["annotations"] = Value::Null;
    }
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pod.facts(&Names::default())
}

#[test]
fn a_reservation_outlives_a_list_that_began_before_it() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Listing);
    cluster.reserve(&pending("a"), "n1");
    cluster.apply(Event::Listed(Vec::new()));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_reservation_outlives_a_list_that_knows_nothing_of_it() {
    let mut cluster = Cluster::new();
    cluster.reserve(&pending("a"), "n1");
    cluster.list(&[]);
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_binding_confirmed_during_a_list_outlives_it() {
    let mut cluster = Cluster::new();
    let claim = cluster.reserve(&pending("a"), "n1");
    cluster.apply(Event::Listing);
    cluster.confirm("a", "n1", &claim);
    cluster.apply(Event::Listed(vec![watched(&pending("a"))]));
    assert!(!cluster.view.ask(|index| index.is_doubtful(&"a".into())));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pod_confirmed_during_a_list_that_lacks_it_is_looked_up() {
    let mut cluster = Cluster::new();
    let claim = cluster.reserve(&pending("a"), "n1");
    cluster.apply(Event::Listing);
    cluster.confirm("a", "n1", &claim);
    // It may have been bound after the list was read, or have ended before.
    assert_eq!(cluster.apply(Event::Listed(Vec::new())), [id(&pending("a"))]);
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pod_confirmed_after_a_list_that_lacks_it_is_looked_up() {
    let mut cluster = Cluster::new();
    let claim = cluster.reserve(&pending("a"), "n1");
    cluster.list(&[]);
    assert!(!cluster.view.ask(|index| index.is_doubtful(&"a".into())), "its binding is under way");
    cluster.confirm("a", "n1", &claim);
    assert!(cluster.view.ask(|index| index.is_doubtful(&"a".into())));
    // An event settles that.
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    assert!(!cluster.view.ask(|index| index.is_doubtful(&"a".into())));
}

#[test]
fn a_pod_read_after_a_list_that_lacks_it_is_looked_up() {
    let mut cluster = Cluster::new();
    cluster.reserve(&pending("a"), "n1");
    cluster.list(&[]);
    // The read may have begun before the list.
    cluster.read(&bound("a", "n1"));
    assert!(cluster.view.ask(|index| index.is_doubtful(&"a".into())));
    cluster.view.change(|index| index.begin_look_up(&"a".into()));
    cluster.read(&bound("a", "n1"));
    assert!(!cluster.view.ask(|index| index.is_doubtful(&"a".into())));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pod_that_its_node_reports_before_its_binding_is_known_is_looked_up() {
    let mut cluster = Cluster::new();
    cluster.reserve(&pending("a"), "n1");
    cluster.list(&[]);
    report(&cluster, "n1", Some("a"));
    assert!(cluster.view.ask(|index| index.is_doubtful(&"a".into())));
}

#[test]
fn no_ledger_outlives_its_node_and_the_pods_there() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.view.apply_nodes(Event::Listed(vec![facts(gpu_node("n2", 1).into())]), cluster.now);
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    cluster.view.change(|index| index.end_departures(Timestamp::MAX));
    assert_eq!(nodes_with_gpus(&cluster.view), ["n2".into()]);
    cluster.view.apply_nodes(Event::Gone(facts(gpu_node("n2", 1).into())), cluster.now);
    assert!(nodes_with_gpus(&cluster.view).is_empty());
    // Nor does a reservation make one.
    let request = pending("b").gpu.unwrap().unwrap().request;
    assert!(
        cluster
            .view
            .change(|index| index.reserve(
                &id(&pending("b")),
                &request,
                &"n9".into(),
                &ChoiceRule::default()
            ))
            .is_err()
    );
    assert!(nodes_with_gpus(&cluster.view).is_empty());
}

#[test]
fn a_pod_that_a_later_list_no_longer_names_is_gone() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Applied(watched(&bound("b", "n1"))));
    cluster.list(&[&bound("b", "n1")]);
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(11)));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pod_that_ended_unseen_before_its_first_report_counts_until_that_could_have_come() {
    let mut cluster = Cluster::new();
    // While no event came it may have been let in, and deleted by force.
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Applied(watched(&bound("b", "n2"))));
    cluster.list(&[]);
    assert_eq!(cluster.used(), [4, 4]);
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(9)));
    report(&cluster, "n1", Some("a"));
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(11)));
    assert_eq!(cluster.used(), [4, 0]);
}

/// The node's report, with this pod on its GPU or without.
fn report(cluster: &Cluster, node: &str, pod: Option<&str>) {
    let gpus = Some(Ok(gpus_with_pod(node, pod)));
    let facts = NodeFacts { gpus, ..facts(gpu_node(node, 1).into()) };
    cluster.view.apply_nodes(Event::Applied(facts), cluster.now);
}

fn gpus_with_pod(node: &str, pod: Option<&str>) -> Vec<Gpu> {
    let gpus = facts(gpu_node(node, 1).into()).gpus.unwrap().unwrap();
    let pods: BTreeMap<PodUid, Units> = pod.into_iter().map(|pod| (pod.into(), Units(4))).collect();
    gpus.into_iter().map(|gpu| Gpu { pods: pods.clone(), ..gpu }).collect()
}

#[test]
fn a_pod_that_was_deleted_by_force_counts_for_as_long_as_reports_show_it() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    report(&cluster, "n1", Some("a"));
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_hours(1)));
    assert_eq!(cluster.used(), [4, 0]);
    report(&cluster, "n1", None);
    assert_eq!(cluster.used(), [0, 0]);
}

#[test]
fn a_pod_that_was_deleted_by_force_before_its_first_report_counts_until_that_could_have_come() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Applied(watched(&bound("b", "n2"))));
    for (pod, node) in [("a", "n1"), ("b", "n2")] {
        cluster.apply(Event::Gone(watched(&bound(pod, node))));
    }
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(9)));
    report(&cluster, "n1", Some("a"));
    assert_eq!(cluster.used(), [4, 4]);
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(11)));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_clock_that_is_set_back_keeps_no_units_for_a_pod_that_is_gone() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    cluster.view.change(|index| index.end_departures(cluster.now - SignedDuration::from_hours(1)));
    assert_eq!(cluster.used(), [0, 0]);
}

#[test]
fn a_pod_that_reports_have_shown_and_show_no_more_holds_nothing_once_it_is_gone() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    report(&cluster, "n1", Some("a"));
    report(&cluster, "n1", None);
    assert_eq!(cluster.used(), [4, 0]);
    cluster.list(&[]);
    assert_eq!(cluster.used(), [0, 0]);
}

#[test]
fn a_node_that_is_deleted_and_comes_back_still_has_what_departed_pods_hold() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Applied(watched(&bound("b", "n1"))));
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    assert_eq!(cluster.used(), [8, 0]);
    cluster.view.apply_nodes(Event::Gone(facts(gpu_node("n1", 1).into())), cluster.now);
    // The other goes after its node.
    cluster.apply(Event::Gone(watched(&bound("b", "n1"))));
    cluster.view.apply_nodes(Event::Applied(facts(gpu_node("n1", 1).into())), cluster.now);
    assert_eq!(cluster.used(), [8, 0]);
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(11)));
    assert_eq!(cluster.used(), [0, 0]);
}

fn in_namespace(namespace: &str, pod: &PodFacts) -> GpuPodId {
    GpuPodId { namespace: namespace.to_owned(), ..id(pod) }
}

#[test]
fn pods_wait_while_deleted_ones_of_their_namespace_hold_units_and_others_do_not() {
    let mut cluster = Cluster::new();
    let (new, asked) = (pending("new"), pending("new").gpu.unwrap().unwrap().request);
    let waits = |cluster: &Cluster, namespace| {
        cluster.view.ask(|index| index.waits_for_deleted(&in_namespace(namespace, &new), &asked))
    };
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Applied(watched(&bound("b", "n2"))));
    assert_eq!(waits(&cluster, "ml"), None);
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    assert_eq!(waits(&cluster, "ml"), Some(HeldByDeleted::Recently));
    assert_eq!(waits(&cluster, "other"), None);
    let reserve = |cluster: &Cluster, namespace| {
        let (pod, rule) = (in_namespace(namespace, &new), cluster.view.choice_rule());
        cluster.view.change(|index| index.reserve(&pod, &asked, &"n2".into(), &rule))
    };
    let held = ReservationError::HeldByDeleted(HeldByDeleted::Recently);
    assert_eq!(reserve(&cluster, "ml").unwrap_err(), held);
    // Its processes run on.
    report(&cluster, "n1", Some("a"));
    assert_eq!(waits(&cluster, "ml"), Some(HeldByDeleted::Recently));
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_mins(9)));
    assert_eq!(waits(&cluster, "ml"), Some(HeldByDeleted::ForLong));
    // On a node that is not ready, they hold nothing that others could have.
    let reported = facts(gpu_node("n1", 1).into());
    let gpus = gpus_with_pod("n1", Some("a"));
    let unready = NodeFacts { ready: Some(false), gpus: Some(Ok(gpus)), ..reported };
    cluster.view.apply_nodes(Event::Applied(unready), cluster.now);
    assert_eq!(waits(&cluster, "ml"), None);
    cluster.view.apply_nodes(Event::Gone(facts(gpu_node("n1", 1).into())), cluster.now);
    assert_eq!(waits(&cluster, "ml"), None);
    report(&cluster, "n1", Some("a"));
    // What another pod of the namespace has left is free for a new one.
    let ended = PodFacts { stopped: true, ..bound("b", "n2") };
    cluster.apply(Event::Gone(watched(&ended)));
    assert_eq!(waits(&cluster, "ml"), None);
    cluster.apply(Event::Applied(watched(&bound("b2", "n2"))));
    assert_eq!(waits(&cluster, "ml"), Some(HeldByDeleted::Recently));
    report(&cluster, "n1", None);
    assert_eq!(waits(&cluster, "ml"), None);
    assert!(reserve(&cluster, "ml").is_ok());
}

#[test]
fn units_are_not_expected_for_long_after_a_deletion() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    let ending = PodFacts { deleting: true, ..bound("b", "n2") };
    cluster.apply(Event::Applied(watched(&ending)));
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    report(&cluster, "n1", Some("a"));
    let leaving = |seconds| {
        let now = cluster.now + SignedDuration::from_secs(seconds);
        cluster.view.change(|index| index.tick(now));
        cluster.view.ask(Index::leaving).into_keys().map(|node| node.to_string()).collect()
    };
    let nodes: [Vec<String>; 4] = [leaving(19), leaving(20), leaving(39), leaving(40)];
    let [one, two] = ["n1", "n2"].map(str::to_owned);
    assert_eq!(nodes, [vec![one, two.clone()], vec![two.clone()], vec![two], vec![]]);
}

#[test]
fn a_deleted_pod_whose_processes_never_end_keeps_its_gpu_but_its_namespace_waits_for_ten_minutes_at_most()
 {
    let mut cluster = Cluster::new();
    let (new, asked) = (pending("new"), pending("new").gpu.unwrap().unwrap().request);
    let waits =
        |cluster: &Cluster| cluster.view.ask(|index| index.waits_for_deleted(&id(&new), &asked));
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Applied(watched(&bound("b", "n2"))));
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    report(&cluster, "n1", Some("a"));
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(599)));
    assert_eq!(waits(&cluster), Some(HeldByDeleted::ForLong));
    cluster.view.change(|index| index.end_departures(cluster.now + SignedDuration::from_secs(600)));
    assert_eq!(waits(&cluster), None);
    assert_eq!(cluster.view.read().totals().used, 8);
}

#[test]
fn a_pod_whose_spec_names_its_node_takes_no_gpu_from_others_and_leaves_nothing() {
    let mut cluster = Cluster::new();
    let by_its_author = |name: &str| {
        let mut pod = bound(name, "n1");
        let gpu = pod.gpu.as_mut().unwrap().as_mut().unwrap();
        gpu.claim = Ok(None);
        pod
    };
    let new = pending("new");
    let rule = cluster.view.choice_rule();
    let asked = new.gpu.clone().unwrap().unwrap().request;
    for number in 0..3 {
        let pod = by_its_author(&format!("p{number}"));
        cluster.apply(Event::Applied(watched(&pod)));
        assert_eq!((cluster.used(), cluster.view.read().totals().used), ([0, 0], 4));
        let index = cluster.view.read();
        assert!(index.fit("n1", &new.uid, &asked, &rule).is_ok());
        cluster.apply(Event::Gone(watched(&pod)));
        assert_eq!(cluster.view.read().totals().used, 0);
        assert_eq!(cluster.view.ask(|index| index.waits_for_deleted(&id(&new), &asked)), None);
    }
    // Four of them need all that the node has, as in kube-scheduler.
    (0..4).for_each(|number| {
        cluster.apply(Event::Applied(watched(&by_its_author(&format!("q{number}")))));
    });
    let index = cluster.view.read();
    let needed = Err(NoFit::NeededByUnplaced);
    assert_eq!(index.fit("n1", &new.uid, &asked, &rule).map(|_| ()), needed);
    // One that runs is on some GPU.
    let runs = PodFacts { admitted: true, ..by_its_author("q0") };
    cluster.apply(Event::Applied(watched(&runs)));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pod_on_a_lost_gpu_counts_there_alone_once_a_report_would_have_shown_it_elsewhere() {
    let mut cluster = Cluster::new();
    let mut pod = bound("a", "n1");
    let gpu = pod.gpu.as_mut().unwrap().as_mut().unwrap();
    gpu.claim = Ok(Some(Claim::on_gpu(&gpu.request, &"GPU-lost".into())));
    let (start, after) = (cluster.now, |seconds| SignedDuration::from_secs(seconds));
    cluster.apply(Event::Applied(watched(&pod)));
    // It may not be admitted yet: the device plugin goes by its claim, which its author may have written.
    [0, 60]
        .into_iter()
        .for_each(|at| cluster.view.change(|index| index.settle_lost_gpus(start + after(at))));
    assert_eq!(cluster.used(), [4, 0]);
    let admitted = PodFacts { admitted: true, ..pod };
    cluster.apply(Event::Applied(watched(&admitted)));
    [60, 69]
        .into_iter()
        .for_each(|at| cluster.view.change(|index| index.settle_lost_gpus(start + after(at))));
    assert_eq!(cluster.used(), [4, 0]);
    cluster.view.change(|index| index.settle_lost_gpus(start + after(71)));
    assert_eq!(cluster.used(), [0, 0]);
    cluster.apply(Event::Applied(watched(&admitted)));
    assert_eq!(cluster.used(), [0, 0]);
    report(&cluster, "n1", Some("a"));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_claim_decides_what_a_bound_pod_has_and_not_what_its_annotations_have_become() {
    let mut cluster = Cluster::new();
    let mut edited = pending("a");
    let gpu = edited.gpu.as_mut().unwrap().as_mut().unwrap();
    let whole = GpuUse { exclusive: true, ..GpuUse::default() };
    let ask = ContainerRequest { gpu_use: whole, ..gpu.request.containers()[0].clone() };
    gpu.request = GpuRequest::new([ask]).unwrap().unwrap();
    cluster.apply(Event::Applied(watched(&edited)));
    // Another replica has bound it before that.
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pod_whose_containers_have_ended_frees_its_units_with_its_object() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    let ended = PodFacts { stopped: true, ..bound("a", "n1") };
    cluster.apply(Event::Gone(watched(&ended)));
    assert_eq!(cluster.used(), [0, 0]);
}

#[test]
fn a_new_leader_keeps_a_nominees_gpu_although_it_never_saw_the_plan() {
    let mut cluster = Cluster::new();
    let full: Vec<PodFacts> = (0..4)
        .map(|pod| PodFacts { deleting: pod == 0, ..bound(&format!("p{pod}"), "n1") })
        .collect();
    let nominee = PodFacts { nominated_node: Some("n1".into()), ..pending("nominee") };
    let listed: Vec<&PodFacts> = [&nominee].into_iter().chain(&full).collect();
    cluster.list(&listed);
    let ended = PodFacts { stopped: true, ..full[0].clone() };
    cluster.apply(Event::Gone(watched(&ended)));
    let request = nominee.gpu.clone().unwrap().unwrap().request;
    let reserve = |pod: &PodFacts| {
        cluster
            .view
            .change(|index| index.reserve(&id(pod), &request, &"n1".into(), &ChoiceRule::default()))
    };
    assert!(reserve(&pending("other")).is_err(), "the GPU is kept");
    assert!(reserve(&nominee).is_ok());
}

#[test]
fn an_answer_that_comes_after_the_pods_end_brings_nothing_back() {
    let mut cluster = Cluster::new();
    let claim = cluster.reserve(&pending("a"), "n1");
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.apply(Event::Gone(watched(&bound("a", "n1"))));
    cluster.confirm("a", "n1", &claim);
    cluster.read(&bound("a", "n1"));
    cluster.view.change(|index| index.end_departures(Timestamp::MAX));
    assert_eq!(cluster.used(), [0, 0]);
}

#[test]
fn a_late_event_of_a_pending_pod_does_not_touch_its_reservation() {
    let mut cluster = Cluster::new();
    cluster.reserve(&pending("a"), "n1");
    cluster.apply(Event::Applied(watched(&pending("a"))));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pod_in_doubt_counts_on_both_nodes_until_it_is_seen_on_one() {
    let mut cluster = Cluster::new();
    cluster.reserve(&pending("a"), "n1");
    cluster.reserve(&pending("a"), "n2");
    assert_eq!(cluster.used(), [4, 4]);
    cluster.apply(Event::Applied(watched(&bound("a", "n2"))));
    assert_eq!(cluster.used(), [0, 4]);
}

#[test]
fn a_cancelled_reservation_leaves_the_other_node_alone() {
    let cluster = Cluster::new();
    cluster.reserve(&pending("a"), "n1");
    cluster.reserve(&pending("a"), "n2");
    cluster.view.change(|index| index.cancel(&"a".into(), &"n1".into()));
    assert_eq!(cluster.used(), [0, 4]);
    assert_eq!(cluster.view.ask(|index| index.held_on(&"a".into())), ["n2".into()]);
}

#[test]
fn a_bound_pod_cannot_be_reserved_again_nor_cancelled() {
    let mut cluster = Cluster::new();
    let a = bound("a", "n1");
    cluster.apply(Event::Applied(watched(&a)));
    let request = a.gpu.clone().unwrap().unwrap().request;
    assert!(
        cluster
            .view
            .change(|index| index.reserve(&id(&a), &request, &"n1".into(), &ChoiceRule::default()))
            .is_err()
    );
    cluster.view.change(|index| index.cancel(&a.uid, &"n1".into()));
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_pods_annotations_count_until_it_is_bound_and_a_reservation_of_others_is_not_for_it() {
    let mut cluster = Cluster::new();
    let change = |cluster: &mut Cluster, pod: &PodFacts, gpu_use, fault| {
        let mut pod = pod.clone();
        let mut gpu = pod.gpu.clone().unwrap().unwrap();
        let ask = ContainerRequest { gpu_use, ..gpu.request.containers()[0].clone() };
        (gpu.request, gpu.fault) = (GpuRequest::new([ask]).unwrap().unwrap(), fault);
        pod.gpu = Ok(Some(gpu));
        cluster.apply(Event::Applied(watched(&pod)));
        cluster.view.ask(|index| index.request(&id(&pod))).unwrap()
    };
    let gpus = |gpus| GpuUse { gpus, ..GpuUse::default() };
    let count = |request: Option<GpuRequest>| request.map(|request| request.shares().len());
    let a = pending("a");
    assert_eq!(count(change(&mut cluster, &a, gpus(1), None)), Some(1));
    assert_eq!(count(change(&mut cluster, &a, gpus(2), None)), Some(2));
    // With a fault it is not bound by what is known of it.
    let fault = GpuRequestError::Request(RequestError::TooManyCores(Cores(101)));
    assert_eq!(count(change(&mut cluster, &a, gpus(1), Some(fault))), None);
    assert_eq!(count(change(&mut cluster, &a, gpus(1), None)), Some(1));
    cluster.reserve(&a, "n1");
    let changed = change(&mut cluster, &a, gpus(2), None).unwrap();
    let rule = cluster.view.choice_rule();
    let node = NodeName::from("n1");
    let again =
        |request| cluster.view.change(|index| index.reserve(&id(&a), request, &node, &rule));
    assert_eq!(again(&changed).err(), Some(ReservationError::Changed(node.clone())));
    let request = a.gpu.clone().unwrap().unwrap().request;
    assert!(again(&request).is_ok());
}

#[test]
fn pods_may_be_told_of_before_their_node() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n3"))));
    cluster.view.apply_nodes(Event::Applied(facts(gpu_node("n3", 1).into())), Timestamp::now());
    let index = cluster.view.read();
    assert_eq!(index.gpus("n3").unwrap().accounts()[0].gpu.free.0, 12);
}

#[test]
fn a_node_that_comes_back_finds_its_pods_accounted() {
    let mut cluster = Cluster::new();
    cluster.apply(Event::Applied(watched(&bound("a", "n1"))));
    cluster.view.apply_nodes(Event::Gone(facts(gpu_node("n1", 1).into())), Timestamp::now());
    assert_eq!(cluster.used(), [0, 0]);
    cluster.view.apply_nodes(Event::Applied(facts(gpu_node("n1", 1).into())), Timestamp::now());
    assert_eq!(cluster.used(), [4, 0]);
}

#[test]
fn a_torn_report_of_gpus_keeps_the_last_good_one() {
    let cluster = Cluster::new();
    let torn = gpu_node("n1", 1).annotation("plimsoll.dev/gpu-cards", "[{\"uu");
    cluster.view.apply_nodes(Event::Applied(facts(torn.into())), Timestamp::now());
    let index = cluster.view.read();
    assert_eq!(index.gpus("n1").unwrap().accounts().len(), 1);
}

#[test]
fn most_pods_of_a_cluster_are_not_kept() {
    let cluster = Cluster::new();
    let names = Names::default();
    let seen = |at: &str| {
        let pod = json!({
            "metadata": { "name": "web", "uid": "u" },
            "spec": { "nodeName": "n1", "containers": [] },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "True", "lastTransitionTime": at }] },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        select_pod(&cluster.view, &names, &pod, cluster.now)
    };
    // The policy's longest range is 5 minutes.
    assert_eq!(seen(&(cluster.now - SignedDuration::from_mins(6)).to_string()), None);
    assert!(seen(&(cluster.now - SignedDuration::from_mins(4)).to_string()).is_some());
    // Nor is one whose time somebody set far ahead.
    assert_eq!(seen(&(cluster.now + SignedDuration::from_hours(1)).to_string()), None);
}

#[test]
fn another_policy_is_in_force_at_once_on_the_same_readings() {
    let cluster = Cluster::new();
    cluster.view.apply_nodes(
        Event::Applied(facts(loaded_node("n1", 0.4, SignedDuration::ZERO).into())),
        cluster.now,
    );
    let score = || {
        let (snapshot, pod) = (cluster.view.read(), PodToPlace::ORDINARY);
        let node = snapshot.load("n1").unwrap();
        Evaluation { policy: &snapshot.policy, node, pod, now: cluster.now }.score().get()
    };
    assert_eq!(score(), 60);
    let other = POLICY.replace("cpu_usage_avg_5m", "mem_usage_avg_5m");
    cluster.view.change(|index| index.set_policy(LoadPolicy::from_yaml(&other).unwrap()));
    assert_eq!(score(), 0);
    cluster.view.change(|index| index.set_policy(LoadPolicy::from_yaml(POLICY).unwrap()));
    assert_eq!(score(), 60);
}
