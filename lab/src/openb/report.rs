//! Figures of several seeds, as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;

use super::args::PolicyName;
use super::departures::{self, ASKED, Outcome};
use super::policies::Policy;
use super::policies::best_fit::BestFit;
use super::policies::fgd::Fgd;
use super::policies::plimsoll::Plimsoll;
use super::replay::{Curve, fill};
use super::trace::Trace;

/// The percentages of the GPUs asked for at which figures are reported.
pub const ARRIVED: [usize; 5] = [90, 95, 100, 110, 130];

/// The figures of a policy on a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The trace.
    pub variant: String,
    /// The policy.
    pub policy: &'static str,
    /// Of the GPUs, in percent, what is given out when so many percent have been asked for; the mean of the seeds.
    pub alloc_pct: BTreeMap<usize, f64>,
    /// Standard deviation over the seeds at 100%.
    pub sd: f64,
    /// Percent asked for when the first pod found no place; the mean of the seeds in which one did not.
    pub first_failure_pct: f64,
    /// Seeds.
    pub seeds: usize,
    /// The cluster's GPUs.
    pub gpus: f64,
}

/// A policy at the start of a run.
pub fn policy(name: PolicyName, trace: &Trace) -> Box<dyn Policy> {
    match name {
        PolicyName::Bestfit => Box::new(BestFit),
        PolicyName::Fgd => Box::new(Fgd::new(trace)),
        PolicyName::Plimsoll => Box::new(Plimsoll::learning(trace)),
        PolicyName::PlimsollGiven => Box::new(Plimsoll::knowing(trace)),
    }
}

/// Fills the cluster once for each seed.
pub fn run(variant: &str, trace: &Trace, name: PolicyName, seeds: &[u64]) -> Row {
    let curves = each_seed(seeds, &|seed| fill(trace, seed, policy(name, trace).as_mut()));
    Row::new(variant, trace, name, &curves)
}

/// One run for each seed, on as many threads as there are cores.
fn each_seed<T: Send>(seeds: &[u64], run: &(dyn Fn(u64) -> T + Sync)) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let part = seeds.len().div_ceil(cores).max(1);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for seeds in seeds.chunks(part) {
            threads.push(scope.spawn(|| seeds.iter().map(|seed| run(*seed)).collect::<Vec<T>>()));
        }
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// The figures of a policy where pods end.
#[derive(Debug, Clone, PartialEq)]
pub struct DeparturesRow {
    /// The trace.
    pub variant: String,
    /// The policy.
    pub policy: &'static str,
    /// Of the GPUs, in percent, what is given out on average over time; the mean of the seeds.
    pub mean_alloc_pct: f64,
    /// Standard deviation of it over the seeds.
    pub sd: f64,
    /// Of the GPU time asked for, in percent, what is refused; the mean of the seeds.
    pub refused_pct: f64,
    /// Seeds.
    pub seeds: usize,
}

/// Runs with departures, once for each seed; `None` where the list has no times.
pub fn run_departures(
    variant: &str,
    trace: &Trace,
    name: PolicyName,
    seeds: &[u64],
) -> Option<DeparturesRow> {
    let outcomes: Vec<Outcome> =
        each_seed(seeds, &|seed| departures::run(trace, seed, policy(name, trace).as_mut()))
            .into_iter()
            .collect::<Option<_>>()?;
    let allocated: Vec<f64> = outcomes.iter().map(|outcome| outcome.allocated).collect();
    let refused: Vec<f64> = outcomes.iter().map(|outcome| outcome.refused).collect();
    Some(DeparturesRow {
        variant: variant.to_owned(),
        policy: name.name(),
        mean_alloc_pct: mean(&allocated),
        sd: deviation(&allocated),
        refused_pct: mean(&refused),
        seeds: outcomes.len(),
    })
}

impl fmt::Display for DeparturesRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variant, policy, mean_alloc_pct, sd, refused_pct, seeds } = self;
        write!(
            f,
            "{variant:<16} {policy:<16} asked {ASKED}%, given out {mean_alloc_pct:>6.2}% (sd {sd:.2}), refused {refused_pct:>6.2}%, {seeds} seeds"
        )
    }
}

impl Row {
    /// What is given out when pods have asked for 100% of the GPUs, in percent.
    fn alloc_pct_when_full(&self) -> f64 {
        self.alloc_pct.get(&100).copied().unwrap_or_default()
    }

    fn new(variant: &str, trace: &Trace, name: PolicyName, curves: &[Curve]) -> Self {
        let full: Vec<f64> = curves.iter().filter_map(|curve| curve.at(100)).collect();
        let failures: Vec<f64> = curves.iter().filter_map(|curve| curve.first_failure).collect();
        Self {
            variant: variant.to_owned(),
            policy: name.name(),
            alloc_pct: ARRIVED
                .iter()
                .filter_map(|percent| {
                    let values: Vec<f64> =
                        curves.iter().filter_map(|curve| curve.at(*percent)).collect();
                    (!values.is_empty()).then(|| (*percent, mean(&values)))
                })
                .collect(),
            sd: deviation(&full),
            first_failure_pct: mean(&failures),
            seeds: curves.len(),
            gpus: trace.capacity() as f64 / 1000.0,
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Of a population.
fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    let squares: Vec<f64> = values.iter().map(|value| (value - middle).powi(2)).collect();
    mean(&squares).sqrt()
}

/// The rows of one trace, for people.
pub struct Table<'a>(pub &'a [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return Ok(()) };
        writeln!(f, "{}: {:.0} GPUs, {} seeds", first.variant, first.gpus, first.seeds)?;
        write!(f, "{:<16}", "given out at %")?;
        ARRIVED.iter().try_for_each(|percent| write!(f, " {percent:>7}"))?;
        writeln!(f, " {:>6} {:>14} {:>16}", "sd", "first failure", "GPUs more (100%)")?;
        for row in self.0 {
            write!(f, "{:<16}", row.policy)?;
            for percent in &ARRIVED {
                match row.alloc_pct.get(percent) {
                    Some(value) => write!(f, " {value:>7.2}")?,
                    None => write!(f, " {:>7}", "-")?,
                }
            }
            let more =
                (row.alloc_pct_when_full() - first.alloc_pct_when_full()) * first.gpus / 100.0;
            writeln!(f, " {:>6.2} {:>14.1} {more:>16.0}", row.sd, row.first_failure_pct)?;
        }
        Ok(())
    }
}
