//! `plimsoll why`, also by its former name `explain pod`, against a server that gives a fixed answer.

use serde_json::{Value, json};

use crate::command::{assert_golden, run};
use crate::server::extender;
use crate::world::{BINDINGS, Extender, World};

/// Under crane's policy; one node of each verdict.
const LOAD: &str = include_str!("../fixtures/explain.json");

/// A GPU pod: the extender's answer, as the crate that owns it keeps it.
const GPU: &str = include_str!("../../../crates/api/tests/golden/explain.json");

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The answer with other fields.
fn with(answer: &str, fields: &Value) -> String {
    let mut answer = value(answer);
    let fields = fields.as_object().unwrap().clone();
    answer.as_object_mut().unwrap().extend(fields);
    answer.to_string()
}

#[test]
fn every_node_has_a_line_the_best_first_and_the_pods_own_marked() {
    let (url, server) = extender("200 OK", LOAD);
    let written = run(["explain", "pod", "web-0", "-n", "shop", "--extender", &url]).success();
    assert_golden("explain.txt", &written);
    // Six metrics, each with what pods add, fit a wide terminal.
    assert!(written.lines().all(|line| line.chars().count() <= 132), "{written}");
    let asked = server.join().unwrap();
    let asked = asked.strip_prefix("POST /explain HTTP/1.1 ").unwrap();
    assert_eq!(value(asked), json!({ "namespace": "shop", "name": "web-0", "fresh": false }));
}

#[test]
fn one_node_is_shown_with_every_reading() {
    let nodes = value(LOAD)["nodes"].clone();
    let answer = with(LOAD, &json!({ "nodes": [nodes[0]] }));
    let (url, server) = extender("200 OK", &answer);
    let written =
        run(["explain", "pod", "web-0", "--node", "ip-10-0-1-17", "--extender", &url]).success();
    assert_golden("explain-node.txt", &written);
    assert!(server.join().unwrap().contains(r#""nodeNames":["ip-10-0-1-17"]"#));
}

#[test]
fn a_node_that_passes_over_its_limit_is_the_least_loaded() {
    let mut nodes = value(LOAD)["nodes"].clone();
    nodes[0]["accepted"] = json!(true);
    nodes[0]["passesOverLimit"] = json!(true);
    let (url, _server) = extender("200 OK", &with(LOAD, &json!({ "nodes": [nodes[0]] })));
    let written = run(["explain", "pod", "web-0", "--extender", &url]).success();
    assert!(written.contains("   least loaded   33      A 81.0%+2.0% > 65%"), "{written}");
}

#[test]
fn a_load_that_is_a_little_over_its_limit_does_not_look_like_it() {
    let mut node = value(LOAD)["nodes"][0].clone();
    let load = &mut node["load"];
    for part in ["limits", "terms"] {
        load[part][0]["reading"]["value"] = json!(0.804);
        load[part][0]["pod"] = json!(0.0);
        load[part][1]["reading"]["value"] = json!(0.6049);
    }
    load["limits"][0]["max"] = json!(0.8);
    load["limits"][1]["max"] = json!(0.655);
    load["limits"][1]["outcome"] = json!("met");
    let (url, _server) = extender("200 OK", &with(LOAD, &json!({ "nodes": [node] })));
    let node = "--node=ip-10-0-1-17";
    let written = run(["explain", "pod", "web-0", node, "--extender", &url]).success();
    assert_golden("explain-tenths.txt", &written);
    assert!(written.contains("A 80.4% > 80% "), "{written}");
}

#[test]
fn what_the_lead_by_load_outweighs_is_said() {
    let lead = |scores: [i64; 2]| {
        let mut nodes = value(LOAD)["nodes"].as_array().unwrap()[1..3].to_vec();
        for (node, score) in nodes.iter_mut().zip(scores) {
            node["accepted"] = json!(true);
            node["extenderScore"] = json!(score);
        }
        let own = nodes[0]["name"].clone();
        let (url, _server) =
            extender("200 OK", &with(LOAD, &json!({ "node": own, "nodes": nodes })));
        let written = run(["explain", "pod", "web-0", "--extender", &url]).success();
        written.lines().last().unwrap().to_owned()
    };
    for (scores, expected) in [
        ([30, 30], "is as good as"),
        (
            [28, 30],
            "by 20 of its points, at the extender's weight 1: its own plugins outweighed that.",
        ),
        (
            [30, 29],
            "by 10 of its points, at the extender's weight 1. Each of its plugins can outweigh that, or be as much: ",
        ),
        (
            [30, 10],
            "That outweighs NodeResourcesFit, BalancedAllocation or ImageLocality (at most 100), and not a topology",
        ),
        ([90, 10], "That outweighs each of its plugins: "),
    ] {
        let said = lead(scores);
        assert!(said.starts_with("By load ") && said.contains(expected), "{scores:?}: {said}");
    }
}

#[test]
fn a_gpu_pods_gpu_is_shown() {
    let (url, _server) = extender("200 OK", GPU);
    let written = run(["explain", "pod", "train", "--extender", &url]).success();
    assert_golden("explain-gpu.txt", &written);
    let (url, _server) = extender("200 OK", GPU);
    let written = run(["explain", "pod", "train", "--node=worker-2", "--extender", &url]).success();
    assert_golden("explain-gpu-node.txt", &written);
}

#[test]
fn a_pod_that_waits_has_no_node() {
    let answer = with(LOAD, &json!({ "node": null, "basis": "now", "nodes": [] }));
    let (url, server) = extender("200 OK", &answer);
    let written = run(["explain", "pod", "web-0", "--fresh", "--extender", &url]).success();
    assert_golden("explain-waiting.txt", &written);
    assert!(server.join().unwrap().contains(r#""fresh":true"#));
}

#[test]
fn a_node_that_was_not_asked_about_is_an_error_that_says_why() {
    let (url, _server) = extender("200 OK", &with(LOAD, &json!({ "nodes": [] })));
    let stderr = run(["explain", "pod", "web-0", "--node", "n9", "--extender", &url]).failure();
    assert!(stderr.contains("did not ask about node n9") && stderr.contains("--fresh"), "{stderr}");
}

#[test]
fn a_node_that_the_extender_does_not_know_is_an_error() {
    let mut node = value(LOAD)["nodes"][1].clone();
    node["name"] = json!("n9");
    node["known"] = json!(false);
    let answer = with(LOAD, &json!({ "basis": "now", "nodes": [node] }));
    let (url, _server) = extender("200 OK", &answer);
    let stderr = run(["why", "web-0", "--fresh", "--node", "n9", "--extender", &url]).failure();
    assert!(stderr.contains("the extender knows no node n9"), "{stderr}");
}

#[test]
fn of_several_pods_of_a_manifest_the_first_is_shown_with_a_warning() {
    let answers = Extender::new(&[("/explain", LOAD)]);
    let world = World::new().with_extender(&answers.url);
    let pod = |name: &str| json!({"kind": "Pod", "metadata": {"name": name}, "spec": {}});
    let list = json!({"kind": "List", "items": [pod("one"), pod("two")]});
    let run = world.run_with(&["why", "-f", "-"], &list.to_string());
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (Some(0), "Warning: - has 2 pods; shown is the first, one\n")
    );
}

#[test]
fn json_is_the_extenders_answer() {
    let (url, _server) = extender("200 OK", GPU);
    let written = run(["explain", "pod", "train", "--json", "--extender", &url]).success();
    assert_eq!(value(&written), value(GPU));
}

#[test]
fn the_extenders_own_error_is_told_as_it_is() {
    let (url, _server) =
        extender("404 Not Found", r#""there is no pod default/x; check the name""#);
    let stderr = run(["explain", "pod", "x", "--extender", &url]).failure();
    assert_eq!(stderr, "error: there is no pod default/x; check the name\n");
}

#[test]
fn other_answers_are_errors_that_name_the_address_and_the_help() {
    for (status, body, cause) in [
        ("404 Not Found", "", "404"),
        ("200 OK", "<html>", "not the extender's answer"),
        ("200 OK", "{}", "not the extender's answer"),
    ] {
        let (url, _server) = extender(status, body);
        let stderr = run(["explain", "pod", "x", "--extender", &url]).failure();
        assert!(stderr.contains(&url) && stderr.contains(cause), "{stderr}");
    }
    let stderr = run(["explain", "pod", "x", "--extender", "http://127.0.0.1:1"]).failure();
    assert!(stderr.contains("without --extender"), "{stderr}");
}

/// A thousand nodes that are over a limit by ever more, and as many that are accepted.
fn many_nodes(accepted: usize) -> String {
    let all = value(LOAD)["nodes"].clone();
    let mut nodes = Vec::new();
    for number in 0..1_000 {
        let mut node = all[0].clone();
        node["name"] = json!(format!("hot-{number}"));
        node["load"]["limits"][0]["reading"]["value"] = json!(0.9 + f64::from(number) / 1_000.0);
        nodes.push(node);
    }
    nodes.reverse();
    for number in 0..accepted {
        let mut node = all[1].clone();
        node["name"] = json!(format!("cool-{number}"));
        nodes.push(node);
    }
    with(LOAD, &json!({ "nodes": nodes, "node": "hot-500" }))
}

fn names(table: &str) -> Vec<&str> {
    let rows = table.lines().skip_while(|line| !line.contains("VERDICT"));
    let words = rows.flat_map(|line| line.split_whitespace().take(2));
    words.filter(|word| word.starts_with("hot-") || word.starts_with("cool-")).collect()
}

#[test]
fn the_best_and_the_nearest_misses_are_shown_of_many_nodes_and_the_pods_own() {
    let (url, _server) = extender("200 OK", &many_nodes(1_000));
    let written = run(["why", "web-0", "--limit", "2", "--extender", &url]).success();
    assert_eq!(names(&written), ["cool-0", "cool-1", "hot-0", "hot-1", "hot-500"], "{written}");
    let left = "and 1995 more nodes: 998 accepted, 997 over limit (--all shows all, --node NODE one in full)\n";
    assert!(written.contains(left), "{written}");
}

#[test]
fn where_no_node_accepts_the_nearest_misses_stand_alone() {
    let (url, _server) = extender("200 OK", &many_nodes(0));
    let written = run(["why", "web-0", "--extender", &url]).success();
    assert_eq!(names(&written)[..3], ["hot-0", "hot-1", "hot-2"], "{written}");
    assert_eq!(names(&written).len(), 11, "{written}");
    let (url, _server) = extender("200 OK", &many_nodes(0));
    let all = run(["why", "web-0", "--all", "--extender", &url]).success();
    assert_eq!(names(&all).len(), 1_000);
}

#[test]
fn a_workload_stands_for_its_newest_pod_that_waits() {
    let answers = Extender::new(&[("/explain", LOAD)]);
    let workload = json!({"spec": {"selector": {"matchLabels": {"app": "web"}}}});
    let pods = json!({"items": [
        {"metadata": {"name": "runs", "creationTimestamp": "2026-11-26T12:00:00Z"}, "spec": {"nodeName": "n"}},
        {"metadata": {"name": "waits", "creationTimestamp": "2026-11-26T11:00:00Z"}, "status": {"phase": "Pending"}},
    ]});
    let world = World::new()
        .with_extender(&answers.url)
        .json("get deployment web --namespace=shop", &workload)
        .json("get pods --namespace=shop --selector=app=web", &pods);
    world.run(&["why", "deploy/web"]).success();
    let asked = answers.requests().pop().unwrap();
    assert!(asked.contains(r#""namespace":"shop","name":"waits""#), "{asked}");
    let stderr = world.run(&["why", "cronjob/x"]).failure();
    assert!(stderr.contains("expected a pod's name, or deploy/NAME"), "{stderr}");
}

#[test]
fn a_manifests_pod_is_sent_as_it_is() {
    let answers = Extender::new(&[("/explain", LOAD)]);
    let world = World::new().with_extender(&answers.url);
    let manifest =
        "kind: Job\nmetadata: {name: t}\nspec: {template: {spec: {containers: [{name: main}]}}}\n";
    world.run_with(&["why", "-f", "-", "--node", "ip-10-0-1-17"], manifest).success();
    let asked = answers.requests().pop().unwrap();
    let asked = value(asked.strip_prefix("POST /explain HTTP/1.1 ").unwrap());
    assert_eq!(asked["Pod"]["metadata"], json!({"name": "t", "namespace": "shop"}));
    assert_eq!(asked["NodeNames"], json!(["ip-10-0-1-17"]));
}

/// A cluster with the annotator alone.
fn without_extender(nodes: &Value, pod: &Value) -> World {
    let account = json!({"kind": "ServiceAccount", "name": "annotator", "namespace": "plimsoll"});
    let annotator = json!({"metadata": {"name": "plimsoll-annotator"}, "subjects": [account]});
    World::new()
        .answer("config view --minify", "shop")
        .json(BINDINGS, &json!({"items": [annotator]}))
        .json("get nodes", &json!({"items": nodes}))
        .json("get pod web-0 --namespace=shop", pod)
        .fails("get pod gone", "Error from server (NotFound): pods \"gone\" not found")
}

fn banded(name: &str, bands: [&str; 2], taints: &Value) -> Value {
    let mut labels = json!({});
    for (key, band) in [("plimsoll.dev/cpu-band", bands[0]), ("plimsoll.dev/gpu-band", bands[1])] {
        if !band.is_empty() {
            labels[key] = json!(band);
        }
    }
    json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
}

/// A pod on the node `b` that prefers nodes whose labels have these values.
fn preferring(terms: &[(&str, &Value)]) -> Value {
    let term = |(key, values): &(&str, &Value)| {
        json!({"weight": 57, "preference": {"matchExpressions": [
        {"key": key, "operator": "In", "values": values}]}})
    };
    json!({"metadata": {"name": "web-0"}, "spec": {"nodeName": "b", "affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": terms.iter().map(term).collect::<Vec<_>>()}}}})
}

#[test]
fn without_an_extender_the_bands_are_shown_that_the_pod_prefers() {
    let hot = json!([{"key": "k", "value": "plimsoll-hot", "effect": "PreferNoSchedule"}]);
    let none = json!([]);
    let nodes = json!([
        banded("new", ["", ""], &none),
        banded("b", ["4", "0"], &none),
        banded("hot", ["0", ""], &hot),
        banded("a", ["4", "5"], &none),
        banded("low", ["2", "7"], &none),
        banded("strange", ["8", "7"], &none),
    ]);
    let of_policy = json!(["0", "1", "2", "3"]);
    let pod = preferring(&[("team", &of_policy), ("plimsoll.dev/cpu-band", &of_policy)]);
    let world = without_extender(&nodes, &pod);
    assert_golden("explain-by-bands.txt", &world.run(&["why", "web-0"]).success());
    let written = world.run(&["why", "web-0", "-o", "json", "--node", "low"]).success();
    let expected = json!({"namespace": "shop", "pod": "web-0", "node": "b", "label": "plimsoll.dev/cpu-band",
        "bands": [{"node": "low", "band": 2, "hot": false}]});
    assert_eq!(value(&written), expected);
    let written = world.run(&["why", "pod/web-0", "--limit=1"]).success();
    assert!(
        written.contains("\n*   b      4") && written.contains("and 4 more nodes"),
        "{written}"
    );
    for (args, part) in [
        (&["why", "gone"][..], "pods \"gone\" not found"),
        (&["why", "web-0", "--node", "typo"], "there is no node typo"),
        (&["why", "web-0", "-o", "name"], "-o name"),
    ] {
        let error = world.run(args).failure();
        assert!(error.contains(part), "{args:?}: {error}");
    }

    let its_own = preferring(&[("plimsoll.dev/cpu-band", &json!(["6", "7"]))]);
    let written = without_extender(&nodes, &its_own).run(&["why", "web-0"]).success();
    assert!(written.contains("Prefers:    no node by its band\n"), "{written}");

    let nodes = json!([banded("a", ["", ""], &hot)]);
    let error = without_extender(&nodes, &pod).run(&["why", "web-0"]).failure();
    assert!(error.contains("without an extender, and nodes have no bands"), "{error}");
}

#[test]
fn where_a_flag_says_where_the_extender_is_bands_are_no_answer() {
    let not_found =
        "Error from server (NotFound): deployments.apps \"scheduler-extender\" not found";
    let nodes = json!([banded("a", ["3", ""], &json!([]))]);
    let world = without_extender(&nodes, &preferring(&[]))
        .fails("get lease plimsoll-scheduler-extender", not_found)
        .fails("port-forward", not_found);
    let error = world.run(&["why", "web-0", "--plimsoll-namespace", "typo"]).failure();
    assert!(error.contains("there is no extender in namespace typo"), "{error}");
}
