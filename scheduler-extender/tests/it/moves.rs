//! Moving pods to other nodes so that one finds GPUs: what is proposed, and what `--move-for-cards` does.

use std::time::Duration;

use jiff::Timestamp;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use serde_json::{Value, json};
use sim::scheduler::{Scheduler, SchedulerConfig};
use sim::{PODS, Sim, Verb, pod};

use crate::rig::{GPU, Rig, gpu_node};

const FLAGS: [&str; 1] = ["--move-for-cards"];
/// Between two changes of nodes.
const PAUSE: Duration = Duration::from_millis(50);

const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// kube-scheduler with the entry for GPU pods.
fn scheduler(sim: &Sim, rig: &Rig) -> Scheduler {
    let config = json!({"extenders": [{
        "urlPrefix": rig.url("/gpushare-scheduler"), "filterVerb": "filter", "bindVerb": "bind",
        "nodeCacheCapable": true, "managedResources": [{"name": GPU}],
    }]});
    let config: SchedulerConfig = serde_json::from_value(config).unwrap();
    Scheduler::start(sim, config).unwrap().0
}

/// A pod of a ReplicaSet `web`, that may be evicted for pods of its priority.
fn replica(name: &str, units: u32, on: u32) -> Value {
    let mut pod: Value = pod(name).annotation(SAFE_TO_EVICT, "true").asking(GPU, units * on).into();
    if on > 1 {
        pod["metadata"]["annotations"]["plimsoll.dev/gpu-card-count"] = on.to_string().into();
    }
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": true}]);
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1".into();
    pod
}

/// Nodes with 2 GPUs of 16 units, and on each one pod of 10 units.
async fn spread(sim: &Sim, nodes: &[&str], flags: &[&str]) -> Rig {
    for name in nodes {
        sim.put(gpu_node(name, 2).with("cpu", 4).with("pods", 110).with(GPU, 32));
    }
    let rig = Rig::start_with(sim, flags).await;
    for name in nodes {
        let pod = sim.put(replica(&format!("web-{name}"), 10, 1));
        assert_eq!(rig.bind(&pod, name).await, "");
        run(sim, &format!("web-{name}"));
    }
    rig.until("the pods", async || rig.used().await == 10 * nodes.len() as u64).await;
    rig
}

/// Two GPUs of 16 units by a node that can enforce `mps`, with what it reports of the end of clients.
fn mps_gpus(node: &str, drain: Option<bool>) -> String {
    let gpu = |index: u32| {
        let mut gpu = json!({
            "uuid": format!("GPU-{node}-{index}"), "index": index, "model": "NVIDIA A10",
            "memoryMiB": 16384, "units": 16, "healthy": true, "pods": {},
            "isolation": "mps", "mpsClients": 48,
        });
        if let Some(drain) = drain {
            gpu["mpsDrain"] = drain.into();
        }
        gpu
    };
    json!([gpu(0), gpu(1)]).to_string()
}

#[tokio::test]
async fn clients_of_mps_beside_others_stay_until_their_node_terminates_them_before_they_are_killed()
{
    let sim = Sim::start().await.unwrap();
    for name in ["a", "b"] {
        let node = gpu_node(name, 2).with("cpu", 8).with("pods", 110).with(GPU, 32);
        sim.put(node.annotation("plimsoll.dev/gpu-cards", mps_gpus(name, None)));
    }
    let rig = Rig::start(&sim).await;
    for (name, node) in [("web-0", "a"), ("web-1", "a"), ("web-2", "b"), ("web-3", "b")] {
        let mut pod = replica(name, 5, 1);
        pod["metadata"]["annotations"]["plimsoll.dev/gpu-isolation"] = "mps".into();
        let pod = sim.put(pod);
        assert_eq!(rig.bind(&pod, node).await, "");
        run(&sim, name);
    }
    rig.until("the pods", async || rig.used().await == 20).await;
    for drain in [None, Some(false)] {
        for name in ["a", "b"] {
            report_gpus(&sim, name, &mps_gpus(name, drain));
        }
        let answer = asked(&rig, "cards=2&units=16").await;
        assert_eq!(answer.get("proposal"), None, "{answer}");
        assert_eq!(answer["staying"], json!([{"reason": "mpsClient", "pods": 4}]));
    }
    for name in ["a", "b"] {
        report_gpus(&sim, name, &mps_gpus(name, Some(true)));
    }
    rig.until("a proposal", async || {
        asked(&rig, "cards=2&units=16").await.get("proposal").is_some()
    })
    .await;
}

fn report_gpus(sim: &Sim, node: &str, gpus: &str) {
    sim.change(sim::NODES, "", node, |node| {
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = gpus.into();
    });
}

fn run(sim: &Sim, name: &str) {
    sim.change(PODS, "default", name, |pod| pod["status"]["phase"] = "Running".into());
}

fn evicted(sim: &Sim) -> Vec<String> {
    let mut evictions = sim.log().of(Verb::Evict, PODS);
    evictions.retain(|eviction| !eviction.query.contains_key("dryRun"));
    evictions.into_iter().map(|eviction| eviction.name).collect()
}

async fn asked(rig: &Rig, query: &str) -> Value {
    let (status, text) = rig.get_status(&format!("/v1/moves?{query}")).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn unschedulable() -> Value {
    json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastTransitionTime": "2026-11-20T09:00:00Z",
    }])
}

fn set(sim: &Sim, name: &str, path: &[&str], value: &Value) {
    sim.change(PODS, "default", name, |pod| {
        *path.iter().fold(pod, |at, key| &mut at[*key]) = value.clone();
    });
}

#[tokio::test]
async fn where_no_node_has_two_whole_gpus_one_move_makes_them() {
    let sim = Sim::start().await.unwrap();
    let rig = spread(&sim, &["a", "b", "c"], &[]).await;
    let answer = asked(&rig, "cards=2&units=16").await;
    let [it] = &answer["proposal"]["moves"].as_array().unwrap()[..] else { panic!("{answer}") };
    let node = answer["proposal"]["node"].as_str().unwrap();
    assert_eq!((&it["name"], &it["units"]), (&json!(format!("web-{node}")), &json!(10)));
    assert_ne!(it["to"], node, "{answer}");
    assert_eq!(it["workload"], format!("ReplicaSet/web-{node}"));
    // One GPU is there already.
    let answer = asked(&rig, "units=16").await;
    assert_eq!(answer["proposal"]["moves"], json!([]));
    assert!(evicted(&sim).is_empty());
    // No node has three.
    assert_eq!(asked(&rig, "cards=3&units=1").await.get("proposal"), None);
    let answer = asked(&rig, "cards=2&units=16&priority=-1").await;
    assert_eq!(answer["staying"], json!([{"reason": "priority", "pods": 3}]));
    let (status, text) = rig.get_status("/v1/moves?cards=2").await;
    assert!(status == 400 && text.contains("units: missing"), "{status} {text}");
}

/// A budget that allows one eviction has one pod moved; two of a workload without a budget are not moved together.
#[tokio::test]
async fn no_more_pods_go_together_than_budgets_and_workloads_allow() {
    let sim = Sim::start().await.unwrap();
    for name in ["a", "b"] {
        sim.put(gpu_node(name, 2).with("cpu", 8).with("pods", 110).with(GPU, 32));
    }
    let rig = Rig::start(&sim).await;
    for (name, node) in [("web-0", "a"), ("web-1", "a")] {
        let mut pod = replica(name, 10, 1);
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod["metadata"]["ownerReferences"][0]["name"] = "web".into();
        let pod = sim.put(pod);
        assert_eq!(rig.bind(&pod, node).await, "");
        run(&sim, name);
    }
    let large = sim.put(replica("large", 16, 2));
    assert_eq!(rig.bind(&large, "b").await, "");
    run(&sim, "large");
    rig.until("the pods", async || rig.used().await == 52).await;
    // Two whole GPUs on one node: both of `web` would have to go, and there is nowhere to go before `large` goes.
    sim.delete(PODS, "default", "large");
    rig.until("the end", async || rig.used().await == 20).await;
    sim.put(gpu_node("b", 1).with("cpu", 8).with("pods", 110).with(GPU, 16));
    sim.put(gpu_node("c", 1).with("cpu", 8).with("pods", 110).with(GPU, 16));
    rig.until("the GPUs", async || {
        let nodes = rig.inspect().await;
        nodes["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3)
    })
    .await;
    assert_eq!(asked(&rig, "cards=2&units=16").await.get("proposal"), None);
    let budget = |allowed: i64| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": allowed},
        })
    };
    for (allowed, moves) in [(0, None), (1, None), (2, Some(2))] {
        sim.put(budget(allowed));
        let answer = asked(&rig, "cards=2&units=16").await;
        let proposed = answer.get("proposal").map(|it| it["moves"].as_array().unwrap().len());
        assert_eq!(proposed, moves, "{allowed}: {answer}");
    }
}

/// kube-scheduler asks no extender: no node's total suffices. The pods that wait are listed.
#[tokio::test]
async fn a_pod_for_which_no_nodes_total_suffices_gets_its_gpus_by_a_move() {
    let sim = Sim::start().await.unwrap();
    let rig = spread(&sim, &["a", "b"], &FLAGS).await;
    let _scheduler = scheduler(&sim, &rig);
    sim.put(replica("train", 16, 2));
    rig.until("the eviction", async || !evicted(&sim).is_empty()).await;
    let [moved] = &evicted(&sim)[..] else { panic!("{:?}", evicted(&sim)) };
    // Its controller makes another.
    sim.put(replica("web-next", 10, 1));
    let places = || ["train", "web-next"].map(|name| node_of(&sim, name));
    rig.until("both", async || {
        // kube-scheduler tries again after a change of a node.
        for name in ["a", "b"] {
            sim.change(sim::NODES, "", name, |node| {
                let version = node["metadata"]["resourceVersion"].clone();
                node["metadata"]["annotations"]["touched"] = version;
            });
        }
        tokio::time::sleep(PAUSE).await;
        places().iter().all(Option::is_some)
    })
    .await;
    let [train, next] = places();
    assert_eq!(train.as_deref(), moved.strip_prefix("web-"));
    assert_ne!(train, next);
    rig.until("the events", async || {
        let reasons =
            [sim::EVENTS, sim::WRITTEN_EVENTS].map(|kind| sim.log().of(Verb::Create, kind));
        let reasons: Vec<Value> =
            reasons.into_iter().flatten().map(|event| event.body["reason"].clone()).collect();
        ["MovedForGPUCard", "MovingForGPUCard"].iter().all(|it| reasons.contains(&json!(it)))
    })
    .await;
    assert_eq!(evicted(&sim).len(), 1);
}

fn node_of(sim: &Sim, name: &str) -> Option<String> {
    sim.pod("default", name)?["spec"]["nodeName"].as_str().map(str::to_owned)
}

/// kube-scheduler does not try a pod with gates, so no moves help it.
#[tokio::test]
async fn nobody_is_moved_for_a_pod_behind_scheduling_gates() {
    let sim = Sim::start().await.unwrap();
    let rig = spread(&sim, &["a", "b"], &FLAGS).await;
    let mut train = replica("train", 16, 2);
    let condition = |reason: &str| {
        json!([{
            "type": "PodScheduled", "status": "False", "reason": reason,
            "lastTransitionTime": "2026-11-20T09:00:00Z",
        }])
    };
    train["status"]["conditions"] = condition("SchedulingGated");
    sim.put(train);
    // Another one waits, and no node may take it.
    let mut other = replica("other", 16, 2);
    other["spec"]["nodeSelector"] = json!({ "no": "node" });
    other["status"]["conditions"] = condition("Unschedulable");
    sim.put(other);
    let looks = |name: &str| {
        let reads = sim.log().of(Verb::Get, PODS);
        reads.iter().filter(|read| read.name == name).count()
    };
    rig.until("two looks", async || looks("other") >= 4).await;
    assert_eq!(looks("train"), 0);
    assert_eq!(sim.log().of(Verb::List, sim::DISRUPTION_BUDGETS).len(), 0);
    set(&sim, "train", &["status", "conditions"], &condition("Unschedulable"));
    rig.until("the eviction", async || !evicted(&sim).is_empty()).await;
}

/// 64 and more pods of another namespace wait, are more important, and can go nowhere.
#[tokio::test]
async fn pods_of_another_namespace_that_no_node_may_take_keep_nobody_from_moves() {
    let sim = Sim::start().await.unwrap();
    let rig = spread(&sim, &["a", "b"], &FLAGS).await;
    for number in 0..300 {
        let mut idle: Value =
            pod(&format!("idle-{number}")).in_namespace("flood").asking(GPU, 1).into();
        idle["spec"]["nodeSelector"] = json!({ "no": "node" });
        idle["spec"]["priority"] = 1_000.into();
        idle["status"]["conditions"] = unschedulable();
        sim.put(idle);
    }
    let mut train = replica("train", 16, 2);
    train["status"]["conditions"] = unschedulable();
    sim.put(train);
    rig.until("the eviction", async || !evicted(&sim).is_empty()).await;
}

/// Each of these pods waits although moves would make room, and no moves help it.
#[tokio::test]
async fn nobody_is_moved_for_a_pod_that_its_nodes_keep_out() {
    let apart = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
        "labelSelector": {}, "namespaceSelector": {}, "topologyKey": "kubernetes.io/hostname",
    }] } });
    for withheld in [false, true] {
        let sim = Sim::start().await.unwrap();
        let rig = spread(&sim, &["a", "b"], &FLAGS).await;
        for node in ["a", "b"] {
            if withheld {
                sim.change(sim::NODES, "", node, |node| {
                    node["status"]["allocatable"][GPU] = "0".into();
                });
            } else {
                let mut lonely: Value = pod(&format!("lonely-{node}")).on(node).into();
                lonely["spec"]["affinity"] = apart.clone();
                sim.put(lonely);
            }
        }
        let mut train = replica("train", 16, 2);
        train["status"]["conditions"] = unschedulable();
        sim.put(train);
        let searches = || sim.log().of(Verb::List, sim::DISRUPTION_BUDGETS).len();
        rig.until("two searches", async || searches() > 1).await;
        assert!(evicted(&sim).is_empty(), "{withheld}");
    }
}

/// Filter judges a node with what the pod will probably use. So do moves, for the pod that waits and for the moved one.
#[tokio::test]
async fn nobody_is_moved_to_a_node_where_its_own_use_is_too_much() {
    let policy = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.8}]
  limits: {mode: hard, maxWait: never}
";
    for (load, uses, moves) in [(0.3, "1", true), (0.75, "1", false), (0.3, "2.5", false)] {
        let sim = Sim::start().await.unwrap();
        for (name, gpus, load) in [("a", 2, 0.1), ("c", 1, load)] {
            let node = gpu_node(name, gpus).with("cpu", 4).with("pods", 110);
            let reading = Reading::new(Ratio::new(load).unwrap(), Timestamp::now());
            let reading = ReadingCodec::default().encode(&reading);
            sim.put(node.with(GPU, 16 * gpus).annotation("cpu_usage_avg_5m", reading));
        }
        let rig = Rig::start_under(&sim, policy, &FLAGS).await;
        let web = sim.put(replica("web", 10, 1));
        assert_eq!(rig.bind(&web, "a").await, "");
        run(&sim, "web");
        rig.until("the pod", async || rig.used().await == 10).await;
        let mut train = replica("train", 16, 2);
        train["metadata"]["annotations"]["plimsoll.dev/expected-use"] =
            json!({ "cpu": uses }).to_string().into();
        train["status"]["conditions"] = unschedulable();
        sim.put(train);
        let reads = || sim.log().of(Verb::Get, PODS);
        let looks = || reads().iter().filter(|read| read.name == "train").count();
        rig.until("the looks", async || looks() >= 4 || !evicted(&sim).is_empty()).await;
        assert_eq!(!evicted(&sim).is_empty(), moves, "{load} {uses}");
    }
}

/// kube-scheduler never binds the pod, and the extender does not know why.
#[tokio::test]
async fn after_moves_in_vain_none_follow_for_the_same_pod() {
    let sim = Sim::start().await.unwrap();
    let rig = spread(&sim, &["a", "b", "c"], &FLAGS).await;
    let mut train = replica("train", 16, 2);
    train["status"]["conditions"] = unschedulable();
    sim.put(train.clone());
    rig.until("the eviction", async || !evicted(&sim).is_empty()).await;
    // Its workload makes it anew. The GPUs that were freed are in use again.
    sim.delete(PODS, "default", "train");
    let [moved] = &evicted(&sim)[..] else { panic!("{:?}", evicted(&sim)) };
    let node = moved.strip_prefix("web-").unwrap().to_owned();
    let next = sim.put(replica("web-next", 10, 1));
    rig.until("the binding", async || rig.bind(&next, &node).await.is_empty()).await;
    run(&sim, "web-next");
    train["metadata"]["uid"] = "again".into();
    sim.put(train);
    let in_vain = "plimsoll_extender_card_evictions_total{outcome=\"in-vain\"}";
    rig.until("the look", async || rig.context.metrics().unwrap().contains(in_vain)).await;
    assert_eq!(evicted(&sim).len(), 1);
}

/// Not without the flag, not for a pod that is less important, and not where evictions are refused.
#[tokio::test]
async fn nobody_is_moved_without_the_flag_or_for_a_less_important_pod() {
    for (flags, priority) in [(&["--evict-for-cards"][..], 0), (&FLAGS[..], -1)] {
        let sim = Sim::start().await.unwrap();
        let rig = spread(&sim, &["a", "b"], flags).await;
        let _scheduler = scheduler(&sim, &rig);
        let mut train = replica("train", 16, 2);
        train["spec"]["priority"] = priority.into();
        sim.put(train);
        let waits = |sim: &Sim| {
            let pod = sim.pod("default", "train")?;
            pod["status"]["conditions"].is_array().then_some(())
        };
        sim.until("the verdict", waits).await.unwrap();
        if flags == FLAGS {
            let looks = || sim.log().of(Verb::List, sim::DISRUPTION_BUDGETS).len();
            rig.until("two looks", async || looks() > 1).await;
        }
        assert!(evicted(&sim).is_empty(), "{flags:?} {priority}");
    }
}
