//! Which nodes the pods of each program go to, by the labels that clusters have.

use placement::selector::{LabelSelector, Labels};
use serde_json::{Value, json};

use crate::flags::parsed;
use crate::manifests::{PROGRAMS, pod, strings, yaml};

/// A label of a node: key and value.
type Label = (&'static str, &'static str);
/// A node's labels.
type Node = &'static [Label];

const OS: (&str, &str) = ("kubernetes.io/os", "linux");
const PLAIN: Node = &[OS];
/// As `kubectl label node NODE gpushare=true` makes one.
const GPUSHARE: Node = &[OS, ("gpushare", "true")];
/// As GPU Feature Discovery or NVIDIA's GPU operator labels one.
const PRESENT: Node = &[OS, ("nvidia.com/gpu.present", "true")];
/// As Node Feature Discovery does, by the vendor alone (as NVIDIA's charts set it) or by class and vendor.
const NFD_VENDOR: Node = &[OS, ("feature.node.kubernetes.io/pci-10de.present", "true")];
const NFD_3D: Node = &[OS, ("feature.node.kubernetes.io/pci-0302_10de.present", "true")];
const NFD_VGA: Node = &[OS, ("feature.node.kubernetes.io/pci-0300_10de.present", "true")];
/// A card of NVIDIA's that Plimsoll is to leave alone.
const LEFT_OUT: Node = &[
    OS,
    ("gpushare", "false"),
    ("nvidia.com/gpu.present", "true"),
    ("feature.node.kubernetes.io/pci-10de.present", "true"),
];
/// As the GPU operator labels a node whose card is gone.
const ABSENT: Node = &[OS, ("nvidia.com/gpu.present", "false")];
const WINDOWS: Node = &[("kubernetes.io/os", "windows")];
/// EKS makes such a node for each pod of a Fargate profile.
const FARGATE: Node = &[OS, ("eks.amazonaws.com/compute-type", "fargate")];
/// As virtual-kubelet labels its own node, on AKS for instance.
const VIRTUAL: Node = &[OS, ("type", "virtual-kubelet")];
/// One that stands for GPU nodes of another cluster.
const VIRTUAL_GPU: Node =
    &[OS, ("type", "virtual-kubelet"), ("gpushare", "true"), ("nvidia.com/gpu.present", "true")];
/// What no pod of ours can run on.
const NO_MACHINES: [Node; 4] = [WINDOWS, FARGATE, VIRTUAL, VIRTUAL_GPU];
const NODES: [Node; 12] = [
    PLAIN,
    GPUSHARE,
    PRESENT,
    NFD_VENDOR,
    NFD_3D,
    NFD_VGA,
    LEFT_OUT,
    ABSENT,
    WINDOWS,
    FARGATE,
    VIRTUAL,
    VIRTUAL_GPU,
];

/// Whether a pod of this spec may go to a node: by its `nodeSelector` and its required node affinity.
fn goes_to(pod: &Value, node: &[Label]) -> bool {
    let mut selector = pod["nodeSelector"].as_object().into_iter().flatten();
    let is_selected = selector.all(|(key, value)| label(node, key) == value.as_str());
    let affinity = &pod["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    let Some(terms) = required["nodeSelectorTerms"].as_array() else { return is_selected };
    is_selected && terms.iter().any(|term| holds(term, node))
}

fn label(node: &[Label], key: &str) -> Option<&'static str> {
    node.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

fn holds(term: &Value, node: &[Label]) -> bool {
    let mut expressions = term["matchExpressions"].as_array().expect("expressions").iter();
    expressions.all(|expression| {
        let found = label(node, expression["key"].as_str().expect("a key"));
        let values = strings(&expression["values"]);
        let is_in = found.is_some_and(|value| values.iter().any(|wanted| wanted == value));
        match expression["operator"].as_str() {
            Some("In") => is_in,
            Some("NotIn") => !is_in,
            other => panic!("no operator of these manifests: {other:?}"),
        }
    })
}

/// The pods of components.
fn pods_of_components() -> Vec<Value> {
    let files = ["gpu-signals/node-exporter-plus-gpu.yaml", "gpu-mps/mps-control-daemon.yaml"];
    files.iter().map(|file| spec(&yaml(&format!("components/{file}")))).collect()
}

fn spec(workload: &Value) -> Value {
    workload["spec"]["template"]["spec"].clone()
}

#[test]
fn every_pod_runs_on_linux_alone() {
    for pod in PROGRAMS.into_iter().map(pod).chain(pods_of_components()) {
        assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux", "{pod:#}");
    }
}

/// A node that is measured and has no exporter would count as silent.
#[test]
fn the_annotator_measures_the_nodes_that_have_an_exporter() {
    let selector = parsed("annotator").raw("node-selector").expect("a selector");
    let selector: LabelSelector = selector.parse().expect("a selector");
    let exporter = pod("node-exporter-plus");
    for node in NODES {
        let labels = node.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let labels: Labels = labels.collect();
        let is_machine = !NO_MACHINES.contains(&node);
        assert_eq!(goes_to(&exporter, node), is_machine, "{node:?}");
        assert_eq!(selector.matches(&labels), is_machine, "{node:?}");
    }
}

/// The base's exporter, changed by a patch of its affinity.
fn exporter_with(patch: &str) -> Value {
    let mut exporter = pod("node-exporter-plus");
    exporter["affinity"] = spec(&yaml(&format!("components/{patch}")))["affinity"].clone();
    exporter
}

/// What runs on GPU nodes: the device plugin and the pods of components.
fn pods_of_gpu_nodes() -> Vec<Value> {
    let mut pods = pods_of_components();
    pods.push(pod("gpushare-device-plugin"));
    pods
}

/// A pod of GPU nodes, changed by a patch that takes out their label and has an affinity.
fn found_by(mut pod: Value, patch: &Value) -> Value {
    let change = spec(patch);
    assert_eq!(change["nodeSelector"], json!({"gpushare": null}));
    pod["nodeSelector"].as_object_mut().expect("a selector").remove("gpushare");
    pod["affinity"] = change["affinity"].clone();
    pod
}

/// Fails unless exactly these nodes are GPU nodes: for every pod of `of_gpu_nodes`, and for none of `others`.
fn assert_gpu_nodes(of_gpu_nodes: &[Value], others: &Value, gpu_nodes: &[Node]) {
    for node in NODES {
        let is_one = gpu_nodes.contains(&node);
        for pod in of_gpu_nodes {
            assert_eq!(goes_to(pod, node), is_one, "{node:?}");
        }
        let is_machine = !NO_MACHINES.contains(&node);
        assert_eq!(goes_to(others, node), is_machine && !is_one, "{node:?}");
    }
}

#[test]
fn gpu_nodes_have_the_label_of_gpushare_and_every_other_node_the_plain_exporter() {
    let others = exporter_with("gpu-signals/node-exporter-plus.yaml");
    assert_gpu_nodes(&pods_of_gpu_nodes(), &others, &[GPUSHARE]);
}

#[test]
fn gpu_nodes_by_labels_are_those_that_any_of_the_labels_tells_and_gpushare_does_not_leave_out() {
    let patch = yaml("components/gpu-nodes-by-labels/gpu-nodes.yaml");
    let pods: Vec<Value> =
        pods_of_gpu_nodes().into_iter().map(|pod| found_by(pod, &patch)).collect();
    let others = exporter_with("gpu-nodes-by-labels/node-exporter-plus.yaml");
    assert_gpu_nodes(&pods, &others, &[GPUSHARE, PRESENT, NFD_VENDOR, NFD_3D, NFD_VGA]);
}

/// The kustomization finds the pods' DaemonSets by name, and the plain exporter by a label of `gpu-signals`.
#[test]
fn gpu_nodes_by_labels_changes_what_runs_on_gpu_nodes() {
    let kustomization = yaml("components/gpu-nodes-by-labels/kustomization.yaml");
    let names = kustomization["patches"][0]["target"]["name"].as_str().expect("names");
    let names: Vec<&str> = names.trim_matches(['(', ')']).split('|').collect();
    assert_eq!(names, ["gpushare-device-plugin", "node-exporter-plus-gpu", "mps-control-daemon"]);
    let label = kustomization["patches"][1]["target"]["labelSelector"].as_str().expect("a label");
    let labelled = yaml("components/gpu-signals/node-exporter-plus.yaml");
    let (key, value) = label.split_once('=').expect("a value");
    assert_eq!(labelled["metadata"]["labels"][key], value);
}

/// NVIDIA's GPU operator labels a node whose driver it replaces, by a key of 26.7 and by one that is older. What has
/// the driver open leaves, and comes back with the label's last value; nodes that wait for their turn keep theirs.
#[test]
fn what_has_the_driver_open_leaves_a_node_whose_driver_is_replaced() {
    const CLIENT: &str = "nvidia.com/gpu.deploy.client";
    const STATE: &str = "nvidia.com/gpu-driver-upgrade-state";
    let by_labels = yaml("components/gpu-nodes-by-labels/gpu-nodes.yaml");
    let by_looking = yaml("components/gpu-nodes-by-looking/gpushare-device-plugin.yaml");
    let mut pods = pods_of_gpu_nodes();
    pods.extend(pods_of_gpu_nodes().into_iter().map(|pod| found_by(pod, &by_labels)));
    pods.push(found_by(pod("gpushare-device-plugin"), &by_looking));
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
        for program in ["node-exporter-plus", "annotator"] {
            assert!(goes_to(&pod(program), &node), "{program}, {key}={value}");
        }
    }
}

#[test]
fn by_looking_the_device_plugin_runs_on_every_machine_that_gpushare_does_not_leave_out() {
    let patch = yaml("components/gpu-nodes-by-looking/gpushare-device-plugin.yaml");
    let plugin = found_by(pod("gpushare-device-plugin"), &patch);
    for node in NODES {
        let is_machine = !NO_MACHINES.contains(&node);
        assert_eq!(goes_to(&plugin, node), is_machine && node != LEFT_OUT, "{node:?}");
    }
    let variable = json!({"name": "PLIMSOLL_IDLE_WITHOUT_CARDS", "value": "true"});
    assert_eq!(spec(&patch)["containers"][0]["env"], json!([variable]));
}
