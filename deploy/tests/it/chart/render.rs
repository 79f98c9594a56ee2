//! Runs Helm and kustomize, and reads the objects that they print.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Where the images are, by both ways.
pub(super) const REGISTRY: &str = "registry.example.com/plimsoll";
/// The version of the API server that is rendered for, and of the image in the component `second-scheduler`.
const KUBERNETES: &str = "v1.36.3";
/// The releases of Helm, by the variables of `scripts/chart.sh`.
pub(super) const HELMS: [&str; 2] = ["HELM3", "HELM4"];

/// Objects by API version, kind, namespace and name.
pub(super) type Objects = BTreeMap<String, Value>;

/// The program that `make chart` names in a variable.
pub(super) fn program(variable: &str) -> PathBuf {
    env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: run these tests by `make chart`"))
        .into()
}

/// Runs Helm.
pub(super) fn helm(helm: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program(helm));
    command.args(args).output().expect("Helm runs")
}

/// The chart's folder, as text.
pub(super) fn chart() -> String {
    deploy::folder().join("chart").display().to_string()
}

/// Renders the chart into a namespace; `args` are further flags.
pub(super) fn template(by: &str, namespace: &str, args: &[&str]) -> Output {
    // Values of --set win over those of --set-json, and among these the last one does.
    let registry = format!("image.registry=\"{REGISTRY}\"");
    let chart = chart();
    let mut all = vec!["template", "plimsoll", &chart, "--namespace", namespace];
    // Of two versions the last one counts.
    all.extend(["--kube-version", KUBERNETES, "--set-json", &registry]);
    all.extend(args);
    helm(by, &all)
}

/// The objects that the chart renders to with these values, each as for `--set`.
pub(super) fn chart_objects(by: &str, namespace: &str, values: &[&str]) -> Objects {
    let args: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    objects(&stdout(&template(by, namespace, &args)))
}

/// What a command printed; it must have succeeded.
pub(super) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The objects of a kustomization with these lines, in which `DEPLOY` stands for the way to `deploy/`. A list of
/// components comes last.
pub(super) fn kustomize_objects(lines: &str) -> Objects {
    kustomize_objects_with(lines, "")
}

/// As [`kustomize_objects`], with one more ConfigMap that is generated.
pub(super) fn kustomize_objects_with(lines: &str, config_map: &str) -> Objects {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().canonicalize().expect("a path");
    // kustomize takes no absolute path.
    let up = "../".repeat(path.components().count() - 1);
    let root = deploy::folder().canonicalize().expect("a path");
    let deploy = format!("{up}{}", root.display().to_string().trim_start_matches('/'));
    let mut kustomization = lines.to_owned();
    if !lines.contains("components:\n") {
        kustomization += "components:\n";
    }
    kustomization += "- DEPLOY/registry\n";
    let comma = if config_map.is_empty() { "" } else { "," };
    kustomization += &format!(
        "configMapGenerator: [{config_map}{comma} {{name: registry, literals: [registry={REGISTRY}], options: {{annotations: \
         {{config.kubernetes.io/local-config: \"true\"}}}}}}]\n"
    );
    let kustomization = kustomization.replace("DEPLOY", &deploy);
    fs::write(path.join("kustomization.yaml"), kustomization).expect("a kustomization");
    let mut command = Command::new(program("KUSTOMIZE"));
    let output = command.arg(OsStr::new("build")).arg(&path).output().expect("kustomize runs");
    objects(&stdout(&output))
}

/// The objects of a text, without what Helm alone adds.
pub(super) fn objects(text: &str) -> Objects {
    let all: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}"));
    let mut found = Objects::new();
    for mut object in all.into_iter().filter(|object| !object.is_null()) {
        normalise(&mut object);
        let key = key(&object);
        assert!(found.insert(key.clone(), object).is_none(), "{key} is there twice");
    }
    found
}

fn key(object: &Value) -> String {
    let parts = ["/apiVersion", "/kind", "/metadata/namespace", "/metadata/name"];
    let parts = parts.map(|part| object.pointer(part).and_then(Value::as_str).unwrap_or("-"));
    format!("{} {} {}/{}", parts[0], parts[1], parts[2], parts[3])
}

/// What Helm alone adds to an object.
const OF_HELM: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "helm.sh/resource-policy",
];

/// Drops what Helm alone adds, and puts lists whose order tells nothing in one order.
fn normalise(object: &mut Value) {
    for part in ["labels", "annotations"] {
        let Some(map) = object["metadata"].get_mut(part).and_then(Value::as_object_mut) else {
            continue;
        };
        map.retain(|key, _| !OF_HELM.contains(&key.as_str()));
        if map.is_empty() {
            object["metadata"].as_object_mut().expect("an object").remove(part);
        }
    }
    if let Some(template) = object.pointer_mut("/spec/template/metadata") {
        drop_checksum(template);
    }
    sort_lists(object);
}

/// Drops the annotation by which Helm replaces pods whose configuration has changed.
fn drop_checksum(template: &mut Value) {
    let Some(annotations) = template.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    annotations.remove("checksum/configuration");
    if annotations.is_empty() {
        template.as_object_mut().expect("an object").remove("annotations");
    }
}

/// Kubernetes finds the items of these lists by a key.
const KEYED: [(&str, &str); 3] =
    [("env", "name"), ("volumes", "name"), ("volumeMounts", "mountPath")];

fn sort_lists(value: &mut Value) {
    for (list, key) in KEYED {
        if let Some(items) = value.get_mut(list).and_then(Value::as_array_mut) {
            items.sort_by_key(|item| item[key].to_string());
        }
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(sort_lists),
        Value::Object(map) => map.values_mut().for_each(sort_lists),
        _ => {}
    }
}
