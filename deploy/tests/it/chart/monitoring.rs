//! What is for Prometheus and Grafana: the shipped rules, what is scraped of each program, and no more than is there.

use std::collections::BTreeSet;

use serde_json::Value;

use super::render::{HELMS, chart_objects, manifests};
use crate::manifests::{PROGRAMS, ports, read, yaml};

/// All that is for the Prometheus Operator and Grafana.
const ALL_OF_MONITORING: &str =
    "monitoring.podMonitors=true,monitoring.rules=true,monitoring.dashboards=true";

/// Neither the alerts of an extender, which would be missed, nor what scrapes it.
#[test]
#[ignore = "make chart"]
fn without_an_extender_nothing_watches_for_one() {
    for helm in HELMS {
        let values = ["scheduler.mode=none", ALL_OF_MONITORING];
        let objects = chart_objects(helm, "plimsoll", &values);
        let mut scraped: Vec<&str> = Vec::new();
        for object in objects.values().filter(|object| object["kind"] == "PodMonitor") {
            scraped.push(object["metadata"]["name"].as_str().expect("a name"));
        }
        assert_eq!(scraped, ["annotator", "node-exporter-plus"], "{helm}");
        let rule = &objects["monitoring.coreos.com/v1 PrometheusRule plimsoll/plimsoll"];
        let groups = rule["spec"]["groups"].as_array().expect("groups");
        let names: Vec<&Value> = groups.iter().map(|group| &group["name"]).collect();
        assert_eq!(names, ["plimsoll-annotator"], "{helm}");
    }
}

const RULES: &str = "monitoring.coreos.com/v1 PrometheusRule plimsoll/plimsoll";

#[test]
#[ignore = "make chart"]
fn the_rules_of_the_operator_are_the_shipped_ones_with_your_copy_of_the_runbook() {
    let url = "https://git.example.com/plimsoll/blob/main/docs/monitoring.md";
    let text = read("manifests/rules.yaml");
    let shipped = yaml("manifests/rules.yaml");
    let with_url: Value =
        serde_saphyr::from_str(&text.replace("docs/monitoring.md#", &format!("{url}#")))
            .expect("YAML");
    for by in HELMS {
        let rules = chart_objects(by, "plimsoll", &[ALL_OF_MONITORING]);
        assert_eq!(rules[RULES]["spec"]["groups"], shipped["groups"], "{by}");
        let set = format!("monitoring.runbookUrl={url}");
        let rules = chart_objects(by, "plimsoll", &[ALL_OF_MONITORING, &set]);
        assert_eq!(rules[RULES]["spec"]["groups"], with_url["groups"], "{by}");
    }
    // The alert that nothing asks the extender is about the scheduler of Plimsoll's pods.
    let second = text.replace("profile=\"default-scheduler\"", "profile=\"plimsoll-scheduler\"");
    assert!(second != text);
    let wanted: Value = serde_saphyr::from_str(&second).expect("YAML");
    let second = ["scheduler.mode=second", ALL_OF_MONITORING];
    let rules = chart_objects("HELM4", "plimsoll", &second);
    assert_eq!(rules[RULES]["spec"]["groups"], wanted["groups"]);
}

#[test]
#[ignore = "make chart"]
fn every_dashboard_is_a_config_map_that_grafanas_sidecar_finds() {
    let folder = deploy::folder().join("chart/monitoring/dashboards");
    let objects = manifests(&[ALL_OF_MONITORING, "monitoring.labels.release=x"]);
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("dashboards") {
        let path = file.expect("a file").path();
        let name = path.file_stem().expect("a name").display().to_string();
        let map = objects.object("ConfigMap", &format!("plimsoll-dashboard-{name}"));
        let labels = &map["metadata"]["labels"];
        assert_eq!([&labels["grafana_dashboard"], &labels["release"]], ["1", "x"]);
        assert_eq!(map["metadata"]["annotations"]["grafana_folder"], "Plimsoll");
        let text = map["data"][format!("{name}.json")].as_str().expect("a text");
        assert!(text == std::fs::read_to_string(&path).expect("a text"), "{name}");
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
#[ignore = "make chart"]
fn a_pod_monitor_finds_the_pods_and_ports_of_each_program() {
    let objects = manifests(&[ALL_OF_MONITORING]);
    let monitors = objects.of_kind("PodMonitor");
    let mut names: Vec<&str> =
        monitors.iter().map(|it| it["metadata"]["name"].as_str().expect("a name")).collect();
    names.sort_unstable();
    assert_eq!(names, PROGRAMS);
    for monitor in monitors {
        let program = monitor["metadata"]["name"].as_str().expect("a name");
        let pods = objects.workload(program);
        assert_eq!(monitor["metadata"]["namespace"], pods["metadata"]["namespace"], "{program}");
        let labels = &pods["spec"]["template"]["metadata"]["labels"];
        for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().expect("some")
        {
            assert_eq!(labels[label], *value, "{program}: {label}");
        }
        let of_pod: Vec<String> = ports(program).into_iter().map(|(name, _)| name).collect();
        let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().expect("endpoints");
        for endpoint in endpoints {
            let port = endpoint["port"].as_str().expect("a port").to_owned();
            assert!(of_pod.contains(&port), "{program}: {port}");
        }
        assert_eq!(endpoints[0]["port"], "admin", "{program}");
        assert_eq!(endpoints.len() == 2, program == "node-exporter-plus", "{program}");
    }
}

/// The sources and targets of rules that set a label.
fn labels(rules: &Value, source: &str, target: &str) -> BTreeSet<(String, String)> {
    let rules = rules.as_array().expect("rules").iter().filter(|rule| rule[target].is_string());
    rules.map(|rule| (rule[source][0].to_string(), rule[target].to_string())).collect()
}

#[test]
#[ignore = "make chart"]
fn the_scrape_configuration_says_what_the_pod_monitors_say() {
    let job = yaml("chart/monitoring/scrape-config.yaml")[0].take();
    let plain = labels(&job["relabel_configs"], "source_labels", "target_label");
    let mut ports = BTreeSet::new();
    for monitor in manifests(&[ALL_OF_MONITORING]).of_kind("PodMonitor") {
        for endpoint in monitor["spec"]["podMetricsEndpoints"].as_array().expect("endpoints") {
            let set = labels(&endpoint["relabelings"], "sourceLabels", "targetLabel");
            assert_eq!(set.len(), 2, "{monitor}");
            assert!(set.is_subset(&plain), "{set:?}");
            assert_eq!(endpoint["interval"], job["scrape_interval"]);
            ports.insert(endpoint["port"].as_str().expect("a port").to_owned());
        }
    }
    let ports: Vec<String> = ports.into_iter().collect();
    let rules = job["relabel_configs"].as_array().expect("rules");
    assert!(rules.iter().any(|rule| rule["regex"] == ports.join("|")), "{ports:?}");
    // What the operator sets by itself.
    let of_operator = ["namespace", "pod"].map(|label| format!("\"{label}\""));
    assert!(of_operator.iter().all(|label| plain.iter().any(|(_, target)| target == label)));
}
