//! Which nodes the pods of GPU nodes go to, by `gpuNodes.find`.

use serde_json::{Value, json};

use super::render::manifests;
use crate::manifests::Manifests;
use crate::nodes::{
    GPUSHARE, LEFT_OUT, NFD_3D, NFD_VENDOR, NFD_VGA, NO_MACHINES, NODES, Node, OS, PRESENT, goes_to,
};

/// All that runs on GPU nodes.
const OF_GPU_NODES: [&str; 3] =
    ["gpushare-device-plugin", "mps-control-daemon", "node-exporter-plus-gpu"];
const ALL: [&str; 2] = ["exporter.gpuSignals=true", "mps.enabled=true"];
const BY_LABELS: &str = "gpuNodes.find=hardwareLabels";
const BY_LOOKING: &str = "gpuNodes.find=look";

/// Fails unless exactly these nodes are GPU nodes: for every pod of them, and for none of the plain exporter's.
fn assert_gpu_nodes(manifests: &Manifests, gpu_nodes: &[Node]) {
    for node in NODES {
        let is_one = gpu_nodes.contains(&node);
        for name in OF_GPU_NODES {
            assert_eq!(goes_to(&manifests.pod(name), node), is_one, "{name}, {node:?}");
        }
        let is_machine = !NO_MACHINES.contains(&node);
        let plain = manifests.pod("node-exporter-plus");
        assert_eq!(goes_to(&plain, node), is_machine && !is_one, "{node:?}");
    }
}

#[test]
#[ignore = "make chart"]
fn gpu_nodes_have_the_label_of_gpushare_and_every_other_node_the_plain_exporter() {
    assert_gpu_nodes(&manifests(&ALL), &[GPUSHARE]);
}

#[test]
#[ignore = "make chart"]
fn gpu_nodes_by_labels_are_those_that_any_of_the_labels_tells_and_gpushare_does_not_leave_out() {
    let by_labels = manifests(&[&ALL[..], &[BY_LABELS]].concat());
    assert_gpu_nodes(&by_labels, &[GPUSHARE, PRESENT, NFD_VENDOR, NFD_3D, NFD_VGA]);
}

/// NVIDIA's GPU operator labels a node whose driver it replaces, by a key of 26.7 and by one that is older. What has
/// the driver open leaves, and comes back with the label's last value; nodes that wait for their turn keep theirs.
#[test]
#[ignore = "make chart"]
fn what_has_the_driver_open_leaves_a_node_whose_driver_is_replaced() {
    const CLIENT: &str = "nvidia.com/gpu.deploy.client";
    const STATE: &str = "nvidia.com/gpu-driver-upgrade-state";
    let by_label = manifests(&ALL);
    let mut pods: Vec<Value> = OF_GPU_NODES.iter().map(|name| by_label.pod(name)).collect();
    let by_labels = manifests(&[&ALL[..], &[BY_LABELS]].concat());
    pods.extend(OF_GPU_NODES.iter().map(|name| by_labels.pod(name)));
    pods.push(manifests(&[BY_LOOKING]).pod("gpushare-device-plugin"));
    for (key, value, stays) in [
        (CLIENT, "true", true),
        (CLIENT, "false", false),
        (CLIENT, "paused-for-driver-upgrade", false),
        (CLIENT, "paused-for-mig-change", false),
        (STATE, "upgrade-required", true),
        (STATE, "cordon-required", true),
        (STATE, "pod-deletion-required", false),
        (STATE, "drain-required", false),
        (STATE, "pod-restart-required", false),
        (STATE, "upgrade-failed", false),
        (STATE, "validation-required", true),
        (STATE, "upgrade-done", true),
    ] {
        let node = [OS, ("gpushare", "true"), ("nvidia.com/gpu.present", "true"), (key, value)];
        for pod in &pods {
            assert_eq!(goes_to(pod, &node), stays, "{key}={value}: {pod:#}");
        }
        let external = Manifests::of_mode("external");
        for program in ["node-exporter-plus", "annotator"] {
            assert!(goes_to(&external.pod(program), &node), "{program}, {key}={value}");
        }
    }
}

#[test]
#[ignore = "make chart"]
fn by_looking_the_device_plugin_runs_on_every_machine_that_gpushare_does_not_leave_out() {
    let plugin = manifests(&[BY_LOOKING]).pod("gpushare-device-plugin");
    for node in NODES {
        let is_machine = !NO_MACHINES.contains(&node);
        assert_eq!(goes_to(&plugin, node), is_machine && node != LEFT_OUT, "{node:?}");
    }
    let variable = json!({"name": "PLIMSOLL_IDLE_WITHOUT_CARDS", "value": "true"});
    assert!(plugin["containers"][0]["env"].as_array().expect("variables").contains(&variable));
}
