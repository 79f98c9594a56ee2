//! Writes about pods that the API server refuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{CallError, PodFacts};
use placement::units::PodUid;
use tokio::time::Instant;

use super::REWRITE_AFTER;
use crate::gpus::ids::Ids;

/// Pods that the API server takes no write for, as by an admission policy, and when it said so. They are tried again
/// after [`REWRITE_AFTER`]: each round would be a call every two seconds for as long as the pod lives.
#[derive(Default)]
pub(super) struct RefusedWrites(BTreeMap<PodUid, Instant>);

impl RefusedWrites {
    pub(super) fn contains(&self, pod: &PodUid) -> bool {
        self.0.get(pod).is_some_and(|at| at.elapsed() < REWRITE_AFTER)
    }

    /// The outcome of a write for the pod, where a refusal that another round would not change is none.
    pub(super) fn keep(
        &mut self,
        facts: &PodFacts,
        written: Result<(), CallError>,
    ) -> Result<(), CallError> {
        match written {
            // 429 is flow control.
            Err(CallError::Refused { code, message }) if code != 429 => {
                let PodFacts { uid, namespace, name: pod, .. } = facts;
                tracing::warn!(
                    %uid,
                    namespace,
                    pod,
                    code,
                    "cannot write the pod's annotations, trying again in 5 minutes: {message}"
                );
                self.0.insert(facts.uid.clone(), Instant::now());
                Ok(())
            }
            // The pod is deleted, or another pod has its name.
            Err(CallError::NotFound(_) | CallError::Conflict(_)) => Ok(()),
            other => other,
        }
    }

    pub(super) fn retain(&mut self, pods: &[(Arc<PodFacts>, Ids)]) {
        self.0.retain(|uid, _| pods.iter().any(|(facts, _)| facts.uid == *uid));
    }
}
