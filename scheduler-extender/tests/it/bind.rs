//! Bind under everything that goes wrong between the extender and the API server.

use std::sync::Arc;

use crate::rig::{GPU, Rig, annotation, binding, gpu_node, gpu_pod};
use futures::future::join_all;
use serde_json::{Value, json};
use sim::{Failure, Fault, KeptAddress, PODS, Sim, Verb, pod};
use tokio::io::AsyncWriteExt;

async fn cluster(nodes: &[(&str, u32)]) -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    for (name, gpus) in nodes {
        sim.put(gpu_node(name, *gpus));
    }
    let rig = Rig::start(&sim).await;
    (sim, rig)
}

fn node_of(sim: &Sim, pod: &Value) -> Option<String> {
    let pod = sim.pod("default", pod["metadata"]["name"].as_str().unwrap()).unwrap();
    pod["spec"]["nodeName"].as_str().map(str::to_owned)
}

fn bindings(sim: &Sim) -> usize {
    sim.log().bindings().len()
}

#[tokio::test]
async fn one_write_sets_the_node_and_the_claim() {
    let (sim, rig) = cluster(&[("n1", 2)]).await;
    let train = gpu_pod(&sim, "train", 5);
    assert_eq!(rig.bind(&train, "n1").await, "");
    assert_eq!(node_of(&sim, &train).as_deref(), Some("n1"));
    assert_eq!(annotation(&sim, &train, "plimsoll.dev/gpu-claim"), r#"{"main":{"GPU-n1-0":5}}"#);
    assert_eq!(annotation(&sim, &train, "ALIYUN_COM_GPU_MEM_IDX"), "0");
    assert_eq!(annotation(&sim, &train, "ALIYUN_COM_GPU_MEM_ASSIGNED"), "false");
    assert_eq!(bindings(&sim), 1);
    let writes = sim.log().all().into_iter().filter(|request| request.is(Verb::Patch, PODS));
    assert_eq!(writes.count(), 0);
}

#[tokio::test]
async fn a_pod_on_several_gpus_is_bound_with_its_share_of_each() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 3));
    let rig = Rig::start_under(&sim, WHOLE_GPUS, &[]).await;
    assert_eq!(rig.bind(&gpu_pod(&sim, "small", 1), "n1").await, "");
    let wanted =
        pod("train").asking(GPU, 6).annotation("plimsoll.dev/gpu-card-count", "2 exclusive");
    let train = sim.put(wanted);
    assert_eq!(rig.bind(&train, "n1").await, "");
    let share = r#"{"units":3,"exclusive":true}"#;
    assert_eq!(
        annotation(&sim, &train, "plimsoll.dev/gpu-claim"),
        format!(r#"{{"main":{{"GPU-n1-1":{share},"GPU-n1-2":{share}}}}}"#)
    );
    let allocation = annotation(&sim, &train, "scheduler.framework.gpushare.allocation");
    assert_eq!(allocation, r#"{"0":{"1":16,"2":16}}"#);
    assert_eq!(rig.used().await, 33);
    // Also to an extender that knows the claim alone.
    drop(rig);
    let rig = Rig::start(&sim).await;
    let error = rig.bind(&gpu_pod(&sim, "large", 16), "n1").await;
    assert!(error.contains("Insufficient GPU Memory in one device"), "{error}");
}

/// Lets pods of the namespace `default` have whole GPUs for few units.
const WHOLE_GPUS: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  gpu:
    beyondUnits:
    - namespaces: [default]
      allow: [exclusive]
";

#[tokio::test]
async fn every_verb_asks_the_policy_for_what_a_pod_takes_beyond_its_units() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let asking = |name: &str, units, key: &str, value: &str| {
        sim.put(pod(name).asking(GPU, units).annotation(&format!("plimsoll.dev/{key}"), value))
    };
    let wishes = [
        (asking("whole", 2, "gpu-card-count", "exclusive"), "exclusive GPUs cost"),
        (asking("compute", 2, "gpu-cores", "14"), "gpu-cores exceed"),
        (asking("grows", 2, "gpu-mem-limit", "3"), "gpu-mem-limit exceeds"),
    ];
    let rig = Rig::start(&sim).await;
    for (pod, reason) in &wishes {
        let filtered = rig.filter("/gpushare-scheduler", pod, &["n1"]).await;
        let rejected = filtered["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap();
        assert!(rejected.starts_with(reason), "{rejected}");
        // Nor by a Bind that no Filter came before, or that came before a change of the policy.
        let error = rig.bind(pod, "n1").await;
        assert!(error.contains(reason), "{error}");
        let victims = json!({ "Pods": [{ "UID": "other" }], "NumPDBViolations": 0 });
        let asked = json!({ "Pod": pod, "NodeNameToMetaVictims": { "n1": victims } });
        let answer = rig.post("/gpushare-scheduler/preempt", &asked).await;
        assert_eq!(answer["NodeNameToMetaVictims"], json!({}));
    }
    assert_eq!(bindings(&sim), 0);
    drop(rig);
    // The right is for one of the three, and for one namespace.
    let rig = Rig::start_under(&sim, WHOLE_GPUS, &[]).await;
    let [(whole, _), (compute, reason), _] = &wishes;
    assert!(rig.bind(compute, "n1").await.contains(reason));
    let mut elsewhere = whole.clone();
    elsewhere["metadata"]["namespace"] = json!("other");
    let filtered = rig.filter("/gpushare-scheduler", &elsewhere, &["n1"]).await;
    assert_eq!(filtered["NodeNames"], json!([]));
    assert_eq!(rig.bind(whole, "n1").await, "");
    assert_eq!(rig.used().await, 16);
}

#[tokio::test]
async fn a_memory_limit_is_in_the_claim_and_stays_what_it_was() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let rig = Rig::start_under(&sim, &WHOLE_GPUS.replace("exclusive", "memoryLimit"), &[]).await;
    let wanted = pod("train").asking(GPU, 2).annotation("plimsoll.dev/gpu-mem-limit", "5");
    let train = sim.put(wanted);
    assert_eq!(rig.bind(&train, "n1").await, "");
    let claim = r#"{"main":{"GPU-n1-0":{"units":2,"limit":5}}}"#;
    assert_eq!(annotation(&sim, &train, "plimsoll.dev/gpu-claim"), claim);
    sim.change(PODS, "default", "train", |pod| {
        pod["metadata"]["annotations"]["plimsoll.dev/gpu-mem-limit"] = json!("16");
    });
    let stored: cluster::Pod =
        serde_json::from_value(sim.pod("default", "train").unwrap()).unwrap();
    let facts = stored.facts(&placement::names::Names::default());
    let asks = facts.gpu_pod().unwrap().request.containers().to_vec();
    assert_eq!(asks[0].gpu_use.limit, Some(placement::units::Units(5)));
    assert_eq!(rig.used().await, 2);
}

#[tokio::test]
async fn a_pod_without_gpu_is_bound_with_a_claim_of_nothing() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let web = sim.put(pod("web").container("c", "cpu", 1));
    assert_eq!(rig.bind(&web, "n1").await, "");
    assert_eq!(node_of(&sim, &web).as_deref(), Some("n1"));
    let annotations = &sim.log().bindings()[0].body["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"plimsoll.dev/gpu-claim": "{}"}));
    let stored: cluster::Pod = serde_json::from_value(sim.pod("default", "web").unwrap()).unwrap();
    let facts = stored.facts(&placement::names::Names::default());
    assert!(matches!(facts.gpu, Ok(None)), "{:?}", facts.gpu);
    assert_eq!(rig.used().await, 0);
}

#[tokio::test]
async fn a_pod_that_no_gpu_fits_any_more_is_refused_with_filters_reason() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let first = gpu_pod(&sim, "first", 12);
    let second = gpu_pod(&sim, "second", 12);
    assert_eq!(rig.bind(&first, "n1").await, "");
    let error = rig.bind(&second, "n1").await;
    assert!(error.contains(": Insufficient GPU Memory in one device (see"), "{error}");
    assert_eq!(bindings(&sim), 1);
}

#[tokio::test]
async fn a_lost_reply_is_found_out_and_counts_as_success() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let train = gpu_pod(&sim, "train", 5);
    sim.faults().next_bindings(1, Fault::DropReply);
    assert_eq!(rig.bind(&train, "n1").await, "");
    assert_eq!((bindings(&sim), rig.used().await), (1, 5));
}

#[tokio::test]
async fn a_lost_request_keeps_its_gpu_and_the_next_try_succeeds_on_it() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let train = gpu_pod(&sim, "train", 12);
    sim.faults().next_bindings(1, Fault::DropRequest);
    let error = rig.bind(&train, "n1").await;
    assert!(error.contains("stays reserved"), "{error}");
    assert_eq!(rig.used().await, 12);
    let other = gpu_pod(&sim, "other", 12);
    assert!(rig.bind(&other, "n1").await.contains("Insufficient GPU Memory"));
    // Its own reservation must not keep the pod from its GPU.
    let filtered = rig.filter("/gpushare-scheduler", &train, &["n1"]).await;
    assert_eq!(filtered["NodeNames"], json!(["n1"]));
    assert_eq!(rig.bind(&train, "n1").await, "");
    assert_eq!(rig.used().await, 12);
}

#[tokio::test]
async fn a_conflict_with_another_node_is_an_error_and_its_gpu_is_kept() {
    let (sim, rig) = cluster(&[("n1", 1), ("n2", 1)]).await;
    let train = gpu_pod(&sim, "train", 5);
    // Another scheduler is quicker, and the watch has not shown it yet when the conflict comes.
    sim.faults().next_bindings(1, Fault::Hang);
    let binding = rig.bind(&train, "n1");
    let quicker = async {
        sim.until("the binding", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
        sim.change(PODS, "default", "train", |pod| {
            pod["spec"]["nodeName"] = "n2".into();
            pod["metadata"]["annotations"] =
                json!({ "plimsoll.dev/gpu-claim": r#"{"main":{"GPU-n2-0":5}}"# });
        });
        sim.faults().release();
    };
    let (error, ()) = tokio::join!(binding, quicker);
    assert_eq!(error, "the pod is already bound to node n2");
    let inspected = rig.inspect().await;
    assert_eq!(inspected["nodes"][0]["usedGPU"], 0);
    assert_eq!(inspected["nodes"][1]["usedGPU"], 5);
}

#[tokio::test]
async fn a_refused_binding_gives_its_gpu_back_and_says_why() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let train = gpu_pod(&sim, "train", 5);
    let forbidden = Failure::new(403, "Forbidden", "pods \"train\" is forbidden");
    sim.faults().next_bindings(1, Fault::Answer(forbidden));
    let error = rig.bind(&train, "n1").await;
    assert!(error.contains("refused by the API server (403)"), "{error}");
    assert_eq!(rig.used().await, 0);
}

#[tokio::test]
async fn a_pod_that_was_deleted_meanwhile_holds_nothing() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let train = gpu_pod(&sim, "train", 5);
    sim.delete(PODS, "default", "train");
    assert_eq!(rig.bind(&train, "n1").await, "the pod is gone");
    assert_eq!(rig.used().await, 0);
}

#[tokio::test]
async fn another_pod_of_the_same_name_is_left_alone() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let old = gpu_pod(&sim, "train", 5);
    sim.delete(PODS, "default", "train");
    let new = gpu_pod(&sim, "train", 5);
    assert_ne!(old["metadata"]["uid"], new["metadata"]["uid"]);
    assert_eq!(rig.bind(&old, "n1").await, "the pod is gone");
    assert_eq!(node_of(&sim, &new), None);
}

#[tokio::test]
async fn a_bind_whose_uid_belongs_to_another_name_changes_nothing() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let victim = gpu_pod(&sim, "victim", 12);
    assert_eq!(rig.bind(&victim, "n1").await, "");
    let other = sim.put(pod("other").container("c", "cpu", 1));
    for name in [other["metadata"]["name"].clone(), json!("nobody")] {
        let mut forged = other.clone();
        forged["metadata"]["name"] = name;
        forged["metadata"]["uid"] = victim["metadata"]["uid"].clone();
        let error = rig.bind(&forged, "n1").await;
        assert_eq!(error, "the UID belongs to pod default/victim");
        assert_eq!(rig.used().await, 12);
    }
    assert_eq!((bindings(&sim), node_of(&sim, &other)), (1, None));
}

#[tokio::test]
async fn names_that_kubernetes_gives_nothing_are_refused_before_anything_is_asked() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let train = gpu_pod(&sim, "train", 5);
    let call = |key: &str, value: String| {
        let mut call = binding(&train, "n1");
        call[key] = value.into();
        call
    };
    for (key, value) in [
        ("PodName", "p".repeat(254)),
        ("PodName", String::new()),
        ("PodName", "../../../../api/v1/namespaces/kube-system/pods/x".to_owned()),
        ("PodNamespace", "n".repeat(64)),
        ("PodNamespace", "a.b".to_owned()),
        ("PodUID", "u".repeat(64)),
        ("PodUID", String::new()),
        ("Node", "n".repeat(254)),
        ("Node", "n1/x".to_owned()),
    ] {
        let answer = rig.post("/gpushare-scheduler/bind", &call(key, value.clone())).await;
        let error = answer["Error"].as_str().unwrap();
        assert!(error.starts_with(&format!("{key} ")) && error.len() < 200, "{value}: {error}");
    }
    let of_a_pod = |request: &sim::Request| request.is(Verb::Get, PODS);
    assert_eq!((sim.log().all().iter().filter(|r| of_a_pod(r)).count(), bindings(&sim)), (0, 0));
    let long = call("PodName", "p".repeat(1 << 20)).to_string();
    assert_eq!(rig.post_text("/gpushare-scheduler/bind", long).await.0, 413);
}

#[tokio::test]
async fn a_hanging_api_server_is_answered_in_time_and_the_gpu_stays_reserved() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let rig = Rig::start(&sim).await;
    let train = gpu_pod(&sim, "train", 12);
    sim.faults().next_bindings(1, Fault::Hang);
    let error = rig.bind(&train, "n1").await;
    assert!(error.contains("stays reserved"), "{error}");
    assert_eq!(rig.used().await, 12);
    sim.faults().release();
    assert_eq!(rig.bind(&train, "n1").await, "");
    assert_eq!(rig.used().await, 12);
}

#[tokio::test]
async fn calls_for_one_pod_at_once_make_one_binding() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let train = gpu_pod(&sim, "train", 5);
    sim.faults().next_bindings(1, Fault::Hang);
    let calls = join_all((0..5).map(|_| rig.bind(&train, "n1")));
    let joined = async {
        let metric = r#"plimsoll_extender_binds_total{outcome="joined"} 4"#;
        let seen = async || rig.context.metrics().unwrap().contains(metric);
        rig.until("four calls that join", seen).await;
        sim.faults().release();
    };
    let (errors, ()) = tokio::join!(calls, joined);
    assert_eq!(errors, vec![String::new(); 5]);
    assert_eq!(bindings(&sim), 1);
}

#[tokio::test]
async fn a_repeated_call_after_success_succeeds_again_without_a_second_claim() {
    let (sim, rig) = cluster(&[("n1", 2)]).await;
    let train = gpu_pod(&sim, "train", 5);
    assert_eq!(rig.bind(&train, "n1").await, "");
    assert_eq!(rig.bind(&train, "n1").await, "");
    assert_eq!(rig.used().await, 5);
}

/// Has `n1` bound to the pod by a caller that does not read its answer, until the API server has the binding and hangs.
async fn call_and_wait(sim: &Sim, rig: &Rig, pod: &Value) -> tokio::net::TcpStream {
    let mut caller = tokio::net::TcpStream::connect(rig.address()).await.unwrap();
    let body = binding(pod, "n1").to_string();
    let head = format!(
        "POST /gpushare-scheduler/bind HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    sim.until("the binding", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
    caller
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_undo_the_binding() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    let train = gpu_pod(&sim, "train", 5);
    sim.faults().next_bindings(1, Fault::Hang);
    drop(call_and_wait(&sim, &rig, &train).await);
    sim.faults().release();
    sim.until("the pod on its node", |sim| node_of(sim, &train)).await.unwrap();
    rig.until("the claim", async || rig.used().await == 5).await;
}

#[tokio::test]
async fn a_binding_under_way_ends_after_the_port_is_closed() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let kept = KeptAddress::new().unwrap();
    let rig = Rig::start_at(&sim, &kept.address().to_string()).await;
    let train = gpu_pod(&sim, "train", 5);
    sim.faults().next_bindings(1, Fault::Hang);
    drop(call_and_wait(&sim, &rig, &train).await);
    rig.context.shutdown().cancel();
    let is_closed = async || tokio::net::TcpStream::connect(rig.address()).await.is_err();
    rig.until("the end of the port", is_closed).await;
    let verbs_run = || rig.context.tasks().running().contains(&"verbs");
    rig.until("the end of the verbs", async || !verbs_run()).await;
    assert!(rig.context.tasks().running().contains(&"binds"));
    sim.faults().release();
    sim.until("the pod on its node", |sim| node_of(sim, &train)).await.unwrap();
}

#[tokio::test]
async fn a_restart_finds_every_claim_again() {
    let (sim, rig) = cluster(&[("n1", 2), ("n2", 1)]).await;
    for (name, units, node) in [("a", 10, "n1"), ("b", 9, "n1"), ("c", 16, "n2")] {
        assert_eq!(rig.bind(&gpu_pod(&sim, name, units), node).await, "");
    }
    let before = rig.inspect().await;
    drop(rig);
    let rig = Rig::start(&sim).await;
    assert_eq!(rig.inspect().await, before);
    // A call that the process before it never answered.
    let a = sim.pod("default", "a").unwrap();
    assert_eq!(rig.bind(&a, "n1").await, "");
    assert_eq!(rig.inspect().await, before);
}

#[tokio::test]
async fn ended_pods_give_their_gpus_back() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    for name in ["done", "gone"] {
        assert_eq!(rig.bind(&gpu_pod(&sim, name, 8), "n1").await, "");
    }
    sim.change(PODS, "default", "done", |pod| pod["status"]["phase"] = "Succeeded".into());
    sim.delete(PODS, "default", "gone");
    rig.until("free GPUs", async || rig.used().await == 0).await;
}

#[tokio::test]
async fn what_is_missed_while_the_watch_is_down_is_found_in_the_next_list() {
    let (sim, rig) = cluster(&[("n1", 1)]).await;
    for name in ["kept", "gone"] {
        assert_eq!(rig.bind(&gpu_pod(&sim, name, 8), "n1").await, "");
    }
    sim.faults().next(1, Verb::List, PODS, Fault::Hang);
    sim.faults().expire_watches();
    sim.until("the next list", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
    sim.delete(PODS, "default", "gone");
    // Until the whole new list is there, the last good view holds.
    assert_eq!(rig.used().await, 16);
    sim.faults().release();
    rig.until("the new list", async || rig.used().await == 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn forty_bindings_at_once_never_overbook_a_gpu() {
    let (sim, rig) = cluster(&[("n1", 4), ("n2", 4)]).await;
    sim.faults().next_bindings(5, Fault::DropReply);
    sim.faults().next_bindings(5, Fault::DropRequest);
    let pods: Vec<Value> = (0..40).map(|i| gpu_pod(&sim, &format!("p{i}"), 3)).collect();
    let rig = Arc::new(rig);
    let tries = pods.iter().enumerate().map(|(i, pod)| {
        let (rig, pod) = (Arc::clone(&rig), pod.clone());
        tokio::spawn(async move { bind_until_settled(&rig, &pod, ["n1", "n2"][i % 2]).await })
    });
    let bound = join_all(tries).await.into_iter().filter(|bound| *bound.as_ref().unwrap()).count();
    // Eight GPUs of 16 hold five pods of 3 each.
    assert_eq!(bound, 40);
    for (gpu, units) in claimed(&sim) {
        assert!(units <= 16, "{gpu} carries {units} of 16");
    }
    assert_eq!(rig.used().await, 120);
    assert!(rig.context.metrics().unwrap().contains("gpu_units_overbooked 0"));
    // Full: nothing more fits, on whatever GPU.
    let error = rig.bind(&gpu_pod(&sim, "more", 3), "n1").await;
    assert!(error.contains("Insufficient GPU Memory"), "{error}");
}

/// As kube-scheduler: tries again on the other node whenever it is told an error.
async fn bind_until_settled(rig: &Rig, pod: &Value, first: &str) -> bool {
    let nodes = if first == "n1" { ["n1", "n2"] } else { ["n2", "n1"] };
    for node in nodes.into_iter().cycle().take(20) {
        if rig.bind(pod, node).await.is_empty() {
            return true;
        }
    }
    false
}

/// Units claimed on each GPU, by the API server's own record alone.
fn claimed(sim: &Sim) -> std::collections::BTreeMap<String, u64> {
    let mut gpus = std::collections::BTreeMap::new();
    for pod in sim.list(PODS) {
        let claim = &pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"];
        let Some(claim) = claim.as_str() else { continue };
        let claim: std::collections::BTreeMap<String, std::collections::BTreeMap<String, u64>> =
            serde_json::from_str(claim).unwrap();
        for (gpu, units) in claim.values().flatten() {
            *gpus.entry(gpu.clone()).or_default() += units;
        }
    }
    gpus
}
