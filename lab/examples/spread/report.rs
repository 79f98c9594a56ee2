//! The table: for each case what stock and the others did, and whether the goal is met.

use serde_json::{Value, json};

use crate::case::Case;
use crate::cluster::Placed;

/// The first of the systems.
pub(crate) const STOCK: usize = 0;

/// A case, and for each system what each repetition gave.
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) placed: Vec<Vec<Placed>>,
}

impl Row {
    fn mean(&self, system: usize, of: impl Fn(&Placed) -> usize) -> f64 {
        let runs = &self.placed[system];
        runs.iter().map(of).sum::<usize>() as f64 / runs.len().max(1) as f64
    }

    fn worst(&self, system: usize) -> usize {
        self.placed[system].iter().map(|placed| placed.most).max().unwrap_or(0)
    }

    fn waiting(&self, system: usize) -> usize {
        self.placed[system].iter().map(|placed| placed.waiting).sum()
    }

    /// On the node with the most replicas at most one more than with stock, and 90% of stock's nodes in use; means.
    fn is_met(&self, by: usize) -> bool {
        let most = |system| self.mean(system, |placed| placed.most);
        let used = |system| self.mean(system, |placed| placed.used);
        most(by) <= most(STOCK) + 1.0 && used(by) >= 0.9 * used(STOCK)
    }

    /// The most replicas on one node: mean and worst; nodes used; the most in one zone.
    fn cell(&self, system: usize) -> String {
        let mut cell = format!(
            "{:.1} ({}) / {:.1}",
            self.mean(system, |placed| placed.most),
            self.worst(system),
            self.mean(system, |placed| placed.used)
        );
        let zone = self.mean(system, |placed| placed.most_in_zone);
        if zone > 0.0 {
            cell += &format!(" / {zone:.1}");
        }
        let waiting = self.waiting(system);
        if waiting > 0 {
            cell += &format!(", {waiting} wait");
        }
        cell
    }

    fn json(&self, systems: &[String]) -> Value {
        let of = |system: usize, value: fn(&Placed) -> usize| -> Vec<usize> {
            self.placed[system].iter().map(value).collect()
        };
        let placed = systems.iter().enumerate().map(|(system, name)| {
            let placed = json!({
                "met": self.is_met(system),
                "most": of(system, |placed| placed.most),
                "used": of(system, |placed| placed.used),
                "mostInZone": of(system, |placed| placed.most_in_zone),
                "waiting": of(system, |placed| placed.waiting),
            });
            (name.clone(), placed)
        });
        let Case { load, nodes, constraint, replica } = self.case;
        json!({"load": load.to_string(), "nodes": nodes, "constraint": constraint.to_string(),
            "replicaPercent": replica,
            "placed": placed.collect::<serde_json::Map<String, Value>>()})
    }
}

pub(crate) fn json(rows: &[Row], systems: &[String]) -> Value {
    json!({"systems": systems, "rows": rows.iter().map(|row| row.json(systems)).collect::<Vec<_>>()})
}

pub(crate) fn markdown(rows: &[Row], systems: &[String]) -> String {
    let met_by = |(system, name): (usize, &String)| {
        format!("{name} {}", rows.iter().filter(|row| row.is_met(system)).count())
    };
    let met: Vec<String> = systems.iter().enumerate().skip(1).map(met_by).collect();
    let mut text = format!(
        "Of {} cases, so many meet the goal: {}. On one node at most one replica more than stock has there, and 90% of \
         stock's nodes in use; others are in bold.\nEach cell: most replicas on one node, mean (worst) / nodes used / \
         most in one zone, where there are zones.\n\n",
        rows.len(),
        met.join(", ")
    );
    let names = systems.join(" | ");
    text += &format!("| load | nodes | constraint | replica | {names} |\n");
    text += &format!("|---|---|---|---|{}\n", "---|".repeat(systems.len()));
    for row in rows {
        let cell = |system| {
            let cell = row.cell(system);
            if row.is_met(system) { cell } else { format!("**{cell}**") }
        };
        let cells: Vec<String> = (0..systems.len()).map(cell).collect();
        let Case { load, nodes, constraint, replica } = row.case;
        text +=
            &format!("| {load} | {nodes} | {constraint} | {replica}% | {} |\n", cells.join(" | "));
    }
    text
}
