//! Least fragmentation: what it is learnt from, that nodes and GPUs are chosen by one rule, and memory that nobody
//! manages.

use std::collections::HashSet;

use api::explain::{Basis, Explanation, GpuOutcome};
use cluster::{Event, Node, NodeFacts, Pod, WatchCause};
use jiff::{SignedDuration, Timestamp};
use placement::gpu::{Claim, Rating};
use placement::load::Score;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{NodeName, PodUid};
use scheduler_extender::decisions::{DecidedPod, Decision, Evaluator, RatingCache};
use scheduler_extender::node_request::CandidateNodes;
use scheduler_extender::view::{GpuPodId, PodEstimates, View, WatchedPod, select_pod};
use serde_json::{Value, json};
use sim::Sim;

use crate::rig::{GPU, Rig, empty_view, gpu_node, gpu_pod};

struct Cluster {
    view: View,
    ratings: RatingCache,
    names: Names,
    settled: HashSet<PodUid>,
    now: Timestamp,
}

impl Cluster {
    /// Nodes of so many GPUs of 16 units each, with 64 cores.
    fn new(nodes: &[(&str, u32)]) -> Self {
        let facts = nodes.iter().map(|(name, gpus)| facts(gpu_node(name, *gpus).into(), 64));
        let view = empty_view();
        let now = Timestamp::now();
        view.apply_nodes(Event::Listed(facts.collect()), now);
        let (names, ratings) = (Names::default(), RatingCache::default());
        let mut cluster = Self { view, ratings, names, settled: HashSet::new(), now };
        cluster.list(&[]);
        cluster
    }

    fn apply(&mut self, event: Event<WatchedPod>) {
        let looked_up = self.view.apply_pods(event, &mut self.settled, self.now);
        assert_eq!(looked_up, []);
    }

    /// As the watch hands pods on.
    fn select(&self, pod: &Value, seen: WatchCause) -> Option<WatchedPod> {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        self.view.count_requests(&pod, &Names::default(), seen, self.now);
        select_pod(&self.view, &self.names, &pod, self.now)
    }

    fn list(&mut self, pods: &[Value]) {
        self.apply(Event::Listing);
        let pods = pods.iter().filter_map(|pod| self.select(pod, WatchCause::Listed)).collect();
        self.apply(Event::Listed(pods));
    }

    fn changed(&mut self, pod: &Value) {
        if let Some(pod) = self.select(pod, WatchCause::Changed) {
            self.apply(Event::Applied(pod));
        }
    }

    fn gone(&mut self, pod: &Value) {
        if let Some(pod) = self.select(pod, WatchCause::Gone) {
            self.apply(Event::Gone(pod));
        }
    }

    /// Free cores of a node.
    fn free(&self, node: &str) -> Option<f64> {
        let index = self.view.read();
        index.gpus(node).and_then(|gpus| gpus.cpu()).map(|cpu| cpu as f64 / 1000.0)
    }

    fn decision(&self, pod: &Value, nodes: &[&str]) -> Decision {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let request = pod.request(&self.names).unwrap();
        let snapshot = self.view.read();
        let nodes = CandidateNodes::new(snapshot.names(), nodes.iter().copied());
        let decided = DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO);
        Decision::new(snapshot, decided, request, nodes, self.now)
    }

    fn gpu_scores(&self, pod: &Value, nodes: &[&str]) -> Vec<u8> {
        let decision = self.decision(pod, nodes);
        let scores = Evaluator::new(&decision).gpu_scores().unwrap();
        let current = self.view.current();
        let prepared = Evaluator::prepared(&decision, &current.prepared, &self.ratings);
        assert_eq!(prepared.gpu_scores().as_ref(), Some(&scores));
        scores.into_iter().map(Score::get).collect()
    }

    /// The GPU that Bind would choose.
    fn reserve(&self, pod: &Value, node: &str) -> u32 {
        let facts = serde_json::from_value::<Pod>(pod.clone()).unwrap().facts(&self.names);
        let id = GpuPodId { uid: facts.uid, namespace: facts.namespace, name: facts.name };
        let request = facts.gpu.unwrap().unwrap().request;
        let rule = self.view.choice_rule();
        let reserved =
            self.view.change(|index| index.reserve(&id, &request, &NodeName::from(node), &rule));
        reserved.unwrap().choice.gpus[0].index
    }

    /// So many pods of this size were bound, and have ended.
    fn ran(&mut self, count: usize, units: u32, cores: u32) {
        for number in 0..count {
            let pod = pod(&format!("earlier-{units}-{number}"), units, cores, None);
            self.changed(&pod);
            let facts = serde_json::from_value::<Pod>(pod).unwrap().facts(&self.names);
            let claim = Claim::on_gpus(&facts.gpu.unwrap().unwrap().request, &["GPU-a-0".into()]);
            self.view.change(|index| {
                index.confirm(&facts.uid, &"a".into(), &claim);
                index.forget(&facts.uid);
            });
        }
    }
}

fn facts(mut node: Value, cores: u32) -> NodeFacts {
    node["status"]["allocatable"]["cpu"] = json!(cores.to_string());
    let node: Node = serde_json::from_value(node).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default())
}

fn pod(name: &str, units: u32, cores: u32, node: Option<&str>) -> Value {
    let limits = if units > 0 { json!({ GPU: units.to_string() }) } else { json!({}) };
    let resources = json!({ "limits": limits, "requests": { "cpu": cores.to_string() } });
    json!({
        "metadata": { "name": name, "namespace": "ml", "uid": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "resources": resources }] },
    })
}

#[test]
fn free_cpu_follows_pods_of_every_kind_and_reservations() {
    let mut cluster = Cluster::new(&[("a", 1), ("b", 1)]);
    assert_eq!(cluster.free("a"), Some(64.0));
    let plain = pod("web", 0, 4, Some("a"));
    cluster.changed(&pod("web", 0, 4, None));
    cluster.changed(&plain);
    cluster.changed(&plain);
    assert_eq!(cluster.free("a"), Some(60.0));
    // From the reservation on, and once only.
    cluster.reserve(&pod("train", 4, 10, None), "a");
    assert_eq!(cluster.free("a"), Some(50.0));
    cluster.changed(&pod("train", 4, 10, Some("a")));
    assert_eq!(cluster.free("a"), Some(50.0));
    cluster.reserve(&pod("other", 4, 5, None), "b");
    cluster.view.change(|index| index.cancel(&"other".into(), &"b".into()));
    assert_eq!(cluster.free("b"), Some(64.0));
    // A list that began before a binding does not forget it; what it leaves out is gone.
    cluster.apply(Event::Listing);
    cluster.reserve(&pod("late", 4, 1, None), "a");
    let listed = cluster.select(&pod("train", 4, 10, Some("a")), WatchCause::Listed);
    cluster.apply(Event::Listed(listed.into_iter().collect()));
    assert_eq!(cluster.free("a"), Some(53.0));
    let mut ended = pod("train", 4, 10, Some("a"));
    ended["status"]["phase"] = json!("Succeeded");
    cluster.changed(&ended);
    cluster.gone(&ended);
    assert_eq!(cluster.free("a"), Some(63.0));
    // A node that does not say what it has.
    let silent: Node = serde_json::from_value(gpu_node("a", 1).into()).unwrap();
    let silent = silent.facts(&cluster.names, &ReadingCodec::default());
    cluster.view.apply_nodes(Event::Applied(silent), cluster.now);
    assert_eq!(cluster.free("a"), None);
}

#[test]
fn without_enough_pods_bound_it_is_best_fit() {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 1)]);
    cluster.ran(15, 5, 1);
    cluster.view.renew_measure();
    cluster.reserve(&pod("first", 11, 1, None), "b");
    let (asked, next) = (["a", "b"], pod("next", 5, 1, None));
    assert_eq!(cluster.gpu_scores(&next, &asked), [31, 100]);
}

#[test]
fn the_node_that_scores_best_and_the_gpu_that_bind_takes_follow_one_measure() {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 2), ("c", 2)]);
    // Of a GPU, 5 units are left by most pods, and no pod asks for 4 or fewer.
    cluster.ran(18, 5, 1);
    cluster.ran(2, 11, 1);
    cluster.view.renew_measure();
    assert!(cluster.view.choice_rule().measure.is_some());
    // 6 and 10 units free: best fit would leave one unit, the measure leaves five.
    let mut node: Value = gpu_node("b", 2).into();
    let gpus = &mut node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"];
    let mut listed: Value = serde_json::from_str(gpus.as_str().unwrap()).unwrap();
    (listed[0]["pods"], listed[1]["pods"]) = (json!({ "x": 10 }), json!({ "y": 6 }));
    *gpus = json!(listed.to_string());
    cluster.view.apply_nodes(Event::Applied(facts(node, 64)), cluster.now);
    let (next, asked) = (pod("next", 5, 1, None), ["c", "b", "a"]);
    let decision = cluster.decision(&next, &asked);
    let request = decision.request.as_ref().unwrap();
    let index = cluster.view.read();
    let on = |node: &str| {
        let gpus = index.gpus(node).unwrap();
        let rating = gpus.rate(&"next".into(), request, &decision.rule).unwrap();
        let choice = gpus.fit(&"next".into(), request, &decision.rule).unwrap();
        // Bind's choice costs what the node is rated by.
        assert_eq!(choice.cost.map(Rating::Cost), Some(rating));
        (choice.cost.unwrap(), choice.gpus[0].index)
    };
    let scores = cluster.gpu_scores(&next, &asked);
    let cheapest = asked.iter().min_by_key(|node| (on(node).0, **node)).unwrap();
    let best = (0..3).max_by_key(|at| scores[*at]).unwrap();
    assert_eq!((asked[best], scores[best]), (*cheapest, 100));
    assert_eq!(on("b").1, 1);
    assert_eq!(cluster.reserve(&next, "b"), 1);
}

/// What a pod of 5 units costs beside one of 10, of GPUs with 16, while so many of 6 run.
fn cost_of_spoiling_room_for_six(running: usize) -> i64 {
    let mut cluster = Cluster::new(&[("a", 1), ("c", 8)]);
    cluster.ran(60, 10, 0);
    cluster.ran(40, 6, 0);
    cluster.reserve(&pod("large", 10, 0, None), "a");
    for number in 0..running {
        cluster.reserve(&pod(&format!("small-{number}"), 6, 0, None), "c");
    }
    cluster.view.renew_measure();
    let decision = cluster.decision(&pod("next", 5, 0, None), &["a"]);
    let request = decision.request.as_ref().unwrap();
    let snapshot = cluster.view.read();
    let choice = snapshot.gpus("a").unwrap().fit(&"next".into(), request, &decision.rule);
    choice.unwrap().cost.unwrap().0
}

/// Pods of 10 units are requested more often than those of 6. Where many of 6 run, the 6 units beside one of 10 are
/// kept for the next of them.
#[test]
fn room_is_kept_for_pods_that_run_as_for_those_that_are_requested() {
    // Half a GPU more, of ten times the weight.
    let more = cost_of_spoiling_room_for_six(16) - cost_of_spoiling_room_for_six(0);
    assert!((4_000_000..6_000_000).contains(&more), "{more}");
}

#[test]
fn equal_nodes_are_filled_by_name_whatever_order_they_are_asked_in() {
    let mut cluster = Cluster::new(&[("c", 1), ("a", 1), ("d", 1), ("b", 1)]);
    cluster.ran(20, 4, 1);
    cluster.view.renew_measure();
    let next = pod("next", 4, 1, None);
    assert_eq!(cluster.gpu_scores(&next, &["a", "b", "c", "d"]), [100, 50, 25, 12]);
    assert_eq!(cluster.gpu_scores(&next, &["d", "b", "a", "c"]), [12, 50, 100, 25]);
    // One that is full has no score.
    cluster.reserve(&pod("full", 16, 1, None), "a");
    assert_eq!(cluster.gpu_scores(&next, &["a", "b", "c", "d"]), [0, 100, 50, 25]);
}

#[test]
fn a_pod_says_itself_how_its_gpus_are_chosen() {
    let mut cluster = Cluster::new(&[("a", 2)]);
    cluster.ran(20, 4, 1);
    cluster.view.renew_measure();
    let mut next = pod("next", 4, 1, None);
    let points = |cluster: &Cluster, next: &Value| cluster.gpu_scores(next, &["a"])[0];
    assert_eq!(points(&cluster, &next), 100);
    for (placement, score) in [("pack", 25), ("spread", 75), ("least-fragmentation", 100)] {
        next["metadata"]["annotations"] = json!({ "plimsoll.dev/gpu-placement": placement });
        assert_eq!(points(&cluster, &next), score, "{placement}");
    }
}

#[test]
fn a_pod_without_gpus_keeps_off_nodes_whose_gpus_need_the_cpu() {
    let mut cluster = Cluster::new(&[("a", 8), ("b", 1)]);
    let score = |cluster: &Cluster| {
        let decision = cluster.decision(&pod("web", 0, 8, None), &["a", "b"]);
        let scores = Evaluator::new(&decision).scores();
        let current = cluster.view.current();
        let prepared = Evaluator::prepared(&decision, &current.prepared, &cluster.ratings);
        assert_eq!(prepared.scores(), scores);
        (scores[0].get(), scores[1].get())
    };
    // Both are without readings, and score alike.
    let (a, b) = score(&cluster);
    assert_eq!(a, b);
    // Loaded, so that there is something to lose.
    for name in ["a", "b"] {
        let mut node: Value = gpu_node(name, if name == "a" { 8 } else { 1 }).into();
        let reading = placement::reading::Reading::new(
            placement::units::Ratio::new(0.2).unwrap(),
            cluster.now,
        );
        node["metadata"]["annotations"]["cpu_usage_avg_5m"] =
            json!(ReadingCodec::default().encode(&reading));
        cluster.view.apply_nodes(Event::Applied(facts(node, 64)), cluster.now);
    }
    assert_eq!(score(&cluster), (80, 80));
    // Eight GPUs at 8 cores each need all 64 cores of the one node, not of the other.
    cluster.ran(20, 16, 8);
    cluster.view.renew_measure();
    assert_eq!(score(&cluster), (0, 80));
}

const SHARE: &str = "plimsoll.dev/gpu-share";

/// So much is in use on the first GPU, of which pods held nothing.
fn share(used: u64, at: Timestamp) -> String {
    let gpu = |index: u32, used: u64| json!({ "uuid": format!("GPU-n-{index}"), "units": 16, "allocated": 0, "usedMiB": used });
    json!({ "time": at, "cards": [gpu(0, used), gpu(1, 100)] }).to_string()
}

fn measured(used: u64, at: Timestamp) -> NodeFacts {
    facts(gpu_node("n", 2).annotation(SHARE, share(used, at)).into(), 64)
}

fn counting() -> LoadPolicy {
    let text = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec: {gpu: {unmanagedMemory: count}}\n";
    LoadPolicy::from_yaml(text).unwrap()
}

#[test]
fn memory_that_nobody_manages_counts_where_the_policy_says_so_and_while_it_is_fresh() {
    let cluster = Cluster::new(&[("n", 2)]);
    let free = || -> Vec<u32> {
        let index = cluster.view.read();
        index.gpus("n").unwrap().accounts().iter().map(|account| account.gpu.free.0).collect()
    };
    let at = |minutes| cluster.now + SignedDuration::from_mins(minutes);
    let apply = |used, minutes| {
        cluster.view.apply_nodes(Event::Applied(measured(used, at(minutes))), at(minutes));
    };
    apply(6 * 1024, 0);
    apply(6 * 1024, 1);
    assert_eq!(free(), [16, 16]);
    cluster.view.change(|index| index.set_policy(counting()));
    cluster.view.change(|index| index.count_unmanaged(at(1)));
    assert_eq!(free(), [10, 16]);
    // A single measurement without it, as one with more, changes it to what both have.
    apply(12 * 1024, 2);
    assert_eq!(free(), [10, 16]);
    apply(100, 3);
    assert_eq!(free(), [16, 16]);
    apply(6 * 1024, 4);
    assert_eq!(free(), [16, 16]);
    apply(6 * 1024, 5);
    assert_eq!(free(), [10, 16]);
    // What is too old is not known.
    cluster.view.change(|index| index.count_unmanaged(at(20)));
    assert_eq!(free(), [10, 16]);
    cluster.view.change(|index| index.count_unmanaged(at(21)));
    assert_eq!(free(), [16, 16]);
    // Unmanaged memory is no pod: it is listed under none, and not in the units that pods hold.
    apply(6 * 1024, 22);
    apply(6 * 1024, 23);
    let index = cluster.view.read();
    let account = &index.gpus("n").unwrap().accounts()[0];
    assert_eq!((account.gpu.free.0, account.held().0), (10, 0));
    assert_eq!(cluster.view.ask(|index| index.pods_on(account)), []);
    assert_eq!(cluster.view.read().totals().used, 0);
    let held = pod("held", 9, 1, None);
    assert_eq!(cluster.reserve(&held, "n"), 0);
    assert_eq!(free(), [1, 16]);
}

#[tokio::test]
async fn explain_shows_memory_that_nobody_manages_and_why_the_gpu_fails() {
    let sim = Sim::start().await.unwrap();
    let now = Timestamp::now();
    let put = |minutes_ago: i64| {
        let at = now - SignedDuration::from_mins(minutes_ago);
        sim.put(gpu_node("n", 2).annotation(SHARE, share(12 * 1024, at)));
    };
    put(2);
    let policy = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec: {gpu: {unmanagedMemory: count}}\n";
    let rig = Rig::start_under(&sim, policy, &[]).await;
    let train = gpu_pod(&sim, "train", 8);
    let ask = async || -> Explanation {
        let body = json!({ "Pod": train, "NodeNames": ["n"] }).to_string();
        serde_json::from_str(&rig.post_text("/explain", body).await.1).unwrap()
    };
    let outcomes = |explained: &Explanation| -> Vec<_> {
        let gpus = &explained.nodes[0].gpus.as_ref().unwrap().gpus;
        gpus.iter().map(|gpu| (gpu.free, gpu.outcome)).collect()
    };
    let both_fit = [(16, GpuOutcome::Fits), (16, GpuOutcome::Fits)];
    assert_eq!(outcomes(&ask().await), both_fit);
    put(1);
    rig.until("the second measurement", async || outcomes(&ask().await) != both_fit).await;
    let explained = ask().await;
    assert_eq!(outcomes(&explained), [(4, GpuOutcome::TooLittleFree), (16, GpuOutcome::Fits)]);
    let charges = &explained.nodes[0].gpus.as_ref().unwrap().gpus[0].charges;
    assert_eq!(
        (charges[0].units, charges[0].basis, charges[0].pod.as_str()),
        (12, Basis::Unmanaged, "")
    );
    // Larger than what is free on either GPU: the cause has a constant text.
    let large = gpu_pod(&sim, "large", 8);
    rig.bind(&large, "n").await;
    let wide = gpu_pod(&sim, "wide", 9);
    let answer = rig.filter("/gpushare-scheduler", &wide, &["n"]).await;
    let reasons =
        answer["FailedAndUnresolvableNodes"].as_object().or(answer["FailedNodes"].as_object());
    let reason = reasons.and_then(|nodes| nodes["n"].as_str()).unwrap_or_default();
    let constant = "Insufficient GPU Memory in one device (see: kubectl plimsoll explain pod)";
    assert_eq!(reason, constant);
}

#[tokio::test]
async fn a_node_that_is_explained_alone_has_the_rank_that_it_has_among_all() {
    let sim = Sim::start().await.unwrap();
    for name in ["c", "a", "b"] {
        sim.put(gpu_node(name, 1).with("cpu", 64));
    }
    let rig = Rig::start(&sim).await;
    for number in 0..20 {
        let name = format!("earlier-{number}");
        assert_eq!(rig.bind(&gpu_pod(&sim, &name, 4), "a").await, "");
        sim.change(sim::PODS, "default", &name, |pod| pod["status"]["phase"] = "Succeeded".into());
        rig.until("its end", async || rig.used().await == 0).await;
    }
    let next = gpu_pod(&sim, "next", 4);
    let scores = async |names: Option<&[&str]>| -> Vec<(String, u8)> {
        let body = json!({ "Pod": next, "NodeNames": names }).to_string();
        let told: Explanation =
            serde_json::from_str(&rig.post_text("/explain", body).await.1).unwrap();
        told.nodes.into_iter().map(|node| (node.name, node.gpus.unwrap().score)).collect()
    };
    let ranked = [("a", 100), ("b", 50), ("c", 25)].map(|(node, score)| (node.to_owned(), score));
    rig.until("the measure", async || scores(None).await == ranked).await;
    for node in ranked {
        assert_eq!(scores(Some(&[&node.0])).await, [node]);
    }
}

/// The pod with eight GPUs and most of a node's CPU comes last: small pods have left a node for it, although the
/// fragments that they leave are the same on each.
#[test]
fn while_there_is_room_a_node_stays_free_for_a_pod_with_all_its_gpus() {
    let names: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
    let nodes: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 8)).collect();
    let asked: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cluster = Cluster::new(&nodes);
    cluster.ran(20, 16, 4);
    cluster.view.renew_measure();
    // On each node but the last one, a GPU is in use.
    for (number, node) in names.iter().enumerate().take(5) {
        cluster.changed(&pod(&format!("web-{number}"), 0, 20, Some(node)));
        cluster.reserve(&pod(&format!("small-{number}"), 16, 4, None), node);
    }
    cluster.view.reprice();
    let plain = cluster.decision(&pod("web", 0, 4, None), &asked);
    let costs = Evaluator::new(&plain).costs_to_gpus().unwrap();
    let costs: Vec<i64> = costs.iter().map(|cost| cost.0).collect();
    assert!(costs[5] >= 1_000_000 && costs[..5].iter().all(|cost| *cost < 1_000_000), "{costs:?}");
    let scores = cluster.gpu_scores(&pod("next", 16, 4, None), &asked);
    assert_eq!(scores[5], 3, "{scores:?}");
}
