//! Which nodes the pods of each program go to, by the labels that clusters have.

use placement::selector::{LabelSelector, Labels};
use serde_json::Value;

use crate::flags::parsed;
use crate::manifests::{PROGRAMS, pod, strings, yaml};

/// A node's labels.
type Node = &'static [(&'static str, &'static str)];

const OS: (&str, &str) = ("kubernetes.io/os", "linux");
const PLAIN: Node = &[OS];
/// As `kubectl label node NODE gpushare=true` makes one.
const GPUSHARE: Node = &[OS, ("gpushare", "true")];
const WINDOWS: Node = &[("kubernetes.io/os", "windows")];
/// EKS makes such a node for each pod of a Fargate profile.
const FARGATE: Node = &[OS, ("eks.amazonaws.com/compute-type", "fargate")];
/// As virtual-kubelet labels its own node, on AKS for instance.
const VIRTUAL: Node = &[OS, ("type", "virtual-kubelet")];
/// What no pod of ours can run on.
const NO_MACHINES: [Node; 3] = [WINDOWS, FARGATE, VIRTUAL];

/// Whether a pod of this spec may go to a node: by its `nodeSelector` and its required node affinity.
fn goes_to(pod: &Value, node: Node) -> bool {
    let mut selector = pod["nodeSelector"].as_object().into_iter().flatten();
    let is_selected = selector.all(|(key, value)| label(node, key) == value.as_str());
    let affinity = &pod["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    let Some(terms) = required["nodeSelectorTerms"].as_array() else { return is_selected };
    is_selected && terms.iter().any(|term| holds(term, node))
}

fn label(node: Node, key: &str) -> Option<&'static str> {
    node.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

fn holds(term: &Value, node: Node) -> bool {
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
    for node in [PLAIN, GPUSHARE].into_iter().chain(NO_MACHINES) {
        let labels = node.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let labels: Labels = labels.collect();
        let is_machine = !NO_MACHINES.contains(&node);
        assert_eq!(goes_to(&exporter, node), is_machine, "{node:?}");
        assert_eq!(selector.matches(&labels), is_machine, "{node:?}");
    }
}

#[test]
fn with_gpu_signals_every_node_has_one_of_the_two_exporters() {
    let mut base = pod("node-exporter-plus");
    let patch = yaml("components/gpu-signals/node-exporter-plus.yaml");
    base["affinity"] = spec(&patch)["affinity"].clone();
    let [with_cards, _] = &pods_of_components()[..] else { panic!("two pods") };
    for node in [PLAIN, GPUSHARE].into_iter().chain(NO_MACHINES) {
        let exporters = [goes_to(&base, node), goes_to(with_cards, node)];
        let is_machine = !NO_MACHINES.contains(&node);
        assert_eq!(exporters, [is_machine && node != GPUSHARE, node == GPUSHARE], "{node:?}");
        assert_eq!(goes_to(&pod("gpushare-device-plugin"), node), node == GPUSHARE, "{node:?}");
    }
}
