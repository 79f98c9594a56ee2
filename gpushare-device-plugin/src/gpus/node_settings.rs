//! What operators set for this node's GPUs on its Node: which of them are cordoned, and whether they are given out by
//! units or by ResourceClaims.
//!
//! Invariant: while the API server does not answer, the last settings stay in force.

use std::collections::BTreeSet;

use cluster::{Event, Events, Node};
use futures::StreamExt;
use placement::names::Names;
use placement::units::GpuId;
use tokio::sync::watch;

/// The value of the label `gpu-mode` with which the GPUs are given out by ResourceClaims. Any other, and none, is by
/// units.
const BY_CLAIMS: &str = "claims";

/// The settings of a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeSettings {
    /// The GPUs that take no new pods, by the annotation `cordoned-gpus`.
    pub cordoned: BTreeSet<GpuId>,
    /// Whether the GPUs are given out by ResourceClaims, by the label `gpu-mode`.
    pub by_claims: bool,
    /// The Node's UID.
    pub uid: Option<String>,
}

/// The settings on this Node.
pub(crate) fn of(node: &Node, names: &Names) -> NodeSettings {
    NodeSettings {
        cordoned: node
            .annotation(&names.cordoned_gpus())
            .map(api::cordoned::parse)
            .unwrap_or_default(),
        by_claims: node.label(&names.gpu_mode()) == Some(BY_CLAIMS),
        uid: node.uid().map(str::to_owned),
    }
}

/// Publishes the settings of the Node's events until the shutdown. A Node that is gone has none.
pub(crate) async fn follow(
    mut events: Events<NodeSettings>,
    sender: watch::Sender<Option<NodeSettings>>,
    shutdown: daemon::Shutdown,
) {
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.next() => event,
        };
        let settings = match event {
            Some(Event::Listed(nodes)) => nodes.into_iter().next().unwrap_or_default(),
            Some(Event::Applied(settings)) => settings,
            Some(Event::Gone(_)) => NodeSettings::default(),
            Some(Event::Listing) => continue,
            None => return,
        };
        daemon::publish(&sender, Some(settings));
    }
}
