//! The command line.

use clap::Parser;

use crate::cell::Cell;
use crate::policies::{DEFAULT, Entry, REFERENCE};

/// Seeds whose figures are reported. None of them may be looked at while a policy is tuned.
pub const REPORTED_SEEDS: std::ops::RangeInclusive<u64> = 201..=220;
/// Seeds for tuning.
pub const TUNING_SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Compares placement policies in a simulated cluster. The table goes to standard output, progress to standard error.
#[derive(Debug, Parser)]
#[command(name = "closed-loop")]
pub struct Args {
    /// Only these cells, e.g. `S40,H40`
    #[arg(long, value_delimiter = ',')]
    pub cells: Vec<Cell>,
    /// Seeds, e.g. `1-5` or `201,203` [default: 201-220, the reported ones]
    #[arg(long, value_parser = seeds, value_name = "SEEDS")]
    pub seeds: Option<Seeds>,
    /// Seeds 1 to 5, for tuning
    #[arg(long, conflicts_with = "seeds")]
    pub tuning: bool,
    /// These policies alone, e.g. `default,plimsoll[hardLimit=0.62]`, and the reference
    #[arg(long, value_delimiter = ',')]
    pub policies: Vec<Entry>,
    /// One day of 50 nodes and one seed, to see that it works
    #[arg(long)]
    pub quick: bool,
    /// Runs at a time [default: the number of cores]
    #[arg(long, short)]
    pub jobs: Option<usize>,
}

/// A list of seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

fn seeds(text: &str) -> Result<Seeds, String> {
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u64>(), last.trim().parse::<u64>())
        else {
            return Err(format!("expected seeds like `1-5` or `201,203`, found `{text}`"));
        };
        seeds.extend(first..=last);
    }
    Ok(Seeds(seeds))
}

impl Args {
    /// The cells to run.
    pub fn cells(&self) -> Vec<Cell> {
        match self.cells.as_slice() {
            [] if self.quick => vec![Cell::all()[4]],
            [] => Cell::all(),
            cells => cells.to_vec(),
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
        let mut named = self.policies.clone();
        if named.is_empty() {
            named = DEFAULT.iter().map(|name| name.parse()).collect::<anyhow::Result<_>>()?;
        }
        let mut all = vec![REFERENCE.parse::<Entry>()?];
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
        let args = args(&["--policies", "plimsoll[hardLimit=0.6],default", "--cells", "s40"]);
        let names: Vec<_> = args.policies().unwrap().iter().map(Entry::to_string).collect();
        assert_eq!(names, ["crane-plugin", "plimsoll[hardLimit=0.6]", "default"]);
        assert_eq!(args.cells(), ["S40".parse().unwrap()]);
        assert!(Args::try_parse_from(["closed-loop", "--policies", "x"]).is_err());
    }
}
