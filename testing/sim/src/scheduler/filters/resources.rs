//! What pods request, what is free on a node, and how kube-scheduler's own plugins score a node.
//!
//! Only the plugins that tell these nodes apart: NodeResourcesFit (LeastAllocated) and NodeResourcesBalancedAllocation,
//! over requests of CPU and memory. They do not see measured load.

use std::sync::Arc;

use placement::node_rules::NodeTraits;
use placement::quantity::amount;
use placement::resources::{PODS, Requests, add, missing, peak_requests, subtract};
use serde_json::Value;

use super::node::node_traits;
use crate::json::{list, name};

/// What the score counts for a pod without requests (`GetNonzeroRequests`): cores and bytes.
const DEFAULT_REQUESTS: [(&str, f64); 2] = [("cpu", 0.1), ("memory", 200.0 * 1024.0 * 1024.0)];

/// A node and the sum of its pods' requests.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::scheduler) struct NodeResources {
    pub(in crate::scheduler) name: String,
    pub(in crate::scheduler) traits: NodeTraits,
    allocatable: Requests,
    requested: Requests,
}

/// What a pod requests at its peak, one of `pods` included: its app containers and sidecars together, or an init
/// container beside the sidecars before it.
pub(in crate::scheduler) fn requests(pod: &Value) -> Requests {
    let init = list(&pod["spec"]["initContainers"])
        .map(|container| (container_requests(container), container["restartPolicy"] == "Always"));
    let apps = list(&pod["spec"]["containers"]).map(container_requests);
    let mut requests = peak_requests(init, apps);
    requests.insert(PODS.to_owned(), 1.0);
    requests
}

/// Requests; where only limits are given, those.
fn container_requests(container: &Value) -> Requests {
    let mut requests = amounts(&container["resources"]["limits"]);
    requests.extend(amounts(&container["resources"]["requests"]));
    requests
}

fn amounts(map: &Value) -> Requests {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), quantity(value))).collect()
}

/// A quantity as a number; 0 where it is none.
fn quantity(value: &Value) -> f64 {
    value.as_str().map_or_else(|| value.as_f64(), amount).unwrap_or(0.0)
}

fn insufficient(resource: &str) -> String {
    if resource == PODS { "Too many pods".to_owned() } else { format!("Insufficient {resource}") }
}

impl NodeResources {
    /// A node without pods.
    pub(in crate::scheduler) fn new(node: &Arc<Value>) -> Self {
        Self {
            name: name(node).to_owned(),
            traits: node_traits(node),
            allocatable: amounts(&node["status"]["allocatable"]),
            requested: Requests::new(),
        }
    }

    /// Adds a pod's requests.
    pub(in crate::scheduler) fn add(&mut self, requests: &Requests) {
        add(&mut self.requested, requests);
    }

    /// Takes a pod's requests off.
    pub(in crate::scheduler) fn remove(&mut self, requests: &Requests) {
        subtract(&mut self.requested, requests);
    }

    /// The same node without pods.
    pub(in crate::scheduler) fn emptied(&self) -> Self {
        Self { requested: Requests::new(), ..self.clone() }
    }

    /// Checks whether this much is free.
    ///
    /// # Errors
    /// kube-scheduler's reasons, one for each resource of which too little is free.
    pub(in crate::scheduler) fn check(&self, requests: &Requests) -> Result<(), Vec<String>> {
        let mut free = self.allocatable.clone();
        // A node that does not name them takes any number of pods here. kube-scheduler would give it none, but every
        // kubelet names them.
        free.entry(PODS.to_owned()).or_insert(f64::INFINITY);
        subtract(&mut free, &self.requested);
        let reasons: Vec<String> =
            missing(requests, &free).keys().map(|name| insufficient(name)).collect();
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// LeastAllocated and BalancedAllocation together, 0 to 200.
    pub(in crate::scheduler) fn score(&self, requests: &Requests) -> i64 {
        let fractions = DEFAULT_REQUESTS.map(|(name, default)| {
            let requested = match of(requests, name) {
                amount if amount > 0.0 => amount,
                _ => default,
            };
            let allocatable = of(&self.allocatable, name).max(f64::MIN_POSITIVE);
            ((of(&self.requested, name) + requested) / allocatable).min(1.0)
        });
        let least = fractions.iter().map(|fraction| 100.0 * (1.0 - fraction)).sum::<f64>() / 2.0;
        let balanced = 100.0 * (1.0 - (fractions[0] - fractions[1]).abs() / 2.0);
        least as i64 + balanced as i64
    }
}

/// The amount of a resource, 0 where it is missing.
fn of(amounts: &Requests, name: &str) -> f64 {
    amounts.get(name).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod;
    use serde_json::json;

    #[test]
    fn quantities_are_read_with_their_suffixes() {
        assert_eq!((amount("500m"), amount("2"), amount("1Gi")), (0.5, 2.0, 1_073_741_824.0));
    }

    fn amount(text: &str) -> f64 {
        quantity(&json!(text))
    }

    #[test]
    fn an_init_container_counts_beside_the_sidecars_before_it() {
        let pod: Value = pod("p")
            .sidecar("s", "gpu", 2)
            .init_container("i", "gpu", 4)
            .container("a", "gpu", 1)
            .into();
        assert_eq!(requests(&pod)["gpu"], 6.0);
    }

    #[test]
    fn a_node_takes_as_many_pods_as_it_names_and_any_number_where_it_names_none() {
        let requests = requests(&pod("p").into());
        let mut node = NodeResources::new(&Arc::new(crate::node("n").with("pods", 2).into()));
        node.add(&requests);
        assert_eq!(node.check(&requests), Ok(()));
        node.add(&requests);
        assert_eq!(node.check(&requests).unwrap_err(), ["Too many pods"]);
        assert_eq!(node.emptied().check(&requests), Ok(()));
        node.remove(&requests);
        assert_eq!(node.check(&requests), Ok(()));
        let mut unlimited = NodeResources::new(&Arc::new(crate::node("n").into()));
        unlimited.add(&requests);
        assert_eq!(unlimited.check(&requests), Ok(()));
    }

    #[test]
    fn the_reason_names_the_resource_of_which_too_little_is_free() {
        let node = NodeResources::new(&Arc::new(crate::node("n").with("gpu", 4).into()));
        assert_eq!(node.check(&[("gpu".to_owned(), 4.0)].into()), Ok(()));
        let reasons = node.check(&[("gpu".to_owned(), 5.0)].into()).unwrap_err();
        assert_eq!(reasons, ["Insufficient gpu"]);
    }
}
