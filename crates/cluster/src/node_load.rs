//! NodeLoads: nodes' readings in objects of their own, which kube-scheduler does not watch.
//!
//! Invariant: a reading in a NodeLoad passes the same checks as one in an annotation. Anyone with the right to write
//! NodeLoads may have written it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use api::node_load::{GROUP, KIND, MAX_METRICS, NodeLoad, PLURAL, Reading, VERSION};
use kube::api::{ListParams, Patch, PatchParams, Request};
use kube::{Api, Client, Resource as _};
use placement::reading::{self, ReadingError};
use placement::units::{MetricName, NodeName};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::NodeFacts;
use crate::answer::acknowledged;
use crate::call::{CallError, within};
use crate::join::{Addition, with_addition};
use crate::meta::{Meta, resource};
use crate::watch::{Event, Events};

/// Who owns the fields that [`apply_node_load`] writes.
const FIELD_MANAGER: &str = "plimsoll-annotator";

/// Characters of an entry that is no reading, in its error.
const SHOWN: usize = 64;

/// A NodeLoad as it comes. What is wrong in one must not break the list of all.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeLoadObject {
    metadata: Meta,
    readings: Value,
}

resource!(NodeLoadObject, ClusterResourceScope, GROUP, VERSION, KIND, PLURAL);

/// The readings of a node; an error where an entry is none.
type Readings = Vec<(MetricName, Result<reading::Reading, ReadingError>)>;

/// What a NodeLoad says.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeLoadFacts {
    /// Its name, which is the node's.
    pub node: NodeName,
    /// Its readings, by metric: at most [`MAX_METRICS`].
    pub readings: Readings,
}

impl NodeLoadObject {
    pub(crate) fn facts(&self) -> NodeLoadFacts {
        let name = self.metadata.object.name.as_deref().unwrap_or_default();
        let entries = self.readings.as_object().into_iter().flatten().take(MAX_METRICS);
        let readings = entries.filter_map(|(metric, entry)| {
            let entry = Reading::deserialize(entry)
                .map_err(|_| ReadingError::Shape(entry.to_string().chars().take(SHOWN).collect()));
            Some((MetricName::parse(metric)?, entry.and_then(|entry| entry.read())))
        });
        NodeLoadFacts { node: NodeName::from(name), readings: readings.collect() }
    }
}

/// Why NodeLoads cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeLoadsError {
    /// The API server does not know the kind.
    #[error(
        "the API server has no NodeLoads: kubectl apply -f deploy/components/nodeloads/crd.yaml, \
         or give --readings-in=annotations"
    )]
    Unknown,
    /// The program may not list them.
    #[error(
        "this program may not list NodeLoads: name deploy/components/nodeloads under `components:` of your \
         kustomization.yaml, or give --readings-in=annotations: {0}"
    )]
    Forbidden(String),
}

/// Whether NodeLoads can be listed, asked once. An API server that does not answer now counts as one that has them.
///
/// # Errors
///
/// [`NodeLoadsError`].
pub async fn check_node_loads(client: &Client, limit: Duration) -> Result<(), NodeLoadsError> {
    let loads: Api<NodeLoadObject> = Api::all(client.clone());
    match within(limit, loads.list(&ListParams::default().limit(1))).await {
        Err(CallError::NotFound(_)) => Err(NodeLoadsError::Unknown),
        Err(CallError::Refused { code: 403, message }) => Err(NodeLoadsError::Forbidden(message)),
        Err(error) => {
            tracing::warn!(%error, "cannot tell whether the API server has NodeLoads");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Makes these the readings of a node's NodeLoad, which is created where there is none; it goes with the Node of that
/// UID. One call.
///
/// # Errors
///
/// [`CallError`]; with [`CallError::Unknown`] it may have been written.
pub async fn apply_node_load(
    client: &Client,
    node: &NodeName,
    uid: &str,
    readings: &[(MetricName, reading::Reading)],
    limit: Duration,
) -> Result<(), CallError> {
    let load = NodeLoad {
        readings: readings
            .iter()
            .map(|(metric, reading)| (metric.to_string(), Reading::new(reading)))
            .collect::<BTreeMap<_, _>>(),
    };
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid});
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND,
        "metadata": {"name": node, "ownerReferences": [owner]},
        "readings": load.readings,
    });
    let loads = Request::new(NodeLoadObject::url_path(&(), None));
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let request = loads.patch(node.as_str(), &params, &Patch::Apply(object));
    within(limit, acknowledged(client, request)).await
}

/// The events of `nodes`, each node with the readings of its NodeLoad in place of its annotations, as [`with_addition`]
/// does.
#[must_use]
pub fn with_node_loads(
    nodes: Events<NodeFacts>,
    loads: Events<NodeLoadFacts>,
) -> Events<NodeFacts> {
    with_addition(nodes, loads, NodeLoads::default())
}

/// Readings by node.
#[derive(Default)]
struct NodeLoads(HashMap<NodeName, Readings>);

impl Addition for NodeLoads {
    type Object = NodeLoadFacts;

    fn kept(&self, facts: &NodeFacts) -> Option<NodeFacts> {
        Some(NodeFacts { readings: Vec::new(), ..facts.clone() })
    }

    fn complete(&self, facts: NodeFacts) -> NodeFacts {
        let readings = self.0.get(&facts.name).cloned().unwrap_or_default();
        NodeFacts { readings, ..facts }
    }

    fn take(
        &mut self,
        event: Event<NodeLoadFacts>,
        kept: &HashMap<NodeName, NodeFacts>,
    ) -> Vec<NodeName> {
        match event {
            Event::Listing => Vec::new(),
            Event::Listed(all) => {
                let before = std::mem::replace(
                    &mut self.0,
                    all.into_iter().map(|load| (load.node, load.readings)).collect(),
                );
                kept.keys().filter(|node| before.get(*node) != self.0.get(*node)).cloned().collect()
            }
            Event::Applied(load) => {
                self.0.insert(load.node.clone(), load.readings);
                vec![load.node]
            }
            Event::Gone(load) => {
                self.0.remove(&load.node);
                vec![load.node]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use placement::names::Names;
    use placement::reading::ReadingCodec;

    use futures::stream::{self, StreamExt};

    use super::*;
    use crate::Node;
    use crate::join::Completed;

    fn load(name: &str, readings: &Value) -> NodeLoadFacts {
        let object = json!({"metadata": {"name": name}, "readings": readings});
        serde_json::from_value::<NodeLoadObject>(object).unwrap().facts()
    }

    fn cpu(value: &str) -> Value {
        json!({"cpu_usage_avg_5m": {"value": value, "time": "2026-11-20T09:00:00Z"}})
    }

    fn node(name: &str) -> NodeFacts {
        let annotations = json!({"cpu_usage_avg_5m": "0.9,2026-11-20T09:00:00Z"});
        let node = json!({"metadata": {"name": name, "annotations": annotations}});
        let node: Node = serde_json::from_value(node).unwrap();
        node.facts(&Names::default(), &ReadingCodec::default())
    }

    /// Each node of the event with the values of its readings.
    fn told(event: Event<NodeFacts>) -> Vec<String> {
        let all = match event {
            Event::Listing => Vec::new(),
            Event::Listed(all) => all,
            Event::Applied(one) | Event::Gone(one) => vec![one],
        };
        all.into_iter()
            .map(|facts| {
                let values: Vec<_> = facts
                    .readings
                    .iter()
                    .map(|(_, reading)| {
                        reading.as_ref().map_or_else(ToString::to_string, |reading| {
                            reading.value.get().to_string()
                        })
                    })
                    .collect();
                format!("{}: {}", facts.name, values.join(" "))
            })
            .collect()
    }

    #[test]
    fn an_entry_that_is_no_reading_is_an_error_and_breaks_nothing_else() {
        let entries = json!({
            "a": "0.5", "b": {"value": "-1", "time": "2026-11-20T09:00:00Z"},
            "c": {"value": "0.5", "time": "now"}, "d": {"value": "0.5", "time": "2026-11-20T09:00:00Z"},
            "e": {"value": 0.5, "time": "2026-11-20T09:00:00Z"}, "not a metric": {},
        });
        let good = load("n", &entries)
            .readings
            .into_iter()
            .map(|(metric, reading)| (metric.to_string(), reading.is_ok()));
        let wanted = [("a", false), ("b", false), ("c", false), ("d", true), ("e", false)];
        let wanted = wanted.map(|(metric, good)| (metric.to_owned(), good));
        assert_eq!(good.collect::<Vec<_>>(), wanted);
        for odd in [Value::Null, json!([]), json!("x")] {
            assert!(load("n", &odd).readings.is_empty());
        }
    }

    #[test]
    fn more_metrics_than_are_allowed_are_not_read() {
        let entries: serde_json::Map<_, _> =
            (0..2 * MAX_METRICS).map(|n| (format!("m{n}"), json!({}))).collect();
        assert_eq!(load("n", &entries.into()).readings.len(), MAX_METRICS);
    }

    #[tokio::test]
    async fn nodes_wait_for_the_node_loads_and_their_annotations_are_not_read() {
        let nodes = stream::iter([Event::Listed(vec![node("a"), node("b")])]).boxed();
        let loads = stream::iter([Event::Listing, Event::Listed(vec![load("a", &cpu("0.5"))])]);
        // An endless stream, as that of a watch.
        let mut events = with_node_loads(nodes, loads.chain(stream::pending()).boxed());
        assert_eq!(told(events.next().await.unwrap()), ["a: 0.5", "b: "]);
    }

    #[test]
    fn a_changed_node_load_tells_of_its_node_and_one_without_a_node_of_none() {
        let mut completed = Completed::new(NodeLoads::default());
        assert!(completed.take_object(Event::Listed(vec![load("a", &cpu("0.5"))])).is_empty());
        completed.take_node(Event::Listed(vec![node("a"), node("b")]));
        let mut take = |event| -> Vec<String> {
            completed.take_object(event).into_iter().flat_map(told).collect()
        };
        assert_eq!(take(Event::Applied(load("a", &cpu("0.6")))), ["a: 0.6"]);
        assert!(take(Event::Applied(load("gone", &cpu("0.6")))).is_empty());
        assert_eq!(take(Event::Gone(load("a", &Value::Null))), ["a: "]);
        // After a list only what differs.
        let all = vec![load("a", &Value::Null), load("b", &cpu("0.7"))];
        let mut listed = take(Event::Listed(all));
        listed.sort();
        assert_eq!(listed, ["a: ", "b: 0.7"]);
    }

    #[test]
    fn a_node_that_joins_after_its_node_load_has_its_readings() {
        let mut completed = Completed::new(NodeLoads::default());
        completed.take_object(Event::Listed(vec![load("a", &cpu("0.5"))]));
        assert_eq!(told(completed.take_node(Event::Applied(node("a")))), ["a: 0.5"]);
    }
}
