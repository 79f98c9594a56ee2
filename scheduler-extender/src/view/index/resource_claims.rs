//! ResourceClaims of our own driver: as kube-scheduler has allocated them, and what the others ask for.
//!
//! Invariant: a claim is charged on the nodes of its last known allocation, and nowhere once it is deallocated, gone or
//! missing in a list. It asks for something until then.

use std::collections::{BTreeMap, HashMap, HashSet};

use cluster::{Event, ShareAsk, WatchedResourceClaim};
use jiff::Timestamp;
use placement::gpu::{ClaimedDevice, ResourceClaim};
use placement::units::{NodeName, ResourceClaimUid};

use super::{Index, Notice};

/// What is known of ResourceClaims.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    /// The nodes on which each claim is charged.
    charged: HashMap<ResourceClaimUid, Vec<NodeName>>,
    /// What those ask for to which nothing is allocated, by namespace and name.
    asks: HashMap<String, Vec<ShareAsk>>,
}

impl Index {
    /// Applies an event of the ResourceClaims' watch.
    pub fn apply_resource_claims(&mut self, event: Event<WatchedResourceClaim>, now: Timestamp) {
        self.at(now);
        match event {
            Event::Listing => {}
            Event::Listed(claims) => {
                let listed: HashSet<_> = claims.iter().map(|claim| &claim.facts.uid).collect();
                let mut gone: Vec<_> = self.claims.charged.keys().cloned().collect();
                gone.retain(|uid| !listed.contains(uid));
                self.claims.asks.clear();
                for uid in gone {
                    self.charge_claim(&uid, BTreeMap::new());
                }
                claims.iter().for_each(|claim| self.apply_resource_claim(claim));
            }
            Event::Applied(claim) => self.apply_resource_claim(&claim),
            Event::Gone(claim) => {
                self.claims.asks.remove(&key(&claim.facts.namespace, &claim.facts.name));
                self.charge_claim(&claim.facts.uid, BTreeMap::new());
            }
        }
    }

    /// The largest share that these claims ask for and do not have yet. kube-scheduler counts the others too.
    pub(crate) fn largest_ask(&self, namespace: &str, claims: &[&str]) -> Option<&ShareAsk> {
        let memory = |ask: &&ShareAsk| ask.memory.map_or(u64::MAX, |memory| memory.0);
        let of = |claim: &&str| self.claims.asks.get(&key(namespace, claim));
        claims.iter().filter_map(of).flatten().max_by_key(memory)
    }

    fn apply_resource_claim(&mut self, claim: &WatchedResourceClaim) {
        if let Some(error) = &claim.unreadable {
            self.refused_objects += 1;
            let (namespace, name) = (claim.facts.namespace.clone(), claim.facts.name.clone());
            self.notices.push(Notice::UnreadClaim { namespace, name, error: error.clone() });
        }
        let key = key(&claim.facts.namespace, &claim.facts.name);
        if claim.asks.is_empty() {
            self.claims.asks.remove(&key);
        } else {
            self.claims.asks.insert(key, claim.asks.clone());
        }
        self.charge_claim(&claim.facts.uid, on_nodes(claim));
    }

    /// Charges a claim on these nodes, and on no other.
    fn charge_claim(&mut self, uid: &ResourceClaimUid, on: BTreeMap<NodeName, ResourceClaim>) {
        for node in self.claims.charged.remove(uid).unwrap_or_default() {
            if !on.contains_key(&node) {
                self.nodes.change_known(&node, |node| node.ledger.release_resource_claim(uid));
            }
        }
        if !on.is_empty() {
            self.claims.charged.insert(uid.clone(), on.keys().cloned().collect());
        }
        for (node, claim) in on {
            self.nodes.change(&node, |node| node.ledger.set_resource_claim(claim));
        }
    }
}

/// The name of a claim among those of all namespaces.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// What is allocated to a claim on each node. Of a claim that cannot be read, a device of no name: it may have more.
fn on_nodes(watched: &WatchedResourceClaim) -> BTreeMap<NodeName, ResourceClaim> {
    let facts = &watched.facts;
    let mut devices: BTreeMap<NodeName, Vec<ClaimedDevice>> = BTreeMap::new();
    for result in facts.allocated.iter().flat_map(|allocated| &allocated.results) {
        if result.admin_access {
            continue;
        }
        let name = result.device.clone();
        let device = ClaimedDevice { name, memory: result.memory, cores: result.cores };
        // The driver names each pool like its node.
        devices.entry(NodeName::from(result.pool.as_str())).or_default().push(device);
    }
    if watched.unreadable.is_some() {
        if let Some(node) = &facts.node {
            devices.entry(node.clone()).or_default();
        }
        let unknown = ClaimedDevice { name: String::new(), memory: None, cores: None };
        devices.values_mut().for_each(|devices| devices.push(unknown.clone()));
    }
    let claim = |devices| ResourceClaim {
        uid: facts.uid.clone(),
        namespace: facts.namespace.clone(),
        name: facts.name.clone(),
        pods: facts.reserved_for.clone(),
        devices,
    };
    devices.into_iter().map(|(node, devices)| (node, claim(devices))).collect()
}

#[cfg(test)]
mod tests {
    use cluster::{Allocated, DeviceResult, ResourceClaimFacts};
    use placement::units::{MiB, Units};

    use super::*;
    use crate::view::{View, fixtures};

    fn claim(name: &str, devices: &[(&str, Option<u64>)]) -> WatchedResourceClaim {
        let result = |(pool, memory): &(&str, Option<u64>)| DeviceResult {
            request: "gpu".to_owned(),
            pool: (*pool).to_owned(),
            device: "gpu-0".to_owned(),
            share_id: None,
            memory: memory.map(MiB),
            cores: None,
            admin_access: false,
        };
        let results: Vec<_> = devices.iter().map(result).collect();
        let allocated = Allocated { results, configs: Vec::new() };
        let facts = ResourceClaimFacts {
            namespace: "ml".to_owned(),
            name: name.to_owned(),
            uid: name.into(),
            deleting: false,
            reserved_for: vec!["p".into()],
            node: None,
            allocated: (!devices.is_empty()).then_some(allocated),
        };
        WatchedResourceClaim { facts, unreadable: None, asks: Vec::new() }
    }

    fn apply(view: &View, event: Event<WatchedResourceClaim>) {
        view.apply_resource_claims(event, Timestamp::UNIX_EPOCH);
    }

    fn free(view: &View, node: &str) -> Option<u32> {
        let snapshot = view.read();
        snapshot.gpus(node).map(|gpus| gpus.accounts()[0].gpu.free.0)
    }

    fn of_two_nodes() -> View {
        let view = fixtures::view();
        fixtures::list(&view, &["n", "m"].map(str::to_owned), &fixtures::gpu());
        view
    }

    #[test]
    fn a_claim_is_charged_from_its_allocation_to_its_end() {
        let view = of_two_nodes();
        apply(&view, Event::Applied(claim("c", &[])));
        assert_eq!(free(&view, "n"), Some(16));
        apply(&view, Event::Applied(claim("c", &[("n", Some(4096))])));
        apply(&view, Event::Applied(claim("d", &[("n", Some(2048))])));
        assert_eq!((free(&view, "n"), free(&view, "m")), (Some(10), Some(16)));
        // Allocated anew, before this replica has seen that it was deallocated.
        apply(&view, Event::Applied(claim("c", &[("m", Some(4096))])));
        assert_eq!((free(&view, "n"), free(&view, "m")), (Some(14), Some(12)));
        apply(&view, Event::Applied(claim("c", &[])));
        assert_eq!(free(&view, "m"), Some(16), "deallocated");
        apply(&view, Event::Gone(claim("d", &[("n", Some(2048))])));
        assert_eq!(free(&view, "n"), Some(16));
        assert!(view.ask(|index| index.claims.charged.is_empty()));
    }

    #[test]
    fn a_list_replaces_what_was_known() {
        let view = of_two_nodes();
        apply(&view, Event::Applied(claim("c", &[("n", Some(4096))])));
        apply(&view, Event::Applied(claim("d", &[("n", Some(2048))])));
        apply(&view, Event::Listing);
        assert_eq!(free(&view, "n"), Some(10));
        apply(&view, Event::Listed(vec![claim("d", &[("m", Some(1024))])]));
        assert_eq!((free(&view, "n"), free(&view, "m")), (Some(16), Some(15)));
    }

    #[test]
    fn a_claim_is_charged_once_its_node_reports_the_gpu() {
        let view = fixtures::view();
        apply(&view, Event::Listed(vec![claim("c", &[("n", Some(4096))])]));
        fixtures::join(&view, "n", vec![fixtures::gpu()]);
        assert_eq!(free(&view, "n"), Some(12));
        fixtures::leave(&view, "n");
        fixtures::join(&view, "n", vec![fixtures::gpu()]);
        assert_eq!(free(&view, "n"), Some(12), "its pod may still run");
    }

    #[test]
    fn what_a_claim_may_have_and_does_not_say_counts_whole() {
        let view = of_two_nodes();
        apply(&view, Event::Applied(claim("c", &[("n", None)])));
        assert_eq!(free(&view, "n"), Some(0));
        let mut unread = claim("c", &[]);
        unread.facts.node = Some("m".into());
        unread.unreadable = Some("status.allocation: is a number".to_owned());
        apply(&view, Event::Applied(unread));
        assert_eq!((free(&view, "n"), free(&view, "m")), (Some(16), Some(0)));
        assert_eq!(view.ask(Index::refused_objects), 1);
        let mut of_admin = claim("c", &[("n", Some(4096))]);
        of_admin.facts.allocated.as_mut().unwrap().results[0].admin_access = true;
        apply(&view, Event::Applied(of_admin));
        assert_eq!((free(&view, "n"), free(&view, "m")), (Some(16), Some(16)));
        assert_eq!(view.read().totals().used, 0);
    }

    #[test]
    fn a_claims_name_is_known_where_it_is_charged() {
        let view = of_two_nodes();
        apply(&view, Event::Applied(claim("c", &[("n", Some(4096))])));
        let snapshot = view.read();
        let account = &snapshot.gpus("n").unwrap().accounts()[0];
        let [on] = &view.ask(|index| index.pods_on(account))[..] else { panic!("{account:?}") };
        assert_eq!((&*on.namespace, &*on.name, on.units), ("ml", "c", Units(4)));
    }
}
