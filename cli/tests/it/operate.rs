//! `plimsoll events`, `version` and `completion`.

use serde_json::{Value, json};

use crate::command::{json as parsed, run};
use crate::world::{Extender, World};

fn event(writer: &str, reason: &str, time: &str) -> Value {
    json!({
        "metadata": {"name": reason}, "type": "Warning", "reason": reason, "message": "m\u{1b}[2J",
        "reportingComponent": writer, "eventTime": null, "lastTimestamp": time, "count": 3,
        "involvedObject": {"kind": "Node", "name": "n", "namespace": "default"},
    })
}

fn world() -> World {
    let list = json!({"items": [
        event("plimsoll-gpushare-device-plugin", "CDICardMissing", "2026-11-26T13:59:00Z"),
        event("kubelet", "Other", "2026-11-26T13:59:00Z"),
        event("plimsoll-scheduler-extender", "GPUPodsBackedOff", "2026-11-26T13:50:00Z"),
    ]});
    World::new().json("get events --all-namespaces --output=json", &list)
}

#[test]
fn the_events_of_plimsolls_programs_are_shown_the_newest_last() {
    let shown = world().run(&["events"]).success();
    let reasons: Vec<&str> =
        shown.lines().skip(1).filter_map(|line| line.split("   ").nth(2)).collect();
    assert_eq!(reasons, ["GPUPodsBackedOff", "CDICardMissing"], "{shown}");
    assert!(shown.contains("node/n") && shown.contains("(x3)"), "{shown}");
    let names = world().run(&["events", "-o", "name"]).success();
    assert_eq!(names, "event/GPUPodsBackedOff\nevent/CDICardMissing\n");
}

#[test]
fn a_watch_goes_on_with_those_that_come() {
    let comes = event("plimsoll-scheduler-extender", "Later", "2026-11-26T14:00:00Z").to_string();
    let other = event("kubelet", "Other", "2026-11-26T14:00:00Z").to_string();
    let world =
        world().answer("get events --all-namespaces --watch-only", &format!("{other}\n{comes}\n"));
    let shown = world.run(&["events", "-w"]).success();
    let last = shown.lines().last().unwrap();
    assert_eq!(last, "2026-11-26T14:00:00Z  Warning  Later  node/n  m\\u{1b}[2J");
    assert_eq!(shown.lines().count(), 3, "{shown}");
}

#[test]
fn a_watch_for_programs_is_an_object_a_line() {
    let comes = event("plimsoll-scheduler-extender", "Later", "2026-11-26T14:00:00Z").to_string();
    let world = world().answer("get events --all-namespaces --watch-only", &comes);
    let shown = world.run(&["events", "-w", "-o", "json"]).success();
    let reasons: Vec<String> =
        shown.lines().map(|line| parsed(line)["reason"].as_str().unwrap().to_owned()).collect();
    assert_eq!(reasons, ["GPUPodsBackedOff", "CDICardMissing", "Later"]);
    let yaml = world.run(&["events", "-w", "-o", "yaml"]).success();
    assert_eq!(yaml.matches("---\n").count(), 3, "{yaml}");
}

#[test]
fn names_are_refused_where_nothing_has_one() {
    for words in [&["version", "--client"][..], &["capacity", "--size", "1"], &["policy", "show"]] {
        let stderr = run([words, &["-o", "name"]].concat()).failure();
        assert!(stderr.contains("no names of objects"), "{stderr}");
    }
}

#[test]
fn versions_of_the_command_the_extender_and_the_images_are_shown() {
    let extender = Extender::new(&[("/version", "0.1.0")]);
    let pod = json!({
        "metadata": {"labels": {"app.kubernetes.io/name": "annotator"}},
        "spec": {"containers": [{"name": "annotator", "image": "r:5000/annotator:0.0.9"}]},
    });
    let world = World::new()
        .with_extender(&extender.url)
        .json("get pods --namespace=plimsoll", &json!({"items": [pod, pod]}));
    let shown = parsed(&world.run(&["version", "-o", "json"]).success());
    let expected = json!([{"program": "annotator", "version": "0.0.9", "pods": 2}]);
    assert_eq!((&shown["extender"], &shown["programs"]), (&json!("0.1.0"), &expected));
    let client = run(["version", "--client"]).success();
    assert_eq!(client, format!("plimsoll   {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn shells_and_kubectl_complete() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = run(["completion", shell]).success();
        assert!(script.contains("support-bundle"), "{shell}");
    }
    assert!(run(["completion", "kubectl"]).success().contains("exec plimsoll __complete"));
    let complete = |words: &[&str]| run([&["__complete"], words].concat()).success();
    assert_eq!(complete(&["top", ""]), "nodes\npods\ngpus\n:4\n");
    assert_eq!(complete(&["gpus", "-o", "y"]), "yaml\n:4\n");
    assert_eq!(complete(&["pol"]), "policy\n:4\n");
    assert!(complete(&["why", "--no"]).starts_with("--node\n"));
    assert!(!complete(&[""]).contains("__complete") && !complete(&[""]).contains("inspect"));
}
