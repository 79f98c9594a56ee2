//! Where no extender is installed: the bands and taints of nodes, by which any scheduler goes.

use std::io::Write;

use anyhow::{Context, Result, bail};
use placement::bands::Band;
use serde::Serialize;
use serde_json::{Value, json};

use super::target;
use crate::args::pods::Why;
use crate::cluster_access::Cluster;
use crate::cluster_access::objects::{List, Node};
use crate::format::{count, printable};
use crate::output::{refuse_names, write_form};
use crate::table::{self, NONE, or_none};
use crate::taints::is_ours;

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
    /// The nodes, the preferred ones first.
    bands: Vec<BandedNode>,
}

#[derive(Serialize)]
struct BandedNode {
    node: String,
    /// By the pod's label.
    band: Option<u8>,
    /// Whether it has a taint for its load.
    hot: bool,
}

/// Writes them, as a table or in another form.
///
/// # Errors
///
/// If the pod or the nodes cannot be read, there is no such node, or no node has bands.
pub(super) fn why(flags: &Why, cluster: &Cluster, output: &mut dyn Write) -> Result<()> {
    refuse_names(flags.query.format)?;
    let namespace = flags.namespace.clone().unwrap_or_else(|| cluster.context_namespace());
    let name = target::pod_of(flags.target.as_deref().unwrap_or_default(), &namespace, cluster)?;
    let pod: Value = cluster.kubectl().get(&["pod", &name, &format!("--namespace={namespace}")])?;
    let nodes: List<Node> = cluster.kubectl().get(&["nodes"]).context(
        "Plimsoll is installed without an extender, which leaves the bands of nodes to look at",
    )?;
    let is_of_band = |key: &String| LABELS.iter().any(|end| key.ends_with(end));
    if !nodes.items.iter().any(|node| node.metadata.labels.keys().any(is_of_band)) {
        bail!(
            "Plimsoll is installed without an extender, and nodes have no bands (annotator.nodeBands)"
        );
    }
    let label = label_of(&pod);
    let node = pod["spec"]["nodeName"].as_str().map(str::to_owned);
    let mut bands: Vec<BandedNode> =
        nodes.items.into_iter().map(|node| banded(node, label.as_deref())).collect();
    if let Some(wanted) = &flags.node {
        bands.retain(|it| it.node == *wanted);
        if bands.is_empty() {
            bail!("there is no node {wanted}: `kubectl get nodes` lists the names");
        }
    }
    bands.sort_by(|a, b| {
        let place = |it: &BandedNode| (it.hot, it.band.is_none(), it.band);
        place(a).cmp(&place(b)).then_with(|| a.node.cmp(&b.node))
    });
    let found = ByBands { namespace, pod: name, node, label, bands };
    if write_form(&found, [], flags.query.format, output)? {
        return Ok(());
    }
    write_table(&found, if flags.all { usize::MAX } else { flags.limit.into() }, output)
}

/// The key of the label in the terms that the admission policy has given the pod: those of its own look otherwise.
fn label_of(pod: &Value) -> Option<String> {
    let terms =
        &pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    for term in terms.as_array()? {
        for expression in term["preference"]["matchExpressions"].as_array().into_iter().flatten() {
            let key = expression["key"].as_str().unwrap_or_default();
            let is_first_bit = expression["values"] == json!(["0", "1", "2", "3"]);
            if is_first_bit && LABELS.iter().any(|end| key.ends_with(end)) {
                return Some(key.to_owned());
            }
        }
    }
    None
}

fn banded(node: Node, label: Option<&str>) -> BandedNode {
    let text = label.and_then(|label| node.metadata.labels.get(label));
    let band = text.and_then(|text| Band::parse(text)).map(Band::number);
    let hot = node.spec.taints.iter().any(is_ours);
    BandedNode { node: node.metadata.name, band, hot }
}

fn write_table(found: &ByBands, limit: usize, output: &mut dyn Write) -> Result<()> {
    let ByBands { namespace, pod, node, label, bands } = found;
    let prefers = match label {
        Some(label) => format!("nodes of lower bands, by their label {label}"),
        None => "no node by its band".to_owned(),
    };
    writeln!(output, "Pod:        {}/{}", printable(namespace), printable(pod))?;
    writeln!(output, "Node:       {}", printable(node.as_deref().unwrap_or(NONE)))?;
    writeln!(output, "Prefers:    {}\n", printable(&prefers))?;
    let is_own = |it: &BandedNode| node.as_ref() == Some(&it.node);
    let mut shown: Vec<&BandedNode> = bands.iter().take(limit).collect();
    shown.extend(bands.iter().skip(limit).find(|it| is_own(it)));
    let row = |it: &&BandedNode| {
        let mark = if is_own(it) { "*" } else { "" };
        let band = or_none(it.band.map(|band| band.to_string()));
        [mark.to_owned(), it.node.clone(), band, if it.hot { "yes" } else { "no" }.to_owned()]
    };
    table::write(output, ["", "NODE", "BAND", "HOT"], shown.iter().map(row))?;
    if shown.len() < bands.len() {
        writeln!(output, "and {} (--all)", count(bands.len() - shown.len(), "more node"))?;
    }
    writeln!(
        output,
        "\nNo extender is installed: the pod's scheduler goes by bands, the taint of hot nodes and its own plugins."
    )?;
    Ok(())
}
