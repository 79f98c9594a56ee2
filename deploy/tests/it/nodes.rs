//! Which nodes the pods of each program go to, by the labels that clusters have.

use placement::selector::{LabelSelector, Labels};
use serde_json::Value;

use crate::flags::parsed;
use crate::manifests::{Manifests, PROGRAMS, pod, strings};

/// A label of a node: key and value.
pub(crate) type Label = (&'static str, &'static str);
/// A node's labels.
pub(crate) type Node = &'static [Label];

pub(crate) const OS: (&str, &str) = ("kubernetes.io/os", "linux");
pub(crate) const PLAIN: Node = &[OS];
/// As `kubectl label node NODE gpushare=true` makes one.
pub(crate) const GPUSHARE: Node = &[OS, ("gpushare", "true")];
/// As GPU Feature Discovery or NVIDIA's GPU operator labels one.
pub(crate) const PRESENT: Node = &[OS, ("nvidia.com/gpu.present", "true")];
/// As Node Feature Discovery does, by the vendor alone (as NVIDIA's charts set it) or by class and vendor.
pub(crate) const NFD_VENDOR: Node = &[OS, ("feature.node.kubernetes.io/pci-10de.present", "true")];
pub(crate) const NFD_3D: Node = &[OS, ("feature.node.kubernetes.io/pci-0302_10de.present", "true")];
pub(crate) const NFD_VGA: Node =
    &[OS, ("feature.node.kubernetes.io/pci-0300_10de.present", "true")];
/// A GPU of NVIDIA's that Plimsoll is to leave alone.
pub(crate) const LEFT_OUT: Node = &[
    OS,
    ("gpushare", "false"),
    ("nvidia.com/gpu.present", "true"),
    ("feature.node.kubernetes.io/pci-10de.present", "true"),
];
/// As the GPU operator labels a node whose GPU is gone.
pub(crate) const ABSENT: Node = &[OS, ("nvidia.com/gpu.present", "false")];
pub(crate) const WINDOWS: Node = &[("kubernetes.io/os", "windows")];
/// EKS makes such a node for each pod of a Fargate profile.
pub(crate) const FARGATE: Node = &[OS, ("eks.amazonaws.com/compute-type", "fargate")];
/// As virtual-kubelet labels its own node, on AKS for instance.
pub(crate) const VIRTUAL: Node = &[OS, ("type", "virtual-kubelet")];
/// One that stands for GPU nodes of another cluster.
pub(crate) const VIRTUAL_GPU: Node =
    &[OS, ("type", "virtual-kubelet"), ("gpushare", "true"), ("nvidia.com/gpu.present", "true")];
/// What no pod of ours can run on.
pub(crate) const NO_MACHINES: [Node; 4] = [WINDOWS, FARGATE, VIRTUAL, VIRTUAL_GPU];
pub(crate) const NODES: [Node; 12] = [
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
pub(crate) fn goes_to(pod: &Value, node: &[Label]) -> bool {
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

#[test]
fn every_pod_runs_on_linux_alone() {
    let mps = Manifests::of_mps().pod("mps-control-daemon");
    for pod in PROGRAMS.into_iter().map(pod).chain([mps]) {
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
