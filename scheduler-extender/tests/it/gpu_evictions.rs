//! Evicting others for a pod whose node has units enough and no GPU with room.

use std::time::Duration;

use scheduler_extender::Args;
use serde_json::{Value, json};
use sim::scheduler::{Scheduler, SchedulerConfig};
use sim::{EVENTS, Failure, Fault, PODS, Sim, Verb, WRITTEN_EVENTS, pod};

use crate::rig::{GPU, Rig, gpu_node};

/// Between two changes of a node.
const PAUSE: Duration = Duration::from_millis(50);

const FLAGS: [&str; 1] = ["--evict-for-cards"];

fn of_priority(name: &str, units: u32, priority: i64) -> Value {
    let mut pod: Value = pod(name).asking(GPU, units).into();
    pod["spec"]["priority"] = priority.into();
    pod["metadata"]["labels"]["app"] = name.into();
    pod
}

/// kube-scheduler with the entry for GPU pods.
fn scheduler(sim: &Sim, rig: &Rig) -> Scheduler {
    let config = json!({"extenders": [{
        "urlPrefix": rig.url("/gpushare-scheduler"), "filterVerb": "filter", "preemptVerb": "preempt", "bindVerb": "bind",
        "nodeCacheCapable": true, "managedResources": [{"name": GPU}],
    }]});
    let config: SchedulerConfig = serde_json::from_value(config).unwrap();
    Scheduler::start(sim, config).unwrap().0
}

/// A node with two GPUs of 16 units, of which 6 are free on each: on the first GPU two pods of 5, on the second one
/// of 10.
async fn full_gpus(sim: &Sim, flags: &[&str]) -> Rig {
    full_gpus_changed(sim, flags, |_| ()).await
}

async fn full_gpus_changed(sim: &Sim, flags: &[&str], change: impl FnOnce(&mut Args)) -> Rig {
    sim.put(gpu_node("node", 2).with("cpu", 16).with(GPU, 32));
    let rig = Rig::start_changed(sim, flags, change).await;
    for (name, units) in [("small-0", 5), ("small-1", 5), ("large", 10)] {
        let pod = sim.put(of_priority(name, units, 0));
        assert_eq!(rig.bind(&pod, "node").await, "");
        sim.change(PODS, "default", name, |pod| pod["status"]["phase"] = "Running".into());
    }
    assert_eq!(rig.used().await, 20);
    rig
}

fn there(sim: &Sim) -> Vec<&'static str> {
    let all = ["large", "small-0", "small-1"].into_iter();
    all.filter(|name| sim.pod("default", name).is_some()).collect()
}

fn node_of(sim: &Sim, name: &str) -> Option<String> {
    sim.pod("default", name)?["spec"]["nodeName"].as_str().map(str::to_owned)
}

/// Lets kube-scheduler try again, as each change of a node does.
fn touch(sim: &Sim) {
    sim.change(sim::NODES, "", "node", |node| {
        let version = node["metadata"]["resourceVersion"].clone();
        node["metadata"]["annotations"]["touched"] = version;
    });
}

async fn lands(sim: &Sim, rig: &Rig, name: &str) {
    rig.until("the binding", async || {
        touch(sim);
        tokio::time::sleep(PAUSE).await;
        node_of(sim, name).is_some()
    })
    .await;
}

/// Without dry runs.
fn evictions(sim: &Sim) -> usize {
    evicted(sim).len()
}

fn evicted(sim: &Sim) -> Vec<String> {
    let mut evictions = sim.log().of(Verb::Evict, PODS);
    evictions.retain(|eviction| !eviction.query.contains_key("dryRun"));
    evictions.into_iter().map(|eviction| eviction.name).collect()
}

/// The value of a metric.
fn count(rig: &Rig, outcome: &str) -> usize {
    let page = rig.context.metrics().unwrap();
    let start = format!("plimsoll_extender_card_evictions_total{{outcome=\"{outcome}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |it| it.parse().unwrap())
}

fn set_priority(sim: &Sim, name: &str, priority: i64) {
    sim.change(PODS, "default", name, |pod| pod["spec"]["priority"] = priority.into());
}

fn set_label(sim: &Sim, names: &[&str], label: &str) {
    for name in names {
        sim.change(PODS, "default", name, |pod| pod["metadata"]["labels"]["app"] = label.into());
    }
}

/// Filter for the pod `train`, which waits.
async fn filter(sim: &Sim, rig: &Rig, units: u32, nodes: &[&str]) -> Value {
    let train = match sim.pod("default", "train") {
        Some(train) => train,
        None => waiting(sim, "train", units, 1000),
    };
    filter_for(rig, &train, nodes).await
}

/// A pod whose condition says that it waits, as stored.
fn waiting(sim: &Sim, name: &str, units: u32, priority: i64) -> Value {
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastTransitionTime": "2026-11-20T09:00:00Z",
    });
    let mut pod = of_priority(name, units, priority);
    pod["status"]["conditions"] = json!([condition]);
    sim.put(pod)
}

/// The nodes that pass Filter for the pod.
async fn filter_for(rig: &Rig, pod: &Value, nodes: &[&str]) -> Value {
    rig.filter("/gpushare-scheduler", pod, nodes).await["NodeNames"].clone()
}

#[tokio::test]
async fn where_totals_fit_and_gpus_do_not_the_fewest_are_evicted_and_the_pod_lands() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    let _scheduler = scheduler(&sim, &rig);
    sim.put(of_priority("train", 12, 1000));
    rig.until("the eviction", async || evictions(&sim) > 0).await;
    lands(&sim, &rig, "train").await;
    assert_eq!((there(&sim), evictions(&sim)), (vec!["small-0", "small-1"], 1));
    rig.until("the events", async || {
        let reasons = [EVENTS, WRITTEN_EVENTS].map(|kind| sim.log().of(Verb::Create, kind));
        let reasons: Vec<_> =
            reasons.into_iter().flatten().map(|event| event.body["reason"].clone()).collect();
        ["EvictedForGPUCard", "EvictingForGPUCard"]
            .iter()
            .all(|reason| reasons.contains(&json!(reason)))
    })
    .await;
    let page = rig.context.metrics().unwrap();
    assert!(page.contains("card_evictions_total{outcome=\"evicted\"} 1"), "{page}");
}

#[tokio::test]
async fn nobody_is_evicted_unless_that_is_set_and_for_pods_that_may_not_preempt_or_are_not_more_important()
 {
    for (flags, priority, policy) in
        [(&[][..], 1000, ""), (&FLAGS[..], 0, ""), (&FLAGS[..], 1000, "Never")]
    {
        let sim = Sim::start().await.unwrap();
        let rig = full_gpus(&sim, flags).await;
        let _scheduler = scheduler(&sim, &rig);
        let mut train = of_priority("train", 12, priority);
        if !policy.is_empty() {
            train["spec"]["preemptionPolicy"] = policy.into();
        }
        sim.put(train);
        let waits = |sim: &Sim| {
            let pod = sim.pod("default", "train")?;
            pod["status"]["conditions"].is_array().then_some(())
        };
        sim.until("the verdict", waits).await.unwrap();
        // Ten times as long as it has to wait.
        tokio::time::sleep(10 * PAUSE).await;
        assert_eq!((there(&sim).len(), evictions(&sim)), (3, 0), "{flags:?} {priority} {policy}");
    }
}

/// Two GPUs by a node that can enforce `mps`, with what it reports of the end of clients.
fn report_mps(sim: &Sim, drain: bool) {
    let gpu = |index: u32| {
        json!({
            "uuid": format!("GPU-node-{index}"), "index": index, "model": "NVIDIA A10",
            "memoryMiB": 16384, "units": 16, "healthy": true, "pods": {},
            "isolation": "mps", "mpsClients": 48, "mpsDrain": drain,
        })
    };
    sim.change(sim::NODES, "", "node", |node| {
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] =
            json!([gpu(0), gpu(1)]).to_string().into();
    });
}

#[tokio::test]
async fn no_client_of_mps_beside_others_is_evicted_until_its_node_terminates_it_before_it_is_killed()
 {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("node", 2).with("cpu", 16).with(GPU, 32));
    report_mps(&sim, false);
    let rig = Rig::start_with(&sim, &FLAGS).await;
    let client = |name: &str, units: u32, priority: i64| {
        let mut pod = of_priority(name, units, priority);
        pod["metadata"]["annotations"]["plimsoll.dev/gpu-isolation"] = "mps".into();
        pod
    };
    for name in ["small-0", "small-1", "small-2", "small-3"] {
        let pod = sim.put(client(name, 6, 0));
        assert_eq!(rig.bind(&pod, "node").await, "");
        sim.change(PODS, "default", name, |pod| pod["status"]["phase"] = "Running".into());
    }
    rig.until("the pods", async || rig.used().await == 24).await;
    // kube-scheduler's own preemption gets no victims either, whether it has read the node or not.
    let train = sim.put(client("train", 8, 1000));
    let victims = |names: &[&str]| {
        let uid =
            |name: &&str| json!({ "UID": sim.pod("default", name).unwrap()["metadata"]["uid"] });
        json!({ "Pods": names.iter().map(uid).collect::<Vec<_>>(), "NumPDBViolations": 0 })
    };
    let all = ["small-0", "small-1", "small-2", "small-3"];
    let body = json!({ "Pod": train, "NodeNameToVictims": null,
        "NodeNameToMetaVictims": { "node": victims(&all) } });
    let preempt = async || rig.post("/gpushare-scheduler/preempt", &body).await;
    assert_eq!(preempt().await["NodeNameToMetaVictims"], json!({}));
    sim.faults().next(1, Verb::List, PODS, Fault::Answer(Failure::internal("no")));
    assert_eq!(preempt().await["NodeNameToMetaVictims"], json!({}));
    let _scheduler = scheduler(&sim, &rig);
    rig.until("a look", async || count(&rig, "mps-clients") > 0).await;
    assert_eq!(evictions(&sim), 0);
    report_mps(&sim, true);
    rig.until("the eviction", async || evictions(&sim) > 0).await;
    lands(&sim, &rig, "train").await;
}

/// The budget of the pods with that label, which allows so many evictions.
fn budget(app: &str, allowed: i64) -> Value {
    named_budget(app, app, allowed)
}

fn named_budget(name: &str, app: &str, allowed: i64) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "selector": { "matchLabels": { "app": app } } },
        "status": { "disruptionsAllowed": allowed },
    })
}

#[tokio::test]
async fn a_pod_that_a_budget_keeps_is_not_evicted_and_others_are() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    for app in ["large", "small-0", "small-1"] {
        sim.put(budget(app, 0));
    }
    let _scheduler = scheduler(&sim, &rig);
    sim.put(of_priority("train", 12, 1000));
    let looks = || sim.log().of(Verb::List, sim::DISRUPTION_BUDGETS).len();
    rig.until("three looks", async || looks() > 2).await;
    assert_eq!((there(&sim).len(), evictions(&sim)), (3, 0));
    // Now the two small ones may go, and no one else.
    for app in ["small-0", "small-1"] {
        sim.put(budget(app, 1));
    }
    rig.until("the evictions", async || there(&sim) == ["large"]).await;
    lands(&sim, &rig, "train").await;
    assert_eq!(there(&sim), ["large"]);
}

/// Eight budgets of 250 KB select no pod, and are more than is read of a namespace.
#[tokio::test]
async fn budgets_that_are_too_long_keep_the_pods_of_their_namespace_and_no_others() {
    for (namespace, evicts) in [("a-team", true), ("default", false)] {
        let sim = Sim::start().await.unwrap();
        let rig = full_gpus(&sim, &FLAGS).await;
        let mut other = of_priority("other", 0, 0);
        other["metadata"]["namespace"] = namespace.into();
        other["spec"]["nodeName"] = "node".into();
        sim.put(other);
        for number in 0..8 {
            let mut long = named_budget(&format!("long-{number}"), "none", 1);
            long["metadata"]["namespace"] = namespace.into();
            long["metadata"]["annotations"] = json!({ "text": "x".repeat(250_000) });
            sim.put(long);
        }
        let _scheduler = scheduler(&sim, &rig);
        sim.put(of_priority("train", 12, 1000));
        if evicts {
            rig.until("the eviction", async || evictions(&sim) > 0).await;
        } else {
            let looks = || sim.log().of(Verb::List, sim::DISRUPTION_BUDGETS).len();
            rig.until("three looks", async || looks() > 2).await;
            assert_eq!(evictions(&sim), 0);
        }
    }
}

#[tokio::test]
async fn an_eviction_that_the_api_server_refuses_keeps_no_gpu_and_is_tried_again() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    let _scheduler = scheduler(&sim, &rig);
    sim.faults().next(2, Verb::Evict, PODS, Fault::Answer(Failure::too_many_requests()));
    sim.put(of_priority("train", 12, 1000));
    rig.until("the eviction", async || there(&sim).len() == 2).await;
    assert_eq!(evictions(&sim), 1);
    lands(&sim, &rig, "train").await;
    assert_eq!(count(&rig, "not-now"), 2);
}

/// The freed GPU is the pod's, though another asks for it first.
#[tokio::test]
async fn the_freed_gpu_is_kept_for_the_pod() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    let scheduler = scheduler(&sim, &rig);
    sim.put(of_priority("train", 12, 1000));
    rig.until("the eviction", async || there(&sim).len() == 2).await;
    drop(scheduler);
    if node_of(&sim, "train").is_none() {
        rig.until("the eviction in the ledger", async || [10, 22].contains(&rig.used().await))
            .await;
        let thief = sim.put(of_priority("thief", 12, 0));
        let filtered = rig.filter("/gpushare-scheduler", &thief, &["node"]).await;
        assert_eq!(filtered["NodeNames"], json!([]));
        let train = sim.pod("default", "train").unwrap();
        assert_eq!(rig.bind(&train, "node").await, "");
    }
    assert_eq!(node_of(&sim, "train").as_deref(), Some("node"));
}

#[tokio::test]
async fn no_more_are_evicted_in_a_minute_than_set() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus_changed(&sim, &FLAGS, |args| args.evictions_per_minute = 1).await;
    let _scheduler = scheduler(&sim, &rig);
    sim.put(of_priority("first", 12, 1000));
    rig.until("the eviction", async || there(&sim).len() == 2).await;
    lands(&sim, &rig, "first").await;
    sim.put(of_priority("second", 10, 1000));
    let limited = "card_evictions_total{outcome=\"rate-limited\"}";
    rig.until("the bound", async || rig.context.metrics().unwrap().contains(limited)).await;
    assert_eq!((there(&sim).len(), evictions(&sim)), (2, 1));
}

#[tokio::test]
async fn a_pod_that_several_budgets_cover_is_not_evicted_and_others_are() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    for name in ["one", "other"] {
        sim.put(named_budget(name, "large", 1));
    }
    filter(&sim, &rig, 12, &["node"]).await;
    rig.until("the evictions", async || there(&sim) == ["large"]).await;
    assert_eq!(evicted(&sim), ["small-0", "small-1"]);
}

#[tokio::test]
async fn an_eviction_without_a_clear_answer_counts_by_what_the_pod_says() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    // The first is the dry run.
    let faults = [Fault::Delay(PAUSE), Fault::Answer(Failure::internal("failed calling webhook"))];
    faults.into_iter().for_each(|fault| sim.faults().next(1, Verb::Evict, PODS, fault));
    filter(&sim, &rig, 12, &["node"]).await;
    rig.until("the evictions", async || there(&sim) == ["large"]).await;
    assert_eq!(evicted(&sim), ["large", "small-0", "small-1"]);
    rig.until("the count", async || count(&rig, "evicted") == 2).await;
    assert_eq!((count(&rig, "refused"), count(&rig, "unknown")), (1, 0));
}

#[tokio::test]
async fn no_pod_is_evicted_where_the_eviction_of_another_of_its_set_is_refused() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    set_priority(&sim, "large", 10);
    let refusal = Failure::new(403, "Forbidden", "admission webhook denied the request");
    let faults = [Fault::Delay(PAUSE), Fault::Answer(refusal)];
    faults.into_iter().for_each(|fault| sim.faults().next(1, Verb::Evict, PODS, fault));
    filter(&sim, &rig, 12, &["node"]).await;
    rig.until("the eviction", async || !evicted(&sim).is_empty()).await;
    assert_eq!((evicted(&sim), there(&sim)), (vec!["large".into()], vec!["small-0", "small-1"]));
    assert_eq!(count(&rig, "refused"), 1);
}

#[tokio::test]
async fn a_pod_that_is_ending_is_not_evicted_and_no_more_go_than_are_needed_beside_it() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    set_priority(&sim, "large", 10);
    sim.change(PODS, "default", "small-0", |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-11-20T09:00:00Z".into();
    });
    filter(&sim, &rig, 16, &["node"]).await;
    rig.until("the eviction", async || there(&sim) == ["large", "small-0"]).await;
    assert_eq!(evicted(&sim), ["small-1"]);
}

#[tokio::test]
async fn what_a_budget_allows_is_not_set_aside_for_pods_that_stay() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    set_priority(&sim, "small-0", 5);
    set_label(&sim, &["large", "small-0", "small-1"], "all");
    sim.put(budget("all", 1));
    filter(&sim, &rig, 12, &["node"]).await;
    rig.until("the eviction", async || there(&sim) == ["small-0", "small-1"]).await;
    assert_eq!(evicted(&sim), ["large"]);
}

#[tokio::test]
async fn a_set_that_is_more_than_a_budget_allows_is_not_begun() {
    let sim = Sim::start().await.unwrap();
    let rig = full_gpus(&sim, &FLAGS).await;
    set_priority(&sim, "large", 10);
    set_label(&sim, &["small-0", "small-1"], "small");
    sim.put(budget("small", 1));
    filter(&sim, &rig, 12, &["node"]).await;
    rig.until("the eviction", async || there(&sim) == ["small-0", "small-1"]).await;
    assert_eq!(evicted(&sim), ["large"]);
}

#[tokio::test]
async fn no_pod_of_a_node_that_keeps_the_waiting_pod_out_is_evicted() {
    let taint = json!([{ "key": "maintenance", "effect": "NoSchedule" }]);
    for spec in [json!({ "unschedulable": true }), json!({ "taints": taint })] {
        let sim = Sim::start().await.unwrap();
        let rig = full_gpus(&sim, &FLAGS).await;
        sim.change(sim::NODES, "", "node", |node| node["spec"] = spec.clone());
        filter(&sim, &rig, 12, &["node"]).await;
        rig.until("two looks", async || count(&rig, "no-victims") > 1).await;
        assert_eq!((there(&sim).len(), evictions(&sim)), (3, 0), "{spec}");
    }
}

#[tokio::test]
async fn a_pod_for_which_a_node_passes_meanwhile_is_forgotten() {
    let sim = Sim::start().await.unwrap();
    // Time enough for the second call to come before the first look.
    let after = Duration::from_secs(5);
    let rig = full_gpus_changed(&sim, &FLAGS, |args| args.evict_after = after).await;
    sim.put(gpu_node("other", 1).with("cpu", 16).with(GPU, 16));
    rig.until("the node", async || rig.inspect().await["nodes"].as_array().unwrap().len() == 2)
        .await;
    assert_eq!(filter(&sim, &rig, 12, &["node"]).await, json!([]));
    tokio::time::sleep(PAUSE).await;
    assert_eq!(filter(&sim, &rig, 12, &["node", "other"]).await, json!(["other"]));
    // Another, which is more important than none, is looked at later than it would have been.
    let later = waiting(&sim, "later", 12, 0);
    assert_eq!(filter_for(&rig, &later, &["node"]).await, json!([]));
    rig.until("the look at the other", async || count(&rig, "no-victims") > 0).await;
    assert_eq!((there(&sim).len(), evictions(&sim)), (3, 0));
    assert!(sim.log().of(Verb::Get, PODS).iter().all(|request| request.name != "train"));
}

#[tokio::test]
async fn nodes_where_nothing_can_be_done_do_not_hide_others() {
    let sim = Sim::start().await.unwrap();
    // Of as many pods each, the first by name are read: 32.
    let names: Vec<String> = (0..33).map(|at| format!("node-{at:02}")).collect();
    for name in &names {
        sim.put(gpu_node(name, 1).with("cpu", 16).with(GPU, 16));
    }
    let rig = Rig::start_with(&sim, &FLAGS).await;
    sim.put(budget("kept", 0));
    for name in &names {
        let mut pod = of_priority(name, 16, 0);
        pod["metadata"]["labels"]["app"] = "kept".into();
        let pod = sim.put(pod);
        assert_eq!(rig.bind(&pod, name).await, "");
        sim.change(PODS, "default", name, |pod| pod["status"]["phase"] = "Running".into());
    }
    set_label(&sim, &["node-32"], "free");
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    filter(&sim, &rig, 16, &nodes).await;
    rig.until("the eviction", async || sim.pod("default", "node-32").is_none()).await;
    assert_eq!(evicted(&sim), ["node-32"]);
}
