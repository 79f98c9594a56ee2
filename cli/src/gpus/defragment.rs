//! `plimsoll defragment`: the fewest moves that make room for a shape.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use api::moves::{Move, Moves, Proposal, Shape, StayReason};

use super::write_doubts;
use crate::args::gpus::Defragment;
use crate::cluster_access::Cluster;
use crate::extender;
use crate::format::{count, printable};
use crate::output::write_form;
use crate::table;

/// Shows what would have to be moved.
///
/// # Errors
///
/// If the extender does not answer.
pub(crate) fn defragment(flags: &Defragment, output: &mut dyn Write) -> Result<ExitCode> {
    let cluster = Cluster::new(&flags.query.access);
    let shape = flags.shape;
    let mut path = format!("/v1/moves?cards={}&units={}", shape.gpus, shape.units);
    if let Some(priority) = flags.priority {
        path.push_str(&format!("&priority={priority}"));
    }
    let answer: Moves = extender::get(&cluster, &path)?;
    let exit = if answer.proposal.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let moves = answer.proposal.as_ref().map_or(&[][..], |found| &found.moves[..]);
    let name = |it: &Move| format!("pod/{}", it.name);
    if write_form(&answer, moves.iter().map(name), flags.query.format, output)? {
        return Ok(exit);
    }
    let shape = words(&answer.asked);
    match &answer.proposal {
        None => writeln!(output, "No moves make room for {shape}.")?,
        Some(Proposal { node, gpus, .. }) if moves.is_empty() => {
            let place = format!("on node {}, {}", printable(node), list(gpus));
            writeln!(output, "There is room for {shape} {place}. Nothing has to be moved.")?;
        }
        Some(Proposal { node, gpus, .. }) => {
            let place = format!("on node {}, {}", printable(node), list(gpus));
            writeln!(
                output,
                "{} would make room for {shape} {place}:\n",
                count(moves.len(), "move")
            )?;
            let heading = ["NAMESPACE", "POD", "WORKLOAD", "PRIORITY", "UNITS", "FROM", "TO"];
            table::write(output, heading, moves.iter().map(|it| row(it, node)))?;
        }
    }
    write_staying(&answer, output)?;
    write_doubts(&answer.replica, output)?;
    Ok(exit)
}

/// `8 GPUs with 80 units each`.
fn words(shape: &Shape) -> String {
    match shape.gpus {
        1 => format!("a GPU with {} units", shape.units),
        gpus => format!("{gpus} GPUs with {} units each", shape.units),
    }
}

/// `GPU 0` or `GPUs 0,1`.
fn list(gpus: &[u32]) -> String {
    let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
    let word = if gpus.len() == 1 { "GPU" } else { "GPUs" };
    format!("{word} {}", numbers.join(","))
}

fn row(it: &Move, node: &str) -> [String; 7] {
    [
        it.namespace.clone(),
        it.name.clone(),
        it.workload.clone(),
        it.priority.to_string(),
        it.units.to_string(),
        format!("{node} {}", list(&it.from_gpus)),
        format!("{} {}", it.to, list(&it.to_gpus)),
    ]
}

fn write_staying(answer: &Moves, output: &mut dyn Write) -> Result<()> {
    if answer.staying.is_empty() {
        return Ok(());
    }
    let nodes = count(answer.nodes as usize, "node");
    writeln!(
        output,
        "\nPods that are not moved, of the {nodes} that would need the fewest moves:"
    )?;
    for staying in &answer.staying {
        let pods = count(staying.pods as usize, "pod");
        writeln!(output, "  {pods}: {}", why(staying.reason))?;
    }
    Ok(())
}

fn why(reason: StayReason) -> &'static str {
    match reason {
        StayReason::NoController => "no controller would make a successor",
        StayReason::DaemonSet => "a DaemonSet's",
        StayReason::Controller => {
            "a Job's or another controller's, which may begin anew (the annotation cluster-autoscaler.kubernetes.io/safe-to-evict: \"true\" allows it)"
        }
        StayReason::Annotation => {
            "the annotation cluster-autoscaler.kubernetes.io/safe-to-evict: \"false\""
        }
        StayReason::Volume => "a persistent volume, which may be bound to the node",
        StayReason::HostPort => "a port of the node",
        StayReason::OtherPods => "rules about other pods (affinity, topology spread)",
        StayReason::NodeRules => "rules about nodes that cannot be checked",
        StayReason::ResourceClaims => "resource claims",
        StayReason::Request => "a request that cannot be read",
        StayReason::Ending => "ending",
        StayReason::Budget => "PodDisruptionBudgets allow no eviction",
        StayReason::Priority => "as important, or more",
        StayReason::Moved => "a pod of the same workload was moved a short time ago",
        StayReason::MpsClient => {
            "a client of MPS beside others, which its kill may end: the container drain of mps-control-daemon does not run there"
        }
        StayReason::Other => "another reason; a newer version of this command knows it",
    }
}
