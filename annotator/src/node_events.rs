//! Events on Nodes: a taint that was set or cleared, and an exporter that is silent for minutes.
//!
//! Invariants: the main loop does not wait for an event. A task of its own writes them, few a second; if its queue is
//! full, an event is left out, and the log and the metrics still have what it tells.

use std::time::Duration;

use cluster::{EventKind, EventText, EventWriter};
use daemon::Shutdown;
use jiff::SignedDuration;
use placement::units::{MetricName, NodeName};
use tokio::sync::mpsc;

use crate::exporter::error::PollError;
use crate::taints::WhyCleared;

/// News in the queue at most: of a whole cluster whose exporters become silent at once.
const QUEUE: usize = 16_384;

/// The pause between two events: 5 a second.
const PAUSE: Duration = Duration::from_millis(200);

/// The timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What has happened to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeNews {
    /// It carries a taint for its load now, of this key.
    Tainted(String),
    /// That taint was cleared, for this reason.
    TaintCleared(WhyCleared),
    /// Its exporter has not answered for so long, at last for this reason. Where the node's address has changed, it was
    /// here before.
    ExporterSilent { lasts: SignedDuration, error: PollError, moved_from: Option<String> },
    /// Its exporter answers again, after so long.
    ExporterAnswers { after: SignedDuration },
}

/// The sender of news.
#[derive(Debug, Clone)]
pub(crate) struct NodeEvents(mpsc::Sender<(NodeName, NodeNews)>);

/// The queue of news.
pub(crate) struct NodeEventsQueue(mpsc::Receiver<(NodeName, NodeNews)>);

impl NodeEvents {
    /// The sender and the queue.
    pub(crate) fn new() -> (Self, NodeEventsQueue) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Self(sender), NodeEventsQueue(queue))
    }

    /// Queues news of a node.
    pub(crate) fn tell(&self, node: &NodeName, news: NodeNews) {
        // A full queue means that thousands of events wait already.
        let _ = self.0.try_send((node.clone(), news));
    }
}

/// The event that tells the news of a node.
fn event(node: &NodeName, news: &NodeNews) -> (EventKind, EventText) {
    let (kind, reason, action, note) = match news {
        NodeNews::Tainted(key) => (
            EventKind::Warning,
            "HotNodeTainted",
            "Taint",
            format!(
                "The node is over a load limit and carries the taint {key} until it is below. Which limit: kubectl \
                 plimsoll top nodes"
            ),
        ),
        NodeNews::TaintCleared(why) => {
            let why = why_cleared(why);
            let note = format!("The taint for the node's load was cleared: {why}.");
            (EventKind::Normal, "HotNodeTaintCleared", "Taint", note)
        }
        NodeNews::ExporterSilent { lasts, error, moved_from } => (
            EventKind::Warning,
            "ExporterSilent",
            "Poll",
            format!(
                "The annotator has had no answer from this node's exporter for {} minutes ({error}).{} Once its \
                 readings are stale, load limits do not count here. Look at: kubectl -n NAMESPACE get pods -o wide \
                 --field-selector spec.nodeName={node}, with Plimsoll's namespace",
                lasts.as_mins(),
                moved_from.as_deref().map_or_else(String::new, after_move),
            ),
        ),
        NodeNews::ExporterAnswers { after } => (
            EventKind::Normal,
            "ExporterAnswers",
            "Poll",
            format!(
                "The exporter answers again, after {} minutes without readings.",
                after.as_mins()
            ),
        ),
    };
    (kind, EventText { reason, action, note })
}

/// The remedy where the exporter was at this address before. Deleting the pod is the only one: a pod of the host's
/// network keeps the address that it started with, and the kubelet probes it there for ever.
fn after_move(from: &str) -> String {
    format!(
        " The node's InternalIP has changed, and the exporter was at {from}: the kubelet goes on probing its pod there. \
         Delete that pod, and its DaemonSet makes one with the new address."
    )
}

fn why_cleared(why: &WhyCleared) -> String {
    match why {
        WhyCleared::Below => "the load is below every limit".to_owned(),
        WhyCleared::Unknown(metrics) => format!(
            "no load that is known is over its limit, but {} is missing or stale, so the node may still be hot",
            joined(metrics)
        ),
        WhyCleared::NotWanted => {
            "no taints are to be set on this node (--node-selector, --taint-hot-nodes)".to_owned()
        }
    }
}

/// The metrics' names, with commas.
fn joined(metrics: &[MetricName]) -> String {
    let names: Vec<&str> = metrics.iter().map(MetricName::as_str).collect();
    names.join(", ")
}

/// Writes the events until the shutdown.
///
/// # Errors
///
/// None: an event that cannot be written is logged.
pub(crate) async fn write_events(
    mut queue: NodeEventsQueue,
    writer: EventWriter,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let writing = async {
        while let Some((node, news)) = queue.0.recv().await {
            let (kind, text) = event(&node, &news);
            if let Err(error) = writer.write_of_node(&node, kind, &text, TIMEOUT).await {
                tracing::warn!(%node, reason = text.reason, %error, "cannot write an event");
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    shutdown.run_until_cancelled(writing).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_and_a_silence_are_faults_and_their_ends_are_none() {
        let node = NodeName::from("a");
        let of = |news| event(&node, &news);
        let minutes = SignedDuration::from_mins;
        let (kind, text) = of(NodeNews::Tainted("hot".to_owned()));
        assert!(kind == EventKind::Warning && text.note.contains("taint hot"), "{text:?}");
        let (kind, text) = of(NodeNews::ExporterSilent {
            lasts: minutes(6),
            error: PollError::Timeout(Duration::from_secs(3)),
            moved_from: None,
        });
        assert!(kind == EventKind::Warning && text.note.contains("for 6 minutes ("), "{text:?}");
        assert!(!text.note.contains("InternalIP"), "{text:?}");
        let (_, text) = of(NodeNews::ExporterSilent {
            lasts: minutes(2),
            error: PollError::Timeout(Duration::from_secs(3)),
            moved_from: Some("10.0.0.1:19101".to_owned()),
        });
        let says = "the exporter was at 10.0.0.1:19101: ";
        assert!(text.note.contains(says) && text.note.contains("Delete that pod"), "{text:?}");
        // The API server's limit.
        assert!(text.note.len() < 1024);
        for (why, says) in [
            (WhyCleared::Below, "below every limit"),
            (WhyCleared::Unknown(vec!["a".into(), "b".into()]), "a, b is missing or stale"),
            (WhyCleared::NotWanted, "no taints are to be set"),
        ] {
            let (kind, text) = of(NodeNews::TaintCleared(why));
            assert!(kind == EventKind::Normal && text.note.contains(says), "{text:?}");
        }
        let (kind, text) = of(NodeNews::ExporterAnswers { after: minutes(7) });
        assert!(kind == EventKind::Normal && text.note.contains("after 7 minutes"), "{text:?}");
    }
}
