//! By how many of kube-scheduler's points the score leads a pod to its node, and what that outweighs. What
//! kube-scheduler's own plugins gave a node cannot be asked of it.

use std::cmp::Reverse;

use api::explain::{DecisionBasis, Explanation, Node};

use crate::format::printable;
use crate::scheduler_config::POINTS_EACH;

/// The points that kube-scheduler's plugins give a node at most, or take, by what they are for.
const PLUGINS: [(i64, &str); 3] = [
    (100, "NodeResourcesFit, BalancedAllocation or ImageLocality"),
    (200, "a topology spread, or a preferred affinity"),
    (300, "a taint to be avoided"),
];

/// A sentence about the pod's node, or the best one where it has none, beside the best other node. Empty without two
/// nodes that accept the pod.
pub(super) fn sentence(explained: &Explanation) -> String {
    let accepted = || explained.nodes.iter().filter(|node| node.accepted && node.known);
    let own = accepted().find(|node| explained.node.as_ref() == Some(&node.name));
    let Some(node) = own.or_else(|| best(accepted())) else { return String::new() };
    let Some(other) = best(accepted().filter(|other| other.name != node.name)) else {
        return String::new();
    };
    let has_gpus = explained.nodes.iter().any(|node| node.gpus.is_some());
    let what = if has_gpus { "load and GPUs" } else { "load" };
    let lead = (node.extender_score - other.extender_score) * i64::from(POINTS_EACH);
    let (node, other) = (printable(&node.name), printable(&other.name));
    match lead {
        0 => format!(
            "By {what} {other} is as good as {node}: its own plugins choose among such nodes."
        ),
        1.. => format!(
            "By {what} {node} leads {other} by {lead} of its points, at the extender's weight 1. {}",
            outweighs(lead)
        ),
        _ => {
            let behind = -lead;
            let end = match explained.basis {
                DecisionBasis::Decision => ": its own plugins outweighed that.",
                DecisionBasis::Now => ".",
            };
            format!(
                "By {what} {other} leads {node} by {behind} of its points, at the extender's weight 1{end}"
            )
        }
    }
}

fn best<'a>(nodes: impl Iterator<Item = &'a Node>) -> Option<&'a Node> {
    nodes.max_by_key(|node| (node.extender_score, Reverse(&node.name)))
}

fn outweighs(lead: i64) -> String {
    let (less, more): (Vec<_>, Vec<_>) = PLUGINS.iter().partition(|(most, _)| *most < lead);
    let [less, more] = [less, more].map(|plugins| {
        let part = |(most, what): &&(i64, &str)| format!("{what} (at most {most})");
        plugins.iter().map(part).collect::<Vec<_>>().join(", ")
    });
    match (less.as_str(), more.as_str()) {
        ("", _) => format!("Each of its plugins can outweigh that, or be as much: {more}."),
        (_, "") => format!("That outweighs each of its plugins: {less}."),
        _ => format!("That outweighs {less}, and not {more}."),
    }
}
