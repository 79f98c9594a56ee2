//! Which GPUs take no units, since ResourceClaims have them.
//!
//! Invariant: a GPU of which a claim holds a part takes no units, whatever the node's label says.

use std::sync::Arc;

use tokio::sync::watch;

use crate::gpus::closed::ByClaims;
use crate::gpus::node_settings::NodeSettings;
use crate::records::SharedRecords;

/// Follows what decides on that.
pub(crate) struct ModeWatch {
    /// Whether this plugin serves ResourceClaims; without, the label means nothing.
    pub serves_claims: bool,
    /// What operators set on the Node; `None` until it is known.
    pub settings: watch::Receiver<Option<NodeSettings>>,
    /// What claims hold.
    pub records: Arc<SharedRecords>,
    /// Where the outcome is put.
    pub by_claims: watch::Sender<Option<Arc<ByClaims>>>,
}

impl ModeWatch {
    /// Follows it until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&self) {
        let mut settings = self.settings.clone();
        let mut records = self.records.changes();
        loop {
            // Until the label is known a GPU takes neither: a node that is given out by claims must take no units.
            let labelled = settings.borrow_and_update().as_ref().is_none_or(|set| set.by_claims);
            let gpus = self.records.lock().resource_claims.gpus();
            let now = ByClaims { all: self.serves_claims && labelled, gpus };
            daemon::publish(&self.by_claims, Some(Arc::new(now)));
            tokio::select! {
                changed = settings.changed() => if changed.is_err() { return },
                changed = records.changed() => if changed.is_err() { return },
            }
        }
    }
}
