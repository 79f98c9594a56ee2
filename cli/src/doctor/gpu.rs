//! Checks of GPU nodes: the device plugin, CDI, the runtime, other plugins, the unit.

use std::collections::BTreeSet;

use api::cards::{Cards, Closed};
use placement::names::Names;
use serde_json::Value;

use super::facts::Facts;
use super::finding::{Finding, count, few};
use super::programs::why_not_ready;
use crate::cluster_access::objects::{Event, Node};

const PLUGIN: &str = "gpushare-device-plugin";
/// Labels by which other programs mark nodes with a card of NVIDIA's.
const MARKS: [&str; 4] = [
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
];
/// The label of gpushare's nodes.
const GPUSHARE: &str = "gpushare";
/// Resources by which other device plugins give out cards.
const OTHERS: [&str; 3] = ["nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu"];

/// Whether Plimsoll's device plugin is to serve the node, or does.
pub(crate) fn is_gpu_node(node: &Node) -> bool {
    let labels = &node.metadata.labels;
    labels.get(GPUSHARE).is_some_and(|value| value == "true") || has_cards(node)
}

fn has_cards(node: &Node) -> bool {
    node.metadata.annotations.contains_key(&Names::default().cards())
}

/// Whether GPU nodes have a device plugin that offers their cards.
pub(crate) fn nodes(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "gpu-nodes";
    let nodes = match &facts.nodes {
        Err(failure) => return vec![Finding::unread(CHECK, "the nodes", failure)],
        Ok(nodes) => nodes,
    };
    if facts.workload(PLUGIN).is_none() {
        return vec![Finding::ok(CHECK, "no device plugin of Plimsoll is installed")];
    }
    let pods = facts.pods_of(PLUGIN);
    let served: BTreeSet<&str> = pods.iter().map(|pod| pod.spec.node_name.as_str()).collect();
    let mut findings = Vec::new();
    let mut without = Vec::new();
    let mut unlabelled = Vec::new();
    for node in nodes {
        let name = node.metadata.name.as_str();
        let label = node.metadata.labels.get(GPUSHARE).map(String::as_str);
        if served.contains(name) || label == Some("false") {
            continue;
        }
        if label == Some("true") || has_cards(node) {
            without.push(name.to_owned());
        } else if MARKS
            .iter()
            .any(|mark| node.metadata.labels.get(*mark).is_some_and(|it| it == "true"))
        {
            unlabelled.push(name.to_owned());
        }
    }
    if !without.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            format!("{} without a device plugin's pod: {}", count(without.len(), "GPU node"), few(&without)),
            "is the label gpushare=true there, and does the DaemonSet gpushare-device-plugin tolerate the node's taints?",
        ));
    }
    if !unlabelled.is_empty() {
        findings.push(Finding::warn(
            CHECK,
            format!("{} with a card by its labels, and without Plimsoll's device plugin: {}", count(unlabelled.len(), "node"), few(&unlabelled)),
            "kubectl label node NODE gpushare=true (or gpushare=false, to leave it out), or the chart's \
             gpuNodes.find=hardwareLabels",
        ));
    }
    let broken: Vec<String> =
        pods.iter().filter(|pod| !pod.is_ready()).map(|pod| why_not_ready(pod)).collect();
    if !broken.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            format!("{} not ready: {}", count(broken.len(), "device plugin"), few(&broken)),
            "see its log (docs/troubleshoot.md#a-gpu-node)",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            format!("{} serve {}", count(pods.len(), "device plugin"), count(served.len(), "node")),
        ));
    }
    findings
}

/// Whether a unit is so small that a node has too many.
pub(crate) fn unit(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "unit";
    let mut findings = Vec::new();
    for (pod, log) in &facts.plugin_logs {
        match log {
            Err(failure) => {
                findings.push(Finding::unread(CHECK, &format!("the log of {pod}"), failure))
            }
            Ok(log) => {
                // The device plugin's own words, the last time.
                let line = log.lines().rev().find(|line| line.contains("set --unit-mib to"));
                let other =
                    log.lines().rev().find(|line| line.contains("but containers hold units of"));
                if let Some(line) = line {
                    let says =
                        line.split("set --unit-mib to ").nth(1).and_then(|it| it.split(' ').next());
                    let unit = says.unwrap_or("a larger value");
                    findings.push(Finding::fail(
                        CHECK,
                        format!("{pod}: the unit is too small, so that the node has more than it may offer, and offers nothing"),
                        format!("set --unit-mib to {unit} or more, on all nodes alike (docs/operations.md#changing-the-unit)"),
                    ));
                } else if other.is_some() {
                    findings.push(Finding::fail(
                        CHECK,
                        format!("{pod}: containers hold units of another size than --unit-mib"),
                        "drain the GPU nodes before the unit changes (docs/operations.md#changing-the-unit)",
                    ));
                }
            }
        }
    }
    if findings.is_empty() && facts.workload(PLUGIN).is_some() {
        let unit = facts.workload(PLUGIN).and_then(|it| it.setting("PLIMSOLL_UNIT_MIB"));
        findings.push(Finding::ok(CHECK, format!("{} MiB", unit.unwrap_or("1024"))));
    }
    findings
}

/// Whether another device plugin gives out the same cards.
pub(crate) fn other_plugins(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "other-plugins";
    let nodes = facts.nodes.as_deref().unwrap_or_default();
    let mut both = Vec::new();
    for node in nodes.iter().filter(|node| has_cards(node)) {
        for resource in OTHERS {
            let offered = node.status.allocatable.get(resource).map(number).unwrap_or_default();
            if offered > 0 {
                both.push(format!("{} ({resource}: {offered})", node.metadata.name));
            }
        }
    }
    let told = about(facts, &["GPUCardOfferedTwice", "GPUCardHeldTwice"]);
    if both.is_empty() && told.is_empty() {
        return if nodes.iter().any(has_cards) {
            vec![Finding::ok(CHECK, "none on these cards")]
        } else {
            Vec::new()
        };
    }
    let names = if both.is_empty() { told } else { both };
    vec![Finding::fail(
        CHECK,
        format!("another device plugin offers the same cards: {}", few(&names)),
        "take it off these nodes, or label them gpushare=false (docs/install.md#which-nodes-are-gpu-nodes)",
    )]
}

/// A quantity that is a whole number.
fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_u64()).unwrap_or_default()
}

/// The objects of the newest events of these reasons, with the reason.
fn about(facts: &Facts, reasons: &[&str]) -> Vec<String> {
    let events = facts.events.as_deref().unwrap_or_default().iter();
    let fitting = events.filter(|event| reasons.contains(&event.reason.as_str()));
    let names: BTreeSet<String> = fitting.map(named).collect();
    names.into_iter().collect()
}

fn named(event: &Event) -> String {
    let about = &event.involved_object;
    match about.kind.as_str() {
        "Node" => format!("{} ({})", about.name, event.reason),
        _ => format!("{}/{} ({})", about.namespace, about.name, event.reason),
    }
}

/// Whether containers get their cards by CDI.
pub(crate) fn cdi(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "cdi";
    let Some(plugin) = facts.workload(PLUGIN) else { return Vec::new() };
    let response = plugin.setting("PLIMSOLL_RESPONSE").unwrap_or("cdi");
    if response != "cdi" {
        return vec![Finding::warn(
            CHECK,
            format!(
                "not used: the device plugin runs with --response={response}, which protects less"
            ),
            "docs/security.md#the-card-of-a-container",
        )];
    }
    let mut findings = Vec::new();
    let generate = "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/var/run/cdi/nvidia.yaml on the node";
    let nodes: Vec<&Node> =
        facts.nodes.as_deref().unwrap_or_default().iter().filter(|node| has_cards(node)).collect();
    let mut closed = Vec::new();
    let mut folder = Vec::new();
    for node in &nodes {
        let text = node.metadata.annotations.get(&Names::default().cards());
        let cards = text.and_then(|text| Cards::from_json(text).ok()).unwrap_or_default();
        let name = node.metadata.name.clone();
        if cards.0.iter().any(|card| card.closed == Some(Closed::Cdi)) {
            closed.push(name);
        } else if cards.0.iter().any(|card| card.closed == Some(Closed::CdiFolder)) {
            folder.push(name);
        }
    }
    if !closed.is_empty() {
        let why = about(
            facts,
            &[
                "CDISpecificationAbsent",
                "CDICardMissing",
                "CDIOnlyAll",
                "CDINoDeviceNode",
                "CDIDeviceTwice",
                "CDIOtherDriver",
                "CDISpecificationUnreadable",
            ],
        );
        let why = if why.is_empty() { String::new() } else { format!("; events: {}", few(&why)) };
        findings.push(Finding::fail(
            CHECK,
            format!("NVIDIA's CDI specification is missing or stale, so that cards take no pods: {}{why}", few(&closed)),
            generate,
        ));
    }
    if !folder.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            format!("the folder of CDI specifications cannot be written: {}", few(&folder)),
            "is /var/run/cdi (--cdi-dir) writable for the device plugin, and not full?",
        ));
    }
    let stale = about(facts, &["CDIOtherDriver", "CDICardMissing", "CDISpecificationAbsent"]);
    if closed.is_empty() && !stale.is_empty() {
        findings.push(Finding::warn(
            CHECK,
            format!("was missing or stale within the last hour: {}", few(&stale)),
            generate,
        ));
    }
    let off: Vec<String> = nodes
        .iter()
        .filter(|node| may_be_off(&node.status.node_info.container_runtime_version))
        .map(|node| {
            format!("{} ({})", node.metadata.name, node.status.node_info.container_runtime_version)
        })
        .collect();
    if !off.is_empty() {
        findings.push(Finding::warn(
            CHECK,
            format!("may be off in the container runtime, and containers then start without their cards: {}", few(&off)),
            "set enable_cdi = true in containerd's configuration, or update to containerd 2.0",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            format!("{} with usable specifications", count(nodes.len(), "node")),
        ));
    }
    findings
}

/// Whether a runtime has CDI only where its configuration says so: containerd before 2.0, CRI-O before 1.23.
fn may_be_off(runtime: &str) -> bool {
    let number = |text: &str, place: usize| -> Option<u32> {
        text.trim_start_matches('v').split('.').nth(place)?.parse().ok()
    };
    if let Some(version) = runtime.strip_prefix("containerd://") {
        return number(version, 0).is_some_and(|major| major < 2);
    }
    if let Some(version) = runtime.strip_prefix("cri-o://") {
        return number(version, 0) == Some(1) && number(version, 1).is_some_and(|minor| minor < 23);
    }
    false
}

/// Whether NVIDIA's runtime lets containers choose cards by themselves.
pub(crate) fn runtime(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "runtime";
    const SETTING: &str = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED";
    if facts.workload(PLUGIN).is_none() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    match &facts.toolkits {
        Err(failure) => {
            findings.push(Finding::unread(CHECK, "the DaemonSet of NVIDIA's toolkit", failure))
        }
        Ok(toolkits) => {
            for toolkit in toolkits {
                let value = toolkit.setting(SETTING);
                if value != Some("false") {
                    let name = format!("{}/{}", toolkit.metadata.namespace, toolkit.metadata.name);
                    findings.push(Finding::fail(
                        CHECK,
                        format!("NVIDIA's runtime honours NVIDIA_VISIBLE_DEVICES of unprivileged containers: {SETTING} is {} in {name}", value.unwrap_or("not set")),
                        "set it to \"false\" in toolkit.env of the GPU operator (docs/install.md#what-they-need)",
                    ));
                }
            }
        }
    }
    if let Err(failure) = &facts.events {
        findings.push(Finding::unread(CHECK, "events", failure));
    }
    let told = about(facts, &["GPUProcessElsewhere"]);
    if !told.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            format!("containers use cards that they were not given: {}", few(&told)),
            "NVIDIA's runtime may honour NVIDIA_VISIBLE_DEVICES: set accept-nvidia-visible-devices-envvar-when-unprivileged=false \
             on these nodes (docs/install.md#what-they-need)",
        ));
    }
    if findings.is_empty() {
        let seen = facts.toolkits.as_ref().is_ok_and(|toolkits| !toolkits.is_empty());
        let what = if seen {
            "NVIDIA_VISIBLE_DEVICES of unprivileged containers is ignored, by the GPU operator's setting"
        } else {
            "no container was seen on a card that it was not given; the setting itself is in each node's \
             /etc/nvidia-container-runtime/config.toml"
        };
        findings.push(Finding::ok(CHECK, what));
    }
    findings
}

/// Whether cards take pods.
pub(crate) fn cards(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "cards";
    let Ok(state) = &facts.state else { return Vec::new() };
    let all = state.cards.units.len();
    if all == 0 {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let unhealthy = state.cards.unhealthy.len();
    if unhealthy > 0 {
        findings.push(Finding::warn(
            CHECK,
            format!("{} unhealthy of {all}", count(unhealthy, "card")),
            "kubectl plimsoll gpus shows which; the device plugin's log says why (docs/troubleshoot.md#a-gpu-node)",
        ));
    }
    let places = state.nodes.name.iter().zip(&state.nodes.backed_off);
    let backed: Vec<String> =
        places.filter(|(_, off)| **off).map(|(name, _)| name.clone()).collect();
    if !backed.is_empty() {
        findings.push(Finding::fail(
            CHECK,
            format!(
                "nodes take no GPU pods for a while, since their kubelets refused several: {}",
                few(&backed)
            ),
            "the events of the refused pods say why: kubectl plimsoll events",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{all} healthy")));
    }
    findings
}
