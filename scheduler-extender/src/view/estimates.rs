//! What pods will probably use: what their workloads were seen to use, as last told, and what their specs say.
//!
//! Invariant: what was told counts for a bounded time. After that, requests count again, as for a workload of which nothing
//! is known.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use cluster::Pod;
use jiff::{SignedDuration, Timestamp};
use placement::estimate::{Estimate, LearnedUse, PodProfile};
use placement::names::Names;
use placement::resources::PerResource;
use placement::workload::WorkloadId;

use super::View;

/// For how long learned use counts after it was told last.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// What workloads were seen to use.
pub type ByWorkload = HashMap<WorkloadId, PerResource<Option<LearnedUse>>>;

/// What each workload was seen to use, as one immutable value that is swapped as a whole.
#[derive(Default)]
pub struct LearnedUses {
    by_workload: ArcSwap<ByWorkload>,
    /// Second of the last telling.
    told_at: AtomicI64,
}

impl LearnedUses {
    /// Replaces all of them.
    pub fn set(&self, by_workload: ByWorkload, now: Timestamp) {
        self.by_workload.store(by_workload.into());
        self.confirm(now);
    }

    /// They were told again, unchanged.
    pub fn confirm(&self, now: Timestamp) {
        self.told_at.store(now.as_second(), Ordering::Relaxed);
    }

    /// How many workloads are known.
    pub fn len(&self) -> usize {
        self.by_workload.load().len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops them all once they are too old.
    pub fn expire(&self, now: Timestamp) {
        let age = now.as_second().saturating_sub(self.told_at.load(Ordering::Relaxed));
        if age > MAX_AGE.as_secs() && !self.is_empty() {
            self.by_workload.store(Arc::default());
        }
    }

    fn of(&self, pod: &Pod) -> PerResource<Option<LearnedUse>> {
        let told = self.by_workload.load();
        if told.is_empty() {
            return PerResource::default();
        }
        let workload = pod.workload().and_then(|workload| told.get(&workload).copied());
        workload.unwrap_or_default()
    }
}

impl View {
    /// What a pod will probably use, by the policy in force; `None` where that estimates no pods.
    pub fn estimate(&self, pod: &Pod, _names: &Names) -> Option<Estimate> {
        let board = self.load.read();
        let rules = board.policy.policy.estimates.as_ref()?;
        let profile = PodProfile {
            resources: pod.resources(),
            annotated: PerResource::default(),
            learned: if rules.learned { self.learned.of(pod) } else { PerResource::default() },
        };
        Some(profile.estimate(rules))
    }
}
