//! Writes an event on each node that takes no GPU pods for a while.

use std::sync::Arc;
use std::time::Duration;

use cluster::{EventKind, EventText, EventWriter};
use daemon::Shutdown;

use crate::view::{BegunBackOff, Index, View};

/// The pause between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// The timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Writes the events until the shutdown.
///
/// # Errors
///
/// None: an event that cannot be written is logged.
pub(crate) async fn write_back_offs(
    view: Arc<View>,
    writer: EventWriter,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        for begun in view.change(Index::take_begun_back_offs) {
            let node = &begun.node;
            let text = warning(&begun);
            let written = writer.write_of_node(node, EventKind::Warning, &text, TIMEOUT).await;
            if let Err(error) = written {
                tracing::warn!(%node, %error, "cannot write the event GPUPodsBackedOff");
            }
        }
    }
    Ok(())
}

fn warning(begun: &BegunBackOff) -> EventText {
    let BegunBackOff { namespace, until, all, .. } = begun;
    let whose = if *all {
        "pods of all namespaces".to_owned()
    } else {
        format!("pods of namespace {namespace}")
    };
    EventText {
        reason: "GPUPodsBackedOff",
        action: "Filter",
        note: format!(
            "Several GPU pods of namespace {namespace} that were bound here with a GPU were refused by the kubelet, or \
             could not be started, so {whose} go elsewhere until {until:.0}. Their events say why: kubectl get events \
             -A --field-selector reason=UnexpectedAdmissionError, or reason=Failed"
        ),
    }
}
