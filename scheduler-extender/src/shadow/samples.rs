//! The comparisons of the last hour.
//!
//! Invariant: all are of the same two policies; a pod has one comparison, its newest; there are a thousand at most, of
//! which each namespace has a share.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use placement::load::ResolvedPolicy;
use placement::shares::SharedTable;
use placement::units::PodUid;

use super::Comparison;
use crate::tables::Table;

/// Comparisons at most.
pub(crate) const MAX_SAMPLES: usize = Table::ShadowSamples.most();

/// How long a comparison is kept.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// By time, oldest first.
#[derive(Debug)]
pub(crate) struct Samples {
    /// The two policies that they compare.
    policies: Option<[Arc<ResolvedPolicy>; 2]>,
    samples: SharedTable<PodUid, Arc<Comparison>>,
}

impl Default for Samples {
    fn default() -> Self {
        Self { policies: None, samples: Table::ShadowSamples.empty() }
    }
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
            self.samples = Table::ShadowSamples.empty();
            self.policies = Some(policies.map(Arc::clone));
        }
        let pod = Arc::clone(&comparison.pod);
        self.samples.insert(&pod.namespace, pod.uid.clone(), comparison);
    }

    /// The comparisons of the last hour, newest first.
    pub(super) fn newest_first(&self, now: Timestamp) -> Vec<Arc<Comparison>> {
        let is_recent = |sample: &&Arc<Comparison>| now.duration_since(sample.time).abs() < MAX_AGE;
        self.samples.iter().rev().map(|(_, sample)| sample).filter(is_recent).cloned().collect()
    }
}

#[cfg(test)]
mod tabled {
    use cluster::Pod;
    use placement::load::ResolvedPolicy;
    use serde_json::json;

    use super::*;
    use crate::decisions::{DecidedPod, Decision};
    use crate::node_request::CandidateNodes;
    use crate::shadow::compare;
    use crate::tables::Tabled;
    use crate::view::{PodEstimates, fixtures};

    impl Tabled for Samples {
        fn add(&mut self, namespace: &str, name: &str) {
            let meta = json!({ "namespace": namespace, "name": name, "uid": name });
            let pod: Pod = serde_json::from_value(json!({ "metadata": meta })).unwrap();
            let pod = DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO);
            let snapshot = fixtures::view().read();
            let nodes = CandidateNodes::new(snapshot.names(), []);
            let decision = Decision::new(snapshot, pod, None, nodes, Timestamp::UNIX_EPOCH);
            let known = self.policies.as_ref().map(|[policy, _]| Arc::clone(policy));
            let policy: Arc<ResolvedPolicy> =
                known.unwrap_or_else(|| Arc::clone(decision.policy()));
            let comparison = compare(&decision, &policy);
            self.insert(Arc::new(comparison), [&policy, &policy]);
        }

        fn has(&self, name: &str) -> bool {
            self.samples.get(&name.into()).is_some()
        }
    }
}
