//! What fits by node totals, and how kube-scheduler's own plugins would rank it.
//!
//! Only the plugins that tell these nodes apart: NodeResourcesFit (LeastAllocated) and
//! NodeResourcesBalancedAllocation, over requests of processor and memory. Measured load is not
//! theirs to see.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::cycle::text;

/// Requests or allocatable amounts by resource; processor in cores, memory in bytes.
pub(super) type Amounts = BTreeMap<String, f64>;

/// Of which every pod takes one. A node that says nothing of it takes any number here; kube-scheduler
/// gives it none, but every kubelet says.
const PODS: &str = "pods";

/// What the plugins count for a pod without requests (`GetNonzeroRequests`).
const NOTHING_ASKED: [(&str, f64); 2] = [("cpu", 0.1), ("memory", 200.0 * 1024.0 * 1024.0)];

/// A node and what its pods ask of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Room {
    pub(super) node: String,
    pub(super) object: Arc<Value>,
    pub(super) allocatable: Amounts,
    pub(super) used: Amounts,
}

/// What a pod takes at its peak, its own place included: app containers and sidecars together, or an init container beside
/// the sidecars before it.
pub(super) fn requests(pod: &Value) -> Amounts {
    let (mut steady, mut peak) = (Amounts::new(), Amounts::new());
    for container in list(&pod["spec"]["initContainers"]) {
        let asked = container_requests(container);
        let beside = sum(&steady, &asked);
        peak = most(&peak, &beside);
        if container["restartPolicy"] == "Always" {
            steady = beside;
        }
    }
    let apps = list(&pod["spec"]["containers"]).map(container_requests);
    let running = apps.fold(steady, |sum_so_far, asked| sum(&sum_so_far, &asked));
    let mut asked = most(&peak, &running);
    asked.insert(PODS.to_owned(), 1.0);
    asked
}

/// Requests; where only limits are given, those.
fn container_requests(container: &Value) -> Amounts {
    let mut asked = amounts(&container["resources"]["limits"]);
    asked.extend(amounts(&container["resources"]["requests"]));
    asked
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn amounts(map: &Value) -> Amounts {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), quantity(value))).collect()
}

pub(super) fn sum(a: &Amounts, b: &Amounts) -> Amounts {
    let mut all = a.clone();
    b.iter().for_each(|(name, amount)| *all.entry(name.clone()).or_default() += amount);
    all
}

fn most(a: &Amounts, b: &Amounts) -> Amounts {
    let mut all = a.clone();
    for (name, amount) in b {
        let entry = all.entry(name.clone()).or_default();
        *entry = entry.max(*amount);
    }
    all
}

/// The suffixes of Kubernetes' quantities.
const SUFFIXES: [(&str, f64); 9] = [
    ("Ki", 1024.0),
    ("Mi", 1024.0 * 1024.0),
    ("Gi", 1024.0 * 1024.0 * 1024.0),
    ("Ti", 1024.0 * 1024.0 * 1024.0 * 1024.0),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
];

fn quantity(value: &Value) -> f64 {
    let Some(text) = value.as_str() else { return value.as_f64().unwrap_or(0.0) };
    let found = SUFFIXES.iter().find_map(|(suffix, by)| Some((text.strip_suffix(suffix)?, by)));
    let (number, by) = found.unwrap_or((text, &1.0));
    number.parse().map_or(0.0, |number: f64| number * by)
}

fn lack(name: &str) -> String {
    if name == PODS { "Too many pods".to_owned() } else { format!("Insufficient {name}") }
}

impl Room {
    pub(super) fn new(node: &Arc<Value>) -> Self {
        Self {
            node: text(&node["metadata"]["name"]).to_owned(),
            object: node.clone(),
            allocatable: amounts(&node["status"]["allocatable"]),
            used: Amounts::new(),
        }
    }

    /// # Errors
    /// kube-scheduler's words for why the pod does not fit.
    pub(super) fn fits(&self, asked: &Amounts) -> Result<(), Vec<String>> {
        let missing = |(name, amount): (&String, &f64)| {
            let free = self.of(&self.allocatable, name) - self.of(&self.used, name);
            (self.counts(name) && *amount > 0.0 && *amount > free + 1e-9).then(|| lack(name))
        };
        let short: Vec<String> = asked.iter().filter_map(missing).collect();
        if short.is_empty() { Ok(()) } else { Err(short) }
    }

    /// Whether the pod would fit on the node without other pods.
    pub(super) fn could_fit(&self, asked: &Amounts) -> bool {
        let empty = Self { used: Amounts::new(), ..self.clone() };
        empty.fits(asked).is_ok()
    }

    fn counts(&self, name: &str) -> bool {
        name != PODS || self.allocatable.contains_key(PODS)
    }

    fn of(&self, amounts: &Amounts, name: &str) -> f64 {
        amounts.get(name).copied().unwrap_or(0.0)
    }

    /// LeastAllocated and BalancedAllocation together, 0 to 200.
    pub(super) fn score(&self, asked: &Amounts) -> i64 {
        let fractions = NOTHING_ASKED.map(|(name, least)| {
            let asked = Some(self.of(asked, name)).filter(|amount| *amount > 0.0).unwrap_or(least);
            let all = self.of(&self.allocatable, name).max(f64::MIN_POSITIVE);
            ((self.of(&self.used, name) + asked) / all).min(1.0)
        });
        let least = fractions.iter().map(|used| 100.0 * (1.0 - used)).sum::<f64>() / 2.0;
        let balanced = 100.0 * (1.0 - (fractions[0] - fractions[1]).abs() / 2.0);
        least as i64 + balanced as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod;
    use serde_json::json;

    #[test]
    fn quantities_are_read_with_their_suffixes() {
        let read = |text: &str| quantity(&json!(text));
        assert_eq!((read("500m"), read("2"), read("1Gi")), (0.5, 2.0, 1_073_741_824.0));
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
    fn a_node_takes_no_more_pods_than_it_says_and_any_number_where_it_says_nothing() {
        let asked = requests(&pod("p").into());
        let mut room = Room::new(&Arc::new(crate::node("n").with("pods", 2).into()));
        room.used = asked.clone();
        assert_eq!(room.fits(&asked), Ok(()));
        room.used = sum(&asked, &asked);
        assert_eq!(room.fits(&asked).unwrap_err(), ["Too many pods"]);
        let mut silent = Room::new(&Arc::new(crate::node("n").into()));
        silent.used = asked.clone();
        assert_eq!(silent.fits(&asked), Ok(()));
    }

    #[test]
    fn a_node_without_room_is_named_with_what_it_lacks() {
        let room = Room::new(&Arc::new(crate::node("n").with("gpu", 4).into()));
        assert_eq!(room.fits(&[("gpu".to_owned(), 4.0)].into()), Ok(()));
        let lack = room.fits(&[("gpu".to_owned(), 5.0)].into()).unwrap_err();
        assert_eq!(lack, ["Insufficient gpu"]);
    }
}
