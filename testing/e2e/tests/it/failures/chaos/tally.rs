//! Owns what a run counts, its verdict, and the line that reports it.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;

use super::refusals::Cause;
use crate::support::counts::Counts;

/// The counts of a run.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) began: Instant,
    /// Kills by program.
    pub(super) kills: BTreeMap<&'static str, usize>,
    /// Kills of programs that did not run at that moment.
    pub(super) not_running: usize,
    /// Failed pods, each with a replacement.
    pub(super) failures: BTreeMap<Cause, usize>,
    /// Pods that kube-scheduler evicted for others.
    pub(super) evicted: usize,
    /// Pods that had no room when all others ran.
    pub(super) without_room: usize,
    /// Running GPU pods that were compared, each once a round.
    pub(super) compared: usize,
    /// Pods with shares by ResourceClaims that were compared.
    pub(super) compared_by_claims: usize,
    /// What must not be.
    pub(super) faults: Vec<String>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            kills: BTreeMap::new(),
            not_running: 0,
            failures: BTreeMap::new(),
            evicted: 0,
            without_room: 0,
            compared: 0,
            compared_by_claims: 0,
            faults: Vec::new(),
        }
    }

    /// An error with every fault.
    pub(super) fn verdict(&self) -> Result<()> {
        ensure!(self.faults.is_empty(), "{}", self.faults.join("\n"));
        Ok(())
    }

    /// The counts as one line of JSON.
    pub(super) fn json_line(
        &self,
        seed: u64,
        pods: u64,
        counts: &Counts,
        overbooked: &BTreeMap<String, u64>,
    ) -> String {
        let failures: BTreeMap<&str, usize> =
            self.failures.iter().map(|(cause, count)| (cause.label(), *count)).collect();
        let all = json!({
            "seed": seed, "pods": pods, "kills": self.kills, "not_running": self.not_running, "failures": failures,
            "evicted": self.evicted, "without_room": self.without_room, "compared": self.compared,
            "compared_by_claims": self.compared_by_claims,
            "mismatches": counts.mismatches, "overbooked_units": overbooked.values().sum::<u64>(),
            "faults": self.faults.len(), "seconds": self.began.elapsed().as_secs(),
        });
        all.to_string()
    }
}
