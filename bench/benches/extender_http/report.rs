//! The table.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use bench::results::CallCost;

use crate::cluster::{Load, Order};

/// What was measured of one verb of one server.
#[derive(Debug, Default)]
pub(super) struct Figures {
    times: Vec<Duration>,
    /// Microseconds a call, of each round.
    cpu: Vec<f64>,
}

impl Figures {
    pub(super) fn add(&mut self, times: Vec<Duration>, cpu: f64) {
        self.times.extend(times);
        self.cpu.push(cpu);
    }

    /// Microseconds: of the middle round.
    pub(super) fn cpu(&self) -> f64 {
        let mut rounds = self.cpu.clone();
        rounds.sort_by(f64::total_cmp);
        rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Microseconds.
    fn quantile(&self, part: f64) -> f64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        let at = (times.len() as f64 * part) as usize;
        times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }
}

pub(super) struct Row {
    pub(super) verb: &'static str,
    pub(super) nodes: usize,
    pub(super) load: Load,
    pub(super) order: Order,
    pub(super) ours: Figures,
    pub(super) echo: Figures,
}

/// Prints Markdown, as in `bench/RESULTS.md`.
pub(super) fn print(rows: &[Row]) {
    println!(
        "| | nodes | load | order | CPU, µs | of the echo | ratio | p50, µs | of the echo | p99, µs | of the echo |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for Row { verb, nodes, load, order, ours, echo } in rows {
        let cpu = ours.cpu();
        let floor = echo.cpu();
        let times = [0.5, 0.99]
            .map(|part| format!("{:.0} | {:.0}", ours.quantile(part), echo.quantile(part)));
        let [half, most] = times;
        println!(
            "| {verb} | {nodes} | {load:?} | {order:?} | {cpu:.0} | {floor:.0} | {:.2} | {half} | {most} |",
            cpu / floor
        );
    }
}

/// Writes the CPU of each call as JSON.
pub(super) fn write_json(rows: &[Row], file: &Path) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for row in rows {
        costs.push(CallCost {
            verb: row.verb.to_owned(),
            nodes: row.nodes,
            cpu: row.ours.cpu(),
            echo_cpu: row.echo.cpu(),
        });
    }
    fs::write(file, serde_json::to_vec(&costs)?).with_context(|| file.display().to_string())
}
