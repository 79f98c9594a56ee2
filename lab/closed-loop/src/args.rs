//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::cell::{Cell, Variant};
use crate::policies::{BESIDE_TRACES, DEFAULT, Entry};
use crate::world::InTree;

/// Seeds whose figures are reported. None of them may be looked at while a policy is tuned.
pub const REPORTED_SEEDS: std::ops::RangeInclusive<u64> = 201..=220;
/// Seeds for tuning.
pub const TUNING_SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Compares placement policies in a simulated cluster. Tables go to standard output, progress to standard error.
#[derive(Debug, Parser)]
#[command(name = "closed-loop")]
pub struct Args {
    /// Variant of the workload
    #[arg(long, value_enum, default_value = "frozen")]
    pub workload: Variant,
    /// Replay the traces in this folder: `WORKLOAD.md` says where they are from
    #[arg(long, value_name = "FOLDER", conflicts_with = "workload")]
    pub traces: Option<PathBuf>,
    /// Only these cells, e.g. `S40,H40`, or of traces `B40,C55`
    #[arg(long, value_delimiter = ',')]
    pub cells: Vec<Cell>,
    /// Seeds, e.g. `1-5` or `201,203` [default: 201-220, the reported ones]
    #[arg(long, value_parser = seeds, value_name = "SEEDS")]
    pub seeds: Option<Seeds>,
    /// Seeds 1 to 5, for tuning
    #[arg(long, conflicts_with = "seeds")]
    pub tuning: bool,
    /// These policies alone, with settings in brackets, e.g. `default,plimsoll[period=20,scale=30]`, and the reference
    #[arg(long, value_parser = policies)]
    pub policies: Option<Policies>,
    /// The policy that others are compared with [default: crane-plugin, or default where that lets all pods wait]
    #[arg(long, value_name = "POLICY")]
    pub reference: Option<Entry>,
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
    let wrong = format!("expected seeds like `1-5` or `201,203`, found `{text}`");
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

/// A list of policies.
#[derive(Debug, Clone)]
pub struct Policies(pub Vec<Entry>);

/// Reads names with settings: commas within brackets separate settings.
fn policies(text: &str) -> Result<Policies, String> {
    let mut depth = 0_u32;
    let between = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    let entries = text.split(between).map(|name| name.trim().parse::<Entry>());
    entries.collect::<Result<_, _>>().map(Policies).map_err(|wrong| format!("{wrong:#}"))
}

impl Args {
    /// The cells to run.
    pub fn cells(&self) -> Vec<Cell> {
        match self.cells.as_slice() {
            [] if self.traces.is_some() => Cell::traced(),
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
    ///
    /// # Errors
    ///
    /// None but in development.
    pub fn policies(&self) -> anyhow::Result<Vec<Entry>> {
        let named = match &self.policies {
            Some(Policies(named)) => named.clone(),
            None => {
                let names = if self.traces.is_some() { BESIDE_TRACES } else { DEFAULT };
                names.iter().map(|name| name.parse()).collect::<anyhow::Result<_>>()?
            }
        };
        let mut all = vec![match &self.reference {
            Some(reference) => reference.clone(),
            None => self.workload.reference().parse()?,
        }];
        for entry in named {
            if all.iter().all(|other| other.to_string() != entry.to_string()) {
                all.push(entry);
            }
        }
        Ok(all)
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
        assert_eq!(args(&[]).seeds(), (201..=220).collect::<Vec<_>>());
        assert!(TUNING_SEEDS.end() < REPORTED_SEEDS.start());
        assert_eq!(args(&["--seeds", "1-3,7"]).seeds(), [1, 2, 3, 7]);
        let policies = args(&[]).policies().unwrap();
        assert_eq!((args(&[]).cells().len(), policies.len()), (9, DEFAULT.len()));
    }

    #[test]
    fn the_reference_always_runs() {
        let args = args(&[
            "--policies",
            "plimsoll[period=20,scale=30],default",
            "--cells",
            "s40",
            "--workload",
            "noisy",
        ]);
        let names: Vec<_> = args.policies().unwrap().iter().map(Entry::to_string).collect();
        assert_eq!(names, ["crane-plugin", "plimsoll[period=20,scale=30]", "default"]);
        let args = self::args(&["--reference", "default", "--policies", "plimsoll,default"]);
        let names: Vec<_> = args.policies().unwrap().iter().map(Entry::to_string).collect();
        assert_eq!(names, ["default", "plimsoll"]);
        let args = self::args(&["--workload", "noisy", "--cells", "s40"]);
        assert_eq!(args.cells()[0].variant, Variant::Noisy);
        assert!(Args::try_parse_from(["closed-loop", "--policies", "x"]).is_err());
    }
}
