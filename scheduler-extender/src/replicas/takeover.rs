//! What a replica does between taking the Lease and assigning GPUs.

use std::sync::Arc;

use daemon::Shutdown;

use super::{ReplicaMetrics, Replicas};
use crate::view::View;

/// Lists pods and nodes again in each term of this replica, until the shutdown.
///
/// # Errors
///
/// None: a list that fails is retried.
pub async fn prepare(
    replicas: Arc<Replicas>,
    view: Arc<View>,
    metrics: ReplicaMetrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    shutdown.run_until_cancelled(prepare_each_term(&replicas, &view, &metrics)).await;
    Ok(())
}

async fn prepare_each_term(replicas: &Replicas, view: &View, metrics: &ReplicaMetrics) {
    let mut leadership = replicas.leadership.clone();
    let mut taken = leadership.clone();
    loop {
        let term = leadership.term();
        let known = *replicas.prepared.borrow();
        if let Some(number) = term
            && known != term
        {
            let listed = async {
                let of_claims = async {
                    if let Some(claims) = &view.claims {
                        claims.relist(number).await;
                    }
                };
                // The lists run concurrently.
                tokio::join!(view.nodes.relist(number), view.pods.relist(number), of_claims)
            };
            tokio::select! {
                _ = listed => {
                    replicas.prepared.send_replace(term);
                    metrics.count_term();
                    let term = number;
                    tracing::info!(term, "this replica gives out GPUs: it has listed all nodes and pods again");
                }
                () = taken.until_term_is_not(term) => continue,
            }
        }
        leadership.until_term_is_not(term).await;
    }
}
