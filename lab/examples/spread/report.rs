//! The table: for each case what stock and the others did, and whether the goal is met.

use serde_json::{Value, json};

use crate::case::Case;
use crate::cluster::Placed;

/// The first of the systems.
pub(crate) const STOCK: usize = 0;
/// The system that the verdict is of.
pub(crate) const OURS: usize = 1;

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
    fn is_met(&self) -> bool {
        let most = |system| self.mean(system, |placed| placed.most);
        let used = |system| self.mean(system, |placed| placed.used);
        most(OURS) <= most(STOCK) + 1.0 && used(OURS) >= 0.9 * used(STOCK)
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
                "most": of(system, |placed| placed.most),
                "used": of(system, |placed| placed.used),
                "mostInZone": of(system, |placed| placed.most_in_zone),
                "waiting": of(system, |placed| placed.waiting),
            });
            (name.clone(), placed)
        });
        let Case { load, nodes, constraint, replica } = self.case;
        json!({"load": load.to_string(), "nodes": nodes, "constraint": constraint.to_string(),
            "replicaPercent": replica, "met": self.is_met(),
            "placed": placed.collect::<serde_json::Map<String, Value>>()})
    }
}

pub(crate) fn json(rows: &[Row], systems: &[String]) -> Value {
    json!({"systems": systems, "rows": rows.iter().map(|row| row.json(systems)).collect::<Vec<_>>()})
}

pub(crate) fn markdown(rows: &[Row], systems: &[String]) -> String {
    let met = rows.iter().filter(|row| row.is_met()).count();
    let mut text = format!(
        "{met} of {} cases meet the goal: on one node at most one replica more than stock has there, and 90% of \
         stock's nodes in use.\nEach cell: most replicas on one node, mean (worst) / nodes used / most in one zone, \
         where there are zones.\n\n",
        rows.len()
    );
    let names = systems.join(" | ");
    text += &format!("| load | nodes | constraint | replica | {names} | met |\n");
    text += &format!("|---|---|---|---|{}---|\n", "---|".repeat(systems.len()));
    for row in rows {
        let cells: Vec<String> = (0..systems.len()).map(|system| row.cell(system)).collect();
        let Case { load, nodes, constraint, replica } = row.case;
        let met = if row.is_met() { "yes" } else { "**no**" };
        text += &format!(
            "| {load} | {nodes} | {constraint} | {replica}% | {} | {met} |\n",
            cells.join(" | ")
        );
    }
    text
}
