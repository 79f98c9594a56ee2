//! What the value `claims` adds, with an extender and without.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::parts::changes;
use super::render::{HELMS, manifests, stderr, stdout, template};
use crate::manifests::items_named;

/// With `scheduler.mode` none ResourceClaims are all that shares GPUs.
const NONE: [&str; 2] = ["scheduler.mode=none", "claims=true"];

/// The objects of claims by kind and name, without those of the extender.
const ADDED: [&str; 7] = [
    "ClusterRole plimsoll-gpushare-device-plugin-claims",
    "ClusterRoleBinding plimsoll-gpushare-device-plugin-claims",
    "DeviceClass gpu-share.plimsoll.dev",
    "ValidatingAdmissionPolicy plimsoll-device-plugin-resource-claims",
    "ValidatingAdmissionPolicy plimsoll-device-plugin-slices",
    "ValidatingAdmissionPolicyBinding plimsoll-device-plugin-resource-claims",
    "ValidatingAdmissionPolicyBinding plimsoll-device-plugin-slices",
];

const OF_THE_EXTENDER: [&str; 2] = [
    "ClusterRole plimsoll-scheduler-extender-claims",
    "ClusterRoleBinding plimsoll-scheduler-extender-claims",
];

/// The items of a list that another one lacks.
fn new_items(after: &Value, before: &Value) -> Vec<Value> {
    let before = before.as_array().expect("a list");
    let after = after.as_array().expect("a list").iter();
    after.filter(|item| !before.contains(item)).cloned().collect()
}

#[test]
#[ignore = "make chart"]
fn claims_add_a_class_rights_and_policies_and_change_the_device_plugin_alone() {
    let [added, changed] = changes(&["claims=true"]);
    let added: BTreeSet<String> = added.into_iter().collect();
    let wanted = ADDED.iter().chain(&OF_THE_EXTENDER).map(|name| (*name).to_owned());
    assert_eq!(added, wanted.collect());
    assert_eq!(changed, ["DaemonSet gpushare-device-plugin", "Deployment scheduler-extender"]);
    let pods = |program: &str| {
        [manifests(&[]), manifests(&["claims=true"])].map(|manifests| manifests.pod(program))
    };
    for program in ["scheduler-extender", "gpushare-device-plugin"] {
        let [before, after] = pods(program).map(|pod| pod["containers"][0]["env"].clone());
        let variable = json!({"name": "PLIMSOLL_CLAIMS", "value": "true"});
        assert_eq!(new_items(&after, &before), [variable], "{program}");
    }
    let [before, after] = pods("gpushare-device-plugin");
    let [former, container] = [&before, &after].map(|pod| &pod["containers"][0]);
    let volumes = new_items(&after["volumes"], &before["volumes"]);
    let mounts = new_items(&container["volumeMounts"], &former["volumeMounts"]);
    let (name, path) = ("plugins-registry", "/var/lib/kubelet/plugins_registry");
    let host = json!({"name": name, "hostPath": {"path": path, "type": "Directory"}});
    assert_eq!((volumes, mounts), (vec![host], vec![json!({"name": name, "mountPath": path})]));
    // The probe is no driver.
    assert_eq!(after["containers"][1], before["containers"][1]);
}

#[test]
#[ignore = "make chart"]
fn the_kubelets_folder_and_the_prefix_are_the_drivers_too() {
    let values =
        ["claims=true", "devicePlugin.kubeletDir=/kubelet", "names.annotationPrefix=example.com"];
    let manifests = manifests(&values);
    assert!(manifests.has("DeviceClass", "gpu-share.example.com"));
    let pod = manifests.pod("gpushare-device-plugin");
    let volume = items_named(&pod["volumes"], "plugins-registry").remove(0);
    assert_eq!(volume["hostPath"]["path"], "/kubelet/plugins_registry");
    let mount = items_named(&pod["containers"][0]["volumeMounts"], "plugins-registry").remove(0);
    assert_eq!(mount["mountPath"], "/var/lib/kubelet/plugins_registry");
}

/// The kubelet and kube-scheduler share GPUs among claims, and no extender is asked.
#[test]
#[ignore = "make chart"]
fn without_an_extender_claims_have_the_device_plugin_with_its_rights_and_policies() {
    let with_extender = manifests(&["claims=true"]);
    let none = manifests(&NONE);
    let plugin = "gpushare-device-plugin";
    assert_eq!(none.workload(plugin), with_extender.workload(plugin));
    for (kind, name) in [
        ("ServiceAccount", plugin),
        ("NetworkPolicy", plugin),
        ("ClusterRole", "plimsoll-gpushare-device-plugin"),
        ("ValidatingAdmissionPolicy", "plimsoll-claims"),
        ("ValidatingAdmissionPolicy", "plimsoll-device-plugin-nodes"),
        ("ValidatingAdmissionPolicy", "plimsoll-device-plugin-node-status"),
        ("ValidatingAdmissionPolicy", "plimsoll-device-plugin-pods"),
        ("ValidatingAdmissionPolicy", "plimsoll-device-plugin-events"),
    ]
    .into_iter()
    .chain(ADDED.iter().map(|name| name.split_once(' ').expect("kind and name")))
    {
        assert_eq!(none.object(kind, name), with_extender.object(kind, name));
    }
    assert!(!none.runs("scheduler-extender"));
    for (kind, name) in OF_THE_EXTENDER.map(|name| name.split_once(' ').expect("kind and name")) {
        assert!(!none.has(kind, name), "{kind} {name}");
    }
    // What is of the device plugin is then no longer for nothing.
    for by in HELMS {
        for value in ["mps.enabled", "devicePlugin.processes", "devicePlugin.unhealthyConfigMaps"] {
            let value = format!("{value}=true");
            let args = ["--set", NONE[0], "--set", NONE[1], "--set", &value];
            stdout(&template(by, "plimsoll", &args));
        }
        let args = ["--set", NONE[0], "--set", NONE[1], "--set", "fromGpushare=true"];
        let error = stderr(&template(by, "plimsoll", &args));
        assert!(error.contains("fromGpushare is set, and with scheduler.mode none"), "{error}");
    }
}

#[test]
#[ignore = "make chart"]
fn without_admission_policies_claims_have_none_either() {
    let manifests = manifests(&["claims=true", "admission.enabled=false"]);
    assert!(manifests.of_kind("ValidatingAdmissionPolicy").is_empty());
    assert!(manifests.has("DeviceClass", "gpu-share.plimsoll.dev"));
}
