//! What other charts and earlier releases hand to the chart.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::render::{
    HELMS, REGISTRY, chart, chart_objects, helm, objects, stderr, stdout, template,
};
use crate::manifests::{read, yaml};

/// A copy of the chart in a folder.
fn copied(to: &Path) {
    let copied = Command::new("cp").args(["-r", &chart()]).arg(to).status().expect("cp runs");
    assert!(copied.success());
}

fn write(path: &Path, value: &Value) {
    fs::write(path, value.to_string()).expect("it is written");
}

/// A chart that names this one and switches it by the usual key.
#[test]
#[ignore = "make chart"]
fn a_chart_that_names_this_one_switches_it_by_enabled_and_has_globals() {
    let folder = TempDir::new().expect("a folder");
    let umbrella = folder.path().join("umbrella");
    fs::create_dir_all(umbrella.join("charts")).expect("a folder");
    copied(&umbrella.join("charts/plimsoll"));
    let version = env!("CARGO_PKG_VERSION");
    let of_plimsoll =
        json!({"name": "plimsoll", "version": version, "condition": "plimsoll.enabled"});
    write(
        &umbrella.join("Chart.yaml"),
        &json!({"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": [of_plimsoll]}),
    );
    let values = |enabled: bool| {
        json!({
            "global": {"imageRegistry": "registry.example.com", "imagePullSecrets": []},
            "plimsoll": {"enabled": enabled, "image": {"registry": REGISTRY}},
        })
    };
    for by in HELMS {
        for enabled in [true, false] {
            write(&umbrella.join("values.yaml"), &values(enabled));
            let path = umbrella.display().to_string();
            let args = ["template", "plimsoll", &path, "--namespace", "plimsoll"];
            let output = helm(by, &[&args[..], &["--kube-version", "v1.36.3"]].concat());
            let found = objects(&stdout(&output));
            let expected =
                if enabled { chart_objects(by, "plimsoll", &[]) } else { Default::default() };
            assert!(found == expected, "{by}, enabled: {enabled}");
        }
    }
}

/// A value with everything below this depth left out.
fn cut(value: &Value, depth: usize) -> Value {
    match value {
        Value::Object(fields) if depth > 0 => {
            let fields = fields.iter().filter(|(_, field)| field.is_object());
            Value::Object(fields.map(|(key, field)| (key.clone(), cut(field, depth - 1))).collect())
        }
        Value::Object(_) => Value::Object(Map::new()),
        other => other.clone(),
    }
}

/// Maps that their owner may have emptied.
fn is_owners(path: &str) -> bool {
    ["resources", "env"].iter().any(|key| path.ends_with(key))
}

/// A value without what its owner may have emptied.
fn without_owners(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(key, _)| !is_owners(key));
            Value::Object(fields.map(|(key, field)| (key, without_owners(field))).collect())
        }
        other => other,
    }
}

/// With `--reuse-values` Helm takes the values of the last release in place of the chart's: what is new is missing, a
/// section or a single value of it.
#[test]
#[ignore = "make chart"]
fn values_that_the_last_release_did_not_have_are_the_defaults() {
    let folder = TempDir::new().expect("a folder");
    let chart = folder.path().join("plimsoll");
    copied(&chart);
    let path = chart.display().to_string();
    let registry = format!("image.registry={REGISTRY}");
    let values = yaml("chart/values.yaml");
    for by in HELMS {
        let expected = chart_objects(by, "plimsoll", &[]);
        for depth in 0..5 {
            write(&chart.join("values.yaml"), &without_owners(cut(&values, depth)));
            let mut args = vec!["template", "plimsoll", &path, "--namespace", "plimsoll"];
            args.extend(["--kube-version", "v1.36.3", "--set", &registry]);
            let output = helm(by, &args);
            assert!(output.status.success(), "{by}, {depth}: {}", stderr(&output));
            assert!(objects(&stdout(&output)) == expected, "{by}: without what is below {depth}");
        }
    }
}

/// What its owner takes away by `null` is not added again.
#[test]
#[ignore = "make chart"]
fn a_limit_that_is_taken_away_stays_away() {
    for by in HELMS {
        let objects = chart_objects(by, "plimsoll", &["extender.resources.limits=null"]);
        let extender = &objects["apps/v1 Deployment plimsoll/scheduler-extender"];
        let resources = &extender["spec"]["template"]["spec"]["containers"][0]["resources"];
        assert!(resources["requests"].is_object() && resources["limits"].is_null(), "{resources}");
    }
}

/// Kubernetes takes an amount that is null for 0.
#[test]
#[ignore = "make chart"]
fn what_is_null_goes_from_pod_templates_and_resources() {
    let amounts = json!({"limits": {"cpu": null, "memory": null}, "requests": null});
    let container = json!({"name": "annotator", "resources": amounts, "volumeMounts": null});
    let spec = json!({"tolerations": null, "volumes": null, "containers": [container]});
    let patch = json!({"metadata": {"annotations": {"a": null}}, "spec": spec});
    let patches = json!({"annotator": patch, "scheduler-extender": null});
    let set = format!("--set-json=podTemplates={patches}");
    let args = [
        "--set=scheduler.mode=second",
        "--set-json=extender.resources.limits.cpu=null",
        "--set-json=scheduler.resources.limits=null",
        &set,
    ];
    for by in HELMS {
        let rendered = stdout(&template(by, "plimsoll", &args));
        assert!(!rendered.contains(": null"), "{by}: {rendered}");
        let found = objects(&rendered);
        let workload = &found["apps/v1 Deployment plimsoll/annotator"];
        let spec = &workload["spec"]["template"]["spec"];
        assert!(spec["tolerations"].is_null() && spec["volumes"].is_null(), "{by}: {spec}");
        let container = &spec["containers"][0];
        assert_eq!(container["resources"], json!({"limits": {}}), "{by}");
        assert!(container["volumeMounts"].is_null(), "{by}");
    }
}

/// With `--reuse-values` the last release's defaults come along, and say nothing. What somebody set is not ignored.
#[test]
#[ignore = "make chart"]
fn values_that_are_gone_do_nothing_at_their_defaults_and_are_refused_otherwise() {
    let gone = serde_json::from_str::<Value>(&read("chart/moved.json")).expect("JSON");
    let gone = gone.as_object().expect("values");
    let set = |path: &str, value: &Value| format!("--set-json={path}={value}");
    let defaults: Vec<String> = gone.iter().map(|(path, it)| set(path, &it["was"])).collect();
    let defaults: Vec<&str> = defaults.iter().map(String::as_str).collect();
    for by in HELMS {
        let reused = objects(&stdout(&template(by, "plimsoll", &defaults)));
        assert!(reused == chart_objects(by, "plimsoll", &[]), "{by}");
    }
    for (index, path) in gone.keys().enumerate() {
        let other = set(path, &json!(["other"]));
        let error = stderr(&template(HELMS[index % 2], "plimsoll", &[&other]));
        let wanted = format!("the value {path} is gone: in its place is ");
        assert!(error.contains(&wanted), "{other}: {error}");
    }
}

#[test]
#[ignore = "make chart"]
fn a_pod_template_is_merged_by_names_and_other_lists_replace() {
    let patch = json!({
        "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
        "spec": {
            "priorityClassName": "mine",
            "nodeSelector": {"pool": "infra"},
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "policy", "emptyDir": {}}, {"name": "more", "emptyDir": {}}],
            "containers": [
                {"name": "annotator", "volumeMounts": [{"name": "more", "mountPath": "/more"}]},
                {"name": "beside", "image": "x"},
            ],
        },
    });
    let set = format!("--set-json=podTemplates.annotator={patch}");
    let key = "apps/v1 Deployment plimsoll/annotator";
    for by in HELMS {
        let mut wanted = chart_objects(by, "plimsoll", &[])[key].clone();
        let template_of = &mut wanted["spec"]["template"];
        template_of["metadata"]["labels"]["team"] = "a".into();
        template_of["metadata"]["annotations"] = json!({"b": "c"});
        let spec = &mut template_of["spec"];
        spec["priorityClassName"] = "mine".into();
        spec["nodeSelector"]["pool"] = "infra".into();
        spec["tolerations"] = patch["spec"]["tolerations"].clone();
        spec["volumes"] = patch["spec"]["volumes"].clone();
        let more = &patch["spec"]["containers"];
        let mounts = spec["containers"][0]["volumeMounts"].as_array_mut().expect("mounts");
        mounts.push(more[0]["volumeMounts"][0].clone());
        spec["containers"].as_array_mut().expect("containers").push(more[1].clone());
        let found = objects(&stdout(&template(by, "plimsoll", &[&set])));
        assert_eq!(found[key], wanted, "{by}");
        let without = "podTemplates.annotator.spec.nodeSelector=null";
        let found = chart_objects(by, "plimsoll", &[without]);
        assert!(found[key]["spec"]["template"]["spec"]["nodeSelector"].is_null(), "{by}");
    }
}

/// Otherwise every `helm upgrade` would roll the pods.
#[test]
#[ignore = "make chart"]
fn what_a_pod_template_adds_comes_in_the_order_that_is_given() {
    let added = ["e", "d", "c", "b", "a"].map(|name| json!({"name": name}));
    let container = json!({"name": "node-exporter-plus", "env": added});
    let patch = json!({"volumes": added, "initContainers": added, "containers": [container]});
    let set = format!("--set-json=podTemplates.node-exporter-plus.spec={patch}");
    for by in HELMS {
        let rendered = stdout(&template(by, "plimsoll", &[&set]));
        let found = objects(&rendered);
        let workload = &found["apps/v1 DaemonSet plimsoll/node-exporter-plus"];
        let spec = &workload["spec"]["template"]["spec"];
        for list in [&spec["volumes"], &spec["initContainers"], &spec["containers"][0]["env"]] {
            assert!(list.as_array().expect("a list").ends_with(&added), "{by}: {list}");
        }
        for _ in 0..9 {
            let again = stdout(&template(by, "plimsoll", &[&set]));
            assert!(again == rendered, "{by}: rendered again it is another text");
        }
    }
}
