//! The sample of the stock descheduler agrees with the extender.

use serde_json::Value;

use crate::manifests::{Manifests, of_kind, read, yaml};

const FOLDER: &str = "samples/descheduler";

fn object(kind: &str) -> Value {
    Manifests::of_text(&read(&format!("{FOLDER}/descheduler.yaml"))).of_kind(kind).remove(0)
}

fn policy() -> Value {
    yaml(&format!("{FOLDER}/policy.yaml"))
}

fn args(plugin: &str) -> Value {
    let configs = policy()["profiles"][0]["pluginConfig"].as_array().cloned().unwrap();
    configs.into_iter().find(|config| config["name"] == plugin).unwrap()["args"].take()
}

/// 50 is a node at its limit, up to which it takes new pods.
#[test]
fn pods_are_moved_from_above_a_limit_to_below_all_and_unknown_nodes_are_between() {
    let query = args("LowNodeUtilization")["metricsUtilization"]["prometheus"]["query"].take();
    assert_eq!(query, "plimsoll_limit_ratio / 2 or plimsoll_node * 0.5");
    assert!(percent("thresholds") < 50.0 && 50.0 <= percent("targetThresholds"));
    assert!(percent("targetThresholds") < 100.0, "no value is above 1");
}

fn percent(thresholds: &str) -> f64 {
    args("LowNodeUtilization")[thresholds]["MetricResource"].as_f64().unwrap()
}

#[test]
fn it_asks_the_extenders_service_and_sends_the_token_that_opens_nothing() {
    let provider = policy()["metricsProviders"][0]["prometheus"].take();
    let service = of_kind("Service");
    let service =
        service.iter().find(|service| service["metadata"]["name"] == "scheduler-extender");
    let mut ports = service.unwrap()["spec"]["ports"].as_array().unwrap().iter();
    let port = &ports.find(|port| port["name"] == "inspect").unwrap()["port"];
    assert_eq!(provider["url"], format!("http://scheduler-extender.plimsoll.svc:{port}"));
    let named = &provider["authToken"]["secretReference"];
    let secret = object("Secret");
    assert_eq!(*named, serde_json::json!({"namespace": "descheduler", "name": "no-token"}));
    assert_eq!(secret["metadata"], *named);
    // The key that the descheduler reads.
    assert_eq!(secret["stringData"]["prometheusAuthToken"], "none");
}

#[test]
fn its_policy_is_the_file_that_it_is_started_with() {
    let pod = object("Deployment")["spec"]["template"]["spec"].take();
    let map = yaml(&format!("{FOLDER}/kustomization.yaml"))["configMapGenerator"][0].take();
    assert_eq!(pod["volumes"][0]["configMap"]["name"], map["name"]);
    assert_eq!(map["files"][0], "policy.yaml");
    let mount = pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str().unwrap().to_owned();
    let flag = format!("--policy-config-file={mount}/policy.yaml");
    assert_eq!(pod["containers"][0]["args"][0], flag);
}
