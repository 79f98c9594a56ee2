//! What stands on a node, for the choice of pods to evict: every pod of lower priority with what its end frees, and
//! what of the node's resources the pod to be placed lacks.
//!
//! It is read from the API server on demand: preemption is rare, and the requests of all pods of a cluster would take
//! much memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{GetParams, ListParams, Request};
use kube::{Client, Resource as _};
use placement::gpu::{Evictable, Shortfall};
use placement::moves::{Covering, Labelled, beyond_budgets};
use placement::names::Names;
use placement::node_rules::NodeRules;
use placement::units::PodUid;

use crate::answer::{OF_A_NODE, PAGE, each, object};
use crate::budget::{Budgets, labelled};
use crate::call::{CallError, within};
use crate::event::PodReference;
use crate::node::Node;
use crate::pod::Pod;
use crate::quantity::Quantity;

/// Pods of one node that are looked at. Kubernetes supports 110.
pub(crate) const MAX_PODS: usize = 1_000;

/// The part of an amount by which sums of decimal fractions may be off.
const ROUNDING: f64 = 1e-9;

/// A node as one pod's preemption sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Occupants {
    /// The pods of lower priority.
    pub evictable: Vec<Evictable>,
    /// The names of these pods.
    pub names: BTreeMap<PodUid, PodReference>,
    /// Pods whose deletion has begun, whatever their priority: what they hold will be free.
    pub ending: BTreeSet<PodUid>,
    /// What the pod lacks of each resource but GPU memory.
    pub shortfall: Shortfall,
    covering: BTreeMap<PodUid, Vec<Covering>>,
    /// Whether the pod may not be placed on the node: its rules do not allow it, as where it is cordoned, or not
    /// everything of the node can be read.
    pub keeps_out: bool,
}

impl Occupants {
    /// The budgets that cover a pod of lower priority.
    pub fn covering(&self, pod: &PodUid) -> &[Covering] {
        self.covering.get(pod).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The pods of a node, before it is known which budgets cover them.
pub struct NodePods<'p> {
    room: Room<'p>,
    node: Node,
}

/// Reads a node, and its pods for `pod`.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`, or the list is too long.
pub async fn node_pods<'p>(
    client: &Client,
    node: &str,
    pod: &'p Pod,
    names: &Names,
    limit: Duration,
) -> Result<NodePods<'p>, CallError> {
    let nodes = Request::new(Node::url_path(&(), None));
    let pods = Request::new(Pod::url_path(&(), None));
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
    let mut room = Room::new(pod, names);
    let get = async { object::<Node>(client, nodes.get(node, &GetParams::default())).await };
    let list = each(client, &pods, &on_node, OF_A_NODE, |other: Pod| room.add(&other));
    let (node, ()) = tokio::try_join!(within(limit, get), within(limit, list))?;
    Ok(NodePods { room, node })
}

impl NodePods<'_> {
    /// The namespaces of the pods that could be evicted.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.room.standing.iter().filter_map(|pod| Some(pod.labelled.as_ref()?.namespace.as_str()))
    }

    /// The pods that could be preempted, and what has to be freed. The pod may be placed by `rules`.
    pub fn occupants(self, budgets: &Budgets, rules: &NodeRules) -> Occupants {
        self.room.occupants(&self.node, budgets, rules)
    }
}

/// The pods of a node, as a pod needs them that is to be placed there. Of each, only what counts is kept.
struct Room<'p> {
    pod: &'p Pod,
    /// What the pod requests, without GPU memory.
    wanted: Vec<(String, f64)>,
    standing: Vec<Standing>,
    ending: BTreeSet<PodUid>,
    /// Whether what a pod there requests is not known.
    has_unread_pod: bool,
}

/// A pod that has not ended.
struct Standing {
    reference: PodReference,
    uid: PodUid,
    priority: i32,
    started_at: Option<Timestamp>,
    /// What it holds of each resource that is wanted.
    holds: Vec<f64>,
    /// What budgets look at; `None` for a pod that may not be evicted.
    labelled: Option<Labelled>,
}

impl<'p> Room<'p> {
    fn new(pod: &'p Pod, names: &Names) -> Self {
        let wanted = pod
            .scheduled_requests()
            .into_iter()
            .filter(|(resource, amount)| *resource != names.gpu_resource() && *amount > 0.0)
            .collect();
        let (standing, ending) = Default::default();
        Self { pod, wanted, standing, ending, has_unread_pod: false }
    }

    /// Adds a pod that stands there. More than [`MAX_PODS`] are not added.
    fn add(&mut self, other: &Pod) {
        if other.is_finished() || self.standing.len() >= MAX_PODS {
            return;
        }
        if other.is_deleting() {
            self.ending.insert(other.uid());
        }
        self.has_unread_pod |= other.is_unread();
        let requests = other.scheduled_requests();
        let holds = self
            .wanted
            .iter()
            .map(|(resource, _)| requests.get(resource).copied().unwrap_or(0.0))
            .collect();
        let may_go = other.priority() < self.pod.priority();
        self.standing.push(Standing {
            reference: about(other),
            uid: other.uid(),
            priority: other.priority(),
            started_at: other.started_at(),
            holds,
            labelled: may_go.then(|| labelled(other)),
        });
    }

    fn shortfall(&self, node: &Node) -> Shortfall {
        let allocatable = node.allocatable();
        let mut shortfall = Vec::with_capacity(self.wanted.len() + 1);
        for (at, (resource, wanted)) in self.wanted.iter().enumerate() {
            let used: f64 = self.standing.iter().filter_map(|pod| pod.holds.get(at)).sum();
            let there = allocatable.get(resource).and_then(Quantity::amount).unwrap_or(0.0);
            // Less by what rounding can add, so that victims that free just enough do.
            shortfall.push((used + wanted - there - ROUNDING * (used + wanted)).max(0.0));
        }
        // A pod takes one of the places for pods.
        let places = allocatable.get("pods").and_then(Quantity::amount);
        shortfall.push(
            places.map_or(0.0, |places| (self.standing.len() as f64 + 1.0 - places).max(0.0)),
        );
        shortfall
    }

    fn occupants(self, node: &Node, budgets: &Budgets, rules: &NodeRules) -> Occupants {
        let shortfall = self.shortfall(node);
        let keeps_out = self.has_unread_pod || !node.is_whole() || !rules.allow(&node.traits());
        let mut lower = self.standing;
        lower.retain(|other| other.labelled.is_some());
        // As kube-scheduler does: the most important pods use a budget up first.
        lower.sort_by_key(|pod| (std::cmp::Reverse(pod.priority), pod.started_at));
        let covers: Vec<Vec<Covering>> = lower
            .iter()
            .map(|pod| pod.labelled.iter().flat_map(|it| budgets.covering(it)).collect())
            .collect();
        let violates = beyond_budgets(covers.iter().map(Vec::as_slice));
        let (mut evictable, mut names) = (Vec::new(), BTreeMap::new());
        let mut covering = BTreeMap::new();
        for ((pod, violates_budget), by) in lower.into_iter().zip(violates).zip(covers) {
            evictable.push(Evictable {
                uid: pod.uid.clone(),
                priority: pod.priority,
                violates_budget,
                frees: pod.holds.into_iter().chain([1.0]).collect(),
            });
            if !by.is_empty() {
                covering.insert(pod.uid.clone(), by);
            }
            names.insert(pod.uid, pod.reference);
        }
        Occupants { evictable, names, ending: self.ending, shortfall, covering, keeps_out }
    }
}

pub(crate) fn about(pod: &Pod) -> PodReference {
    PodReference {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, priority: i32, cpu: &str, labels: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "ml", "uid": name, "labels": labels },
            "spec": {
                "priority": priority,
                "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "1" } } }],
                "containers": [
                    { "name": "c", "resources": { "requests": { "cpu": cpu, "aliyun.com/gpu-mem": "4" } } },
                ],
            },
        }))
        .unwrap()
    }

    fn budget(allowed: i64, selector: &Value) -> Value {
        json!({ "spec": { "selector": selector }, "status": { "disruptionsAllowed": allowed } })
    }

    fn of(new: &Pod, names: &Names, node: &Node, pods: &[Pod], budgets: &[Value]) -> Occupants {
        let mut room = Room::new(new, names);
        pods.iter().for_each(|pod| room.add(pod));
        room.occupants(node, &Budgets::of_objects("ml", budgets), &NodeRules::default())
    }

    fn seen(budgets: &[Value]) -> Occupants {
        let app = json!({ "app": "a" });
        let pods = ["a", "b"].map(|name| pod(name, 0, "2", &app));
        let pods =
            pods.into_iter().chain([pod("same", 5, "1", &app), pod("c", 1, "500m", &json!({}))]);
        let new = pod("new", 5, "3", &json!({}));
        let node = json!({ "status": { "allocatable": { "cpu": "7", "pods": 4 } } });
        let node = serde_json::from_value(node).unwrap();
        of(&new, &Names::default(), &node, &pods.collect::<Vec<_>>(), budgets)
    }

    #[test]
    fn pods_of_lower_priority_may_go_and_what_they_free_is_told() {
        let Occupants { evictable, shortfall, .. } = seen(&[]);
        let pods: Vec<_> = evictable.iter().map(|pod| (pod.uid.as_str(), pod.priority)).collect();
        assert_eq!(pods, [("c", 1), ("a", 0), ("b", 0)]);
        // An init container requests more than the app: 1 core. 2 + 2 + 1 + 1 are used of 7, 3 are wanted.
        assert_eq!(evictable[0].frees, [1.0, 1.0]);
        assert!(
            (shortfall[0] - 2.0).abs() < 1e-6 && (shortfall[1] - 1.0).abs() < 1e-6,
            "{shortfall:?}"
        );
    }

    #[test]
    fn sums_of_fractions_lack_nothing_that_is_there_and_no_more_than_a_pod_frees() {
        let none = json!({});
        let node = json!({ "status": { "allocatable": { "cpu": "3300m", "pods": 9 } } });
        let of = |wanted, others: &[&str]| {
            let new = pod("new", 5, wanted, &none);
            let others: Vec<_> = others.iter().map(|name| pod(name, 0, "1100m", &none)).collect();
            let node = serde_json::from_value(node.clone()).unwrap();
            of(&new, &Names::default(), &node, &others, &[]).shortfall[0]
        };
        assert_eq!(of("2200m", &["a"]), 0.0);
        assert!(of("2201m", &["a"]) > 0.0);
        let full = of("1100m", &["a", "b", "c"]);
        assert!(full <= 1.1 && full > 1.099, "{full}");
    }

    fn violating(budgets: &[Value]) -> Vec<String> {
        let evictable = seen(budgets).evictable;
        let violating = evictable.iter().filter(|pod| pod.violates_budget);
        violating.map(|pod| pod.uid.to_string()).collect::<Vec<_>>()
    }

    #[test]
    fn a_budget_allows_so_many_evictions() {
        let app = json!({ "matchLabels": { "app": "a" } });
        assert_eq!(violating(&[budget(1, &app)]), ["b"]);
        assert_eq!(violating(&[budget(0, &app), budget(5, &app)]), ["a", "b"]);
        let other =
            json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["a"] }] });
        assert!(violating(&[budget(0, &other)]).is_empty());
        assert_eq!(violating(&[budget(0, &json!({}))]), ["a", "b"]);
        assert!(violating(&[budget(0, &Value::Null)]).is_empty());
    }

    #[test]
    fn each_pod_has_the_budgets_that_cover_it() {
        let [app, other] = ["a", "b"].map(|app| json!({ "matchLabels": { "app": app } }));
        let covering = seen(&[budget(1, &other), budget(2, &app)]).covering;
        let of_app = vec![Covering { budget: 1, allowed: 2 }];
        assert_eq!(covering, ["a", "b"].map(|pod| (pod.into(), of_app.clone())).into());
    }
}
