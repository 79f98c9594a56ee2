//! The optional parts change workloads, containers and flags that exist.

use std::fs;

use serde_json::Value;

use crate::flags::knows_variable;
use crate::manifests::{container, pod, strings, workload, yaml};

/// The patches of every component, each with the path of its file.
fn patches() -> Vec<(String, Value)> {
    let folders = fs::read_dir(deploy::folder().join("components")).expect("components");
    let names = folders.map(|folder| folder.expect("a folder").file_name().into_string());
    names.flat_map(|name| patches_of(&name.expect("a name in UTF-8"))).collect()
}

fn patches_of(component: &str) -> Vec<(String, Value)> {
    let folder = format!("components/{component}");
    let kustomization = yaml(&format!("{folder}/kustomization.yaml"));
    assert_eq!(kustomization["kind"], "Component", "{component}");
    let files = kustomization["patches"].as_array().expect("patches");
    let paths = files.iter().map(|patch| patch["path"].as_str().expect("a path"));
    paths.map(|file| format!("{folder}/{file}")).map(|path| (path.clone(), yaml(&path))).collect()
}

#[test]
fn every_component_patches_a_workload_that_is_there() {
    let patches = patches();
    assert_eq!(patches.len(), 2);
    for (path, patch) in patches {
        let name = patch["metadata"]["name"].as_str().expect("a name");
        let target = workload(name);
        assert_eq!(patch["kind"], target["kind"], "{path}");
        assert_eq!(patch["metadata"]["namespace"], target["metadata"]["namespace"], "{path}");
    }
}

#[test]
fn every_component_names_containers_and_variables_that_are_there() {
    for (path, patch) in patches() {
        let program = patch["metadata"]["name"].as_str().expect("a name");
        let changed = &patch["spec"]["template"]["spec"]["containers"];
        for change in changed.as_array().into_iter().flatten() {
            assert_eq!(change["name"], container(program)["name"], "{path}");
            for variable in change["env"].as_array().into_iter().flatten() {
                let variable = variable["name"].as_str().expect("a name");
                assert!(knows_variable(program, variable), "{path}: {variable}");
            }
        }
    }
}

#[test]
fn the_stand_in_library_is_looked_for_where_it_is_mounted() {
    let patch = yaml("components/nvml-host-library/gpushare-device-plugin.yaml");
    let pod_patch = &patch["spec"]["template"]["spec"];
    let change = &pod_patch["containers"][0];
    let mount = &change["volumeMounts"][0];
    let library = change["env"][0]["value"].as_str().expect("a path");
    assert!(library.starts_with(mount["mountPath"].as_str().expect("a path")));
    assert_eq!(mount["name"], pod_patch["volumes"][0]["name"]);
    let taken = pod("gpushare-device-plugin")["volumes"].as_array().cloned().expect("volumes");
    assert!(taken.iter().all(|volume| volume["name"] != mount["name"]));
}

#[test]
fn every_file_of_the_base_is_listed() {
    let kustomization = yaml("base/kustomization.yaml");
    let mut listed = strings(&kustomization["resources"]);
    listed.extend(strings(&kustomization["configMapGenerator"][0]["files"]));
    listed.push("kustomization.yaml".to_owned());
    listed.sort();
    let files = fs::read_dir(deploy::folder().join("base")).expect("base");
    let mut found: Vec<_> =
        files.map(|file| file.expect("a file").file_name().into_string().expect("UTF-8")).collect();
    found.sort();
    assert_eq!(found, listed);
}
