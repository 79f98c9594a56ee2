//! Events on Nodes: a taint that was set or cleared, and an exporter that is silent for minutes.
//!
//! Invariants: the main loop does not wait for an event. A task of its own writes them, few a second; if its queue is
//! full, an event is left out, and the log and the metrics still have what it tells.

use std::collections::HashMap;
use std::time::Duration;

use cluster::{EventKind, EventText, EventWriter};
use daemon::Shutdown;
use placement::units::NodeName;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// News in the queue at most: of a whole cluster whose exporters become silent at once.
const QUEUE: usize = 16_384;

/// How long an exporter is silent before its node gets an event. Restarts and updates take less.
const SILENT_FOR: Duration = Duration::from_secs(5 * 60);

/// The pause between two events: 5 a second.
const PAUSE: Duration = Duration::from_millis(200);

/// The period of checks for exporters that have been silent for long enough.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What has happened to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeNews {
    /// It carries a taint for its load now, of this key.
    Tainted(String),
    /// That taint was cleared.
    TaintCleared,
    /// Its exporter does not answer, for this reason.
    ExporterSilent(String),
    /// Its exporter answers again.
    ExporterAnswers,
    /// It is gone, or not polled any more.
    Gone,
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

/// An event on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeEvent {
    node: NodeName,
    kind: EventKind,
    text: EventText,
}

/// The exporters that are silent.
#[derive(Debug, Default)]
struct SilentExporters(HashMap<NodeName, Silence>);

#[derive(Debug)]
struct Silence {
    since: Instant,
    error: String,
    has_event: bool,
}

impl SilentExporters {
    /// The event that news are worth at once.
    fn apply(&mut self, node: NodeName, news: NodeNews, now: Instant) -> Option<NodeEvent> {
        match news {
            NodeNews::Tainted(key) => Some(NodeEvent {
                node,
                kind: EventKind::Warning,
                text: EventText {
                    reason: "HotNodeTainted",
                    action: "Taint",
                    note: format!(
                        "The node is over a load limit and carries the taint {key} until it is below. Which limit: \
                         kubectl plimsoll top nodes"
                    ),
                },
            }),
            NodeNews::TaintCleared => Some(NodeEvent {
                node,
                kind: EventKind::Normal,
                text: EventText {
                    reason: "HotNodeTaintCleared",
                    action: "Taint",
                    note: "The taint for the node's load was cleared.".to_owned(),
                },
            }),
            NodeNews::ExporterSilent(error) => {
                let silence = Silence { since: now, error: error.clone(), has_event: false };
                self.0.entry(node).or_insert(silence).error = error;
                None
            }
            NodeNews::ExporterAnswers => {
                let silence = self.0.remove(&node).filter(|silence| silence.has_event)?;
                let minutes = now.duration_since(silence.since).as_secs() / 60;
                Some(NodeEvent {
                    node,
                    kind: EventKind::Normal,
                    text: EventText {
                        reason: "ExporterAnswers",
                        action: "Poll",
                        note: format!(
                            "The exporter answers again, after {minutes} minutes without readings."
                        ),
                    },
                })
            }
            NodeNews::Gone => {
                self.0.remove(&node);
                None
            }
        }
    }

    /// The events of exporters that have been silent for long enough at `now`, each once.
    fn due(&mut self, now: Instant) -> Vec<NodeEvent> {
        let mut events = Vec::new();
        for (node, silence) in &mut self.0 {
            if silence.has_event || now.duration_since(silence.since) < SILENT_FOR {
                continue;
            }
            silence.has_event = true;
            let error = &silence.error;
            let note = format!(
                "The annotator has had no answer from this node's exporter for 5 minutes ({error}). Once its readings \
                 are stale, load limits do not count here. Look at: kubectl -n NAMESPACE get pods -o wide \
                 --field-selector spec.nodeName={node}, with Plimsoll's namespace"
            );
            let text = EventText { reason: "ExporterSilent", action: "Poll", note };
            events.push(NodeEvent { node: node.clone(), kind: EventKind::Warning, text });
        }
        events
    }
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
        let mut silent = SilentExporters::default();
        let mut checks = interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let events = tokio::select! {
                news = queue.0.recv() => match news {
                    Some((node, news)) => silent.apply(node, news, Instant::now()).into_iter().collect(),
                    None => return,
                },
                _ = checks.tick() => silent.due(Instant::now()),
            };
            for NodeEvent { node, kind, text } in events {
                if let Err(error) = writer.write_of_node(&node, kind, &text, TIMEOUT).await {
                    let reason = text.reason;
                    tracing::warn!(%node, reason, %error, "cannot write an event");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    };
    shutdown.run_until_cancelled(writing).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(events: impl IntoIterator<Item = NodeEvent>) -> Vec<&'static str> {
        events.into_iter().map(|event| event.text.reason).collect()
    }

    #[test]
    fn an_exporter_has_one_event_after_five_silent_minutes_and_one_when_it_answers() {
        let (mut silent, start) = (SilentExporters::default(), Instant::now());
        let node = NodeName::from("a");
        let second = |seconds| start + Duration::from_secs(seconds);
        for (at, error) in [(0, "refused"), (120, "no answer in time")] {
            let news = NodeNews::ExporterSilent(error.to_owned());
            assert_eq!(silent.apply(node.clone(), news, second(at)), None);
        }
        assert_eq!(silent.due(second(299)), []);
        let due = silent.due(second(300));
        assert!(
            due[0].kind == EventKind::Warning && due[0].text.note.contains("(no answer in time)"),
            "{due:?}"
        );
        assert_eq!(reasons(due), ["ExporterSilent"]);
        assert_eq!(silent.due(second(900)), []);
        let answers = silent.apply(node.clone(), NodeNews::ExporterAnswers, second(960));
        assert_eq!(reasons(answers), ["ExporterAnswers"]);
        assert_eq!(silent.apply(node, NodeNews::ExporterAnswers, second(961)), None);
    }

    #[test]
    fn a_short_silence_and_a_node_that_is_gone_have_no_event() {
        let (mut silent, start) = (SilentExporters::default(), Instant::now());
        for (node, end) in [("a", NodeNews::ExporterAnswers), ("b", NodeNews::Gone)] {
            let news = NodeNews::ExporterSilent("refused".to_owned());
            assert_eq!(silent.apply(node.into(), news, start), None);
            assert_eq!(silent.apply(node.into(), end, start), None);
        }
        assert_eq!(silent.due(start + Duration::from_secs(3_600)), []);
        assert!(silent.0.is_empty());
    }

    #[test]
    fn a_taint_that_is_set_is_a_fault_and_one_that_is_cleared_is_none() {
        let (mut silent, now) = (SilentExporters::default(), Instant::now());
        let set = silent.apply("a".into(), NodeNews::Tainted("hot".to_owned()), now).unwrap();
        assert!(set.kind == EventKind::Warning && set.text.note.contains("taint hot"));
        let cleared = silent.apply("a".into(), NodeNews::TaintCleared, now).unwrap();
        assert_eq!(cleared.kind, EventKind::Normal);
    }
}
