//! What stands on a node, for the choice of pods to evict: every pod of lower priority with what its end frees, and what of
//! the node's resources the pod to be placed lacks.
//!
//! It is read from the API server on demand: preemption is rare, and the requests of all pods of a cluster would take much memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client};
use placement::gpu::{Evictable, Shortfall};
use placement::names::Names;
use placement::units::PodUid;
use serde::Deserialize;

use crate::call::{CallError, within};
use crate::event::PodReference;
use crate::meta::{Meta, null_is_default, resource};
use crate::node::Node;
use crate::pod::Pod;
use crate::quantity::Quantity;

/// Pods of one node that are looked at. Kubernetes supports 110.
const MAX_PODS: u32 = 1_000;

/// The part of an amount by which sums of decimal fractions may be off.
const ROUNDING: f64 = 1e-9;

/// The parts of a PodDisruptionBudget that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Budget {
    #[serde(default)]
    pub(crate) metadata: Meta,
    #[serde(default)]
    spec: BudgetSpec,
    #[serde(default)]
    status: BudgetStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct BudgetSpec {
    selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetStatus {
    #[serde(deserialize_with = "null_is_default")]
    disruptions_allowed: i64,
    /// Pods that are evicted already and count no more, by name.
    #[serde(deserialize_with = "null_is_default")]
    disrupted_pods: BTreeMap<String, serde::de::IgnoredAny>,
}

resource!(Budget, NamespaceResourceScope, "policy", "PodDisruptionBudget", "poddisruptionbudgets");

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
    /// Whether the pod may not be placed on the node: it is cordoned, or has a taint that the pod does not tolerate.
    pub keeps_out: bool,
}

/// A budget that covers a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Covering {
    /// Its place among the budgets.
    pub budget: usize,
    /// How many evictions it allows now.
    pub allowed: i64,
}

impl Occupants {
    /// The budgets that cover a pod of lower priority.
    pub fn covering(&self, pod: &PodUid) -> &[Covering] {
        self.covering.get(pod).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Every PodDisruptionBudget of the cluster.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`.
pub async fn budgets(client: &Client, limit: Duration) -> Result<Vec<Budget>, CallError> {
    let api: Api<Budget> = Api::all(client.clone());
    Ok(within(limit, api.list(&ListParams::default())).await?.items)
}

/// The pods of a node that `pod` could preempt, and what has to be freed for it.
///
/// # Errors
///
/// Where the API server refuses or does not answer within `limit`.
pub async fn occupants(
    client: &Client,
    node: &str,
    pod: &Pod,
    names: &Names,
    budgets: &[Budget],
    limit: Duration,
) -> Result<Occupants, CallError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(MAX_PODS);
    let (node, pods) =
        tokio::try_join!(within(limit, nodes.get(node)), within(limit, pods.list(&on_node)))?;
    Ok(of(pod, names, &node, pods.items, budgets))
}

fn of(pod: &Pod, names: &Names, node: &Node, mut pods: Vec<Pod>, budgets: &[Budget]) -> Occupants {
    let allocatable = node.allocatable();
    pods.retain(|pod| !pod.is_finished());
    let wanted: Vec<(String, f64)> = pod
        .scheduled_requests()
        .into_iter()
        .filter(|(resource, amount)| *resource != names.gpu_resource() && *amount > 0.0)
        .collect();
    let of_each: Vec<BTreeMap<String, f64>> = pods.iter().map(Pod::scheduled_requests).collect();
    let shortfall = |(resource, wanted): &(String, f64)| {
        let used: f64 = of_each.iter().filter_map(|requests| requests.get(resource)).sum();
        let there = allocatable.get(resource).and_then(Quantity::amount).unwrap_or(0.0);
        // Less by what rounding can add, so that victims that free just enough do.
        (used + wanted - there - ROUNDING * (used + wanted)).max(0.0)
    };
    // A pod takes one of the places for pods.
    let places = allocatable.get("pods").and_then(Quantity::amount);
    let place = places.map_or(0.0, |places| (pods.len() as f64 + 1.0 - places).max(0.0));
    let shortfall: Shortfall = wanted.iter().map(shortfall).chain([place]).collect();
    let frees = |requests: &BTreeMap<String, f64>| {
        let of = |(resource, _): &(String, f64)| requests.get(resource).copied().unwrap_or(0.0);
        wanted.iter().map(of).chain([1.0]).collect()
    };
    let mut lower: Vec<(&Pod, Vec<f64>)> =
        pods.iter().zip(&of_each).map(|(pod, requests)| (pod, frees(requests))).collect();
    lower.retain(|(other, _)| other.priority() < pod.priority());
    // As kube-scheduler does: the most important pods use a budget up first.
    lower.sort_by_key(|(pod, _)| (std::cmp::Reverse(pod.priority()), pod.started_at()));
    let covering: Vec<_> = lower.iter().map(|(pod, _)| covering(pod, budgets)).collect();
    let violates = beyond_budgets(covering.iter().map(Vec::as_slice));
    let covering = lower.iter().zip(covering).filter(|(_, covering)| !covering.is_empty());
    let covering = covering.map(|((pod, _), covering)| (pod.uid(), covering)).collect();
    let names = lower.iter().map(|(pod, _)| (pod.uid(), about(pod))).collect();
    let evictable = lower.into_iter().zip(violates).map(|((pod, frees), violates_budget)| {
        Evictable { uid: pod.uid(), priority: pod.priority(), violates_budget, frees }
    });
    let evictable = evictable.collect();
    let ending = pods.iter().filter(|pod| pod.is_deleting()).map(Pod::uid).collect();
    let keeps_out = node.keeps_out(pod.tolerations());
    Occupants { evictable, names, ending, shortfall, covering, keeps_out }
}

fn about(pod: &Pod) -> PodReference {
    PodReference {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_string(),
    }
}

fn covering(pod: &Pod, budgets: &[Budget]) -> Vec<Covering> {
    let covering = budgets.iter().enumerate().filter(|(_, budget)| budget.covers(pod));
    let of = |(at, budget): (usize, &Budget)| Covering {
        budget: at,
        allowed: budget.status.disruptions_allowed,
    };
    covering.map(of).collect()
}

/// Whether each pod's eviction is more than a budget allows, after those before it, by the budgets that cover each.
pub fn beyond_budgets<'c>(pods: impl Iterator<Item = &'c [Covering]>) -> Vec<bool> {
    let mut used: BTreeMap<usize, i64> = BTreeMap::new();
    let mut evict = |Covering { budget, allowed }: &Covering| {
        let used = used.entry(*budget).or_default();
        *used += 1;
        *used > *allowed
    };
    // Each budget counts every pod that it covers, also where another allows none.
    pods.map(|covering| covering.iter().fold(false, |beyond, of| beyond | evict(of))).collect()
}

impl Budget {
    fn covers(&self, pod: &Pod) -> bool {
        let namespace = self.metadata.object.namespace.as_deref();
        let disrupted = self.status.disrupted_pods.contains_key(pod.name());
        namespace == Some(pod.namespace())
            && !disrupted
            && self.spec.selector.as_ref().is_some_and(|selector| matches(selector, pod))
    }
}

/// A selector that cannot be read matches no pod, as in kube-scheduler.
fn matches(selector: &LabelSelector, pod: &Pod) -> bool {
    let labels = pod.metadata.object.labels.as_ref();
    // kube-scheduler leaves pods without labels out.
    let Some(labels) = labels.filter(|labels| !labels.is_empty()) else { return false };
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
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

    fn budget(allowed: i64, selector: &Value) -> Budget {
        serde_json::from_value(json!({
            "metadata": { "name": "b", "namespace": "ml" },
            "spec": { "selector": selector },
            "status": { "disruptionsAllowed": allowed },
        }))
        .unwrap()
    }

    fn seen(budgets: &[Budget]) -> Occupants {
        let app = json!({ "app": "a" });
        let pods = ["a", "b"].map(|name| pod(name, 0, "2", &app));
        let pods =
            pods.into_iter().chain([pod("same", 5, "1", &app), pod("c", 1, "500m", &json!({}))]);
        let new = pod("new", 5, "3", &json!({}));
        let node = json!({ "status": { "allocatable": { "cpu": "7", "pods": 4 } } });
        let node = serde_json::from_value(node).unwrap();
        of(&new, &Names::default(), &node, pods.collect(), budgets)
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
            let others = others.iter().map(|name| pod(name, 0, "1100m", &none)).collect();
            let node = serde_json::from_value(node.clone()).unwrap();
            of(&new, &Names::default(), &node, others, &[]).shortfall[0]
        };
        assert_eq!(of("2200m", &["a"]), 0.0);
        assert!(of("2201m", &["a"]) > 0.0);
        let full = of("1100m", &["a", "b", "c"]);
        assert!(full <= 1.1 && full > 1.099, "{full}");
    }

    #[test]
    fn a_budget_allows_so_many_evictions() {
        let violating = |budgets: &[Budget]| {
            let evictable = seen(budgets).evictable;
            let violating = evictable.iter().filter(|pod| pod.violates_budget);
            violating.map(|pod| pod.uid.to_string()).collect::<Vec<_>>()
        };
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
