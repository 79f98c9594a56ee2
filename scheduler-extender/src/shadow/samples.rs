//! The comparisons of the last hour.
//!
//! Invariant: all are of the same two policies; a pod has one comparison, its newest; there are a thousand at most.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::load::ResolvedPolicy;

use super::Comparison;

/// Comparisons at most: one takes some 600 bytes.
pub(crate) const MAX_SAMPLES: usize = 1_000;

/// How long a comparison is kept.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// By time, oldest first.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// The two policies that they compare.
    policies: Option<[Arc<ResolvedPolicy>; 2]>,
    samples: VecDeque<Arc<Comparison>>,
}

impl Samples {
    /// Adds a comparison of these two policies. Drops comparisons of other policies.
    pub(super) fn insert(
        &mut self,
        comparison: Arc<Comparison>,
        policies: [&Arc<ResolvedPolicy>; 2],
    ) {
        let is_of_these = self.policies.as_ref().is_some_and(|known| {
            known.iter().zip(policies).all(|(known, policy)| Arc::ptr_eq(known, policy))
        });
        if !is_of_these {
            self.samples.clear();
            self.policies = Some(policies.map(Arc::clone));
        }
        self.samples.retain(|other| other.pod.uid != comparison.pod.uid);
        self.samples.push_back(comparison);
        if self.samples.len() > MAX_SAMPLES {
            self.samples.pop_front();
        }
    }

    /// The comparisons of the last hour, newest first.
    pub(super) fn newest_first(&self, now: Timestamp) -> Vec<Arc<Comparison>> {
        let newest = self.samples.iter().rev();
        newest.filter(|sample| now.duration_since(sample.time).abs() < MAX_AGE).cloned().collect()
    }
}
