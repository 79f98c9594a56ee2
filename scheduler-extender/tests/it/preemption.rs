//! kube-scheduler's stand-in with the shipped configuration and the real extender: what happens to pods of higher
//! priority where nodes are overloaded, or their GPUs full.

use jiff::SignedDuration;
use serde_json::Value;
use sim::scheduler::{Scheduler, SchedulerConfig};
use sim::{Sim, pod};

use crate::rig::{GPU, Rig, gpu_node, loaded_node};

const SHIPPED: &str = include_str!("../../../deploy/chart/kube-scheduler/shipped.yaml");
const NOW: SignedDuration = SignedDuration::ZERO;

fn shipped_config(rig: &Rig) -> SchedulerConfig {
    let host = rig.url("").trim_start_matches("http://").to_owned();
    SchedulerConfig::from_yaml(SHIPPED).unwrap().at(&host)
}

fn important(name: &str, cpus: u32) -> Value {
    let mut pod: Value = pod(name).asking("cpu", cpus).into();
    pod["spec"]["priority"] = 1000.into();
    pod
}

fn gpu_pod_of(name: &str, units: u32, priority: i64) -> Value {
    let mut pod: Value = pod(name).asking(GPU, units).into();
    pod["spec"]["priority"] = priority.into();
    pod
}

fn node_of(sim: &Sim, pod: &str) -> Option<String> {
    sim.pod("default", pod)?["spec"]["nodeName"].as_str().map(str::to_owned)
}

/// A message that differs would be written to the pod, the write would cause another attempt, and so on without end.
#[tokio::test]
async fn a_pod_of_higher_priority_that_load_rejects_everywhere_is_written_once() {
    let sim = Sim::start().await.unwrap();
    for number in 0..20 {
        let node = format!("node-{number}");
        sim.put(loaded_node(&node, 0.9, NOW).with("cpu", 8));
        sim.put(pod(&format!("low-{number}")).asking("cpu", 1).on(&node).phase("Running"));
    }
    let rig = Rig::start(&sim).await;
    let (_scheduler, mut decisions) = Scheduler::start(&sim, shipped_config(&rig)).unwrap();
    sim.put(important("waits", 1));
    // The condition that the first attempt writes causes the second one.
    let first = decisions.recv().await.unwrap().outcome;
    let version =
        |sim: &Sim| sim.pod("default", "waits").unwrap()["metadata"]["resourceVersion"].clone();
    let written = version(&sim);
    for number in 0..5 {
        assert_eq!(decisions.recv().await.unwrap().outcome, first);
        // Each further one is caused by a change of a node.
        sim.put(loaded_node("node-0", 0.9, NOW).with("cpu", 8).annotation("n", number.to_string()));
    }
    assert_eq!(version(&sim), written);
    let end = "preemption: 0/20 nodes are available: 20 Preemption is not helpful for scheduling.";
    let message = first.unwrap_err();
    assert!(message.ends_with(end), "{message}");
}

#[tokio::test]
async fn an_overloaded_node_loses_no_pod_to_preemption() {
    let sim = Sim::start().await.unwrap();
    for (node, load) in [("cold", 0.1), ("hot", 0.9)] {
        sim.put(loaded_node(node, load, NOW).with("cpu", 1));
        sim.put(pod(&format!("low-{node}")).asking("cpu", 1).on(node).phase("Running"));
    }
    // By itself kube-scheduler would evict the pod of the lower priority.
    sim.change(sim::PODS, "default", "low-cold", |pod| pod["spec"]["priority"] = 500.into());
    let rig = Rig::start(&sim).await;
    let (_scheduler, _decisions) = Scheduler::start(&sim, shipped_config(&rig)).unwrap();
    sim.put(important("preempts", 1));
    let node = |sim: &Sim| node_of(sim, "preempts");
    assert_eq!(sim.until("the binding", node).await.unwrap(), "cold");
    assert!(sim.pod("default", "low-cold").is_none());
    assert!(sim.pod("default", "low-hot").is_some());
}

/// On each of two nodes with two GPUs of 16 units, evicting the two pods of lower priority frees 16 units: 8 on each
/// GPU of `apart`, one whole GPU of `together`.
#[tokio::test]
async fn a_node_whose_victims_free_no_gpu_for_the_pod_loses_none_of_them() {
    let sim = Sim::start().await.unwrap();
    for node in ["apart", "together"] {
        sim.put(gpu_node(node, 2).with("cpu", 8).with(GPU, 32));
    }
    let rig = Rig::start(&sim).await;
    let bound = async |name: &str, units: u32, priority: i64, node: &str| {
        let pod = sim.put(gpu_pod_of(name, units, priority));
        assert_eq!(rig.bind(&pod, node).await, "");
    };
    // By itself kube-scheduler evicts the pods of the lowest priority. The fuller GPU is filled first.
    bound("apart-low-0", 8, 0, "apart").await;
    bound("apart-stays-0", 8, 2000, "apart").await;
    bound("apart-low-1", 8, 0, "apart").await;
    bound("apart-stays-1", 8, 2000, "apart").await;
    bound("together-low-0", 8, 500, "together").await;
    bound("together-low-1", 8, 500, "together").await;
    bound("together-stays", 16, 2000, "together").await;
    let (_scheduler, _decisions) = Scheduler::start(&sim, shipped_config(&rig)).unwrap();
    sim.put(gpu_pod_of("train", 16, 1000));
    let node = |sim: &Sim| node_of(sim, "train");
    // kube-scheduler may see the evictions before the extender does, and be refused. A device plugin then reports that
    // the victims' units are free, and each change of a node causes another attempt.
    let has_room = async || rig.used().await == 48 || node(&sim).is_some();
    rig.until("the evictions", has_room).await;
    sim.change(sim::NODES, "", "together", |node| {
        node["metadata"]["annotations"]["report"] = "after the evictions".into();
    });
    assert_eq!(sim.until("the binding", node).await.unwrap(), "together");
    let is_there = |name: &str| sim.pod("default", name).is_some();
    assert!(is_there("apart-low-0") && is_there("apart-low-1"));
    assert!(!is_there("together-low-0") && !is_there("together-low-1"));
}

/// Three full GPUs of 16 units, each with a pod of 12 and a less important one of 4. By totals the three of 4 would
/// do.
#[tokio::test]
async fn one_pod_is_evicted_where_the_dry_run_takes_three_and_its_gpu_is_kept() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("node", 3).with("cpu", 16).with(GPU, 48));
    let rig = Rig::start(&sim).await;
    let bound = async |name: &str, units: u32, priority: i64| {
        let pod = sim.put(gpu_pod_of(name, units, priority));
        assert_eq!(rig.bind(&pod, "node").await, "");
    };
    for gpu in 0..3 {
        bound(&format!("small-{gpu}"), 4, 0).await;
        bound(&format!("large-{gpu}"), 12, 500).await;
    }
    let gone = |sim: &Sim| {
        let all = (0..3).flat_map(|gpu| [format!("small-{gpu}"), format!("large-{gpu}")]);
        all.filter(|name| sim.pod("default", name).is_none()).collect::<Vec<_>>()
    };
    let (_scheduler, _decisions) = Scheduler::start(&sim, shipped_config(&rig)).unwrap();
    sim.put(gpu_pod_of("train", 12, 1000));
    sim.until("the eviction", |sim| (!gone(sim).is_empty()).then_some(())).await.unwrap();
    let node = |sim: &Sim| node_of(sim, "train");
    let has_room = async || rig.used().await == 36 || node(&sim).is_some();
    rig.until("the eviction in the ledger", has_room).await;
    sim.change(sim::NODES, "", "node", |node| {
        node["metadata"]["annotations"]["report"] = "after the eviction".into();
    });
    sim.until("the binding", node).await.unwrap();
    let gone = gone(&sim);
    assert!(gone.len() == 1 && gone[0].starts_with("large-"), "{gone:?}");
}

#[tokio::test]
async fn a_budget_is_not_violated_where_another_gpu_can_be_freed() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("node", 2).with("cpu", 16).with(GPU, 32));
    sim.put(serde_json::json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "kept", "namespace": "default" },
        "spec": { "selector": { "matchLabels": { "app": "kept" } } },
        "status": { "disruptionsAllowed": 0 },
    }));
    let rig = Rig::start(&sim).await;
    let bound = async |name: &str, priority: i64| {
        let mut pod = gpu_pod_of(name, 16, priority);
        pod["metadata"]["labels"]["app"] = name.into();
        let pod = sim.put(pod);
        assert_eq!(rig.bind(&pod, "node").await, "");
        serde_json::json!({ "UID": pod["metadata"]["uid"] })
    };
    let (kept, other) = (bound("kept", 0).await, bound("other", 10).await);
    let train = sim.put(gpu_pod_of("train", 12, 1000));
    let victims = |pods: &[&Value], violations: i64| serde_json::json!({ "node": { "Pods": pods, "NumPDBViolations": violations } });
    let ask = serde_json::json!({ "Pod": train, "NodeNameToMetaVictims": victims(&[&kept], 1) });
    let answer = rig.post("/gpushare-scheduler/preempt", &ask).await;
    assert_eq!(answer["NodeNameToMetaVictims"], victims(&[&other], 0));
}
