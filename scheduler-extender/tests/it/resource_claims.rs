//! ResourceClaims of the device plugin's driver: from the API server to what is shown and decided.

use api::node::{AllGpus, Charge};
use api::state::State;
use placement::gpu::Basis;
use serde_json::{Value, json};
use sim::{NodeBuilder, PODS, RESOURCE_CLAIMS, Sim, Verb, node, pod};

use crate::rig::{GPU, Rig, gpu_node, gpu_pod};

/// A claim to which so much of the node's first GPU is allocated.
fn claim(name: &str, node: &str, memory: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": name, "namespace": "ml", "uid": format!("uid-of-{name}") },
        "spec": { "devices": { "requests": [
            { "name": "gpu", "exactly": { "deviceClassName": "gpu-share.plimsoll.dev" } },
        ] } },
        "status": {
            "reservedFor": [{ "resource": "pods", "name": "p", "uid": "uid-of-p" }],
            "allocation": { "devices": { "results": [
                {
                    "request": "gpu", "driver": "gpu.plimsoll.dev", "pool": node,
                    "device": format!("gpu-{node}-0"),
                    "consumedCapacity": { "memory": memory, "cores": "30" },
                },
                { "request": "nic", "driver": "nic.example.com", "pool": node, "device": "eth1" },
            ] } },
        },
    })
}

async fn cards(rig: &Rig) -> AllGpus {
    serde_json::from_str(&rig.get("/v1/cards").await).unwrap()
}

#[tokio::test]
async fn a_claim_takes_room_from_its_allocation_to_its_end_and_is_shown() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("a", 1).with(GPU, 16));
    sim.put(claim("before", "a", "6000Mi"));
    let rig = Rig::start_with(&sim, &["--claims"]).await;
    // It was listed before the extender was ready.
    assert_eq!(rig.used().await, 6);
    sim.put(claim("share", "a", "4Gi"));
    rig.until("the allocation", async || rig.used().await == 10).await;

    let shown = &cards(&rig).await.nodes[0].gpus[0];
    assert_eq!((shown.free, shown.free_cores), (6, 40));
    let of_before = Charge {
        namespace: "ml".to_owned(),
        name: "before".to_owned(),
        resource_claim: true,
        units: 6,
        memory: Some(6000),
        cores: 30,
        basis: Basis::ResourceClaim,
    };
    assert_eq!(shown.charges[0], of_before);
    let inspected = &rig.inspect().await["nodes"][0]["devs"][0];
    assert_eq!(inspected["pods"][1]["name"], "share");
    let state: State = serde_json::from_str(&rig.get("/v1/state").await).unwrap();
    assert_eq!(state.gpus.held, [10]);

    let large = gpu_pod(&sim, "large", 7);
    assert!(rig.filter("/gpushare-scheduler", &large, &["a"]).await["NodeNames"] == json!([]));
    sim.change(RESOURCE_CLAIMS, "ml", "share", |claim| {
        claim["status"].as_object_mut().unwrap().remove("allocation");
    });
    rig.until("the deallocation", async || rig.used().await == 6).await;
    assert_eq!(rig.bind(&large, "a").await, "");
    sim.delete(RESOURCE_CLAIMS, "ml", "before");
    rig.until("the end", async || rig.used().await == 7).await;
}

#[tokio::test]
async fn without_the_flag_no_claim_is_read() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("a", 1));
    sim.put(node("b"));
    sim.put(claim("share", "a", "4Gi"));
    let rig = Rig::start(&sim).await;
    assert_eq!(rig.used().await, 0);
    assert!(!rig.get_status("/v1/cards").await.1.contains("resource-claim"));
}

/// A node whose GPU is given out by ResourceClaims.
fn node_by_claims(name: &str) -> NodeBuilder {
    let gpu = json!({
        "uuid": format!("GPU-{name}-0"), "index": 0, "model": "NVIDIA A10", "memoryMiB": 16384, "units": 16,
        "healthy": true, "closed": "claims", "pods": {},
    });
    node(name).annotation("plimsoll.dev/gpu-cards", json!([gpu]).to_string())
}

/// A claim that asks for this memory of one GPU.
fn asking(name: &str, memory: &str) -> Value {
    let mut claim = claim(name, "", memory);
    claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
        json!({ "requests": { "memory": memory } });
    claim["status"] = json!({});
    claim
}

/// A stored pod that waits with a claim of a template.
fn pod_with_claim(sim: &Sim, claim: &str) -> Value {
    let mut pod = Value::from(pod("train").in_namespace("ml"));
    pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimTemplateName": "t" }]);
    pod["status"]["resourceClaimStatuses"] = json!([{ "name": "gpu", "resourceClaimName": claim }]);
    sim.put(pod)
}

#[tokio::test]
async fn pods_with_claims_go_where_a_gpu_has_room_the_fullest_first() {
    let sim = Sim::start().await.unwrap();
    let nodes = ["empty", "half", "full"];
    for name in nodes {
        sim.put(node_by_claims(name));
    }
    sim.put(gpu_node("by-units", 1).with(GPU, 16));
    sim.put(claim("of-half", "half", "8Gi"));
    sim.put(claim("of-full", "full", "13Gi"));
    sim.put(asking("waits", "4Gi"));
    let rig = Rig::start_with(&sim, &["--claims"]).await;
    let train = pod_with_claim(&sim, "waits");

    let asked = ["empty", "half", "full", "by-units", "unknown"];
    let answer = rig.filter("/load-aware", &train, &asked).await;
    assert_eq!(answer["NodeNames"], json!(["empty", "half", "by-units", "unknown"]));
    let why = &answer["FailedAndUnresolvableNodes"];
    assert!(
        why["full"].as_str().unwrap().contains("Insufficient GPU Memory in one device"),
        "{why}"
    );
    assert_eq!(why.as_object().unwrap().len(), 1, "kube-scheduler knows who offers GPUs");
    let answer = rig.filter("/load-aware", &train, &["full"]).await;
    assert_eq!(answer["NodeNames"], json!(["full"]), "the driver waits for room");
    let [empty, half] = rig.scores(&train, &["empty", "half"]).await[..] else { panic!("two") };
    assert!(empty < half, "{empty} and {half}");
    let by_gpus = rig.filter("/gpushare-scheduler", &train, &asked).await;
    assert_eq!(by_gpus["NodeNames"], json!(asked), "it asks for no units");

    let body = json!({ "namespace": "ml", "name": "train", "fresh": true });
    let explained = rig.post("/explain", &body).await;
    let full = explained["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "full");
    let gpus = &full.unwrap()["cards"];
    assert_eq!((&gpus["asked"], &gpus["inMib"]), (&json!(4096), &json!(true)));
    let gpu = &gpus["cards"][0];
    assert_eq!((&gpu["free"], &gpu["units"]), (&json!(3072), &json!(16384)));
    assert_eq!(gpu["charges"][0]["resourceClaim"], "ml/of-full");
    let by_units =
        explained["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "by-units");
    let why = by_units.unwrap()["reasons"][0].as_str().unwrap();
    assert!(why.starts_with("node offers no GPU to ResourceClaims"), "{why}");

    // The claim is allocated: kube-scheduler knows where the pod may go.
    sim.put(claim("waits", "half", "4Gi"));
    rig.until("the allocation", async || {
        rig.filter("/load-aware", &train, &asked).await["NodeNames"] == json!(asked)
    })
    .await;
}

/// A pod of this priority, and the claim that only it has.
fn pod_of_priority(sim: &Sim, name: &str, priority: i64, on: Option<&str>, claim: &Value) {
    let mut pod = Value::from(pod(name).in_namespace("ml"));
    pod["spec"]["priority"] = priority.into();
    pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": name }]);
    match on {
        Some(node) => pod["spec"]["nodeName"] = node.into(),
        None => {
            pod["status"]["conditions"] = json!([
                { "type": "PodScheduled", "status": "False", "reason": "Unschedulable" },
            ]);
        }
    }
    let pod = sim.put(pod);
    let mut claim = claim.clone();
    if on.is_some() {
        let uid = &pod["metadata"]["uid"];
        claim["status"]["reservedFor"] = json!([{ "resource": "pods", "name": name, "uid": uid }]);
        claim["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid }]);
    }
    sim.put(claim);
}

fn evicted(sim: &Sim) -> Vec<String> {
    let mut evictions = sim.log().of(Verb::Evict, PODS);
    evictions.retain(|eviction| !eviction.query.contains_key("dryRun"));
    evictions.into_iter().map(|eviction| eviction.name).collect()
}

/// On node `a` two claims hold the GPU, on `b` one does, on `c` one that two pods share, and on `d` one that no pod
/// owns.
fn full_gpus(sim: &Sim) {
    for name in ["a", "b", "c", "d"] {
        sim.put(node_by_claims(name).with("cpu", 16));
    }
    for (name, node, memory) in [("small-0", "a", "7Gi"), ("small-1", "a", "7Gi")] {
        pod_of_priority(sim, name, 0, Some(node), &claim(name, node, memory));
    }
    pod_of_priority(sim, "large", 5, Some("b"), &claim("large", "b", "14Gi"));
    pod_of_priority(sim, "shares", 0, Some("c"), &claim("shares", "c", "14Gi"));
    let uid = sim.pod("ml", "shares").unwrap()["metadata"]["uid"].clone();
    sim.change(RESOURCE_CLAIMS, "ml", "shares", |claim| {
        claim["status"]["reservedFor"] = json!([
            { "resource": "pods", "name": "shares", "uid": uid },
            { "resource": "pods", "name": "important", "uid": "uid-of-important" },
        ]);
    });
    // A successor of its pod would use it.
    pod_of_priority(sim, "named", 0, Some("d"), &claim("named", "d", "14Gi"));
    sim.change(RESOURCE_CLAIMS, "ml", "named", |claim| {
        claim["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    });
}

const EVICTING: [&str; 2] = ["--claims", "--evict-for-cards"];

#[tokio::test]
async fn the_least_important_pods_of_one_gpu_go_for_a_pod_whose_claim_finds_no_room() {
    let sim = Sim::start().await.unwrap();
    full_gpus(&sim);
    let rig = Rig::start_with(&sim, &EVICTING).await;
    pod_of_priority(&sim, "train", 1000, None, &asking("train", "12Gi"));
    rig.until("the evictions", async || evicted(&sim).len() == 2).await;
    let mut gone = evicted(&sim);
    gone.sort();
    assert_eq!(gone, ["small-0", "small-1"]);

    // What it asks for is kept, of 16 GiB, though others ask first.
    for name in ["small-0", "small-1"] {
        sim.delete(RESOURCE_CLAIMS, "ml", name);
    }
    for (name, memory, priority) in
        [("thief", "5Gi", 1000), ("little", "4Gi", 0), ("greater", "5Gi", 1001)]
    {
        pod_of_priority(&sim, name, priority, None, &asking(name, memory));
    }
    let passes = async |name: &str| {
        let pod = sim.pod("ml", name).unwrap();
        rig.filter("/load-aware", &pod, &["a"]).await["NodeNames"] == json!(["a"])
    };
    rig.until("the room", async || passes("little").await && passes("train").await).await;
    assert!(!passes("thief").await && passes("greater").await);
    let free = async || cards(&rig).await.nodes[0].gpus[0].free;
    assert_eq!(free().await, 4);
    sim.change(RESOURCE_CLAIMS, "ml", "train", |of_train| {
        of_train["status"] = claim("train", "a", "12Gi")["status"].clone();
    });
    sim.change(PODS, "ml", "train", |pod| {
        pod["spec"]["nodeName"] = "a".into();
        pod["status"]["conditions"] = json!([
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T09:00:00Z" },
        ]);
    });
    let is_kept = async || {
        let charges = cards(&rig).await.nodes[0].gpus[0].charges.clone();
        charges.iter().any(|charge| charge.basis == Basis::Nominated)
    };
    rig.until("the binding", async || !is_kept().await && free().await == 4).await;
    sim.delete(RESOURCE_CLAIMS, "ml", "train");
    rig.until("the end", async || free().await == 16).await;
}

#[tokio::test]
async fn nobody_goes_for_a_claim_that_the_freed_gpu_may_not_suit() {
    let some = json!([{ "cel": { "expression": "device.attributes[...].model == 'A'" } }]);
    let second = json!({ "name": "nic", "exactly": { "deviceClassName": "nic.example.com" } });
    let selects = |claim: &mut Value| {
        claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = some.clone();
    };
    let asks_for_more = |claim: &mut Value| {
        claim["spec"]["devices"]["requests"].as_array_mut().unwrap().push(second.clone());
    };
    let sim = Sim::start().await.unwrap();
    full_gpus(&sim);
    let rig = Rig::start_with(&sim, &EVICTING).await;
    for (name, priority, memory, change) in [
        ("selects", 1000, "12Gi", Some(&selects as &dyn Fn(&mut Value))),
        ("two", 1000, "12Gi", Some(&asks_for_more)),
        ("huge", 1000, "17Gi", None),
        ("small", 0, "12Gi", None),
    ] {
        let mut claim = asking(name, memory);
        change.into_iter().for_each(|change| change(&mut claim));
        pod_of_priority(&sim, name, priority, None, &claim);
    }
    // The node of the only pods that may go is not for this one, which is looked at after the others.
    let mut elsewhere = Value::from(pod("elsewhere").in_namespace("ml"));
    pod_of_priority(&sim, "elsewhere", 3, None, &asking("elsewhere", "12Gi"));
    elsewhere["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "b" });
    sim.change(PODS, "ml", "elsewhere", |pod| {
        pod["spec"]["nodeSelector"] = elsewhere["spec"]["nodeSelector"].clone();
    });
    let count = |outcome: &str| {
        let page = rig.context.metrics().unwrap();
        let start = format!("plimsoll_extender_card_evictions_total{{outcome=\"{outcome}\"}} ");
        page.lines()
            .find_map(|line| line.strip_prefix(&start))
            .map_or(0, |count| count.parse::<u32>().unwrap())
    };
    rig.until("looks at nodes", async || count("no-victims") > 3).await;
    assert_eq!(evicted(&sim), [""; 0]);
}
