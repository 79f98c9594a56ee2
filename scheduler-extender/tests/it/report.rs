//! What the page and `plimsoll` are answered: `/v1` and `/ui/`.

use api::capacity::Capacity;
use api::decisions::{Decided, Decisions, Lack, Nearest};
use api::node::{AllGpus, Bands, NodeDetail};
use api::policy_check::PolicyCheck;
use api::state::State;
use jiff::SignedDuration;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, ETAG, HOST, IF_NONE_MATCH};
use serde::de::DeserializeOwned;
use serde_json::json;
use sim::{NODES, PODS, Sim, pod};

use crate::rig::{GPU, POLICY, Rig, gpu_node, gpu_pod, loaded_node};

const NOW: SignedDuration = SignedDuration::ZERO;
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// `cool` is below its limit, `busy` over it, `old` has a stale reading, and `gpu` two GPUs.
async fn cluster() -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("cool", 0.13, NOW).label("topology.kubernetes.io/zone", "west"));
    sim.put(loaded_node("busy", 0.78, NOW));
    sim.put(loaded_node("old", 0.10, HOUR));
    sim.put(gpu_node("gpu", 2));
    let rig = Rig::start(&sim).await;
    (sim, rig)
}

async fn get<T: DeserializeOwned>(rig: &Rig, path: &str) -> T {
    let (status, text) = rig.get_status(path).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The first answer after `before` that has something of `names`.
async fn update(rig: &Rig, before: &State) -> State {
    let path = format!("/v1/state?since={}", before.version);
    rig.until("a change", async || get::<State>(rig, &path).await.version != before.version).await;
    get(rig, &path).await
}

#[tokio::test]
async fn the_state_has_every_node_by_columns_and_what_is_unknown_is_not_zero() {
    let (_sim, rig) = cluster().await;
    let state: State = get(&rig, "/v1/state").await;
    assert_eq!(state.since, None);
    let nodes = &state.nodes;
    assert_eq!(nodes.name, ["busy", "cool", "gpu", "old"]);
    assert_eq!(nodes.limit_ratio, [Some(1_200), Some(200), None, None]);
    assert_eq!(nodes.limit, [Some(0), Some(0), None, None]);
    assert_eq!(nodes.readings, [[Some(780), Some(130), None, None]]);
    assert_eq!(nodes.missing, [0, 0, 1, 1]);
    assert!(nodes.read_at[0].is_some() && nodes.read_at[3].is_none());
    assert_eq!(
        (&nodes.zone[..], &state.zones[..]),
        (&[None, Some(0), None, None][..], &["west".to_owned()][..])
    );
    assert_eq!(nodes.gpus, [0, 0, 2, 0]);
    let metric = &state.metrics[0];
    assert_eq!(
        (&*metric.name, metric.max, metric.share),
        ("cpu_usage_avg_5m", Some(0.65), Some(1.0))
    );
    let gpus = &state.gpus;
    assert_eq!(
        (&gpus.index[..], &gpus.units[..], &gpus.held[..]),
        (&[0, 1][..], &[16, 16][..], &[0, 0][..])
    );
    assert_eq!((&gpus.memory[..], &gpus.used[..]), (&[16_384, 16_384][..], &[None, None][..]));
    assert_eq!(state.models, ["NVIDIA A10"]);
    assert!(state.replica.leads && state.replica.complete);
}

#[tokio::test]
async fn an_update_has_the_nodes_that_changed_and_those_that_are_gone_alone() {
    let (sim, rig) = cluster().await;
    let first: State = get(&rig, "/v1/state").await;
    sim.put(loaded_node("cool", 0.26, NOW));
    let second = update(&rig, &first).await;
    assert_eq!(second.since.as_ref(), Some(&first.version));
    assert_eq!(
        (&second.nodes.name[..], &second.nodes.limit_ratio[..]),
        (&["cool".to_owned()][..], &[Some(400)][..])
    );
    assert!(second.removed.is_empty() && second.gpus.index.is_empty());
    sim.delete(NODES, "", "busy");
    let third = update(&rig, &second).await;
    assert_eq!((third.nodes.name.len(), &third.removed[..]), (0, &["busy".to_owned()][..]));
    // Both at once, for a client that has missed one.
    let both: State = get(&rig, &format!("/v1/state?since={}", first.version)).await;
    assert_eq!(
        (&both.nodes.name[..], &both.removed[..]),
        (&["cool".to_owned()][..], &["busy".to_owned()][..])
    );
    // A version of another process is answered with everything.
    for other in ["1-1", "", "x", "-", &first.version.replace('-', "0-")] {
        let all: State = get(&rig, &format!("/v1/state?since={other}")).await;
        assert_eq!((all.since, all.nodes.name.len()), (None, 3), "{other}");
    }
}

#[tokio::test]
async fn a_client_that_has_the_version_is_told_so_without_a_body() {
    let (_sim, rig) = cluster().await;
    let client = sim::http_client().unwrap();
    let first = client.get(rig.url("/v1/state")).send().await.unwrap();
    let tag = first.headers()[ETAG].clone();
    let again = client.get(rig.url("/v1/state")).header(IF_NONE_MATCH, &tag).send().await.unwrap();
    assert_eq!((again.status().as_u16(), &again.headers()[ETAG]), (304, &tag));
    assert_eq!(again.text().await.unwrap(), "");
    let other = client.get(rig.url("/v1/state")).header(IF_NONE_MATCH, "\"1-1\"").send().await;
    assert_eq!(other.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn gpus_name_their_pods_and_what_each_holds() {
    let (sim, rig) = cluster().await;
    let train = gpu_pod(&sim, "train", 5);
    assert_eq!(rig.bind(&train, "gpu").await, "");
    let all: AllGpus = get(&rig, "/v1/cards").await;
    assert_eq!(all.nodes.len(), 1);
    let gpu = all.nodes[0].gpus.iter().find(|gpu| !gpu.charges.is_empty()).unwrap();
    let charge = &gpu.charges[0];
    assert_eq!((&*charge.namespace, &*charge.name, charge.units), ("default", "train", 5));
    assert_eq!((gpu.units, gpu.free, &*gpu.model), (16, 11, "NVIDIA A10"));
    let node: NodeDetail = get(&rig, "/v1/nodes/gpu").await;
    assert_eq!(node.gpus, all.nodes[0].gpus);
    let state: State = get(&rig, "/v1/state").await;
    assert_eq!(state.gpus.held.iter().sum::<u32>(), 5);
    let cool: NodeDetail = get(&rig, "/v1/nodes/cool").await;
    assert_eq!(cool.load.unwrap().limits[0].reading.value, Some(0.13));
    assert_eq!(rig.get_status("/v1/nodes/none").await.0, 404);
    assert_eq!(rig.get_status("/v1/nodes/a%2Fb%3F").await.0, 400);
}

#[tokio::test]
async fn a_node_has_the_bands_of_its_labels() {
    let (sim, rig) = cluster().await;
    let first: State = get(&rig, "/v1/state").await;
    let cool = loaded_node("cool", 0.26, NOW).label("plimsoll.dev/cpu-band", "2");
    sim.put(cool.label("plimsoll.dev/gpu-band", "8"));
    update(&rig, &first).await;
    let [cool, busy] = ["cool", "busy"].map(|name| format!("/v1/nodes/{name}"));
    assert_eq!(get::<NodeDetail>(&rig, &cool).await.bands, Some(Bands { cpu: Some(2), gpu: None }));
    assert_eq!(get::<NodeDetail>(&rig, &busy).await.bands, None);
}

#[tokio::test]
async fn capacity_is_what_filter_would_accept_and_names_what_is_wrong_in_a_request() {
    let (sim, rig) = cluster().await;
    let mps = |index: u32| {
        json!({
            "uuid": format!("GPU-mps-{index}"), "index": index, "model": "NVIDIA L4", "memoryMiB": 16384,
            "units": 16, "healthy": index < 2, "pods": {}, "isolation": "mps", "mpsClients": 48,
        })
    };
    let gpus = json!([mps(0), mps(1), mps(2)]).to_string();
    sim.put(sim::node("mps").annotation("plimsoll.dev/gpu-cards", gpus));
    let client = pod("client").asking(GPU, 4).annotation("plimsoll.dev/gpu-isolation", "mps");
    let client = sim.put(client);
    rig.until("the node", async || rig.bind(&client, "mps").await.is_empty()).await;
    let ask = async |body: serde_json::Value| -> (u16, String) {
        let posted = sim::http_client().unwrap().post(rig.url("/v1/capacity"));
        let answer = posted.body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (status, text) = ask(json!({"sizes": [4, 16]})).await;
    assert_eq!(status, 200, "{text}");
    let found: Vec<Capacity> = serde_json::from_str(&text).unwrap();
    // Of the GPU with a client 12 units are free, and no pod without MPS may take them.
    let of = |at: usize| (found[at].size, found[at].total.pods, found[at].total.free_units);
    assert_eq!((of(0), of(1)), ((4, 12, 60), (16, 3, 60)));
    assert_eq!((found[0].total.largest, found[0].left_out), (16, 1));
    let models: Vec<(&str, u64)> =
        found[0].models.iter().map(|room| (&*room.model, room.pods)).collect();
    assert_eq!(models, [("NVIDIA A10", 8), ("NVIDIA L4", 4)]);
    let (_, text) = ask(json!({"sizes": [4], "count": 2, "nodeNames": ["mps", "none"]})).await;
    let found: Vec<Capacity> = serde_json::from_str(&text).unwrap();
    assert_eq!((found[0].total.gpus, found[0].total.pods), (2, 0));
    for (body, field) in [
        (json!({"sizes": [0]}), "sizes"),
        (json!({"sizes": vec![1; 33]}), "32 sizes"),
        (json!({"sizes": [u32::MAX], "count": 64}), "sizes"),
        (json!({"sizes": [1], "count": 0}), "count"),
        (json!({"sizes": [1, 2], "count": 2}), "count"),
        (json!({"sizes": [1], "cores": 101}), "cores"),
        (json!({"sizes": [1], "nodes": []}), "unknown field"),
        (json!("x"), "invalid type"),
    ] {
        let (status, text) = ask(body.clone()).await;
        assert!(status == 400 && text.contains(field), "{body}: {status} {text}");
    }
}

async fn pending(rig: &Rig) -> Vec<Decided> {
    get::<Decisions>(rig, "/v1/pending").await.decisions
}

#[tokio::test]
async fn a_pod_that_waits_is_pending_with_its_reasons_until_it_has_a_node_or_is_gone() {
    let (sim, rig) = cluster().await;
    let big = gpu_pod(&sim, "big", 15);
    let small = gpu_pod(&sim, "small", 4);
    let filler = gpu_pod(&sim, "filler", 12);
    let other = gpu_pod(&sim, "other", 13);
    assert_eq!(rig.bind(&filler, "gpu").await, "");
    assert_eq!(rig.bind(&other, "gpu").await, "");
    let nodes = ["gpu", "cool"];
    rig.filter("/gpushare-scheduler", &big, &nodes).await;
    rig.filter("/gpushare-scheduler", &small, &nodes).await;
    let waiting = pending(&rig).await;
    assert_eq!(
        waiting.iter().map(|decided| &*decided.pod.name).collect::<Vec<_>>(),
        ["small", "big"]
    );
    let decided = &waiting[1];
    assert_eq!((decided.nodes, decided.accepted, decided.asks.as_ref().unwrap().units), (2, 0, 15));
    assert_eq!(decided.reasons.iter().map(|reason| reason.nodes).collect::<Vec<_>>(), [1, 1]);
    let nearest = Nearest::Gpu { node: "gpu".to_owned(), index: 0, free: 4, lack: Lack::Units };
    assert_eq!(decided.nearest, Some(nearest));
    // Larger than any GPU: still a GPU is what is missing, and not the load of a node without GPUs.
    let huge = gpu_pod(&sim, "huge", 30);
    rig.filter("/gpushare-scheduler", &huge, &["gpu", "busy"]).await;
    let nearest = Nearest::Gpu { node: "gpu".to_owned(), index: 0, free: 4, lack: Lack::Units };
    assert_eq!(pending(&rig).await.remove(0).nearest, Some(nearest));
    sim.delete(PODS, "default", "huge");
    assert_eq!(waiting[0].accepted, 1);
    assert_eq!(rig.bind(&small, "gpu").await, "");
    sim.delete(PODS, "default", "big");
    rig.until("nothing pending", async || pending(&rig).await.is_empty()).await;
    let decisions: Decisions = get(&rig, "/v1/decisions").await;
    let small = decisions.decisions.iter().find(|decided| decided.pod.name == "small").unwrap();
    assert_eq!(
        (small.node.as_deref(), &small.gpus[..], small.better),
        (Some("gpu"), &[0][..], Some(0))
    );
    let newest: Decisions = get(&rig, "/v1/decisions?limit=1").await;
    assert_eq!(newest.decisions, decisions.decisions[..1]);
    assert_eq!(rig.get_status("/v1/decisions?limit=x").await.0, 400);
}

#[tokio::test]
async fn the_nearest_gpu_says_what_it_lacks() {
    let (sim, rig) = cluster().await;
    for name in ["one", "other"] {
        let pod = gpu_pod(&sim, name, 9);
        assert_eq!(rig.bind(&pod, "gpu").await, "");
    }
    let nearest = |lack| Some(Nearest::Gpu { node: "gpu".to_owned(), index: 0, free: 7, lack });
    let whole = pod("whole").asking(GPU, 16);
    let whole = sim.put(whole.annotation("plimsoll.dev/gpu-card-count", "exclusive"));
    rig.filter("/gpushare-scheduler", &whole, &["gpu"]).await;
    assert_eq!(pending(&rig).await[0].nearest, nearest(Lack::Empty));
    sim.delete(PODS, "default", "whole");
    // Its author named the node, so it has no claim; the kubelet has not admitted it.
    sim.put(pod("named").asking(GPU, 12).on("gpu"));
    let small = gpu_pod(&sim, "small", 5);
    rig.until("the pod without a claim to count", async || {
        rig.filter("/gpushare-scheduler", &small, &["gpu"]).await;
        let waiting = pending(&rig).await;
        let small = waiting.iter().find(|it| it.pod.name == "small");
        small.is_some_and(|it| it.nearest == nearest(Lack::Unplaced))
    })
    .await;
}

#[tokio::test]
async fn a_decision_names_its_nodes_rank_the_runner_up_and_the_nearest_limit() {
    let (sim, rig) = cluster().await;
    let web = sim.put(pod("web"));
    rig.filter("/load-aware", &web, &["cool", "busy", "old"]).await;
    sim.put(pod("web").uid(web["metadata"]["uid"].as_str().unwrap()).on("old"));
    rig.until("its node", async || pending(&rig).await.is_empty()).await;
    let decisions: Decisions = get(&rig, "/v1/decisions").await;
    let decided = &decisions.decisions[0];
    assert_eq!((decided.accepted, decided.better), (2, Some(1)));
    assert_eq!((&*decided.best[0].node, decided.best.len()), ("cool", 1));
    let api = sim.put(pod("api"));
    rig.filter("/gpushare-scheduler", &api, &["busy"]).await;
    rig.filter("/load-aware", &api, &["busy"]).await;
    let decided = pending(&rig).await.remove(0);
    let metric = "cpu_usage_avg_5m".to_owned();
    // One of the least loaded passes: limits are soft.
    let passes = decided.accepted == 1 && decided.nearest.is_none();
    let nearest = Nearest::Limit { node: "busy".to_owned(), metric, load: 0.78, max: 0.65 };
    assert!(passes || decided.nearest == Some(nearest), "{decided:?}");
}

#[tokio::test]
async fn the_policy_in_force_is_told_with_its_defaults_and_why_a_newer_file_is_refused() {
    let (_sim, rig) = cluster().await;
    let policy: PolicyCheck = get(&rig, "/v1/policy").await;
    let first = |check: &PolicyCheck| check.policy.as_ref().unwrap()["spec"]["metrics"][0].clone();
    assert!(policy.valid && first(&policy)["name"] == "cpu_usage_avg_5m", "{policy:?}");
    assert_eq!(policy.refused, None);
    rig.write_policy(&POLICY.replace("0.65", "sixty"));
    let told = async || get::<PolicyCheck>(&rig, "/v1/policy").await;
    rig.until("the refused file", async || {
        let policy = told().await;
        let names = |refused: String| refused.contains("line ") && refused.contains("sixty");
        first(&policy)["limit"] == 0.65 && policy.refused.is_some_and(names)
    })
    .await;
    rig.write_policy(POLICY);
    rig.until("a good file", async || told().await.refused.is_none()).await;
}

#[tokio::test]
async fn the_page_is_served_on_the_read_only_port_to_its_own_names_and_runs_no_foreign_script() {
    let sim = Sim::start().await.unwrap();
    sim.put(loaded_node("cool", 0.13, NOW));
    let address = sim::KeptAddress::new().unwrap();
    let at = address.address();
    let flags =
        [format!("--inspect-address={at}"), "--inspect-host-names=plimsoll.example".to_owned()];
    let rig = Rig::start_with(&sim, &flags.each_ref().map(String::as_str)).await;
    let client = sim::http_client().unwrap();
    let page = client.get(format!("http://{at}/ui/")).send().await.unwrap();
    assert_eq!(page.status().as_u16(), 200);
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'self' 'sha256-"), "{policy}");
    assert_eq!(page.headers()["x-frame-options"], "DENY");
    assert_eq!(page.headers()["x-content-type-options"], "nosniff");
    assert!(page.text().await.unwrap().contains("<title>Plimsoll</title>"));
    let script = client.get(format!("http://{at}/ui/state.js")).send().await.unwrap();
    assert_eq!(script.headers()["content-type"], "text/javascript; charset=utf-8");
    let none = client.get(format!("http://{at}/ui/../../etc/passwd")).send().await.unwrap();
    assert_eq!(none.status().as_u16(), 404);
    // Behind a name that resolves to this machine.
    for (path, host, status) in [
        ("/v1/state", "evil.example:19107", 421),
        ("/gpushare-scheduler/inspect", "evil.example", 421),
        ("/ui/", "evil.example", 421),
        ("/v1/state", "plimsoll.example", 200),
        ("/v1/state", "localhost:19107", 200),
        // Others can answer for these names in an operator's network; through a forwarded port they are foreign.
        ("/v1/state", "wpad", 421),
        ("/v1/state", "evil.cluster.local", 421),
        ("/v1/state", "scheduler-extender.plimsoll.svc:19107", 421),
    ] {
        let answer = client.get(format!("http://{at}{path}")).header(HOST, host).send().await;
        assert_eq!(answer.unwrap().status().as_u16(), status, "{host}{path}");
    }
    // For a page of another site: a link, a frame, and a form.
    for (path, to, is_form, status) in [
        ("/ui/", "document", false, 200),
        ("/v1/moves", "document", false, 403),
        ("/ui/", "iframe", false, 403),
        ("/v1/moves", "iframe", false, 403),
        ("/explain", "document", true, 403),
    ] {
        let url = format!("http://{at}{path}");
        let request = if is_form { client.post(url).body("{}") } else { client.get(url) };
        let request = request.header("sec-fetch-site", "cross-site").header("sec-fetch-dest", to);
        let answer = request.header("sec-fetch-mode", "navigate").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path} {to}");
    }
    // Of a browser that says nothing else.
    let form = client.post(format!("http://{at}/explain")).body("{}").header("origin", "null");
    assert_eq!(form.send().await.unwrap().status().as_u16(), 403);
    let small = client.get(format!("http://{at}/v1/state")).header(ACCEPT_ENCODING, "gzip");
    let small = small.send().await.unwrap();
    assert_eq!(small.headers()[CONTENT_ENCODING], "gzip");
    // The port of kube-scheduler's requests serves no page.
    assert_eq!(rig.get_status("/ui/").await.0, 404);
    assert_eq!(rig.post_text("/ui/", json!({}).to_string()).await.0, 404);
}
