//! Figures of all runs, as JSON and as tables for people.

mod table;

use serde::Serialize;

pub use self::table::Tables;
use crate::cell::Cell;
use crate::workload::{Offered, Workload};
use crate::world::{Figures, Spread, Spreads, Waits};

/// A cell in which the reference has fewer minutes over 80% than this, a seed on average, is left out of comparisons.
pub const LEAST_HOT_MINUTES: f64 = 100.0;

/// One cell, one seed, all policies. The first one is the reference, which the others are compared with.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The cell.
    #[serde(serialize_with = "as_text")]
    pub cell: Cell,
    /// The seed.
    pub seed: u64,
    /// Pods that arrive, those that run at the beginning included.
    pub pods: usize,
    /// CPU requested, CPU used, memory requested and memory used in percent of the cluster, if nothing waits and
    /// but for noise.
    pub offered_percent: [f64; 4],
    /// Minutes in which one pod alone asks for more than 65%, 80% and 100% of a node, summed over the pods: no
    /// placement avoids them.
    pub alone_minutes: [f64; 3],
    /// By policy.
    pub policies: Vec<PolicyRun>,
}

/// One policy in a [`Run`].
#[derive(Debug, Clone, Serialize)]
pub struct PolicyRun {
    /// Name of the policy.
    pub policy: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Run {
    /// The figures of a workload under policies.
    pub fn new(workload: &Workload, policies: Vec<PolicyRun>, alone_minutes: [f64; 3]) -> Self {
        let Offered { cpu_requested, cpu_used, memory_requested, memory_used } = workload.offered();
        Self {
            cell: workload.cell,
            seed: workload.seed,
            pods: workload.pods.len(),
            offered_percent: [cpu_requested, cpu_used, memory_requested, memory_used]
                .map(|part| 100.0 * part),
            alone_minutes,
            policies,
        }
    }

    fn of(&self, policy: &str) -> Option<&Figures> {
        self.policies.iter().find(|run| run.policy == policy).map(|run| &run.figures)
    }
}

/// One policy in one cell, over all seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The cell.
    #[serde(serialize_with = "as_text")]
    pub cell: Cell,
    /// Name of the policy.
    pub policy: String,
    /// Seeds.
    pub seeds: usize,
    /// Sums over the seeds of [`Run::alone_minutes`].
    pub alone_minutes: [f64; 3],
    /// Sums over the seeds of the node-minutes over 65%, 80% and 100%.
    pub hot_minutes: [f64; 3],
    /// Each sum by that of the reference; none where the reference's is 0.
    pub ratios: [Option<f64>; 3],
    /// Seeds in which it has fewer minutes over 80% than the reference.
    pub better: usize,
    /// Mean over the seeds of the deviation across nodes, in percent of a node.
    pub deviation: f64,
    /// Mean CPU that was asked for, in percent of the cluster.
    pub mean_use: f64,
    /// Mean over the seeds of the herd width.
    pub herd_width: f64,
    /// Mean, median and 99th percentile of the waits of all pods of all seeds, in minutes.
    pub wait: [f64; 3],
    /// Pods pending at the ends.
    pub pending: u64,
    /// Pods that were evicted again.
    pub evicted_twice: u64,
    /// Pods that were bound.
    pub placements: u64,
    /// Mean over the seeds of the writes of each node an hour; `None` where they are not simulated.
    pub writes_an_hour: Option<f64>,
    /// How replicas of one Deployment spread, over all seeds.
    pub spreads: Spreads,
    /// Whether the reference has too few minutes over 80% for a comparison.
    pub left_out: bool,
}

/// Sums the runs up by cell and policy, in the order in which they first come.
pub fn summaries(runs: &[Run]) -> Vec<Summary> {
    let mut cells: Vec<Cell> = Vec::new();
    for run in runs {
        if !cells.contains(&run.cell) {
            cells.push(run.cell);
        }
    }
    cells.into_iter().flat_map(|cell| summaries_of(cell, runs)).collect()
}

fn summaries_of(cell: Cell, runs: &[Run]) -> Vec<Summary> {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.cell == cell).collect();
    let names = runs.first().map_or(&[][..], |run| &run.policies).iter().map(|run| &run.policy);
    names.map(|name| summary(cell, name, &runs)).collect()
}

fn summary(cell: Cell, policy: &str, runs: &[&Run]) -> Summary {
    let own: Vec<&Figures> = runs.iter().filter_map(|run| run.of(policy)).collect();
    let first = runs.iter().filter_map(|run| run.policies.first());
    let others: Vec<&Figures> = first.map(|run| &run.figures).collect();
    let hot_minutes = hot_minutes(&own);
    let reference = self::hot_minutes(&others);
    let seeds = own.len();
    let writes: Option<f64> = own.iter().map(|figures| figures.writes_an_hour).sum();
    let mut waits = Waits::default();
    own.iter().for_each(|figures| waits.merge(&figures.waits));
    let pairs = own.iter().zip(&others);
    Summary {
        cell,
        policy: policy.to_owned(),
        seeds,
        alone_minutes: [0, 1, 2].map(|level| runs.iter().map(|run| run.alone_minutes[level]).sum()),
        hot_minutes,
        ratios: [0, 1, 2]
            .map(|level| (reference[level] > 0.0).then(|| hot_minutes[level] / reference[level])),
        better: pairs.filter(|(own, other)| own.hot_minutes[1] < other.hot_minutes[1]).count(),
        deviation: mean(&own, |figures| figures.deviation),
        mean_use: mean(&own, |figures| figures.mean_use),
        herd_width: mean(&own, |figures| f64::from(figures.herd_width)),
        wait: [waits.mean_minutes(), waits.quantile_minutes(0.5), waits.quantile_minutes(0.99)],
        pending: total(&own, |figures| figures.pending),
        evicted_twice: total(&own, |figures| figures.evicted_twice),
        placements: total(&own, |figures| figures.placements),
        writes_an_hour: writes.map(|writes| writes / seeds as f64),
        spreads: spreads(&own),
        left_out: reference[1] < LEAST_HOT_MINUTES * seeds as f64,
    }
}

fn spreads(runs: &[&Figures]) -> Spreads {
    let each = || runs.iter().map(|figures| &figures.spreads);
    Spreads {
        rollouts: [0, 1, 2].map(|size: usize| Spread::sum(each().map(|own| &own.rollouts[size]))),
        beside_cold: [0, 1]
            .map(|size: usize| Spread::sum(each().map(|own| &own.beside_cold[size]))),
    }
}

/// The sums of minutes over each level.
fn hot_minutes(runs: &[&Figures]) -> [f64; 3] {
    [0, 1, 2].map(|level: usize| runs.iter().map(|figures| figures.hot_minutes[level]).sum())
}

fn mean(runs: &[&Figures], value: fn(&Figures) -> f64) -> f64 {
    runs.iter().map(|figures| value(figures)).sum::<f64>() / runs.len() as f64
}

fn total(runs: &[&Figures], value: fn(&Figures) -> u64) -> u64 {
    runs.iter().map(|figures| value(figures)).sum()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn as_text<S: serde::Serializer>(cell: &Cell, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(cell)
}
