//! `plimsoll explain pod`: why a pod is where it is, or waits, node by node.

mod node;
mod overview;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use api::explain::{DecisionBasis, EstimateSource, EstimatedAmount, Explanation, Request};

use crate::args::ExplainPod;
use crate::extender;
use crate::format::printable;
use crate::table::NONE;

/// Requests the explanation of the pod from the extender and writes its answer, as tables or as JSON.
///
/// # Errors
///
/// If the extender does not answer, or does not have the pod or the node.
pub(crate) fn explain(flags: &ExplainPod, output: &mut dyn Write) -> Result<ExitCode> {
    let question = Request {
        namespace: flags.namespace.clone(),
        name: flags.name.clone(),
        fresh: flags.fresh,
        node_names: flags.node.clone().map(|node| vec![node]),
    };
    let explained: Explanation =
        extender::post(&flags.extender.url, "/explain", &question, "explain pod")?;
    if let (Some(node), true) = (&flags.node, explained.nodes.is_empty()) {
        bail!(
            "kube-scheduler did not ask about node {node}: its own plugins had rejected it, or it was not there yet \
             (--fresh shows what Plimsoll would decide now)"
        );
    }
    if flags.json {
        writeln!(output, "{}", serde_json::to_string_pretty(&explained)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    write_head(&explained, output)?;
    overview::write(&explained, output)?;
    if flags.node.is_some() {
        explained.nodes.iter().try_for_each(|node| node::write(node, output))?;
    }
    writeln!(output, "\nkube-scheduler adds the points of its own plugins to SCORE.")?;
    Ok(ExitCode::SUCCESS)
}

fn write_head(explained: &Explanation, output: &mut dyn Write) -> Result<()> {
    let Explanation { pod, time, basis, node, estimate, fault, .. } = explained;
    writeln!(output, "Pod:        {}/{}", printable(&pod.namespace), printable(&pod.name))?;
    writeln!(output, "Node:       {}", printable(node.as_deref().unwrap_or(NONE)))?;
    let basis = match basis {
        DecisionBasis::Decision => "the readings, the cards and the policy of its decision",
        DecisionBasis::Now => "what is known now",
    };
    writeln!(output, "Shown:      {basis}, {time:.0}")?;
    if let Some(estimate) = estimate {
        let cpu = &estimate.cpu;
        let memory = &estimate.memory;
        let cores = format!("{:.2} cores ({})", cpu.amount, source(cpu));
        let mebibytes = memory.amount / f64::from(1 << 20);
        writeln!(output, "Estimate:   {cores}, {mebibytes:.0} MiB ({})", source(memory))?;
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
