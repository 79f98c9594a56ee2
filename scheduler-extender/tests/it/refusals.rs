//! Nodes that cannot start a pod, by their report or by what their kubelet refused, get none.

use api::explain::{Explanation, GpuOutcome};
use api::gpus::Closed;
use api::node::Sharing;
use serde_json::{Value, json};
use sim::{NODES, PODS, Sim, WRITTEN_EVENTS, node, pod};

use crate::rig::{GPU, Rig, gpu_node, gpu_pod};

const FILTER: &str = "/gpushare-scheduler";
const ISOLATION: &str = "plimsoll.dev/gpu-isolation";
const SEE: &str = " (see: kubectl plimsoll explain pod)";

/// A node with one GPU, whose report has these fields too.
fn node_with(name: &str, more: &Value) -> sim::NodeBuilder {
    let mut gpu = json!({
        "uuid": format!("GPU-{name}"), "index": 0, "model": "NVIDIA A10",
        "memoryMiB": 16384, "units": 16, "healthy": true, "pods": {},
    });
    gpu.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    node(name).annotation("plimsoll.dev/gpu-cards", json!([gpu]).to_string())
}

/// Why the node rejects the pod; empty if it does not.
async fn rejection(rig: &Rig, pod: &Value, node: &str) -> String {
    let answer = rig.filter(FILTER, pod, &[node]).await;
    assert_eq!(answer["Error"], "", "{answer}");
    let failed = &answer["FailedAndUnresolvableNodes"][node];
    failed.as_str().unwrap_or_default().trim_end_matches(SEE).to_owned()
}

#[tokio::test]
async fn a_gpu_that_its_node_closes_gets_no_pod_and_explain_says_why() {
    let sim = Sim::start().await.unwrap();
    sim.put(node_with("closed", &json!({ "closed": "cdi" })));
    let rig = Rig::start(&sim).await;
    let train = gpu_pod(&sim, "train", 4);
    let why = rejection(&rig, &train, "closed").await;
    assert!(why.ends_with("GPUs with room take no new pods, see the events of the node"), "{why}");
    assert!(rig.bind(&train, "closed").await.contains("take no new pods"));
    let body = json!({ "Pod": train, "NodeNames": ["closed"] });
    let (_, text) = rig.post_text("/explain", body.to_string()).await;
    let explained: Explanation = serde_json::from_str(&text).unwrap();
    let gpu = &explained.nodes[0].gpus.as_ref().unwrap().gpus[0];
    assert_eq!((gpu.outcome, gpu.closed), (GpuOutcome::Closed, Some(Closed::Cdi)));
}

#[tokio::test]
async fn a_pod_that_requires_isolation_passes_only_nodes_that_report_it_also_in_bind() {
    let sim = Sim::start().await.unwrap();
    sim.put(node_with("driver", &json!({ "isolation": "driver" })));
    sim.put(node_with("mps", &json!({ "isolation": "mps" })));
    sim.put(node_with("none", &json!({ "isolation": "none" })));
    sim.put(node_with("silent", &json!({})));
    // A device plugin of an earlier version reports the mode of pods without an annotation.
    sim.put(node_with("older", &json!({})).annotation(ISOLATION, "driver"));
    let rig = Rig::start(&sim).await;
    let asks = sim.put(pod("asks").annotation(ISOLATION, "driver").asking(GPU, 4));
    let names = ["driver", "mps", "none", "silent", "older"];
    let answer = rig.filter(FILTER, &asks, &names).await;
    assert_eq!(answer["NodeNames"], json!(["driver", "older"]));
    let weaker = "node cannot enforce the pod's gpu-isolation (for mps: no daemon runs, or the pod mounts a /dev/shm or has the host's IPC)";
    assert_eq!(rejection(&rig, &asks, "mps").await, weaker);
    let silent = rejection(&rig, &asks, "silent").await;
    assert!(silent.starts_with("node does not report which gpu-isolation"), "{silent}");
    assert!(rig.bind(&asks, "none").await.contains(weaker));
    assert_eq!(rig.bind(&asks, "driver").await, "");
    let soft = sim.put(pod("soft").annotation(ISOLATION, "soft").asking(GPU, 4));
    let soft = rejection(&rig, &soft, "driver").await;
    assert_eq!(soft, "the pod's annotation gpu-isolation cannot be read");
}

/// Filter's answer for a new pod of one unit with this isolation, and Bind's where Filter accepts it.
async fn place(sim: &Sim, rig: &Rig, name: &str, isolation: &str) -> Result<(), String> {
    let asks = sim.put(pod(name).annotation(ISOLATION, isolation).asking(GPU, 1));
    match rejection(rig, &asks, "h100").await {
        why if !why.is_empty() => Err(why),
        _ => {
            assert_eq!(rig.bind(&asks, "h100").await, "", "{name}");
            Ok(())
        }
    }
}

async fn outcome(rig: &Rig, asks: &Value) -> GpuOutcome {
    let body = json!({ "Pod": asks, "NodeNames": ["h100"] });
    let (_, text) = rig.post_text("/explain", body.to_string()).await;
    let explained: Explanation = serde_json::from_str(&text).unwrap();
    explained.nodes[0].gpus.as_ref().unwrap().gpus[0].outcome
}

#[tokio::test]
async fn a_gpu_gets_the_clients_of_mps_that_it_serves_and_no_pod_without_mps_beside_them() {
    let sim = Sim::start().await.unwrap();
    let gpu = |index: u32| {
        json!({
            "uuid": format!("GPU-{index}"), "index": index, "model": "NVIDIA H100",
            "memoryMiB": 81559, "units": 79, "healthy": true, "pods": {},
            "isolation": "mps", "mpsClients": 48,
        })
    };
    let report = |gpus: &[Value]| {
        node("h100")
            .annotation("plimsoll.dev/gpu-cards", json!(gpus).to_string())
            .annotation(ISOLATION, "none")
    };
    sim.put(report(&[gpu(0)]));
    let rig = Rig::start(&sim).await;
    let full = "GPUs with room serve no more clients of MPS";
    let mut placed = 0;
    for n in 0..72 {
        match place(&sim, &rig, &format!("client-{n}"), "mps").await {
            Ok(()) => placed += 1,
            Err(why) => assert_eq!(why, full),
        }
    }
    assert_eq!(placed, 48);
    let client = sim.put(pod("client").annotation(ISOLATION, "mps").asking(GPU, 1));
    assert_eq!(outcome(&rig, &client).await, GpuOutcome::TooManyClients);
    assert!(rig.bind(&client, "h100").await.contains(full));
    let plain = gpu_pod(&sim, "plain", 1);
    let other = "GPUs with room have pods of the other kind: pods with MPS and pods without it share no GPU";
    assert_eq!(rejection(&rig, &plain, "h100").await, other);
    assert_eq!(outcome(&rig, &plain).await, GpuOutcome::OtherSharing);
    assert!(rig.bind(&plain, "h100").await.contains(other));
    // A second GPU: the pod without MPS goes there, and then no client does.
    sim.change(NODES, "", "h100", |node| {
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] =
            json!([gpu(0), gpu(1)]).to_string().into();
    });
    rig.until("the second GPU", async || rejection(&rig, &plain, "h100").await.is_empty()).await;
    assert_eq!(rig.bind(&plain, "h100").await, "");
    assert_eq!(place(&sim, &rig, "late", "mps").await, Err(full.to_owned()));
    let text = rig.get("/v1/cards").await;
    let gpus: api::node::AllGpus = serde_json::from_str(&text).unwrap();
    let shown = gpus.nodes[0].gpus.iter();
    let shown: Vec<_> = shown.map(|gpu| (gpu.sharing, gpu.mps_clients)).collect();
    let expected = [(Some(Sharing::Mps), Some(48)), (Some(Sharing::Turns), None)];
    assert_eq!(shown, expected);
}

/// As the kubelet writes it.
const MESSAGE: &str = "Allocate failed due to rpc error: code = FailedPrecondition desc = no (the fault is the node's), which is unexpected";

/// The kubelet refuses a bound pod for a fault of the node.
fn refuse(sim: &Sim, namespace: &str, name: &str) {
    sim.change(PODS, namespace, name, |pod| {
        pod["status"] =
            json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": MESSAGE });
    });
}

/// Binds a pod of that namespace to the node.
async fn send(sim: &Sim, rig: &Rig, namespace: &str, name: &str, node: &str) {
    let sent = sim.put(pod(name).in_namespace(namespace).asking(GPU, 1));
    assert_eq!(rig.bind(&sent, node).await, "");
}

const BACKED_OFF: &str = "node takes no GPU pods for a while: it has refused several of them";

fn metric(rig: &Rig, name: &str) -> f64 {
    let page = rig.context.metrics().unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn a_node_that_refuses_pods_of_a_namespace_gets_no_more_of_them_for_a_while() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("bad", 2));
    let rig = Rig::start(&sim).await;
    let (mine, other) =
        (gpu_pod(&sim, "mine", 1), sim.put(pod("o").in_namespace("b").asking(GPU, 1)));
    for name in ["p0", "p1", "p2"] {
        send(&sim, &rig, "default", name, "bad").await;
        refuse(&sim, "default", name);
    }
    rig.until("a back-off", async || rejection(&rig, &mine, "bad").await == BACKED_OFF).await;
    assert_eq!(rejection(&rig, &other, "bad").await, "", "another namespace");
    assert_eq!(metric(&rig, "plimsoll_extender_gpu_nodes_backed_off"), 1.0);
    assert_eq!(metric(&rig, "plimsoll_extender_refused_gpu_pods_total"), 3.0);
    let event = |sim: &Sim| {
        let mut events = sim.list(WRITTEN_EVENTS).into_iter();
        events.find(|event| event["reason"] == "GPUPodsBackedOff")
    };
    let event = sim.until("an event on the node", event).await.unwrap();
    assert_eq!(event["regarding"]["name"], "bad");
    assert!(event["note"].as_str().unwrap().contains("pods of namespace default"), "{event}");
    // A second namespace: now it is the node.
    for name in ["q0", "q1", "q2"] {
        send(&sim, &rig, "b", name, "bad").await;
        refuse(&sim, "b", name);
    }
    let third = sim.put(pod("t").in_namespace("c").asking(GPU, 1));
    rig.until("a back-off for all", async || rejection(&rig, &third, "bad").await == BACKED_OFF)
        .await;
}

/// As the kubelet writes it where containerd finds no CDI device.
const NO_DEVICE: &str = "failed to create containerd container: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-bad-0";

/// The kubelet admits a bound pod, and its container waits for this reason.
fn hold(sim: &Sim, namespace: &str, name: &str, reason: &str, message: &str) {
    sim.change(PODS, namespace, name, |pod| {
        let waiting = json!({ "waiting": { "reason": reason, "message": message } });
        pod["status"] = json!({
            "phase": "Pending", "startTime": "2026-11-20T09:00:00Z",
            "containerStatuses": [{ "name": "main", "state": waiting }],
        });
    });
}

#[tokio::test]
async fn a_node_that_cannot_start_the_pods_that_it_admits_gets_no_more_of_them_for_a_while() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("bad", 2));
    let rig = Rig::start(&sim).await;
    for (namespace, pods) in [("default", ["p0", "p1", "p2"]), ("b", ["q0", "q1", "q2"])] {
        let mine = sim.put(pod("mine").in_namespace(namespace).asking(GPU, 1));
        assert_eq!(rejection(&rig, &mine, "bad").await, "", "{namespace}");
        for name in pods {
            send(&sim, &rig, namespace, name, "bad").await;
            // Of each pod the kubelet first says that it creates the container, and tries again and again.
            hold(&sim, namespace, name, "ContainerCreating", "");
            hold(&sim, namespace, name, "CreateContainerError", NO_DEVICE);
            hold(&sim, namespace, name, "CreateContainerError", &format!("{NO_DEVICE}, x/y=z"));
        }
        rig.until("a back-off", async || rejection(&rig, &mine, "bad").await == BACKED_OFF).await;
    }
    let third = sim.put(pod("t").in_namespace("c").asking(GPU, 1));
    rig.until("a back-off for all", async || rejection(&rig, &third, "bad").await == BACKED_OFF)
        .await;
    assert_eq!(metric(&rig, "plimsoll_extender_refused_gpu_pods_total"), 6.0, "once for each pod");
}

#[tokio::test]
async fn pods_whose_own_container_cannot_start_back_no_node_off() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 2));
    let rig = Rig::start(&sim).await;
    let start = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: ";
    let own = [
        ("CreateContainerConfigError", "secret \"x\" not found".to_owned()),
        (
            "CreateContainerError",
            format!("failed to create containerd container: failed to stat \"{NO_DEVICE}\""),
        ),
        (
            "RunContainerError",
            format!("{start}exec: \"{NO_DEVICE}\": executable file not found in $PATH"),
        ),
        (
            "RunContainerError",
            format!(
                "{start}error running createContainer hook #2: exit status 2, stdout: , stderr: {NO_DEVICE}"
            ),
        ),
        ("CrashLoopBackOff", NO_DEVICE.to_owned()),
    ];
    for namespace in ["default", "b"] {
        for (number, (reason, message)) in own.iter().enumerate() {
            let name = format!("own-{number}");
            send(&sim, &rig, namespace, &name, "n1").await;
            hold(&sim, namespace, &name, reason, message);
        }
    }
    // The watch shows the pods in order, so once it has shown this one it has shown those.
    send(&sim, &rig, "default", "last", "n1").await;
    refuse(&sim, "default", "last");
    let counted = async || metric(&rig, "plimsoll_extender_refused_gpu_pods_total") == 1.0;
    rig.until("the last pod counted", counted).await;
    assert_eq!(rejection(&rig, &gpu_pod(&sim, "mine", 1), "n1").await, "");
}

#[tokio::test]
async fn a_pod_that_starts_ends_the_back_off_and_one_that_is_admitted_does_not() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 2));
    let rig = Rig::start(&sim).await;
    let mine = gpu_pod(&sim, "mine", 1);
    // Bound before the node began to refuse pods.
    send(&sim, &rig, "default", "good", "n1").await;
    for name in ["p0", "p1", "p2"] {
        send(&sim, &rig, "default", name, "n1").await;
        refuse(&sim, "default", name);
    }
    rig.until("a back-off", async || rejection(&rig, &mine, "n1").await == BACKED_OFF).await;
    hold(&sim, "default", "good", "ContainerCreating", "");
    let nothing = sim.put(pod("nothing").in_namespace("b").asking(GPU, 1));
    assert_eq!(rig.bind(&nothing, "n1").await, "");
    let counted = async || {
        refuse(&sim, "b", "nothing");
        metric(&rig, "plimsoll_extender_refused_gpu_pods_total") == 4.0
    };
    rig.until("a later pod", counted).await;
    assert_eq!(rejection(&rig, &mine, "n1").await, BACKED_OFF);
    sim.change(PODS, "default", "good", |pod| {
        let running = json!({ "running": { "startedAt": "2026-11-20T09:00:01Z" } });
        pod["status"]["containerStatuses"] = json!([{ "name": "main", "state": running }]);
    });
    rig.until("the end of it", async || rejection(&rig, &mine, "n1").await.is_empty()).await;
}

#[tokio::test]
async fn pods_whose_author_may_have_caused_the_refusal_back_no_node_off() {
    let sim = Sim::start().await.unwrap();
    sim.put(node_with("n1", &json!({ "isolation": "driver" })));
    let rig = Rig::start(&sim).await;
    let claim = json!({ "main": { "GPU-n1": 1 } }).to_string();
    for number in 0..4 {
        // Bound by its own spec, with a claim that the author wrote.
        let name = format!("forged-{number}");
        let forged = pod(&name).on("n1").annotation("plimsoll.dev/gpu-claim", claim.clone());
        sim.put(forged.asking(GPU, 1));
        refuse(&sim, "default", &name);
        // Bound by the extender, with a claim that was changed.
        let name = format!("changed-{number}");
        send(&sim, &rig, "default", &name, "n1").await;
        sim.change(PODS, "default", &name, |pod| {
            let other = json!({ "main": { "GPU-other": 1 } }).to_string();
            pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"] = other.into();
        });
        refuse(&sim, "default", &name);
        // Refused for its own spec, or by another device plugin: neither says that the node is at fault.
        let name = format!("own-{number}");
        send(&sim, &rig, "default", &name, "n1").await;
        sim.change(PODS, "default", &name, |pod| {
            let message = "Allocate failed due to rpc error: code = Unknown desc = no";
            pod["status"] = json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message });
        });
        // Failed for another reason.
        let name = format!("evicted-{number}");
        send(&sim, &rig, "default", &name, "n1").await;
        sim.change(PODS, "default", &name, |pod| {
            pod["status"] = json!({ "phase": "Failed", "reason": "Evicted" });
        });
    }
    // The watch shows the pods in order, so once it has shown this one it has shown those.
    send(&sim, &rig, "default", "last", "n1").await;
    refuse(&sim, "default", "last");
    let counted = async || metric(&rig, "plimsoll_extender_refused_gpu_pods_total") == 1.0;
    rig.until("the last pod counted", counted).await;
    assert_eq!(rejection(&rig, &gpu_pod(&sim, "mine", 1), "n1").await, "");
}
