//! Our own kind of policy over HTTP: what pods will use counts at once, and limits are soft.

use api::explain::Explanation;
use api::workloads::{Distribution, Learned, Workload, Workloads};
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::routing::get;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sim::{NodeBuilder, PODS, Sim, WRITTEN_EVENTS, node, pod};

use crate::rig::{GPU, Rig, gpu_node, gpu_pod, loaded_node};

const NOW: SignedDuration = SignedDuration::ZERO;

fn policy(limits: &str) -> String {
    format!(
        "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{{name: cpu_usage_avg_5m, period: 3m, limit: 0.65, weight: 1}}]
  scoring: {{model: craneLinear, scale: 100}}
  limits: {limits}
"
    )
}

/// A node of 10 cores.
fn machine(name: &str, cpu: f64) -> NodeBuilder {
    loaded_node(name, cpu, NOW).with("cpu", 10)
}

fn asking(name: &str, cores: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("u-{name}") },
        "spec": { "containers": [{ "name": "c", "image": "nginx", "resources": { "requests": { "cpu": cores } } }] },
        "status": { "phase": "Pending" },
    })
}

async fn start(nodes: Vec<NodeBuilder>, limits: &str) -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    nodes.into_iter().for_each(|node| drop(sim.put(node)));
    let rig = Rig::start_under(&sim, &policy(limits), &[]).await;
    (sim, rig)
}

#[tokio::test]
async fn scores_go_to_a_hundred_and_count_the_pod_itself() {
    let (_sim, rig) = start(vec![machine("a", 0.30), machine("b", 0.31)], "{}").await;
    // 85% of two cores are 17% of ten.
    assert_eq!(rig.scores(&asking("p", "2"), &["a", "b"]).await, [53, 52]);
}

#[tokio::test]
async fn pods_that_come_at_once_spread_by_what_they_will_use() {
    let nodes = (0..50).map(|n| machine(&format!("n{n}"), 0.40 - f64::from(n % 5) * 0.02));
    let (_sim, rig) = start(nodes.chain([machine("coldest", 0.1)]).collect(), "{}").await;
    let names: Vec<String> = (0..50).map(|n| format!("n{n}")).chain(["coldest".into()]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut used = 0.0;
    for number in 0..100 {
        let cores = ["250m", "1", "4"][number % 3];
        let pod = asking(&format!("p{number}"), cores);
        let scores = rig.scores(&pod, &names).await;
        let best = scores.iter().max().unwrap();
        // As the extender guesses; kube-scheduler takes one of the best.
        if scores[50] == *best {
            used += [0.25, 1.0, 4.0][number % 3] * 0.085;
        }
    }
    // It is filled up to what the others have by then, and no further than a pod takes it.
    assert!((0.2..=0.75).contains(&used), "{used}");
}

#[tokio::test]
async fn a_bound_pod_counts_until_the_readings_show_it_and_not_once_it_has_ended() {
    let (sim, rig) = start(vec![machine("a", 0.30)], "{}").await;
    let score = async || rig.scores(&asking("p", "1"), &["a"]).await[0];
    assert_eq!(score().await, 61);
    let now = Timestamp::now().to_string();
    sim.put(pod("new").on("a").asking("cpu", 2).scheduled_at(&now));
    rig.until("the new pod", async || score().await == 44).await;
    sim.delete(PODS, "default", "new");
    rig.until("the end of the new pod", async || score().await == 61).await;
}

#[tokio::test]
async fn a_pod_counts_while_its_image_is_pulled_and_until_readings_show_it() {
    let sim = Sim::start().await.unwrap();
    sim.put(machine("a", 0.30));
    let ago = |minutes| (Timestamp::now() - SignedDuration::from_mins(minutes)).to_string();
    let pulling = pod("pulling").on("a").asking("cpu", 2).scheduled_at(&ago(20));
    sim.put(pulling.clone());
    let rig = Rig::start_under(&sim, &policy("{}"), &[]).await;
    let score = async || rig.scores(&asking("p", "0"), &["a"]).await[0];
    // 85% of two cores.
    rig.until("the pod that is pulled", async || score().await == 53).await;
    sim.put(pulling.running_since(&ago(0)));
    sim.put(pod("marker").on("a").asking("cpu", 1).scheduled_at(&ago(0)));
    rig.until("the start", async || score().await == 44).await;
    sim.put(pod("pulling").on("a").asking("cpu", 2).scheduled_at(&ago(20)).phase("Failed"));
    rig.until("the end", async || score().await == 61).await;
}

#[tokio::test]
async fn a_pod_that_waits_for_its_volume_counts_until_it_is_deleted() {
    let (sim, rig) = start(vec![machine("a", 0.30)], "{}").await;
    let mut waits = asking("waits", "2");
    waits["apiVersion"] = json!("v1");
    waits["kind"] = json!("Pod");
    waits["spec"]["volumes"] =
        json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "v" } }]);
    assert_ne!(sim.put(waits.clone()), Value::Null);
    rig.scores(&waits, &["a"]).await;
    let score = async || rig.scores(&asking("p", "0"), &["a"]).await[0];
    assert_eq!(score().await, 53);
    sim.delete(PODS, "default", "waits");
    rig.until("its end", async || score().await == 70).await;
}

#[tokio::test]
async fn on_a_node_whose_clock_is_behind_a_new_pod_counts_as_on_any_other() {
    let sim = Sim::start().await.unwrap();
    sim.put(machine("a", 0.30));
    let rig = Rig::start_under(&sim, &policy("{}"), &[]).await;
    let score = async || rig.scores(&asking("p", "0"), &["a"]).await[0];
    let ago = |minutes| (Timestamp::now() - SignedDuration::from_mins(minutes)).to_string();
    let started = pod("started").on("a").asking("cpu", 2).scheduled_at(&ago(0));
    sim.put(started.running_since(&ago(6)));
    sim.put(pod("marker").on("a").asking("cpu", 1).scheduled_at(&ago(0)));
    // 85% of three cores, and not of the marker's alone.
    rig.until("both pods", async || score().await == 44).await;
}

#[tokio::test]
async fn a_single_node_that_passes_counts_the_pod_at_once_and_not_against_itself() {
    let (_sim, rig) = start(vec![machine("a", 0.30), machine("b", 0.90)], "{mode: hard}").await;
    let filter = async |name: &str| {
        rig.filter("/load-aware", &asking(name, "2"), &["a", "b"]).await["NodeNames"].clone()
    };
    // 17% each: two fit below 65%.
    for name in ["first", "second", "second", "first"] {
        assert_eq!(filter(name).await, json!(["a"]), "{name}");
    }
    assert_eq!(filter("third").await, json!([]));
}

#[tokio::test]
async fn a_gpu_pod_passes_soft_limits_where_a_gpu_fits() {
    let sim = Sim::start().await.unwrap();
    let hot = |name: &str, cpu: f64, gpus| {
        let at = Timestamp::now();
        let reading =
            placement::reading::Reading::new(placement::units::Ratio::new(cpu).unwrap(), at);
        let text = placement::reading::ReadingCodec::default().encode(&reading);
        gpu_node(name, gpus).with(GPU, 16).annotation("cpu_usage_avg_5m", text)
    };
    // The cool node and the least loaded one have no GPU.
    sim.put(hot("cool", 0.10, 0));
    sim.put(hot("warm", 0.70, 0));
    sim.put(hot("cards", 0.90, 1));
    let rig = Rig::start_under(&sim, &policy("{}"), &[]).await;
    let pod = gpu_pod(&sim, "train", 4);
    let answer = rig.filter("/load-aware", &pod, &["cool", "warm", "cards"]).await;
    assert_eq!(answer["NodeNames"], json!(["cool", "cards"]));
    // kube-scheduler does not ask about a node that offers no units, so that it keeps no other from passing.
    sim.put(machine("plain", 0.10));
    rig.until("the plain node", async || {
        let told = explained(&rig, &pod, &["plain", "cards"]).await;
        let known = told.nodes.iter().all(|node| node.known);
        let accepted: Vec<_> = told.nodes.iter().map(|node| node.accepted).collect();
        known && accepted == [false, true]
    })
    .await;
}

#[tokio::test]
async fn where_every_node_is_over_its_limit_those_near_the_least_loaded_pass() {
    let loads = [("a", 0.90), ("b", 0.70), ("c", 0.80), ("d", 0.95), ("e", 0.72)];
    let nodes = || loads.map(|(name, cpu)| machine(name, cpu)).to_vec();
    let names = loads.map(|(name, _)| name);
    let (_sim, soft) = start(nodes(), "{mode: soft}").await;
    let answer = soft.filter("/load-aware", &asking("p", "100m"), &names).await;
    assert_eq!(answer["NodeNames"], json!(["b", "c", "e"]));
    assert_eq!(answer["FailedAndUnresolvableNodes"].as_object().unwrap().len(), 2);
    let metrics = soft.context.metrics().unwrap();
    assert!(metrics.contains(&passed_over_limits("measured", 1)), "{metrics}");

    let (_sim, hard) = start(nodes(), "{mode: hard, maxWait: 5m}").await;
    let mut pod = asking("p", "100m");
    let answer = hard.filter("/load-aware", &pod, &names).await;
    assert_eq!(answer["NodeNames"], json!([]));
    let waiting_for = |minutes| {
        let since = Timestamp::now() - SignedDuration::from_mins(minutes);
        json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "lastTransitionTime": since.to_string() }])
    };
    pod["metadata"]["generation"] = 1.into();
    pod["status"]["conditions"] = waiting_for(4);
    assert_eq!(hard.filter("/load-aware", &pod, &names).await["NodeNames"], json!([]));
    pod["status"]["conditions"] = waiting_for(6);
    assert_eq!(hard.filter("/load-aware", &pod, &names).await["NodeNames"], json!(["b", "c", "e"]));
    // Behind scheduling gates until now.
    pod["metadata"]["generation"] = 2.into();
    assert_eq!(hard.filter("/load-aware", &pod, &names).await["NodeNames"], json!([]));
}

/// Nodes without GPUs have no GPU reading. They take what is to be kept off a hot node, and a limit of GPUs changes
/// nothing for them.
#[tokio::test]
async fn a_limit_on_a_metric_that_some_nodes_cannot_have_lets_no_pod_onto_a_hot_node() {
    let policy = |of_gpu: &str| {
        format!(
            "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {{name: cpu_usage_avg_5m, period: 3m, limit: 0.8, weight: 1}}
  - {{name: gpu_usage_avg_5m, period: 3m, limit: 0.9{of_gpu}}}
  limits: {{mode: soft}}
"
        )
    };
    let gpu = |name: &str, cpu: f64, gpu: f64| {
        let reading = placement::reading::Reading::new(
            placement::units::Ratio::new(gpu).unwrap(),
            Timestamp::now(),
        );
        let text = placement::reading::ReadingCodec::default().encode(&reading);
        machine(name, cpu).annotation("gpu_usage_avg_5m", text)
    };
    let sim = Sim::start().await.unwrap();
    sim.put(gpu("hot-gpu", 0.95, 0.1));
    sim.put(gpu("cool-gpu", 0.20, 0.1));
    sim.put(machine("cool", 0.20));
    for (name, cpu) in [("hottest", 0.99), ("hot", 0.85)] {
        sim.put(machine(name, cpu));
    }
    for of_gpu in ["", ", whenMissing: ignore", ", whenMissing: penalise"] {
        let rig = Rig::start_under(&sim, &policy(of_gpu), &[]).await;
        let passing = async |names: &[&str]| {
            rig.filter("/load-aware", &asking("p", "0"), names).await["NodeNames"].clone()
        };
        assert_eq!(passing(&["hot-gpu", "cool"]).await, json!(["cool"]), "{of_gpu}");
        let hot = ["hottest", "hot", "hot-gpu"];
        assert_eq!(passing(&hot).await, json!(hot), "{of_gpu}");
        let metrics = rig.context.metrics().unwrap();
        assert!(metrics.contains(&passed_over_limits("measured", 1)), "{metrics}");
    }
    // A weight of the metric draws no pod to the nodes that have it.
    let rig = Rig::start_under(&sim, &policy(", weight: 1"), &[]).await;
    let scores = rig.scores(&asking("q", "0"), &["cool-gpu", "cool"]).await;
    assert_eq!(scores[0], scores[1], "{scores:?}");
    // Where the policy wants it, a node without the metric takes no pod, and passes over no limit.
    let rig = Rig::start_under(&sim, &policy(", whenMissing: reject"), &[]).await;
    let answer = rig.filter("/load-aware", &asking("p", "0"), &["cool", "cool-gpu"]).await;
    assert_eq!(answer["NodeNames"], json!(["cool-gpu"]));
}

/// kube-scheduler asks about a nominated node alone, and about the others only if it is rejected.
#[tokio::test]
async fn an_overloaded_nominated_node_takes_its_pod_only_where_no_other_is_cooler() {
    let (_sim, rig) = start(vec![machine("hot", 0.90), machine("cool", 0.10)], "{}").await;
    let mut pod = asking("p", "100m");
    pod["status"]["nominatedNodeName"] = "hot".into();
    let filter = async |pod: &Value, names: &[&str]| {
        rig.filter("/load-aware", pod, names).await["NodeNames"].clone()
    };
    for _ in 0..2 {
        assert_eq!(filter(&pod, &["hot"]).await, json!([]));
        assert_eq!(filter(&pod, &["hot", "cool"]).await, json!(["cool"]));
    }
    let metrics = rig.context.metrics().unwrap();
    for cause in ["measured", "estimates", "no node large enough", "few candidates", "not measured"]
    {
        assert!(metrics.contains(&passed_over_limits(cause, 0)), "{metrics}");
    }
    // No other node would do.
    for _ in 0..2 {
        assert_eq!(filter(&pod, &["hot"]).await, json!([]));
        assert_eq!(filter(&pod, &["hot"]).await, json!(["hot"]));
    }
    // A cool one takes it at once, and a pod that is not nominated for the node is decided about at once.
    pod["status"]["nominatedNodeName"] = "cool".into();
    assert_eq!(filter(&pod, &["cool"]).await, json!(["cool"]));
    assert_eq!(filter(&pod, &["hot"]).await, json!(["hot"]));
}

#[tokio::test]
async fn a_node_that_has_just_joined_takes_the_pods_that_hot_nodes_would() {
    let sim = Sim::start().await.unwrap();
    sim.put(machine("hot", 0.64));
    sim.put(machine("over", 0.90));
    sim.put(sim::node("new").with("cpu", 10));
    let hour = (Timestamp::now() - SignedDuration::from_hours(1)).to_string();
    sim.put(sim::node("unmeasured").with("cpu", 10).created_at(&hour));
    let rig = Rig::start_under(&sim, &policy("{}"), &[]).await;
    let names = ["hot", "new", "unmeasured"];
    assert_eq!(rig.scores(&asking("p", "0"), &names).await, [36, 100, 0]);
    // Beside a node of which nothing is known, the least loaded ones pass; beside one that has just joined, none.
    let passing = async |names: &[&str]| {
        rig.filter("/load-aware", &asking("q", "0"), names).await["NodeNames"].clone()
    };
    assert_eq!(passing(&["over", "unmeasured"]).await, json!(["over", "unmeasured"]));
    assert_eq!(passing(&["over", "new"]).await, json!(["new"]));
    // Its pods count, as those of any node.
    let now = Timestamp::now().to_string();
    sim.put(pod("first").on("new").asking("cpu", 5).scheduled_at(&now));
    rig.until("the first pod", async || rig.scores(&asking("r", "0"), &names).await[1] < 60).await;
}

#[tokio::test]
async fn a_node_that_is_asked_about_alone_is_explained_as_it_is_decided_among_all() {
    // Those that are over the limit alike pass.
    let nodes = ["c", "a", "b"].map(|name| machine(name, 0.70)).into_iter();
    let (sim, rig) = start(nodes.chain([machine("hot", 0.90)]).collect(), "{mode: soft}").await;
    let told = async |question: Value| -> Vec<(String, bool)> {
        let answer = rig.post("/explain", &question).await;
        let told: Explanation = serde_json::from_value(answer).unwrap();
        told.nodes.into_iter().map(|node| (node.name, node.passes_over_limit)).collect()
    };
    let pod = sim.put(pod("p"));
    let (by_name, by_object) = (json!({"namespace": "default", "name": "p"}), json!({"Pod": pod}));
    for mut question in [by_name.clone(), by_object] {
        let all = [("a", true), ("b", true), ("c", true), ("hot", false)];
        let all = all.map(|(node, passes)| (node.to_owned(), passes));
        assert_eq!(told(question.clone()).await, all);
        for node in all {
            question["nodeNames"] = json!([node.0]);
            assert_eq!(told(question.clone()).await, [node], "{question}");
        }
        // In the order in which they are asked about, with one that is not known.
        question["nodeNames"] = json!(["unheard-of", "hot", "a"]);
        let asked = ["unheard-of", "hot", "a"].map(str::to_owned).into_iter();
        let asked: Vec<_> = asked.zip([false, false, true]).collect();
        assert_eq!(told(question).await, asked);
    }
    // Of a decision, among those that kube-scheduler asked about: of so few each passes.
    rig.filter("/load-aware", &pod, &["hot", "c"]).await;
    sim.delete(PODS, "default", "p");
    for (node, passes) in [("c", true), ("hot", true)] {
        let mut question = by_name.clone();
        question["nodeNames"] = json!([node]);
        assert_eq!(told(question).await, [(node.to_owned(), passes)]);
    }
}

#[tokio::test]
async fn a_limit_counts_the_pod_and_an_exempt_class_passes_it() {
    let nodes = vec![machine("a", 0.60), machine("b", 0.10)];
    let (_sim, rig) = start(nodes, "{exemptPriorityClasses: [vital]}").await;
    let passing =
        async |pod: &Value| rig.filter("/load-aware", pod, &["a", "b"]).await["NodeNames"].clone();
    // 0.60 + 0.85 · 0.5 ÷ 10 is below 0.65, and with one core above.
    assert_eq!(passing(&asking("small", "500m")).await, json!(["a", "b"]));
    let mut large = asking("large", "1");
    assert_eq!(passing(&large).await, json!(["b"]));
    large["spec"]["priorityClassName"] = "vital".into();
    assert_eq!(passing(&large).await, json!(["a", "b"]));
}

#[tokio::test]
async fn pods_of_a_namespace_with_nodes_of_its_own_pass_on_no_other_and_no_unknown_node() {
    let sim = Sim::start().await.unwrap();
    sim.put(machine("theirs", 0.10).label("team", "a"));
    sim.put(machine("other", 0.10));
    let text = policy("{}") + "  namespaces: [{names: [default], nodeSelector: team=a}]\n";
    let rig = Rig::start_under(&sim, &text, &[]).await;
    let names = ["theirs", "other", "unheard-of"];
    let answer = rig.filter("/load-aware", &asking("p", "1"), &names).await;
    assert_eq!(answer["NodeNames"], json!(["theirs"]));
    let explained = explained(&rig, &asking("p", "1"), &names).await;
    let accepted = explained.nodes.iter().map(|node| (node.name.as_str(), node.accepted));
    let wanted = [("theirs", true), ("other", false), ("unheard-of", false)];
    assert_eq!(accepted.collect::<Vec<_>>(), wanted);
    assert_eq!(explained.nodes[2].reasons, explained.nodes[1].reasons);
    assert!(explained.nodes[2].reasons[0].contains("namespace"), "{explained:?}");
    let mut elsewhere = asking("q", "1");
    elsewhere["metadata"]["namespace"] = "another".into();
    let answer = rig.filter("/load-aware", &elsewhere, &names).await;
    assert_eq!(answer["NodeNames"], json!(names));
}

#[tokio::test]
async fn a_pod_that_is_on_its_way_is_explained_as_filter_decides_it() {
    // 17% of the one node and 2% of the other, which is the less loaded where the pod counts twice on the first.
    let large = loaded_node("hot", 0.70, NOW).with("cpu", 100);
    let (_sim, rig) = start(vec![machine("cool", 0.45), large], "{mode: soft}").await;
    let (pod, names) = (asking("p", "2"), ["cool", "hot"]);
    for _ in 0..2 {
        let answer = rig.filter("/load-aware", &pod, &names).await;
        assert_eq!(answer["NodeNames"], json!(["cool"]));
        let explained = explained(&rig, &pod, &names).await;
        let told = explained.nodes.iter().map(|node| (node.accepted, node.passes_over_limit));
        assert_eq!(told.collect::<Vec<_>>(), [(true, false), (false, false)]);
    }
    // Another pod finds it there.
    let other = explained(&rig, &asking("q", "2"), &names).await;
    let told = other.nodes.iter().map(|node| (node.accepted, node.passes_over_limit));
    assert_eq!(told.collect::<Vec<_>>(), [(true, true), (true, true)]);
}

fn passed_over_limits(cause: &str, calls: u64) -> String {
    format!("plimsoll_extender_passed_over_limits_total{{cause=\"{cause}\"}} {calls}")
}

/// Nodes that could not take the pod, or that are not measured, say nothing of whether the cluster is short of room.
#[tokio::test]
async fn nodes_that_would_not_do_make_no_hot_cluster_look_like_an_estimate() {
    let cause = async |others: Vec<Value>, rest: &str, names: &[&str]| {
        let sim = Sim::start().await.unwrap();
        for name in ["h0", "h1", "h2"] {
            sim.put(machine(name, 0.90).label("team", "a"));
        }
        others.into_iter().for_each(|node| drop(sim.put(node)));
        let policy = policy("{mode: soft}") + rest;
        let rig = Rig::start_under(&sim, &policy, &[]).await;
        rig.filter("/load-aware", &asking("p", "100m"), names).await;
        let metrics = rig.context.metrics().unwrap();
        let causes = ["measured", "estimates", "few candidates", "not measured"];
        causes.into_iter().find(|cause| metrics.contains(&passed_over_limits(cause, 1)))
    };
    let cold = || (0..4).map(|n| Value::from(machine(&format!("c{n}"), 0.20))).collect::<Vec<_>>();
    let of_namespace = "  namespaces: [{names: [default], nodeSelector: team=a}]\n";
    let all = ["h0", "h1", "h2", "c0", "c1", "c2", "c3"];
    assert_eq!(cause(cold(), of_namespace, &all).await, Some("measured"));
    // One that is not measured, and has not just joined.
    let mut silent = Value::from(node("silent").with("cpu", 10));
    silent["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(
        cause(vec![silent.clone()], "", &["h0", "h1", "h2", "silent"]).await,
        Some("measured")
    );
    // Of two of more nodes that would do: another one has room, or repels pods, as a control plane does.
    assert_eq!(cause(cold(), "", &["h0", "h1"]).await, Some("few candidates"));
    let mut control_plane = Value::from(machine("c0", 0.20));
    control_plane["spec"]["taints"] =
        json!([{ "key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule" }]);
    assert_eq!(cause(vec![control_plane], "", &["h0", "h1"]).await, Some("measured"));
    // None is measured.
    let sim = Sim::start().await.unwrap();
    sim.put(silent);
    let policy = policy("{mode: soft}").replace("weight: 1}", "weight: 1, whenMissing: reject}");
    let rig = Rig::start_under(&sim, &policy, &[]).await;
    rig.filter("/load-aware", &asking("p", "100m"), &["silent"]).await;
    let metrics = rig.context.metrics().unwrap();
    assert!(metrics.contains(&passed_over_limits("not measured", 1)), "{metrics}");
}

#[tokio::test]
async fn an_event_and_a_metric_say_why_no_node_was_below_its_limits() {
    // Limits of 65%. An unknown pod is estimated at 0.85 of its request.
    let hot = ["h0", "h1", "h2"].map(|name| machine(name, 0.70));
    let warm = ["w0", "w1", "w2"].map(|name| machine(name, 0.60));
    let (sim, rig) = start([hot, warm].concat(), "{mode: soft}").await;
    let (hot, warm) = (["h0", "h1", "h2"], ["w0", "w1", "w2"]);
    let cases: [(&str, &str, &[&str], &str, &str); 4] = [
        ("small", "100m", &hot, "measured", "AllNodesOverLoadLimit Warning"),
        ("unknown", "1", &warm, "estimates", "PlacedOverLoadLimit Normal"),
        ("giant", "9", &hot, "no node large enough", "PlacedOverLoadLimit Normal"),
        ("tied", "100m", &["h1"], "few candidates", "PlacedOverLoadLimit Normal"),
    ];
    for (pod, cpu, names, cause, event) in cases {
        let answer = rig.filter("/load-aware", &asking(pod, cpu), names).await;
        assert_eq!(answer["NodeNames"], json!(names), "{pod}");
        let metrics = rig.context.metrics().unwrap();
        assert!(metrics.contains(&passed_over_limits(cause, 1)), "{pod}: {metrics}");
        let is_there = || {
            sim.list(WRITTEN_EVENTS).iter().any(|written| {
                let text = |field: &str| written[field].as_str().unwrap().to_owned();
                written["regarding"]["name"] == *pod
                    && format!("{} {}", text("reason"), text("type")) == event
                    && text("note").contains(&format!("kubectl plimsoll why {pod} -n default"))
            })
        };
        rig.until(pod, async || is_there()).await;
    }
    // What else runs there is below the limit, and an empty node would not do either: nothing to tell.
    let answer = rig.filter("/load-aware", &asking("giant-2", "9"), &warm).await;
    assert_eq!(answer["NodeNames"], json!(warm));
    let metrics = rig.context.metrics().unwrap();
    assert!(metrics.contains(&passed_over_limits("no node large enough", 1)), "{metrics}");
}

/// What explain tells of a pod that may not exist.
async fn explained(rig: &Rig, pod: &Value, names: &[&str]) -> Explanation {
    let answer = rig.post("/explain", &json!({ "Pod": pod, "NodeNames": names })).await;
    serde_json::from_value(answer).unwrap()
}

/// The same pod, of StatefulSet `db`.
fn owned(mut pod: Value) -> Value {
    pod["metadata"]["ownerReferences"] = json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db",
        "uid": "s", "controller": true }]);
    pod
}

/// An annotator that answers with what pods of StatefulSet `db` were seen to use.
async fn annotator(pod: &Value) -> String {
    let id = serde_json::from_value::<cluster::Pod>(pod.clone()).unwrap().workload().unwrap();
    let amount = Distribution { mean: 3.0, p50: 3.0, p90: 3.0, p95: 3.0, p99: 3.0 };
    let by_request = Some(Distribution { mean: 1.5, ..amount });
    let workload = Workload {
        namespace: id.namespace.to_string(),
        kind: id.kind.to_string(),
        name: id.name.to_string(),
        template: id.template,
        last_seen: Timestamp::now(),
        pod_minutes: 100.0,
        cpu: Some(Learned { amount, by_request }),
        memory: None,
    };
    let answer = Workloads { time: Timestamp::now(), workloads: vec![workload] }.to_json();
    let answer = move |headers: axum::http::HeaderMap| async move {
        if headers.contains_key(IF_NONE_MATCH) {
            (StatusCode::NOT_MODIFIED, [(ETAG, "\"1\"")], String::new())
        } else {
            (StatusCode::OK, [(ETAG, "\"1\"")], answer.clone())
        }
    };
    let router = Router::new().route("/v1/workloads", get(answer));
    serve("127.0.0.1:0", router).await
}

/// Returns the URL.
async fn serve(address: &str, router: Router) -> String {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn a_standby_behind_the_same_address_does_not_hide_the_replica_that_leads() {
    let pod = owned(asking("db-7", "2"));
    let leader = annotator(&pod).await;
    // A virtual IP: each connection may go to another replica. The first five go to the standby.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let standby = || async { (StatusCode::SERVICE_UNAVAILABLE, "a standby") };
    let standby = serve("127.0.0.1:0", Router::new().route("/v1/workloads", get(standby))).await;
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut client, _) = listener.accept().await.unwrap();
            let target = if connection < 5 { &standby } else { &leader };
            let target = target.trim_start_matches("http://").to_owned();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let sim = Sim::start().await.unwrap();
    sim.put(machine("a", 0.30));
    let rig = Rig::start_under(&sim, &policy("{}"), &["--learned-use-url", &url]).await;
    rig.until("the learned use", async || rig.scores(&pod, &["a"]).await == [40]).await;
}

#[tokio::test]
async fn what_a_workload_was_seen_to_use_counts_for_its_next_pod() {
    let mut pod = owned(asking("db-7", "2"));
    let url = annotator(&pod).await;
    let sim = Sim::start().await.unwrap();
    sim.put(machine("a", 0.30));
    let rig = Rig::start_under(&sim, &policy("{}"), &["--learned-use-url", &url]).await;
    // 1.5 times the request of 2 cores, as learned.
    rig.until("the learned use", async || rig.scores(&pod, &["a"]).await == [40]).await;
    let explained = rig.post("/explain", &json!({ "Pod": pod, "NodeNames": ["a"] })).await;
    let expected = json!({ "amount": 3.0, "source": "learned" });
    assert_eq!(explained["estimate"]["cpu"], expected);
    assert_eq!(explained["estimate"]["memory"]["source"], "fallback");
    // The pod's own annotation goes before it.
    pod["metadata"]["annotations"] = json!({ "plimsoll.dev/expected-use": "{\"cpu\":\"1\"}" });
    assert_eq!(rig.scores(&pod, &["a"]).await, [60]);
}

#[tokio::test]
async fn a_limit_that_rejects_where_its_reading_is_missing_says_that_the_load_is_unknown() {
    let sim = Sim::start().await.unwrap();
    sim.put(machine("a", 0.1));
    sim.put(node("b"));
    let strict = policy("{mode: hard}").replace("limit: 0.65", "limit: 0.65, whenMissing: reject");
    let rig = Rig::start_under(&sim, &strict, &[]).await;
    let answer = rig.filter("/load-aware", &asking("web", "1"), &["a", "b"]).await;
    assert_eq!(answer["NodeNames"], json!(["a"]));
    let reason = answer["FailedAndUnresolvableNodes"]["b"].as_str().unwrap();
    assert!(reason.starts_with("Load[cpu_usage_avg_5m] is unknown"), "{answer}");
}

#[tokio::test]
async fn a_policy_that_is_refused_is_an_event_on_its_config_map_with_the_line_and_the_field() {
    let sim = Sim::start().await.unwrap();
    sim.put(json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "policy", "namespace": "plimsoll", "uid": "u-policy" } }));
    let flags = ["--policy-config-map=plimsoll/policy"];
    let rig = Rig::start_under(&sim, &policy("{}"), &flags).await;
    rig.write_policy(&policy("{mode: maybe}"));
    rig.until("the event", async || !sim.list(WRITTEN_EVENTS).is_empty()).await;
    let event = sim.list(WRITTEN_EVENTS).remove(0);
    assert_eq!(event["reason"], "PolicyRefused");
    let about = &event["regarding"];
    assert_eq!(
        (&about["kind"], &about["name"], &about["uid"]),
        (&json!("ConfigMap"), &json!("policy"), &json!("u-policy"))
    );
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("line 7: spec.limits.mode"), "{note}");
    // The next fault is another event, also while the first is young.
    rig.write_policy(&policy("{mode: perhaps}"));
    let shown = |value: &str| {
        let events = sim.list(WRITTEN_EVENTS);
        events.iter().any(|event| event["note"].as_str().unwrap().contains(value))
    };
    rig.until("the second event", async || shown("perhaps")).await;
    assert!(shown("maybe"));
}

#[tokio::test]
async fn a_shadow_policy_that_is_refused_is_an_event_too() {
    let sim = Sim::start().await.unwrap();
    sim.put(json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "policy", "namespace": "plimsoll", "uid": "u-policy" } }));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shadow.yaml");
    std::fs::write(&file, policy("{mode: maybe}")).unwrap();
    let shadow = format!("--shadow-policy-file={}", file.display());
    let flags = ["--policy-config-map=plimsoll/policy", &shadow];
    let rig = Rig::start_under(&sim, &policy("{}"), &flags).await;
    rig.until("the event", async || !sim.list(WRITTEN_EVENTS).is_empty()).await;
    let event = sim.list(WRITTEN_EVENTS).remove(0);
    assert_eq!(
        (&event["reason"], &event["regarding"]["name"]),
        (&json!("PolicyRefused"), &json!("policy"))
    );
    let note = event["note"].as_str().unwrap();
    assert!(note.starts_with("The shadow policy before") && note.contains("line 7"), "{note}");
}
