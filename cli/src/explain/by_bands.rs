//! Where no extender is installed: the bands and taints of nodes, by which any scheduler goes.

use std::io::Write;

use anyhow::{Error, Result};
use placement::bands::Band;
use placement::taint::VALUE;
use serde::Serialize;
use serde_json::Value;

use super::target;
use crate::args::pods::Why;
use crate::cluster_access::objects::{List, Node};
use crate::cluster_access::{Cluster, Failure};
use crate::format::{count, printable};
use crate::output::write_form;
use crate::table::{self, NONE, or_none};

/// How the annotator's labels end: for pods without GPUs, and for those with.
const LABELS: [&str; 2] = ["/cpu-band", "/gpu-band"];

/// What the pod's scheduler goes by.
#[derive(Serialize)]
struct ByBands {
    namespace: String,
    pod: String,
    node: Option<String>,
    /// The label with the band that the pod prefers low; `None` if it prefers no node by bands.
    label: Option<String>,
    nodes: Vec<BandedNode>,
}

#[derive(Serialize)]
struct BandedNode {
    name: String,
    /// By the pod's label.
    band: Option<u8>,
    /// Whether it has a taint for its load.
    hot: bool,
}

/// Writes them, as a table or in another form. `absent`: why no extender is asked.
///
/// # Errors
///
/// `absent`, unless that is because there is none, and nodes have bands; if the pod or the nodes cannot be read.
pub(super) fn why(
    flags: &Why,
    cluster: &Cluster,
    absent: Error,
    output: &mut dyn Write,
) -> Result<()> {
    let is_not_installed = matches!(absent.downcast_ref(), Some(Failure::NotFound(_)));
    let Some(target) = flags.target.as_deref().filter(|_| is_not_installed) else {
        return Err(absent);
    };
    let nodes: List<Node> = cluster.kubectl().get(&["nodes"])?;
    let is_of_band = |key: &String| LABELS.iter().any(|end| key.ends_with(end));
    if !nodes.items.iter().any(|node| node.metadata.labels.keys().any(is_of_band)) {
        return Err(absent);
    }
    let namespace = flags.namespace.clone().unwrap_or_else(|| cluster.context_namespace());
    let name = target::pod_of(target, &namespace, cluster)?;
    let pod: Value = cluster.kubectl().get(&["pod", &name, &format!("--namespace={namespace}")])?;
    let label = label_of(&pod);
    let node = pod["spec"]["nodeName"].as_str().map(str::to_owned);
    let mut nodes: Vec<BandedNode> =
        nodes.items.into_iter().map(|node| banded(node, label.as_deref())).collect();
    nodes.retain(|node| flags.node.as_ref().is_none_or(|wanted| *wanted == node.name));
    nodes.sort_by(|a, b| {
        let place = |node: &BandedNode| (node.hot, node.band.is_none(), node.band);
        place(a).cmp(&place(b)).then_with(|| a.name.cmp(&b.name))
    });
    let found = ByBands { namespace, pod: name, node, label, nodes };
    let name_of = |node: &BandedNode| format!("node/{}", node.name);
    if write_form(&found, found.nodes.iter().map(name_of), flags.query.format, output)? {
        return Ok(());
    }
    write_tables(&found, if flags.all { usize::MAX } else { flags.limit.into() }, output)
}

/// The key of the label that the pod's preferences name.
fn label_of(pod: &Value) -> Option<String> {
    let terms =
        &pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    for term in terms.as_array()? {
        for expression in term["preference"]["matchExpressions"].as_array().into_iter().flatten() {
            let key = expression["key"].as_str().unwrap_or_default();
            if LABELS.iter().any(|end| key.ends_with(end)) {
                return Some(key.to_owned());
            }
        }
    }
    None
}

fn banded(node: Node, label: Option<&str>) -> BandedNode {
    let text = label.and_then(|label| node.metadata.labels.get(label));
    let band = text.and_then(|text| Band::parse(text)).map(Band::number);
    let hot = node.spec.taints.iter().any(|taint| taint["value"] == VALUE);
    BandedNode { name: node.metadata.name, band, hot }
}

fn write_tables(found: &ByBands, limit: usize, output: &mut dyn Write) -> Result<()> {
    let ByBands { namespace, pod, node, label, nodes } = found;
    let prefers = match label {
        Some(label) => format!("nodes of lower bands, by their label {label}"),
        None => "no node by its band".to_owned(),
    };
    writeln!(output, "Pod:        {}/{}", printable(namespace), printable(pod))?;
    writeln!(output, "Node:       {}", printable(node.as_deref().unwrap_or(NONE)))?;
    writeln!(output, "Prefers:    {}\n", printable(&prefers))?;
    let is_own = |it: &BandedNode| node.as_ref() == Some(&it.name);
    let mut shown: Vec<&BandedNode> = nodes.iter().take(limit).collect();
    shown.extend(nodes.iter().skip(limit).find(|it| is_own(it)));
    let row = |it: &&BandedNode| {
        let mark = if is_own(it) { "*" } else { "" };
        let band = or_none(it.band.map(|band| band.to_string()));
        [mark.to_owned(), it.name.clone(), band, if it.hot { "yes" } else { "no" }.to_owned()]
    };
    table::write(output, ["", "NODE", "BAND", "HOT"], shown.iter().map(row))?;
    if shown.len() < nodes.len() {
        writeln!(output, "and {} (--all)", count(nodes.len() - shown.len(), "more node"))?;
    }
    writeln!(
        output,
        "\nNo extender is installed: the pod's scheduler goes by bands, the taint of hot nodes and its own plugins."
    )?;
    Ok(())
}
