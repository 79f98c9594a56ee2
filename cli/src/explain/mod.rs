//! `plimsoll why`: why a pod is where it is, or waits, node by node.

mod by_bands;
mod lead;
mod manifest;
mod node;
mod overview;
mod target;

use std::io::Write;

use anyhow::{Result, bail};
use api::explain::{DecisionBasis, EstimateSource, EstimatedAmount, Explanation, Node, Request};
use serde_json::json;

use crate::args::pods::Why;
use crate::cluster_access::Cluster;
use crate::extender;
use crate::format::printable;
use crate::output::write_form;
use crate::table::NONE;

/// Requests the explanation of the pod from the extender and writes its answer, as tables or in another form. Without
/// an extender it shows by which bands of nodes its scheduler goes.
///
/// # Errors
///
/// If the extender does not answer, or does not have the pod or the node; if there are neither it nor bands.
pub(crate) fn why(flags: &Why, output: &mut dyn Write) -> Result<()> {
    let cluster = Cluster::new(&flags.query.access);
    if flags.file.is_none() && cluster.has_no_extender()? {
        return by_bands::why(flags, &cluster, output);
    }
    let explained = request(flags, &cluster)?;
    if let Some(node) = &flags.node {
        if explained.nodes.is_empty() {
            bail!(
                "kube-scheduler did not ask about node {node}: there is none of this name, or its own plugins had rejected \
                 it, or it was not there yet (--fresh shows what Plimsoll would decide now)"
            );
        }
        if explained.basis == DecisionBasis::Now && explained.nodes.iter().all(|it| !it.known) {
            bail!("the extender knows no node {node}: `kubectl get nodes` lists the names");
        }
    }
    let best_first = overview::in_order(&explained);
    let accepted = |node: &&Node| node.accepted.then(|| format!("node/{}", node.name));
    if write_form(&explained, best_first.iter().filter_map(accepted), flags.query.format, output)? {
        return Ok(());
    }
    write_head(&explained, output)?;
    let limit = if flags.all { usize::MAX } else { usize::from(flags.limit) };
    overview::write(&explained, limit, output)?;
    if flags.node.is_some() {
        explained.nodes.iter().try_for_each(|node| node::write(node, output))?;
    }
    // Nodes of a decision are those that kube-scheduler's own plugins had let through.
    if explained.basis == DecisionBasis::Now {
        writeln!(
            output,
            "\nBy load and GPUs alone: taints, affinity, CPU and memory are kube-scheduler's to look at."
        )?;
    }
    let lead = lead::sentence(&explained);
    let gap = if lead.is_empty() { "" } else { "\n" };
    writeln!(output, "\nkube-scheduler adds the points of its own plugins to SCORE.{gap}{lead}")?;
    Ok(())
}

fn request(flags: &Why, cluster: &Cluster) -> Result<Explanation> {
    let node_names = flags.node.clone().map(|node| vec![node]);
    if let Some(file) = &flags.file {
        let namespace = flags.namespace.as_deref();
        let pod = manifest::pod_of(file, namespace, || cluster.context_namespace())?;
        let question = json!({"Pod": pod, "NodeNames": node_names});
        return extender::post(cluster, "/explain", &question);
    }
    let namespace = flags.namespace.clone().unwrap_or_else(|| cluster.context_namespace());
    let target = flags.target.as_deref().unwrap_or_default();
    let question = Request {
        name: target::pod_of(target, &namespace, cluster)?,
        namespace,
        fresh: flags.fresh,
        node_names,
    };
    extender::post(cluster, "/explain", &question)
}

fn write_head(explained: &Explanation, output: &mut dyn Write) -> Result<()> {
    let Explanation { pod, time, basis, node, estimate, fault, ignored, .. } = explained;
    writeln!(output, "Pod:        {}/{}", printable(&pod.namespace), printable(&pod.name))?;
    writeln!(output, "Node:       {}", printable(node.as_deref().unwrap_or(NONE)))?;
    let basis = match basis {
        DecisionBasis::Decision => "the readings, the GPUs and the policy of its decision",
        DecisionBasis::Now => "what is known now",
    };
    writeln!(output, "Shown:      {basis}, {time:.0}")?;
    if let Some(estimate) = estimate {
        let (cpu, memory) = (&estimate.cpu, &estimate.memory);
        let cores = format!("{:.2} cores ({})", cpu.amount, source(cpu));
        let mebibytes = memory.amount / f64::from(1 << 20);
        writeln!(output, "Estimate:   {cores}, {mebibytes:.0} MiB ({})", source(memory))?;
    }
    for fault in ignored {
        writeln!(output, "Ignored:    {}", printable(fault))?;
    }
    if let Some(fault) = fault {
        writeln!(output, "Fault:      {}, so no node may take it", printable(fault))?;
    }
    Ok(writeln!(output)?)
}

fn source(amount: &EstimatedAmount) -> &'static str {
    match amount.source {
        EstimateSource::Annotation => "by its annotation",
        EstimateSource::Learned => "learned of its workload",
        EstimateSource::Namespace => "by its requests, as its namespace uses them",
        EstimateSource::Request => "by its requests and limits",
        EstimateSource::Fallback => "by default",
    }
}
