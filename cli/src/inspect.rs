//! `plimsoll inspect`: cards and the pods that hold their units, from the extender.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::inspect::{Device, Inspected, Node};
use ureq::Agent;

use crate::args::Inspect;
use crate::table::{self, NONE};

/// Bytes of an answer: 5,000 nodes of 8 cards with 20 pods each take some 70 MiB.
const MOST_BYTES: u64 = 128 << 20;

/// Asks the extender and writes its answer, as a table or as JSON.
///
/// # Errors
///
/// Where the extender does not answer, or knows no such node.
pub(crate) fn inspect(flags: &Inspect, output: &mut dyn Write) -> Result<ExitCode> {
    let inspected = ask(flags)?;
    if !inspected.error.is_empty() {
        bail!("{}", inspected.error);
    }
    if flags.json {
        writeln!(output, "{}", serde_json::to_string_pretty(&inspected)?)?;
    } else {
        write_table(&inspected, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(flags: &Inspect) -> Result<Inspected> {
    let node = flags.node.as_ref().map(|node| format!("/{node}")).unwrap_or_default();
    let url = format!("{}/gpushare-scheduler/inspect{node}", flags.extender);
    let agent = Agent::config_builder()
        .timeout_global(Some(Inspect::TIMEOUT))
        .proxy(None)
        .build()
        .new_agent();
    let hint =
        || format!("cannot read {url} (`plimsoll inspect --help` shows how to reach the extender)");
    let mut answer = agent.get(&url).call().with_context(hint)?;
    let text = answer.body_mut().with_config().limit(MOST_BYTES).read_to_string();
    serde_json::from_str(&text.with_context(|| url.clone())?)
        .with_context(|| format!("{url}: not the extender's answer"))
}

fn write_table(inspected: &Inspected, output: &mut dyn Write) -> Result<()> {
    let rows: Vec<_> = inspected.nodes.iter().flat_map(rows_of_node).collect();
    if rows.is_empty() {
        writeln!(output, "No node reports cards.")?;
    } else {
        table::write(output, ["NODE", "CARD", "USED/UNITS", "NAMESPACE", "POD", "HOLDS"], &rows)?;
    }
    Ok(())
}

type Row = [String; 6];

fn rows_of_node(node: &Node) -> Vec<Row> {
    node.devs.iter().flat_map(|card| rows_of_card(&node.name, card)).collect()
}

/// A row for each pod on a card, or one for a card without.
fn rows_of_card(node: &str, card: &Device) -> Vec<Row> {
    let row = |namespace: &str, pod: &str, holds: String| {
        let used = format!("{}/{}", card.used, card.total);
        [node.into(), card.id.to_string(), used, namespace.into(), pod.into(), holds]
    };
    if card.pods.is_empty() {
        return vec![row(NONE, NONE, NONE.into())];
    }
    let or_none = |text: &'_ str| if text.is_empty() { NONE.to_owned() } else { text.to_owned() };
    let pods = card.pods.iter();
    pods.map(|pod| row(&or_none(&pod.namespace), &pod.name, pod.used.to_string())).collect()
}
