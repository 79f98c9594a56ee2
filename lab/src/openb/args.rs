//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// How much of a cluster's GPUs placement policies give out, by replay of a trace. Without files, the default trace is
/// replayed from its tables of counts.
#[derive(Debug, Parser)]
#[command(name = "openb")]
pub struct Args {
    /// List of nodes: cpu_milli, memory_mib, gpu, model; or count beside them
    #[arg(long, value_name = "FILE", requires = "pods")]
    pub nodes: Option<PathBuf>,
    /// Lists of pods: cpu_milli, memory_mib, num_gpu, gpu_milli; gpu_spec, count and times may stand beside them
    #[arg(long, value_name = "FILE", requires = "nodes", value_delimiter = ',', num_args = 1..)]
    pub pods: Vec<PathBuf>,
    /// Policies to run [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub policy: Vec<PolicyName>,
    /// Seeds, e.g. `42-51` or `42,50`
    #[arg(long, value_parser = seeds, value_name = "SEEDS", default_value = "42-51")]
    pub seeds: Seeds,
    /// Pods end: needs lists with creation_time and deletion_time
    #[arg(long, requires = "pods")]
    pub departures: bool,
    /// Replay nothing: write the nodes, and the pods of the first seed until 100% of the GPUs are asked for, as objects
    /// of Kubernetes to nodes.json and pods.json in this folder. See lab/openb-live.sh
    #[arg(long, value_name = "FOLDER")]
    pub objects: Option<PathBuf>,
    /// The objects ask for GPUs by ResourceClaims: slices.json and claims.json too
    #[arg(long, requires = "objects")]
    pub by_claims: bool,
}

/// A policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// Best fit, as published
    Bestfit,
    /// Fragmentation gradient descent, as published
    Fgd,
    /// Ours: placement::gpu::fragmentation, which learns from the pods that have arrived
    Plimsoll,
    /// The same with the whole list known beforehand, as the published policies know it
    PlimsollGiven,
}

impl PolicyName {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bestfit => "bestfit",
            Self::Fgd => "fgd",
            Self::Plimsoll => "plimsoll",
            Self::PlimsollGiven => "plimsoll-given",
        }
    }
}

/// A list of seeds; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// More seeds are a mistake.
const MOST_SEEDS: u64 = 10_000;

fn seeds(text: &str) -> Result<Seeds, String> {
    read_seeds(text).ok_or_else(|| {
        format!("expected up to {MOST_SEEDS} seeds like `42-51` or `42,50`, found `{text}`")
    })
}

fn read_seeds(text: &str) -> Option<Seeds> {
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u64 = first.trim().parse().ok()?;
        let last: u64 = last.trim().parse().ok()?;
        if last < first || last - first >= MOST_SEEDS {
            return None;
        }
        seeds.extend(first..=last);
    }
    Some(Seeds(seeds))
}

impl Args {
    /// The policies to run.
    pub fn policies(&self) -> Vec<PolicyName> {
        match self.policy.as_slice() {
            [] => PolicyName::value_variants().to_vec(),
            policies => policies.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_lists_of_ranges_and_nonsense_is_refused() {
        assert_eq!(read("42-44,7").unwrap(), [42, 43, 44, 7]);
        for wrong in ["", "a", "5-1", "0-18446744073709551615", "1-"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    fn read(seeds: &str) -> clap::error::Result<Vec<u64>> {
        Args::try_parse_from(["openb", "--seeds", seeds]).map(|args| args.seeds.0)
    }

    #[test]
    fn nodes_and_pods_come_together() {
        assert!(Args::try_parse_from(["openb", "--nodes", "a"]).is_err());
        assert_eq!(Args::try_parse_from(["openb"]).unwrap().policies().len(), 4);
    }
}
