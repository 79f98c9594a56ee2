//! Checks of GPU nodes: the device plugin, CDI, the runtime, other plugins, the unit.

use std::collections::BTreeSet;

use placement::names::GPU_COUNT_RESOURCE;
use serde_json::Value;

use super::facts::{Facts, GPUSHARE, PLUGIN, has_gpus, is_gpu_node};
use super::finding::Findings;
use super::programs::{EVENTS, NODES, PODS, WORKLOADS, has_extender, why_not_ready};
use crate::cluster_access::EXTENDER;
use crate::cluster_access::objects::Node;
use crate::cluster_access::workload::Workload;
use crate::format::count;

/// Labels by which other programs mark nodes with a GPU of NVIDIA's.
const MARKS: [&str; 4] = [
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
];
/// Labels by which NVIDIA's GPU operator says that it replaces the node's driver, with their values: the DaemonSets
/// that have the driver open go by them.
const REPLACED: [(&str, &[&str]); 2] = [
    (
        "nvidia.com/gpu.deploy.client",
        &["false", "paused-for-driver-upgrade", "paused-for-mig-change"],
    ),
    (
        "nvidia.com/gpu-driver-upgrade-state",
        &["pod-deletion-required", "drain-required", "pod-restart-required", "upgrade-failed"],
    ),
];
/// Resources by which other device plugins give out GPUs, and how the names of others begin: a share of GPUs, a part
/// of a GPU (MIG).
const OTHERS: [&str; 4] = ["nvidia.com/gpu", "nvidia.com/gpu.", "nvidia.com/mig-", "amd.com/gpu"];
/// How resources begin that may be of GPUs: NVIDIA's plugin can give its resources any name, and its network cards
/// have such names, too.
const NVIDIA: &str = "nvidia.com/";
/// How old an event of the audit is at most that tells of the present, in seconds: the audit tells of a finding that
/// stays every half an hour.
const AUDITED: i64 = 2_100;

fn driver_is_replaced(node: &Node) -> bool {
    let value_of = |key: &str| node.metadata.labels.get(key).map_or("", String::as_str);
    REPLACED.iter().any(|(key, values)| values.contains(&value_of(key)))
}

/// The device plugin, if it is installed. If it is not, or that is not known, this is found.
fn plugin<'a>(facts: &'a Facts, found: &mut Findings) -> Option<&'a Workload> {
    let plugin = found.read(WORKLOADS, facts.workload(PLUGIN))?;
    if plugin.is_none() {
        found.does_not_apply("no device plugin of Plimsoll is installed");
    }
    plugin
}

/// The nodes that report GPUs. If there is none, or that is not known, this is found.
fn nodes_with_gpus<'a>(facts: &'a Facts, found: &mut Findings) -> Option<Vec<&'a Node>> {
    let names = facts.names();
    let all = found.read(NODES, facts.nodes.as_ref())?;
    let nodes: Vec<&Node> = all.iter().filter(|node| has_gpus(node, &names)).collect();
    if nodes.is_empty() {
        found.does_not_apply("no node reports GPUs");
        return None;
    }
    Some(nodes)
}

/// Whether GPU nodes have a device plugin that offers their GPUs.
pub(crate) fn nodes(facts: &Facts, found: &mut Findings) {
    let names = facts.names();
    let Some(workload) = found.read(WORKLOADS, facts.workload(PLUGIN)) else { return };
    let Some(nodes) = found.read(NODES, facts.nodes.as_ref()) else { return };
    if workload.is_none() {
        // Without the extender, the label may be that of another program.
        let served = nodes.iter().filter(|node| is_gpu_node(node, &names)).count();
        if served > 0 && facts.has(EXTENDER) {
            return found.fail(
                format!("there is no DaemonSet {PLUGIN}, and {}", count(served, "GPU node")),
                "apply Plimsoll's manifests again: helm upgrade, or kubectl apply -k",
            );
        }
        return found.does_not_apply("no device plugin of Plimsoll is installed");
    }
    let Some(pods) = found.read(PODS, facts.pods_of(PLUGIN)) else { return };
    let served: BTreeSet<&str> = pods.iter().map(|pod| pod.spec.node_name.as_str()).collect();
    let [mut without, mut unlabelled, mut replaced]: [Vec<String>; 3] = Default::default();
    for node in nodes {
        let name = node.metadata.name.as_str();
        let labels = &node.metadata.labels;
        if served.contains(name) || labels.get(GPUSHARE).is_some_and(|value| value == "false") {
            continue;
        }
        if is_gpu_node(node, &names) && driver_is_replaced(node) {
            replaced.push(name.to_owned());
        } else if is_gpu_node(node, &names) {
            without.push(name.to_owned());
        } else if MARKS.iter().any(|mark| labels.get(*mark).is_some_and(|value| value == "true")) {
            unlabelled.push(name.to_owned());
        }
    }
    found.fail_of(
        &format!("{} without a device plugin's pod", count(without.len(), "GPU node")),
        &without,
        "is the label gpushare=true there, and does the DaemonSet gpushare-device-plugin tolerate the node's taints?",
    );
    found.warn_of(
        &format!("{} whose NVIDIA driver is being replaced", count(replaced.len(), "GPU node")),
        &replaced,
        "if it does not end: docs/operations.md#replace-nvidias-driver",
    );
    let marked = count(unlabelled.len(), "node");
    found.warn_of(
        &format!("{marked} with a GPU by its labels, and without Plimsoll's device plugin"),
        &unlabelled,
        "kubectl label node NODE gpushare=true (or gpushare=false, to leave it out), or the chart's \
         gpuNodes.find=hardwareLabels",
    );
    let broken: Vec<String> =
        pods.iter().filter(|pod| !pod.is_ready()).map(|pod| why_not_ready(pod)).collect();
    let what = format!("{} not ready", count(broken.len(), "device plugin"));
    found.fail_of(
        &what,
        &broken,
        "what it says of itself follows, or is in its log (docs/troubleshoot.md#a-gpu-node)",
    );
    if pods.is_empty() {
        return found.does_not_apply("no node is a GPU node, by its label");
    }
    found.told(PLUGIN, &facts.plugins);
    let (plugins, nodes) = (count(pods.len(), "device plugin"), count(served.len(), "node"));
    found.ok_if_nothing(format!("{plugins} for {nodes}"));
}

/// Whether a unit is so small that a node has too many, or containers hold units of another size.
pub(crate) fn unit(facts: &Facts, found: &mut Findings) {
    if plugin(facts, found).is_some() {
        let well = found.told(PLUGIN, &facts.plugins).well();
        found.ok_if_nothing(well);
    }
}

/// Whether another device plugin, or a DRA driver, gives out the same GPUs.
pub(crate) fn other_plugins(facts: &Facts, found: &mut Findings) {
    const TODO: &str = "take it off these nodes, or label them gpushare=false (docs/install.md#which-nodes-are-gpu-nodes)";
    if plugin(facts, found).is_none() {
        return;
    }
    let told = about(facts, &["GPUCardOfferedTwice", "GPUCardHeldTwice"], AUDITED, found);
    found.fail_of("another device plugin serves the same GPUs", &told, TODO);
    let names = facts.names();
    let own = [names.gpu_resource(), GPU_COUNT_RESOURCE];
    let nodes = nodes_with_gpus(facts, found);
    let [mut both, mut perhaps]: [Vec<String>; 2] = Default::default();
    for node in nodes.iter().flatten() {
        for (resource, amount) in &node.status.allocatable {
            let offered = number(amount);
            if offered == 0 || own.contains(&resource.as_str()) {
                continue;
            }
            let named = format!("{} ({resource}: {offered})", node.metadata.name);
            if is_of_gpus(resource) {
                both.push(named);
            } else if resource.starts_with(NVIDIA) {
                perhaps.push(named);
            }
        }
    }
    told_by_both(facts, found);
    found.fail_of("another device plugin offers the same GPUs", &both, TODO);
    if both.is_empty() {
        found.warn_of(
            "another device plugin may offer the same GPUs",
            &perhaps,
            "if these are GPUs, take it off these nodes, or label them gpushare=false \
             (docs/install.md#which-nodes-are-gpu-nodes)",
        );
    }
    if nodes.is_some() {
        found.ok_if_nothing("none on these GPUs");
    }
}

/// Whether a resource gives out GPUs, or parts of them, by its name.
fn is_of_gpus(resource: &str) -> bool {
    OTHERS.iter().any(|other| {
        let is_start = other.ends_with(['.', '-']);
        resource == *other || is_start && resource.starts_with(other)
    })
}

/// A quantity that is a whole number.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_u64()).unwrap_or_default()
}

/// The objects of events of these reasons that are not older than this, in seconds, with the reason.
fn about(facts: &Facts, reasons: &[&str], within: i64, found: &mut Findings) -> Vec<String> {
    let Some(events) = found.read(EVENTS, facts.events.as_ref()) else { return Vec::new() };
    let now = facts.time();
    let mut names = BTreeSet::new();
    for event in events {
        let is_new = event.time().is_none_or(|time| (now - time).get_seconds() < within);
        if is_new && reasons.contains(&event.reason.as_str()) {
            let (about, reason) = (&event.involved_object, &event.reason);
            names.insert(match about.kind.as_str() {
                "Node" => format!("{} ({reason})", about.name),
                _ => format!("{}/{} ({reason})", about.namespace, about.name),
            });
        }
    }
    names.into_iter().collect()
}

/// Whether containers get their GPUs by CDI.
pub(crate) fn cdi(facts: &Facts, found: &mut Findings) {
    if plugin(facts, found).is_none() {
        return;
    }
    let Some(nodes) = nodes_with_gpus(facts, found) else { return };
    let mut off = Vec::new();
    for node in &nodes {
        let runtime = &node.status.node_info.container_runtime_version;
        if may_be_off(runtime) {
            off.push(format!("{} ({runtime})", node.metadata.name));
        }
    }
    told_by_both(facts, found);
    found.warn_of(
        "may be off in the container runtime, and containers then start without their GPUs",
        &off,
        "set enable_cdi = true in containerd's configuration, or update to containerd 2.0",
    );
    found.ok_if_nothing(format!("{} with usable specifications", count(nodes.len(), "node")));
}

/// Whether a runtime has CDI only where its configuration says so: containerd before 2.0, CRI-O before 1.23.
fn may_be_off(runtime: &str) -> bool {
    let Some((name, version)) = runtime.split_once("://") else { return false };
    let number = |place: usize| -> Option<u32> {
        version.trim_start_matches('v').split('.').nth(place)?.parse().ok()
    };
    match name {
        "containerd" => number(0).is_some_and(|major| major < 2),
        "cri-o" => number(0) == Some(1) && number(1).is_some_and(|minor| minor < 23),
        _ => false,
    }
}

/// Whether NVIDIA's runtime lets containers choose GPUs by themselves.
pub(crate) fn runtime(facts: &Facts, found: &mut Findings) {
    const SETTING: &str = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED";
    let Some(plugin) = plugin(facts, found) else { return };
    let toolkits = found.read("the DaemonSet of NVIDIA's toolkit", facts.toolkits.as_ref());
    for toolkit in toolkits.into_iter().flatten() {
        let value = toolkit.setting(SETTING);
        if value != Some("false") {
            let name = format!("{}/{}", toolkit.metadata.namespace, toolkit.metadata.name);
            found.fail(
                format!("NVIDIA's runtime honours NVIDIA_VISIBLE_DEVICES of unprivileged containers: {SETTING} is {} in {name}", value.unwrap_or("not set")),
                "set it to \"false\" in toolkit.env of the GPU operator (docs/install.md#what-they-need)",
            );
        }
    }
    let told = about(facts, &["GPUProcessElsewhere"], AUDITED, found);
    found.fail_of(
        "containers use GPUs that they were not given",
        &told,
        "NVIDIA's runtime may honour NVIDIA_VISIBLE_DEVICES: set accept-nvidia-visible-devices-envvar-when-unprivileged=false \
         on these nodes (docs/install.md#what-they-need)",
    );
    if nodes_with_gpus(facts, found).is_none() {
        return;
    }
    // The audit sees processes in the node's own PID namespace alone.
    let is_audited = plugin.spec.template.spec.host_pid;
    match toolkits {
        Some(toolkits) if !toolkits.is_empty() => found.ok_if_nothing(
            "NVIDIA_VISIBLE_DEVICES of unprivileged containers is ignored, by the GPU operator's setting",
        ),
        Some(_) if is_audited => found.ok_if_nothing(
            "no container was seen on a GPU that it was not given; the setting itself is in each node's \
             /etc/nvidia-container-runtime/config.toml",
        ),
        Some(_) => found.unknown(
            "no GPU operator tells the setting of NVIDIA's runtime, and without the value devicePlugin.processes \
             nothing looks for containers on GPUs that are not theirs",
            "is accept-nvidia-visible-devices-envvar-when-unprivileged = false in each GPU node's \
             /etc/nvidia-container-runtime/config.toml (docs/install.md#what-they-need)?",
        ),
        None => {}
    }
}

/// Whether GPUs take pods.
pub(crate) fn gpus(facts: &Facts, found: &mut Findings) {
    if has_extender(facts, found) {
        let well = told_by_both(facts, found);
        found.ok_if_nothing(well);
    }
}

/// What is said of a check of GPUs: the extender says it of all nodes, device plugins say more of theirs. What is well
/// by the extender.
fn told_by_both(facts: &Facts, found: &mut Findings) -> String {
    let has_none = |program: &str| matches!(facts.workload(program), Ok(None));
    if !has_none(PLUGIN) {
        found.told(PLUGIN, &facts.plugins);
    }
    if has_none(EXTENDER) {
        return String::new();
    }
    found.told(EXTENDER, &facts.extenders).well()
}
