//! The GPUs that operators have cordoned, by the annotation `cordoned-gpus` of this plugin's own Node.
//!
//! Invariant: while the API server does not answer, the last list stays in force.

use std::collections::BTreeSet;

use cluster::{Event, Events, Node};
use futures::StreamExt;
use placement::units::GpuId;
use tokio::sync::watch;

/// The cordoned GPUs of a Node; `key` is the annotation's.
pub(crate) fn of(node: &Node, key: &str) -> BTreeSet<GpuId> {
    node.annotation(key).map(api::cordoned::parse).unwrap_or_default()
}

/// Publishes the cordoned GPUs of the Node's events until the shutdown. A Node that is gone has none.
pub(crate) async fn follow(
    mut events: Events<BTreeSet<GpuId>>,
    sender: watch::Sender<Option<BTreeSet<GpuId>>>,
    shutdown: daemon::Shutdown,
) {
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.next() => event,
        };
        let gpus = match event {
            Some(Event::Listed(nodes)) => nodes.into_iter().next().unwrap_or_default(),
            Some(Event::Applied(gpus)) => gpus,
            Some(Event::Gone(_)) => BTreeSet::new(),
            Some(Event::Listing) => continue,
            None => return,
        };
        sender.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&gpus);
            *known = Some(gpus);
            changed
        });
    }
}
