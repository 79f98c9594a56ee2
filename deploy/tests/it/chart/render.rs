//! Runs Helm, and reads the objects that it prints.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use super::values::MANY;
use crate::manifests::Manifests;

/// Where the images are.
pub(super) const REGISTRY: &str = "registry.example.com/plimsoll";
/// The version of the API server that is rendered for.
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

/// What the newest Helm renders with these values, in the namespace of the kept manifests.
pub(super) fn manifests(values: &[&str]) -> Manifests {
    let args: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    Manifests::of_text(&stdout(&template("HELM4", "plimsoll", &args)))
}

/// The flags of [`MANY`] and of these values.
pub(super) fn with_all<'a>(values: &[&'a str]) -> Vec<&'a str> {
    MANY.iter().chain(values).flat_map(|value| ["--set", *value]).collect()
}

/// The labels and the annotation by which Helm knows its objects.
const OF_HELM: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "helm.sh/resource-policy",
];

/// The objects of a text, without what Helm knows them by.
pub(super) fn objects(text: &str) -> Objects {
    let all: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}"));
    let mut found = Objects::new();
    for mut object in all.into_iter().filter(|object| !object.is_null()) {
        for part in ["labels", "annotations"] {
            if let Some(map) = object["metadata"].get_mut(part).and_then(Value::as_object_mut) {
                map.retain(|key, _| !OF_HELM.contains(&key.as_str()));
            }
        }
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
