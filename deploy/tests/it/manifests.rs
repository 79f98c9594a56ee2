//! Reads the YAML of `deploy/base` in the order of its kustomization, and finds the parts that tests look at.

use std::fs;

use serde_json::Value;

/// The programs, which are also the names of workloads, containers, images and service accounts.
pub(crate) const PROGRAMS: [&str; 4] =
    ["annotator", "gpushare-device-plugin", "node-exporter-plus", "scheduler-extender"];

/// Where the shipped manifests have the images: a name that no server can have.
pub(crate) const REGISTRY: &str = "plimsoll.invalid";

/// A file of `deploy/`, as text.
pub(crate) fn read(path: &str) -> String {
    let path = deploy::folder().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One YAML document of `deploy/`.
pub(crate) fn yaml(path: &str) -> Value {
    parse_one(path, &read(path))
}

/// Every object that `deploy/base/kustomization.yaml` lists.
pub(crate) fn objects() -> Vec<Value> {
    let kustomization = yaml("base/kustomization.yaml");
    let files = kustomization["resources"].as_array().expect("a list of resources");
    files.iter().flat_map(|file| documents(file.as_str().expect("a file name"))).collect()
}

fn documents(file: &str) -> Vec<Value> {
    let text = read(&format!("base/{file}"));
    // Strict about duplicate keys, as the API server is.
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn parse_one(path: &str, text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The objects of one kind.
pub(crate) fn of_kind(kind: &str) -> Vec<Value> {
    objects().into_iter().filter(|object| object["kind"] == kind).collect()
}

/// The Deployment or DaemonSet of a program.
pub(crate) fn workload(program: &str) -> Value {
    let mut found: Vec<_> = objects()
        .into_iter()
        .filter(|object| {
            !object["spec"]["template"].is_null() && object["metadata"]["name"] == program
        })
        .collect();
    assert_eq!(found.len(), 1, "workloads named {program}");
    found.remove(0)
}

/// The pod that a program's workload makes.
pub(crate) fn pod(program: &str) -> Value {
    workload(program)["spec"]["template"]["spec"].clone()
}

/// The container of a program in its pod: the first, and the only one but for the device plugin's [`gpu_probe`].
pub(crate) fn container(program: &str) -> Value {
    let containers = pod(program)["containers"].as_array().cloned().expect("containers");
    let count = if program == "gpushare-device-plugin" { 2 } else { 1 };
    assert_eq!(containers.len(), count, "containers of {program}");
    containers[0].clone()
}

/// The container beside the device plugin that opens CUDA contexts.
pub(crate) fn gpu_probe() -> Value {
    let container = pod("gpushare-device-plugin")["containers"][1].clone();
    assert_eq!(container["name"], "gpu-probe");
    container
}

/// A list of strings, or none where there is no list.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item.as_str().expect("a string").to_owned()).collect()
}

/// The container's ports by name.
pub(crate) fn ports(program: &str) -> Vec<(String, u64)> {
    let container = container(program);
    let mut ports = Vec::new();
    for port in container["ports"].as_array().expect("ports") {
        let name = port["name"].as_str().expect("a name").to_owned();
        ports.push((name, port["containerPort"].as_u64().expect("a number")));
    }
    ports
}
