//! Tells pods by events that a container of theirs is held to less than the policy or they themselves ask for.

use std::sync::Arc;

use cluster::EventText;
use placement::units::PodUid;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::Admission;
use super::allocate::Grant;
use crate::isolation::support::Missing;
use crate::isolation::{ComputeNotEnforced, Decision, Isolation};
use crate::node_events::NodeEvents;
use crate::pods::PodRef;

/// Downgrades that wait for their event; older ones are dropped.
pub(super) const KEPT: usize = 64;

/// A container that is held to less than is asked for.
#[derive(Debug, Clone)]
pub(super) struct Downgrade {
    pod: PodRef,
    uid: PodUid,
    reason: &'static str,
    note: String,
}

impl Downgrade {
    /// Its isolation is weaker than the policy's.
    pub(super) fn of_memory(
        grant: &Grant,
        decided: &Decision,
        wanted: Isolation,
        missing: &Missing,
    ) -> Self {
        let note = format!(
            "the GPU memory of container {} is held to its share by `{}` in place of `{wanted}`: {missing}",
            grant.container, decided.isolation
        );
        Self::of(grant, "GPUIsolationDowngraded", note)
    }

    /// Nothing holds it to the part of the compute that it asks for.
    pub(super) fn of_compute(grant: &Grant, why: &ComputeNotEnforced) -> Self {
        let note = format!(
            "the gpu-cores of container {} are accounted for and not enforced: {why}",
            grant.container
        );
        Self::of(grant, "GPUComputeNotEnforced", note)
    }

    fn of(grant: &Grant, reason: &'static str, note: String) -> Self {
        Self { pod: PodRef::of(&grant.facts), uid: grant.facts.uid.clone(), reason, note }
    }
}

/// Writes an event for each downgrade until the shutdown.
pub(crate) async fn run(admission: Arc<Admission>, events: NodeEvents, shutdown: daemon::Shutdown) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = write_events(admission.downgrades.subscribe(), &events) => {}
    }
}

async fn write_events(mut downgrades: Receiver<Downgrade>, events: &NodeEvents) {
    loop {
        match downgrades.recv().await {
            Ok(Downgrade { pod, uid, reason, note }) => {
                let warning = EventText { reason, action: "Allocate", note };
                events.warn_of_pod(&pod, &uid, &warning).await;
            }
            Err(RecvError::Lagged(dropped)) => {
                tracing::warn!(
                    dropped,
                    "no events for some containers with a weaker isolation: too many at once"
                );
            }
            Err(RecvError::Closed) => return,
        }
    }
}
