//! The KubeSchedulerConfiguration and the extender agree. That kube-scheduler knows its fields, `testing/e2e` tries.

use serde_json::{Value, json};

use crate::manifests::{of_kind, yaml};

fn shipped() -> Value {
    yaml("chart/kube-scheduler/shipped.yaml")
}

/// The entry for every pod, and the one for GPU pods.
fn entries() -> [Value; 2] {
    serde_json::from_value(shipped()["extenders"].clone()).expect("two entries")
}

#[test]
fn it_keeps_kubeadms_settings_and_scores_every_node() {
    let mut rest = shipped();
    rest["extenders"].take();
    let wanted = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "leaderElection": {"leaderElect": true},
        "percentageOfNodesToScore": 100, "extenders": null,
    });
    assert_eq!(rest, wanted);
    // Soft limits alone need no look at every node.
    let mut without = shipped();
    without.as_object_mut().expect("an object").remove("percentageOfNodesToScore");
    without["extenders"].as_array_mut().expect("entries").truncate(1);
    assert_eq!(yaml("chart/kube-scheduler/without-gpus.yaml"), without);
}

/// The load entry is for every pod and ignorable; the other is for GPU pods alone and binds them.
#[test]
fn both_entries_lead_to_the_extenders_service() {
    let services = of_kind("Service");
    let is_extenders = |it: &&Value| it["metadata"]["name"] == "scheduler-extender";
    let service = services.iter().find(is_extenders).unwrap();
    let port = &service["spec"]["ports"][0]["port"];
    let base = format!("http://scheduler-extender.plimsoll.svc:{port}");
    let resource = placement::names::Names::default();
    let load = json!({
        "urlPrefix": format!("{base}/load-aware"),
        "filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt",
        "weight": 1, "ignorable": true, "nodeCacheCapable": true, "httpTimeout": "500ms",
    });
    let [of_load, gpu] = entries();
    assert_eq!(of_load, load);
    let timeout = gpu["httpTimeout"].clone();
    let wanted = json!({
        "urlPrefix": format!("{base}/gpushare-scheduler"),
        "filterVerb": "filter", "preemptVerb": "preempt", "bindVerb": "bind",
        "ignorable": false, "nodeCacheCapable": true, "httpTimeout": timeout,
        "managedResources": [{"name": resource.gpu_resource(), "ignoredByScheduler": false}],
    });
    assert_eq!(gpu, wanted);
    let deadline = scheduler_extender::args::BIND_TIMEOUT.as_secs_f64();
    assert!(deadline + 0.5 < seconds(timeout.as_str().expect("a time")));
}

fn seconds(text: &str) -> f64 {
    text.trim_end_matches('s').parse::<f64>().expect("seconds")
}

#[test]
fn every_verb_but_bind_is_one_that_the_extender_answers() {
    for entry in entries() {
        let (_, folder) =
            entry["urlPrefix"].as_str().expect("a text").rsplit_once('/').expect("a path");
        for verb in ["filterVerb", "prioritizeVerb", "preemptVerb"] {
            let Some(verb) = entry[verb].as_str() else { continue };
            let path = format!("{folder}/{verb}");
            // Not one of the verbs that are answered from memory: like Bind it asks the API server.
            let asks_the_api_server = path == "gpushare-scheduler/preempt";
            let mut verbs = scheduler_extender::http::VERBS.iter();
            assert!(asks_the_api_server || verbs.any(|(known, _)| *known == path), "{path}");
        }
    }
}
