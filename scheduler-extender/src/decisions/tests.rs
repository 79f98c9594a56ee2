//! Decisions as the verbs, the log and explain see them: with and without prepared values, kept, explained and in
//! short.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock};

use api::explain::{DecisionBasis, Node};
use cluster::{Event, NodeFacts, Pod, WatchCause};
use jiff::{SignedDuration, Timestamp};
use placement::demand::Rates;
use placement::estimate::{Distribution, LearnedUse};
use placement::gpu::{Claim, Closed, Gpu, GpuRequest, Isolation};
use placement::load::{Score, Verdict};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::{Reading, ReadingCodec};
use placement::resources::{Amounts, PerResource};
use placement::units::{Cores, MiB, NodeName, Ratio, Units};
use placement::workload::WorkloadId;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::kept::KeptDecision;
use super::summary::summary;
use super::*;
use crate::node_request::CandidateNodes;
use crate::view::{ByWorkload, Current, GpuPodId, fixtures};

const NODES: usize = 150;
/// Pods hold GPUs of one whose node the watch has not shown.
const UNSHOWN: usize = NODES + 5;

const POLICIES: [&str; 3] = [
    "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy: [{name: cpu_usage_avg_5m, period: 3m}]
  predicate: [{name: cpu_usage_avg_5m, maxLimitPecent: 0.65}]
  priority: [{name: cpu_usage_avg_5m, weight: 1}]
",
    "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.65, weight: 1}]
  estimates: {enabled: true}
  hotValue: [{timeRange: 5m, count: 2}]
  nodePools:
  - {name: batch, selector: pool=batch, metrics: [{name: cpu_usage_avg_5m, limit: 0.95}]}
  namespaces: [{names: [team-a], nodeSelector: team=a}]
",
    // Nearly every node is over its limit, and many equally: some pass by their names.
    "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.05, weight: 1}]
",
];

static CURRENT: LazyLock<[Arc<Current>; 3]> = LazyLock::new(|| POLICIES.map(current));
/// For each of these.
static RATINGS: LazyLock<[RatingCache; 3]> = LazyLock::new(Default::default);

fn now() -> Timestamp {
    Timestamp::from_second(1_795_165_200).unwrap()
}

/// 64 nodes with room, then nodes of every load; each seventh has no reading, and each third has a GPU, given out by
/// claims on some.
fn node(number: usize) -> NodeFacts {
    let percent = number * 37 % if number < 64 { 60 } else { 100 } / 10 * 10;
    let load = Ratio::new(percent as f64 / 100.0).unwrap();
    // Some readings get old earlier than others.
    let at = now() - SignedDuration::from_secs(number as i64 % 90);
    let text = ReadingCodec::default().encode(&Reading::new(load, at));
    let key = if number.is_multiple_of(7) { "other" } else { "cpu_usage_avg_5m" };
    let pool = if number.is_multiple_of(5) { "batch" } else { "none" };
    let team = if number.is_multiple_of(4) { "a" } else { "b" };
    let node: cluster::Node = serde_json::from_value(json!({
        "metadata": {
            "name": format!("n{number}"),
            "annotations": { key: text },
            "labels": { "pool": pool, "team": team },
        },
        "status": {
            "allocatable": { "cpu": "8", "memory": "32Gi" },
            "capacity": { "cpu": "8", "memory": "32Gi" },
        },
    }))
    .unwrap();
    let closed = (number % 30 == 15).then_some(Closed::Claims);
    let gpu = Gpu { healthy: !number.is_multiple_of(9), closed, ..fixtures::gpu() };
    let gpus = number.is_multiple_of(3).then(|| Ok(vec![gpu]));
    NodeFacts { gpus, ..node.facts(&Names::default(), &ReadingCodec::default()) }
}

fn pod(namespace: &str, more: &Value) -> Pod {
    let mut pod = json!({ "metadata": { "name": "p", "uid": "p", "namespace": namespace } });
    let containers = json!([{ "name": "main", "resources": { "requests": { "cpu": "1300m" } } }]);
    pod["spec"] = json!({ "containers": containers });
    for part in ["metadata", "spec"] {
        for (field, value) in more[part].as_object().into_iter().flatten() {
            pod[part][field] = value.clone();
        }
    }
    serde_json::from_value(pod).unwrap()
}

fn gpu_id(name: &str) -> GpuPodId {
    GpuPodId { uid: name.into(), namespace: "ml".to_owned(), name: name.to_owned() }
}

/// Pods that use half of a node ran for long.
fn large_pods() -> ByWorkload {
    let amount = Distribution { mean: 4.0, ..Distribution::default() };
    let cpu = Some(LearnedUse { amount, by_request: None });
    let workload = WorkloadId {
        namespace: "ml".into(),
        kind: "StatefulSet".into(),
        name: "large".into(),
        template: 1,
    };
    let mut list = ByWorkload::default();
    list.insert(workload, PerResource { cpu, memory: None }, 6_000.0, now(), now());
    list
}

fn current(policy: &str) -> Arc<Current> {
    let view = fixtures::view_under(LoadPolicy::from_yaml(policy).unwrap());
    view.apply_nodes(Event::Listed((0..NODES).map(node).collect()), now());
    let mut settled = HashSet::new();
    let _ = view.apply_pods(Event::Listing, &mut settled, now());
    for number in 0..NODES {
        let (node, cpu) = (format!("n{number}"), format!("{}m", 4_000 + number * 611 % 3_900));
        let requests = json!({ "containers": [{ "name": "main", "resources": { "requests": { "cpu": cpu } } }], "nodeName": node });
        let of_node = json!({ "metadata": { "uid": format!("on-{node}") }, "spec": requests });
        view.count_requests(&pod("ml", &of_node), &Names::default(), WatchCause::Listed, now());
    }
    let _ = view.apply_pods(Event::Listed(Vec::new()), &mut settled, now());
    view.change_learned(|learned| learned.set(large_pods(), now()));
    view.change(|index| {
        let bind = |units: u32, name: &str, node: usize| {
            let request = GpuRequest::single("c", Units(units)).unwrap();
            let claim = Claim::on_gpu(&request, &"GPU-0".into());
            let node = NodeName::from(format!("n{node}"));
            fixtures::gpu_pod(&gpu_id(name), units, Some((&node, claim)))
        };
        for (name, node) in [("a", 3), ("b", 6), ("c", UNSHOWN)] {
            let facts = bind(9, name, node);
            index.apply(&facts, facts.gpu.as_ref().unwrap().as_ref().unwrap());
        }
        // GPUs are set aside for the pod itself.
        let waits = fixtures::gpu_pod(&gpu_id("p"), 9, None);
        index.apply(&waits, waits.gpu.as_ref().unwrap().as_ref().unwrap());
        index.keep(&"p".into(), &"n12".into(), vec!["GPU-0".into()]);
        for number in 0..20_usize {
            let node = NodeName::from(format!("n{}", number % 7 * 10));
            let uses = Amounts { cpu: 0.3, memory: 0.0 };
            let pod = format!("f{number}").into();
            index.count_in_flight("ns", &pod, &node, now(), uses, Rates::NONE);
        }
    });
    // What pods with GPUs ask for is known, so that pods without cost them CPU: on some nodes more than on others.
    view.change(|index| {
        for number in 0..20 {
            let name = format!("earlier-{number}");
            let facts = fixtures::gpu_pod(&gpu_id(&name), 9, None);
            let mut gpu = facts.gpu.as_ref().unwrap().clone().unwrap();
            gpu.request = gpu.request.with_cpu(500 * (1 + number % 6));
            index.apply(&facts, &gpu);
            index.confirm(
                &facts.uid,
                &"n0".into(),
                &Claim::on_gpus(&gpu.request, &["GPU-0".into()]),
            );
            index.forget(&facts.uid);
        }
    });
    view.renew_measure();
    view.current()
}

/// An ordinary pod, one whose priority class is exempt, one of a namespace with nodes of its own, and one of a
/// DaemonSet.
fn pods() -> [Pod; 4] {
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
    [
        pod("ml", &json!({})),
        pod("ml", &json!({ "spec": { "priorityClassName": "system-node-critical" } })),
        pod("team-a", &json!({})),
        pod("team-a", &json!({ "metadata": { "ownerReferences": owner } })),
    ]
}

/// A decision about a pod, which asks for so many units of GPU memory, between these nodes.
fn decision<'n>(
    current: &Current,
    pod: &Pod,
    names: impl Iterator<Item = &'n str>,
    units: Option<u32>,
    time: Timestamp,
) -> Decision {
    let nodes = CandidateNodes::new(current.snapshot.names(), names);
    let estimates = current.estimates(pod, &Names::default());
    let pod = DecidedPod::new(pod, estimates, SignedDuration::ZERO);
    let request = units.map(|units| GpuRequest::single("main", Units(units)).unwrap());
    Decision::new(Arc::clone(&current.snapshot), pod, request, nodes, time)
}

/// As a verb evaluates it, under one of the policies.
fn prepared(decision: &Decision, policy: usize) -> Evaluator<'_> {
    Evaluator::prepared(decision, &CURRENT[policy].prepared, &RATINGS[policy])
}

proptest! {
    #[test]
    fn prepared_values_change_no_decision_whatever_nodes_are_named_and_however_old_they_are(
        named in prop::collection::vec(0..NODES + 10, 0..2 * NODES),
        later in prop_oneof![3 => 0..900_i64, 1 => -100..0_i64],
        (policy, of_pod) in (0..POLICIES.len(), 0..4_usize),
        units in prop::option::of(1..17_u32),
        by_claim in any::<bool>(),
    ) {
        let (current, pod) = (&CURRENT[policy], &pods()[of_pod]);
        let names: Vec<_> = named.iter().map(|number| format!("n{number}")).collect();
        let time = now() + SignedDuration::from_secs(later);
        let mut decision = decision(current, pod, names.iter().map(String::as_str), units, time);
        if let Some(units) = units.filter(|_| by_claim) {
            let memory = Some(MiB(u64::from(units) * 1024));
            let request = GpuRequest::of_claim(1, memory, Cores(0), Isolation::None).unwrap();
            decision = decision.with_claims(request);
            decision = if later % 2 == 0 { decision } else { decision.beside_slices() };
        }
        let prepared = prepared(&decision, policy);
        let plain = Evaluator::new(&decision);
        prop_assert_eq!(prepared.verdicts(), plain.verdicts());
        prop_assert_eq!(prepared.scores(), plain.scores());
        prop_assert_eq!(prepared.typical(), plain.typical());
        let no_fits: Vec<_> = (0..decision.len()).map(|at| decision.no_fit(at)).collect();
        prop_assert_eq!(prepared.no_fits(), no_fits);
        prop_assert_eq!(prepared.gpu_scores(), plain.gpu_scores());
    }
}

/// What the pod costs the GPUs of a node.
fn cost(decision: &Decision, at: usize) -> i64 {
    decision.cost_to_gpus(at, [decision.rule.for_plain_pods(), None]).0
}

#[test]
fn the_cheapest_node_that_accepts_a_pod_costs_nothing() {
    let among =
        |names: &[&str]| decision(&CURRENT[0], &pods()[0], names.iter().copied(), None, now());
    // Nodes that accept the pod at a cost, and those that reject it at whatever cost.
    let names: Vec<_> = (0..NODES).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let all = among(&names);
    let verdicts = Evaluator::new(&all).verdicts().each;
    let accepted = |at: usize| verdicts[at] == Verdict::Accepted;
    let some: Vec<usize> = (0..NODES).filter(|at| !accepted(*at) || cost(&all, *at) > 0).collect();
    let least = some.iter().filter(|at| accepted(**at)).map(|at| cost(&all, *at)).min().unwrap();
    // Else nothing would be seen here.
    assert!(
        some.iter().any(|at| cost(&all, *at) < least)
            && some.iter().any(|at| cost(&all, *at) > least)
    );
    let decision = among(&some.iter().map(|at| names[*at]).collect::<Vec<_>>());
    let costs = Evaluator::new(&decision).costs_to_gpus().unwrap();
    for (at, beyond) in some.iter().zip(costs) {
        assert_eq!(beyond.0, (cost(&all, *at) - least).max(0), "{}", names[*at]);
    }
}

#[test]
fn where_every_node_is_over_a_limit_all_of_a_cost_counts() {
    let among = |names: &[String]| {
        decision(&CURRENT[2], &pods()[0], names.iter().map(String::as_str), None, now())
    };
    let all: Vec<_> = (0..NODES).map(|number| format!("n{number}")).collect();
    let decision = among(&all);
    let is_hot = |at: &usize| {
        let ratio = Evaluator::new(&decision).limit_ratio(*at);
        ratio > 1.0 && ratio.is_finite() && cost(&decision, *at) > 0
    };
    let hot: Vec<_> = (0..NODES).filter(is_hot).map(|at| all[at].clone()).collect();
    let filtered = among(&hot);
    let passing = Evaluator::new(&filtered).verdicts().over_limits;
    assert!(passing.len() > 1, "{passing:?}");
    let scores = Evaluator::new(&filtered).scores();
    let expected: Vec<Score> = passing.iter().map(|at| scores[*at]).collect();
    let names: Vec<_> = passing.iter().map(|at| hot[*at].clone()).collect();
    let prioritized = among(&names);
    let evaluator = prepared(&prioritized, 2);
    assert_eq!(evaluator.scores(), expected);
    let costs = evaluator.costs_to_gpus().unwrap();
    assert!((0..costs.len()).all(|at| costs[at].0 == cost(&prioritized, at)), "{costs:?}");
}

proptest! {
    /// Prioritize is asked about the nodes that Filter accepted, and explain about all nodes of Filter's decision.
    #[test]
    fn a_node_that_is_accepted_has_the_score_that_it_has_among_the_accepted_ones(
        order in Just((0..NODES).collect::<Vec<_>>()).prop_shuffle(),
        count in 1..NODES,
        all_with_gpus: bool,
        (policy, of_pod) in (0..POLICIES.len(), 0..4_usize),
    ) {
        // A node without GPUs costs nothing, so that it is the cheapest wherever there is one.
        let order: Vec<_> = order.into_iter().filter(|number| !all_with_gpus || number.is_multiple_of(3)).collect();
        let count = count.min(order.len());
        let (current, pod) = (&CURRENT[policy], &pods()[of_pod]);
        let among = |numbers: &[usize]| {
            let names: Vec<_> = numbers.iter().map(|number| format!("n{number}")).collect();
            decision(current, pod, names.iter().map(String::as_str), None, now())
        };
        let all = among(&order[..count]);
        let verdicts = Evaluator::new(&all).verdicts().each;
        let accepted: Vec<usize> = (0..count).filter(|at| verdicts[*at] == Verdict::Accepted).collect();
        let scores = Evaluator::new(&all).scores();
        let expected: Vec<Score> = accepted.iter().map(|at| scores[*at]).collect();
        let accepted = among(&accepted.iter().map(|at| order[*at]).collect::<Vec<_>>());
        prop_assert_eq!(prepared(&accepted, policy).scores(), expected);
    }
}

/// The verdict and the score of each node, by its name.
fn decided(decision: &Decision) -> BTreeMap<NodeName, (String, Score)> {
    let evaluator = Evaluator::new(decision);
    let verdicts = evaluator.verdicts().each.into_iter();
    let named = verdicts.zip(evaluator.scores()).enumerate();
    named
        .map(|(at, (verdict, score))| (decision.name(at).clone(), (format!("{verdict:?}"), score)))
        .collect()
}

proptest! {
    #[test]
    fn a_kept_decision_is_the_same_about_every_node_in_whatever_order_they_were_named(
        order in Just((0..NODES + 10).collect::<Vec<_>>()).prop_shuffle(),
        count in prop_oneof![1..6_usize, 1..NODES],
        later in 0..900_i64,
        (policy, of_pod) in (0..POLICIES.len(), 0..4_usize),
        units in prop::option::of(1..17_u32),
    ) {
        let (current, pod) = (&CURRENT[policy], &pods()[of_pod]);
        let names: Vec<_> = order[..count].iter().map(|number| format!("n{number}")).collect();
        let names = names.iter().map(String::as_str);
        let time = now() + SignedDuration::from_secs(later);
        let decision = decision(current, pod, names, units, time);
        let restored = KeptDecision::new(&decision).restored();
        prop_assert_eq!(restored.len(), count);
        prop_assert_eq!(decided(&restored), decided(&decision));
    }
}

proptest! {
    // Each explains every node in full.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_decision_in_short_agrees_with_its_explanation(
        named in prop::collection::vec(0..NODES + 10, 1..NODES),
        later in 0..900_i64,
        (policy, of_pod) in (0..POLICIES.len(), 0..4_usize),
        units in prop::option::of(1..17_u32),
        node in prop::option::of(0..NODES),
    ) {
        let (current, pod) = (&CURRENT[policy], &pods()[of_pod]);
        let names: HashSet<_> = named.iter().map(|number| format!("n{number}")).collect();
        let names = names.iter().map(String::as_str);
        let time = now() + SignedDuration::from_secs(later);
        let decision = decision(current, pod, names, units, time);
        if let Some(node) = node {
            decision.pod.set_node(&format!("n{node}"));
        }
        let short = summary(&decision);
        let all = explain(&decision, DecisionBasis::Decision, 0..decision.len());
        let accepted: Vec<_> = all.nodes.iter().filter(|node| node.accepted).collect();
        prop_assert_eq!(short.accepted as usize, accepted.len());
        let rejected: u32 = short.reasons.iter().map(|reason| reason.nodes).sum();
        prop_assert_eq!(short.nodes, short.accepted + rejected);
        for reason in &short.reasons {
            let first = |node: &&Node| !node.accepted && node.reasons[0] == reason.reason;
            prop_assert_eq!(reason.nodes as usize, all.nodes.iter().filter(first).count());
        }
        let own = accepted.iter().find(|node| short.node.as_deref() == Some(&*node.name));
        prop_assert_eq!(short.score, own.map(|own| own.score));
        let better = own.map(|own| accepted.iter().filter(|node| node.score > own.score).count());
        prop_assert_eq!(short.better.map(|better| better as usize), better);
        let mut others: Vec<_> = accepted.iter().filter(|node| own.is_none_or(|own| own.name != node.name)).collect();
        others.sort_by_key(|node| (std::cmp::Reverse(node.score), &node.name));
        let best: Vec<_> = others.iter().take(3).map(|node| (&*node.name, node.score)).collect();
        prop_assert_eq!(short.best.iter().map(|best| (&*best.node, best.score)).collect::<Vec<_>>(), best);
        prop_assert!(accepted.is_empty() || short.nearest.is_none());
    }
}

#[test]
fn the_pods_of_the_test_above_are_decided_by_all_that_may_differ() {
    let current = &CURRENT[1];
    let names: Vec<String> = (0..NODES + 10).map(|number| format!("n{number}")).collect();
    let [ordinary, exempt, confined, daemon] = pods()
        .each_ref()
        .map(|pod| decision(current, pod, names.iter().map(String::as_str), None, now()));
    let evaluator = Evaluator::new(&ordinary);
    let typical = evaluator.typical();
    assert!(typical.iter().any(|load| (0.1..0.9).contains(load)), "{typical:?}");
    let accepted = |decision: &Decision| {
        let verdicts = prepared(decision, 1).verdicts().each;
        verdicts.iter().filter(|verdict| **verdict == Verdict::Accepted).count()
    };
    let all = NODES + 10;
    assert!(accepted(&ordinary) < all && accepted(&confined) < accepted(&ordinary));
    assert_eq!((accepted(&exempt), accepted(&daemon)), (all, all));
    assert!(current.snapshot.gpus(&format!("n{UNSHOWN}")).is_some());
}
