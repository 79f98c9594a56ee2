//! Tells pods by events that a container of theirs has a weaker isolation than the policy requires.

use std::sync::Arc;

use placement::units::PodUid;
use tokio::sync::broadcast::error::RecvError;

use super::Admission;
use super::allocate::Grant;
use crate::isolation::support::Missing;
use crate::isolation::{Decision, Isolation};
use crate::node_events::NodeEvents;
use crate::pods::PodRef;

/// Downgrades that wait for their event; older ones are dropped.
pub(super) const KEPT: usize = 64;

/// A container that got a weaker isolation.
#[derive(Debug, Clone)]
pub(super) struct Downgrade {
    pod: PodRef,
    uid: PodUid,
    note: String,
}

impl Downgrade {
    pub(super) fn of(
        grant: &Grant,
        decided: &Decision,
        wanted: Isolation,
        missing: &Missing,
    ) -> Self {
        let (container, isolation) = (&grant.container, decided.isolation);
        let note = format!(
            "the GPU memory of container {container} is held to its share by `{isolation}` in place of `{wanted}`: {missing}"
        );
        Self { pod: PodRef::of(&grant.facts), uid: grant.facts.uid.clone(), note }
    }
}

/// Writes an event for each downgrade until the shutdown.
pub async fn run(admission: Arc<Admission>, events: NodeEvents, shutdown: daemon::Shutdown) {
    let mut downgrades = admission.downgrades.subscribe();
    let writes = async {
        loop {
            match downgrades.recv().await {
                Ok(Downgrade { pod, uid, note }) => {
                    let (reason, action) = ("GPUIsolationDowngraded", "Allocate");
                    events.warn_of_pod(&pod, &uid, reason, action, note).await;
                }
                Err(RecvError::Lagged(dropped)) => {
                    tracing::warn!(dropped, "pods were not told of a weaker isolation by events");
                }
                Err(RecvError::Closed) => return,
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = writes => {}
    }
}
