//! What is scraped: PodMonitors find the pods and ports of every program, and the scrape configuration says the same.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::manifests::{PROGRAMS, ports, read, workload};

fn documents(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn a_pod_monitor_finds_the_pods_and_ports_of_each_program() {
    let monitors = documents("components/monitoring/pod-monitors.yaml");
    let mut names: Vec<&str> =
        monitors.iter().map(|it| it["metadata"]["name"].as_str().expect("a name")).collect();
    names.sort_unstable();
    assert_eq!(names, PROGRAMS);
    for monitor in monitors {
        let program = monitor["metadata"]["name"].as_str().expect("a name");
        let pods = workload(program);
        assert_eq!(monitor["metadata"]["namespace"], pods["metadata"]["namespace"], "{program}");
        // By which the component two-namespaces moves both.
        assert_eq!(monitor["metadata"]["labels"], pods["metadata"]["labels"], "{program}");
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
fn the_scrape_configuration_says_what_the_pod_monitors_say() {
    let mut jobs = documents("chart/monitoring/scrape-config.yaml").remove(0);
    let job = jobs[0].take();
    let plain = labels(&job["relabel_configs"], "source_labels", "target_label");
    let mut ports = BTreeSet::new();
    for monitor in documents("components/monitoring/pod-monitors.yaml") {
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
