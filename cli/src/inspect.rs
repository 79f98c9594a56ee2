//! `plimsoll inspect`: cards and the pods that hold their units, from the extender.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use api::inspect::{Device, Inspected, Node};

use crate::args::Inspect;
use crate::extender;
use crate::table::{self, NONE};

/// Requests the cards from the extender and writes its answer, as a table or as JSON.
///
/// # Errors
///
/// If the extender does not answer, or has no such node.
pub(crate) fn inspect(flags: &Inspect, output: &mut dyn Write) -> Result<ExitCode> {
    let inspected = request(flags)?;
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

fn request(flags: &Inspect) -> Result<Inspected> {
    let node = flags.node.as_ref().map(|node| format!("/{node}")).unwrap_or_default();
    let path = format!("/gpushare-scheduler/inspect{node}");
    extender::get(&flags.extender.url, &path, "inspect")
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

type Cells = [String; 6];

fn rows_of_node(node: &Node) -> Vec<Cells> {
    node.devs.iter().flat_map(|card| rows_of_card(&node.name, card)).collect()
}

/// A row for each pod on a card, or one for a card without.
fn rows_of_card(node: &str, card: &Device) -> Vec<Cells> {
    let unhealthy = if card.unhealthy { " unhealthy" } else { "" };
    let used = format!("{}/{}{unhealthy}", card.used, card.total);
    let [node, id] = [node.to_owned(), card.id.to_string()];
    if card.pods.is_empty() {
        return vec![[node, id, used, NONE.to_owned(), NONE.to_owned(), NONE.to_owned()]];
    }
    let mut rows = Vec::new();
    for pod in &card.pods {
        let namespace = if pod.namespace.is_empty() { NONE } else { &pod.namespace };
        rows.push([
            node.clone(),
            id.clone(),
            used.clone(),
            namespace.to_owned(),
            pod.name.clone(),
            pod.used.to_string(),
        ]);
    }
    rows
}
