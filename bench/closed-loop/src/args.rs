//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::cell::{Cell, Variant};
use crate::policies::{ALL, Entry, REFERENCE};
use crate::world::InTree;

/// Seeds whose figures are reported. None of them may be looked at while a policy is tuned.
pub const REPORTED_SEEDS: std::ops::RangeInclusive<u64> = 101..=110;
/// Seeds for tuning.
pub const TUNING_SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Compares placement policies in a simulated cluster. Tables go to standard output, progress to standard error.
#[derive(Debug, Parser)]
#[command(name = "closed-loop")]
pub struct Args {
    /// Variant of the workload
    #[arg(long, value_enum, default_value = "frozen")]
    pub workload: Variant,
    /// Only these cells, e.g. `S40,H40`
    #[arg(long, value_delimiter = ',')]
    pub cells: Vec<Cell>,
    /// Seeds, e.g. `1-5` or `101,103` [default: 101-110, the reported ones]
    #[arg(long, value_parser = seeds, value_name = "SEEDS")]
    pub seeds: Option<Seeds>,
    /// Seeds 1 to 5, for tuning
    #[arg(long, conflicts_with = "seeds")]
    pub tuning: bool,
    /// Only these policies; the reference, crane-plugin, always runs
    #[arg(long, value_delimiter = ',', value_parser = policy)]
    pub policies: Vec<&'static str>,
    /// kube-scheduler's own scores beside the policies'
    #[arg(long, value_enum, default_value = "all")]
    pub in_tree: InTree,
    /// One day of 50 nodes and one seed, to see that it works
    #[arg(long)]
    pub quick: bool,
    /// Runs at a time [default: the number of cores]
    #[arg(long, short)]
    pub jobs: Option<usize>,
    /// Also write all figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A list of seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

fn seeds(text: &str) -> Result<Seeds, String> {
    let wrong = format!("expected seeds like `1-5` or `101,103`, found `{text}`");
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u64>(), last.trim().parse::<u64>())
        else {
            return Err(wrong);
        };
        seeds.extend(first..=last);
    }
    if seeds.is_empty() { Err(wrong) } else { Ok(Seeds(seeds)) }
}

fn policy(name: &str) -> Result<&'static str, String> {
    let known = ALL.iter().find(|entry| entry.name == name);
    known.map(|entry| entry.name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

impl Args {
    /// The cells to run.
    pub fn cells(&self) -> Vec<Cell> {
        match self.cells.as_slice() {
            [] if self.quick => vec![Cell::all(self.workload)[4]],
            [] => Cell::all(self.workload),
            cells => cells.iter().map(|cell| Cell { variant: self.workload, ..*cell }).collect(),
        }
    }

    /// The seeds to run.
    pub fn seeds(&self) -> Vec<u64> {
        match &self.seeds {
            Some(seeds) => seeds.0.clone(),
            None if self.quick => vec![*TUNING_SEEDS.start()],
            None if self.tuning => TUNING_SEEDS.collect(),
            None => REPORTED_SEEDS.collect(),
        }
    }

    /// The policies to run, the reference first.
    pub fn policies(&self) -> Vec<&'static Entry> {
        ALL.iter()
            .filter(|entry| {
                self.policies.is_empty()
                    || entry.name == REFERENCE
                    || self.policies.contains(&entry.name)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &[&str]) -> Args {
        Args::try_parse_from(["closed-loop"].iter().chain(line)).unwrap()
    }

    #[test]
    fn the_reported_seeds_are_the_default_and_no_tuning_seed() {
        assert_eq!(args(&[]).seeds(), (101..=110).collect::<Vec<_>>());
        assert!(TUNING_SEEDS.end() < REPORTED_SEEDS.start());
        assert_eq!(args(&["--seeds", "1-3,7"]).seeds(), [1, 2, 3, 7]);
        assert_eq!((args(&[]).cells().len(), args(&[]).policies().len()), (9, ALL.len()));
    }

    #[test]
    fn the_reference_always_runs() {
        let args = args(&["--policies", "default", "--cells", "s40", "--workload", "noisy"]);
        let names: Vec<_> = args.policies().iter().map(|entry| entry.name).collect();
        assert_eq!(names, [REFERENCE, "default"]);
        assert_eq!(args.cells()[0].variant, Variant::Noisy);
        assert!(Args::try_parse_from(["closed-loop", "--policies", "x"]).is_err());
    }
}
