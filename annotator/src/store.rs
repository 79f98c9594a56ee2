//! Where the readings of nodes are stored: in annotations of the Node, or in its NodeLoad, a custom resource.
//!
//! Invariant: no other module distinguishes the two. What differs: crane's readers and kube-scheduler see annotations
//! and no NodeLoad. So the hot value is written as an annotation only, and a write of annotations makes kube-scheduler
//! retry the pods that an extender rejected, while a write of a NodeLoad needs a note on a Node for that.

use std::time::Duration;

use api::share::NodeShare;
use cluster::{
    CallError, Client, Events, NodeFacts, NodeLoadsError, WatchHealth, apply_node_load,
    check_node_loads, patch_node_annotations, watch_node_loads, with_node_loads,
};
use placement::names::{HOT_VALUE, Names};
use placement::policy::{HotRule, LoadPolicy};
use placement::publish::{Urgency, WriteReason};
use placement::reading::{HotValueNote, Reading, ReadingCodec};
use placement::units::{MetricName, NodeName};
use settings::ReadingsIn;

/// Time for the API server to answer whether it has NodeLoads.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Annotations to set (`Some`) or remove.
pub(crate) type AnnotationChanges = Vec<(String, Option<String>)>;

/// A value of the annotation with the share of the cards; `None` removes it.
pub(crate) type ShareAnnotation = Option<NodeShare>;

/// The readings of one node to write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReadingsWrite {
    pub(crate) reason: WriteReason,
    /// The last reading of each metric, with its own time.
    pub(crate) readings: Vec<(MetricName, Reading)>,
    /// `None` if unknown.
    pub(crate) hot_value: Option<HotValueNote>,
    /// The node is over a limit by the readings that are stored, and not by these readings.
    pub(crate) cools: bool,
}

/// All that one job writes of its node. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeWrite {
    pub(crate) readings: Option<ReadingsWrite>,
    /// The share of the cards; `None` if it is not written.
    pub(crate) share: Option<ShareAnnotation>,
    /// Old readings to remove from the Node, and the note that nodes have cooled. Empty while readings are annotations.
    pub(crate) changes: AnnotationChanges,
}

/// One call to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoreCall<'w> {
    /// The value of the label `reason` in metrics.
    pub(crate) reason: &'static str,
    /// The number of readings that it writes.
    pub(crate) readings: usize,
    content: CallContent<'w>,
}

#[derive(Debug, Clone, PartialEq)]
enum CallContent<'w> {
    NodeLoad(&'w [(MetricName, Reading)]),
    Annotations(AnnotationChanges),
}

/// Where readings are stored.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    readings_in: ReadingsIn,
    /// The text form of readings in annotations.
    codec: ReadingCodec,
}

impl Store {
    pub(crate) fn new(readings_in: ReadingsIn, codec: ReadingCodec) -> Self {
        Self { readings_in, codec }
    }

    /// Whether readings are annotations of the Node.
    pub(crate) fn is_on_nodes(&self) -> bool {
        self.readings_in == ReadingsIn::Annotations
    }

    /// Checks that the API server has the store.
    pub(crate) async fn check(&self, client: &Client) -> Result<(), NodeLoadsError> {
        if self.is_on_nodes() { Ok(()) } else { check_node_loads(client, CHECK_TIMEOUT).await }
    }

    /// The events of `nodes`, with the readings in the store. `watch_health` returns the counters of a further watch.
    pub(crate) fn read(
        &self,
        client: &Client,
        nodes: Events<NodeFacts>,
        watch_health: impl FnOnce() -> WatchHealth,
    ) -> Events<NodeFacts> {
        if self.is_on_nodes() {
            return nodes;
        }
        with_node_loads(nodes, watch_node_loads(client.clone(), watch_health()))
    }

    /// The policy's rules for the hot value. There are none in NodeLoads, which crane's readers do not read.
    pub(crate) fn hot_rules<'p>(&self, policy: &'p LoadPolicy) -> &'p [HotRule] {
        if self.is_on_nodes() { &policy.hot } else { &[] }
    }

    /// The least urgent reason for which readings are written at once, by the job that polled them, while other writes
    /// wait for a burst. A write of a NodeLoad makes kube-scheduler retry no pods.
    pub(crate) fn least_urgent_at_once(&self) -> Urgency {
        if self.is_on_nodes() { Urgency::AtOnce } else { Urgency::Soon }
    }

    /// The annotations with readings that this program wrote on a Node before its readings moved to the NodeLoad.
    pub(crate) fn leftovers(&self, policy: &LoadPolicy, facts: &NodeFacts) -> Vec<String> {
        if self.is_on_nodes() {
            return Vec::new();
        }
        let annotations = facts.annotations.iter();
        let ours = annotations.filter(|(key, text)| self.is_reading(policy, key, text));
        ours.map(|(key, _)| key.clone()).collect()
    }

    /// Whether an annotation is a reading or a hot value under this policy.
    fn is_reading(&self, policy: &LoadPolicy, key: &str, text: &str) -> bool {
        if key == HOT_VALUE {
            return !policy.hot.is_empty() && self.codec.decode_hot_value(text).is_ok();
        }
        let is_polled = policy.sync.iter().any(|rule| rule.metric.as_str() == key);
        is_polled && self.codec.decode(text).is_ok()
    }

    /// The calls that carry out a write, in their order: at most one for the NodeLoad and one for the Node.
    pub(crate) fn calls<'w>(&self, names: &Names, write: &'w NodeWrite) -> Vec<StoreCall<'w>> {
        let mut calls = Vec::new();
        let mut changes = write.changes.clone();
        // Why the Node is written: for readings, unless they are in the NodeLoad.
        let mut node_reason = None;
        let mut readings_on_node = 0;
        if let Some(write) = &write.readings {
            let reason = write.reason.label();
            if self.is_on_nodes() {
                changes.extend(self.annotations(write));
                node_reason = Some(reason);
                readings_on_node = write.readings.len();
            } else {
                let content = CallContent::NodeLoad(&write.readings);
                calls.push(StoreCall { reason, readings: write.readings.len(), content });
            }
        }
        if let Some(share) = &write.share {
            changes.push((names.share(), share.as_ref().map(NodeShare::to_json)));
        }
        if !changes.is_empty() {
            let reason = node_reason.unwrap_or_else(|| reason_without_readings(write));
            let content = CallContent::Annotations(changes);
            calls.push(StoreCall { reason, readings: readings_on_node, content });
        }
        calls
    }

    /// The annotations for readings and the hot value.
    fn annotations(&self, write: &ReadingsWrite) -> AnnotationChanges {
        let mut changes = AnnotationChanges::new();
        for (metric, reading) in &write.readings {
            changes.push((metric.to_string(), Some(self.codec.encode(reading))));
        }
        // crane's readers use a hot value for 5 minutes, so every patch with readings contains it, 0 or not.
        if let Some(note) = write.hot_value {
            let text = self.codec.encode_count(note.value as u64, note.at);
            changes.push((HOT_VALUE.to_owned(), Some(text)));
        }
        changes
    }
}

/// The value of the label `reason` of a patch of the Node without readings.
fn reason_without_readings(write: &NodeWrite) -> &'static str {
    if write.share.is_some() {
        "share"
    } else if write.changes.iter().any(|(_, text)| text.is_some()) {
        "cooled"
    } else {
        "leftovers"
    }
}

impl StoreCall<'_> {
    /// Makes the call within `limit`. Readings belong to the machine that was measured: the Node with this UID, not
    /// another one of its name.
    pub(crate) async fn send(
        self,
        client: &Client,
        node: &NodeName,
        uid: &str,
        limit: Duration,
    ) -> Result<(), CallError> {
        match self.content {
            CallContent::NodeLoad(readings) => {
                apply_node_load(client, node, uid, readings, limit).await
            }
            CallContent::Annotations(changes) => {
                patch_node_annotations(client, node, Some(uid), changes, limit).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use placement::units::Ratio;

    use super::*;

    fn readings() -> ReadingsWrite {
        let at = Timestamp::from_second(1_795_165_200).unwrap();
        ReadingsWrite {
            reason: WriteReason::Crossed,
            readings: vec![("cpu".into(), Reading::new(Ratio::new(0.5).unwrap(), at))],
            hot_value: Some(HotValueNote { value: 2.0, at }),
            cools: false,
        }
    }

    /// The reason, the number of readings and the content of each call.
    fn calls(readings_in: ReadingsIn, write: &NodeWrite) -> Vec<(&'static str, usize, String)> {
        let store = Store::new(readings_in, ReadingCodec::default());
        let calls = store.calls(&Names::default(), write).into_iter();
        let calls = calls.map(|call| match call.content {
            CallContent::NodeLoad(readings) => {
                (call.reason, call.readings, format!("NodeLoad of {}", readings.len()))
            }
            CallContent::Annotations(changes) => {
                let keys: Vec<String> = changes.into_iter().map(|(key, _)| key).collect();
                (call.reason, call.readings, keys.join(" "))
            }
        });
        calls.collect()
    }

    #[test]
    fn in_annotations_readings_hot_value_and_share_are_one_patch_of_the_node() {
        let write = NodeWrite { readings: Some(readings()), share: Some(None), changes: vec![] };
        let patch = "cpu node_hot_value plimsoll.dev/gpu-share".to_owned();
        assert_eq!(calls(ReadingsIn::Annotations, &write), [("crossed", 1, patch)]);
    }

    #[test]
    fn in_node_loads_readings_are_written_before_what_is_on_the_node() {
        let write = NodeWrite { readings: Some(readings()), share: Some(None), changes: vec![] };
        let load = ("crossed", 1, "NodeLoad of 1".to_owned());
        let share = ("share", 0, "plimsoll.dev/gpu-share".to_owned());
        assert_eq!(calls(ReadingsIn::NodeLoads, &write), [load, share]);
    }

    #[test]
    fn a_patch_without_readings_has_its_own_reason() {
        let note = ("plimsoll.dev/cooled-at".to_owned(), Some("now".to_owned()));
        let leftover = ("cpu".to_owned(), None);
        for (share, changes, reason) in [
            (Some(None), vec![note.clone()], "share"),
            (None, vec![leftover.clone(), note], "cooled"),
            (None, vec![leftover], "leftovers"),
        ] {
            let write = NodeWrite { readings: None, share, changes };
            let calls = calls(ReadingsIn::NodeLoads, &write);
            assert_eq!(calls.iter().map(|call| call.0).collect::<Vec<_>>(), [reason]);
        }
        assert_eq!(calls(ReadingsIn::NodeLoads, &NodeWrite::default()), []);
    }
}
