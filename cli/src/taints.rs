//! `plimsoll taints`: lists the nodes with a taint for their load, and clears these taints when no annotator runs.
//!
//! kubectl makes the calls, with the credentials and the cluster that its user has set. Invariant: only taints with the
//! annotator's value are removed, each by a patch that the API server refuses where the list has changed.

use std::io::Write;

use anyhow::{Result, bail};
use placement::taint::VALUE;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::operate::Taints;
use crate::cluster_access::Kubectl;
use crate::cluster_access::objects::{List, Node};
use crate::output::write_form;
use crate::table;

/// The number of attempts: the nodes are read again if one has changed since.
const ATTEMPTS: usize = 5;

/// A taint of the annotator.
#[derive(Serialize)]
struct HotTaint {
    node: String,
    key: String,
    effect: String,
}

/// Lists the taints of all nodes, or clears them.
///
/// # Errors
///
/// Where kubectl fails, or a node cannot be patched.
pub(crate) fn taints(flags: &Taints, output: &mut dyn Write) -> Result<()> {
    let kubectl = Kubectl::new(&flags.connection);
    let nodes = tainted(&kubectl)?;
    if flags.clear && !nodes.is_empty() {
        return clear(&kubectl, nodes, output);
    }
    let taints = taints_of(&nodes);
    let name = |node: &Node| format!("node/{}", node.metadata.name);
    if write_form(&taints, nodes.iter().map(name), flags.format, output)? {
        return Ok(());
    }
    if taints.is_empty() {
        writeln!(output, "No node carries a taint for its load.")?;
    } else {
        let row = |it: &HotTaint| [it.node.clone(), it.key.clone(), it.effect.clone()];
        table::write(output, ["NODE", "KEY", "EFFECT"], taints.iter().map(row))?;
    }
    Ok(())
}

/// The nodes with a taint of the annotator.
fn tainted(kubectl: &Kubectl) -> Result<Vec<Node>> {
    let all: List<Node> = kubectl.get(&["nodes"])?;
    Ok(all.items.into_iter().filter(|node| node.spec.taints.iter().any(is_ours)).collect())
}

/// Whether the annotator has written the taint.
pub(crate) fn is_ours(taint: &Value) -> bool {
    taint["value"] == VALUE
}

/// The annotator's taints of these nodes.
fn taints_of(nodes: &[Node]) -> Vec<HotTaint> {
    let mut taints = Vec::new();
    for node in nodes {
        for taint in node.spec.taints.iter().filter(|taint| is_ours(taint)) {
            let [key, effect] = ["key", "effect"].map(|field| taint[field].as_str());
            taints.push(HotTaint {
                node: node.metadata.name.clone(),
                key: key.unwrap_or_default().to_owned(),
                effect: effect.unwrap_or_default().to_owned(),
            });
        }
    }
    taints
}

fn clear(kubectl: &Kubectl, mut nodes: Vec<Node>, output: &mut dyn Write) -> Result<()> {
    let mut error = None;
    for _ in 0..ATTEMPTS {
        for node in &nodes {
            let name = &node.metadata.name;
            let patch = format!("--patch={}", removal(&node.spec.taints));
            match kubectl.run(&["patch", "node", name, "--type=json", &patch]) {
                Ok(_) => writeln!(output, "{name} cleared")?,
                Err(refused) => error = Some(refused),
            }
        }
        nodes = tainted(kubectl)?;
        if nodes.is_empty() {
            return Ok(());
        }
    }
    let names: Vec<&str> = nodes.iter().map(|node| node.metadata.name.as_str()).collect();
    let refused = error.map(|error| format!(": kubectl patch node: {error}")).unwrap_or_default();
    bail!(
        "still tainted: {}; does an annotator with --taint-hot-nodes run?{refused}",
        names.join(", ")
    )
}

/// A JSON patch that removes our taints, and that fails if the list has changed. The last one is removed first, so the
/// indexes of the others do not change.
fn removal(taints: &[Value]) -> Value {
    let mut steps = Vec::new();
    for (index, taint) in taints.iter().enumerate().rev().filter(|(_, taint)| is_ours(taint)) {
        let path = format!("/spec/taints/{index}");
        steps.push(json!({"op": "test", "path": path, "value": taint}));
        steps.push(json!({"op": "remove", "path": path}));
    }
    steps.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_goes_first_and_others_stay() {
        let other = json!({"key": "team", "value": "a", "effect": "NoSchedule"});
        let patch = removal(&[annotators_taint("a"), other, annotators_taint("b")]);
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/spec/taints/2", "value": annotators_taint("b")},
                {"op": "remove", "path": "/spec/taints/2"},
                {"op": "test", "path": "/spec/taints/0", "value": annotators_taint("a")},
                {"op": "remove", "path": "/spec/taints/0"},
            ])
        );
    }

    fn annotators_taint(key: &str) -> Value {
        json!({"key": key, "value": VALUE, "effect": "NoSchedule"})
    }
}
