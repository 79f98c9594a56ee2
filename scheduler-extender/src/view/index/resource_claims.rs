//! ResourceClaims of our own driver: as kube-scheduler has allocated them, and what the others ask for.
//!
//! Invariant: a claim is charged on the nodes of its last known allocation, and nowhere once it is deallocated, gone or
//! missing in a list. It asks for something until then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use cluster::{Event, ShareAsk, WatchedResourceClaim};
use jiff::Timestamp;
use placement::gpu::{ClaimedDevice, GpuRequest, ResourceClaim};
use placement::units::{GpuId, NodeName, PodUid, ResourceClaimUid};

use super::{GpuPodId, Index, Notice};

/// Pods of a namespace that others are evicted for at one time: those with units have the rest of its places.
const MAX_WAITING: usize = 16;

/// What is known of ResourceClaims.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    /// The nodes on which each claim is charged.
    charged: HashMap<ResourceClaimUid, Vec<NodeName>>,
    /// Those of which the measure of fragmentation has not counted the pod yet, each with its node.
    uncounted: HashMap<ResourceClaimUid, (NodeName, ResourceClaim)>,
    /// Those to which nothing is allocated, by namespace and name.
    waiting: HashMap<String, UnallocatedClaim>,
    /// The pods that wait for one.
    pods: HashMap<PodUid, ClaimingPod>,
    /// The nodes on which GPUs are kept for some of these.
    kept: HashMap<PodUid, NodeName>,
    /// Pods with claims whose deletion has begun.
    pub(super) ending: HashSet<PodUid>,
}

/// A claim to which nothing is allocated.
#[derive(Debug, Clone)]
struct UnallocatedClaim {
    asks: Vec<ShareAsk>,
    /// Whether that is one share of any GPU, and all that the claim asks for.
    is_one_share: bool,
}

/// A pod with one ResourceClaim for which kube-scheduler finds no node and that may preempt others.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimingPod {
    /// The pod.
    pub(in crate::view) pod: GpuPodId,
    /// The claim's name.
    pub(in crate::view) claim: String,
    /// The pod's priority.
    pub(in crate::view) priority: i32,
    /// When it was created.
    pub(in crate::view) created_at: Option<Timestamp>,
}

impl Claims {
    /// The largest share that these claims ask for.
    fn largest_ask(&self, namespace: &str, claims: &[&str]) -> Option<&ShareAsk> {
        let memory = |ask: &&ShareAsk| ask.memory.map_or(u64::MAX, |memory| memory.0);
        let of = |claim: &&str| self.waiting.get(&key(namespace, claim));
        claims.iter().filter_map(of).flat_map(|claim| &claim.asks).max_by_key(memory)
    }
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
                let named: HashSet<_> = claims.iter().map(key_of).collect();
                self.claims.waiting.retain(|key, _| named.contains(key));
                for uid in gone {
                    self.charge_claim(&uid, BTreeMap::new());
                }
                claims.iter().for_each(|claim| self.apply_resource_claim(claim));
            }
            Event::Applied(claim) => self.apply_resource_claim(&claim),
            Event::Gone(claim) => {
                self.claims.waiting.remove(&key_of(&claim));
                self.charge_claim(&claim.facts.uid, BTreeMap::new());
            }
        }
    }

    /// The largest share that these claims ask for and do not have yet. kube-scheduler counts the others too.
    pub(crate) fn largest_ask(&self, namespace: &str, claims: &[&str]) -> Option<&ShareAsk> {
        self.claims.largest_ask(namespace, claims)
    }

    /// Notes a pod that waits for its claim; `None` for one that waits for none, or no longer.
    pub(super) fn set_claiming(&mut self, uid: &PodUid, pod: Option<&ClaimingPod>) {
        match pod {
            Some(pod) => drop(self.claims.pods.insert(uid.clone(), pod.clone())),
            None => self.end_claiming(uid),
        }
    }

    /// Forgets a pod that may have waited for its claims: it has a node, or is gone.
    pub(super) fn end_claiming(&mut self, pod: &PodUid) {
        if self.claims.pods.remove(pod).is_some() {
            self.end_kept_for_claim(pod);
        }
    }

    /// Forgets the pods with claims that are not in a list.
    pub(super) fn end_claiming_but(&mut self, listed: &HashSet<&PodUid>) {
        let mut gone: Vec<_> = self.claims.pods.keys().cloned().collect();
        gone.retain(|pod| !listed.contains(pod));
        gone.iter().for_each(|pod| self.end_claiming(pod));
        self.claims.ending.retain(|pod| listed.contains(pod));
    }

    /// As [`Index::keep`], for a pod that waits for its claim and asks for this. Returns whether it still does.
    #[must_use]
    pub(crate) fn keep_for_claim(
        &mut self,
        pod: &PodUid,
        node: &NodeName,
        gpus: &[GpuId],
        request: &GpuRequest,
    ) -> bool {
        self.end_kept_for_claim(pod);
        let waiting = self.claims.pods.get(pod);
        let waits = waiting.is_some_and(|it| self.asks_for_one_share(&it.pod.namespace, &it.claim));
        if waits {
            self.nodes.change_known(node, |known| known.ledger.nominate(pod, request, gpus));
            self.claims.kept.insert(pod.clone(), node.clone());
        }
        waits
    }

    /// Ends [`Index::keep_for_claim`].
    pub(super) fn end_kept_for_claim(&mut self, pod: &PodUid) {
        if let Some(node) = self.claims.kept.remove(pod) {
            self.nodes.change_known(&node, |known| known.ledger.end_nomination(pod));
        }
    }

    /// Whether nothing is allocated to a claim that asks for one share of any GPU, and for nothing else.
    pub(in crate::view) fn asks_for_one_share(&self, namespace: &str, claim: &str) -> bool {
        self.claims.waiting.get(&key(namespace, claim)).is_some_and(|claim| claim.is_one_share)
    }

    /// As [`Index::waiting_pods`], of the pods with one ResourceClaim that asks for one share and nothing else, some of
    /// each namespace. Where GPUs are kept for one of the pods that share a claim, the others do not wait.
    #[must_use]
    pub fn waiting_by_claims(&self) -> Vec<(GpuPodId, i32)> {
        let Claims { pods, kept, .. } = &self.claims;
        let claim = |it: &ClaimingPod| key(&it.pod.namespace, &it.claim);
        let kept: HashSet<_> = kept.keys().filter_map(|pod| pods.get(pod).map(claim)).collect();
        let mut waiting: Vec<_> = pods.values().collect();
        waiting.retain(|it| {
            self.asks_for_one_share(&it.pod.namespace, &it.claim) && !kept.contains(&claim(it))
        });
        waiting.sort_by_key(|it| (Reverse(it.priority), it.created_at, &it.pod.uid));
        let mut of_namespace: HashMap<&str, usize> = HashMap::new();
        waiting.retain(|it| {
            let before = of_namespace.entry(&it.pod.namespace).or_default();
            *before += 1;
            *before <= MAX_WAITING
        });
        waiting.into_iter().map(|it| (it.pod.clone(), it.priority)).collect()
    }

    /// Whether GPUs are kept for another pod that has the same claim.
    #[must_use]
    pub fn keeps_for_claim_of(&self, uid: &PodUid) -> bool {
        let Claims { pods, kept, .. } = &self.claims;
        let Some(pod) = pods.get(uid) else { return false };
        let is_same = |other: &ClaimingPod| {
            other.claim == pod.claim && other.pod.namespace == pod.pod.namespace
        };
        kept.keys().any(|other| other != uid && pods.get(other).is_some_and(is_same))
    }

    /// Counts the pods of allocated claims in the measure of fragmentation once they are bound: by what all replicas
    /// see, also after a restart.
    pub(super) fn observe_claims(&mut self) {
        let mut counted = Vec::new();
        for (uid, (node, claim)) in &self.claims.uncounted {
            let Some(node) = self.nodes.get(node) else { continue };
            let cpu = |pod: &PodUid| node.cpu.requests.cpu(self.nodes.uid_hash(pod));
            let cpu = claim.pods.iter().find_map(cpu);
            if let (Some(cpu), Some(request)) = (cpu, claim.request(node.ledger.gpus())) {
                counted.push((uid.clone(), request.with_cpu(cpu)));
            }
        }
        for (uid, request) in counted {
            self.claims.uncounted.remove(&uid);
            self.observe(&request);
        }
    }

    fn apply_resource_claim(&mut self, claim: &WatchedResourceClaim) {
        if let Some(error) = &claim.unreadable {
            self.refused_objects += 1;
            let (namespace, name) = (claim.facts.namespace.clone(), claim.facts.name.clone());
            self.notices.push(Notice::UnreadClaim { namespace, name, error: error.clone() });
        }
        let key = key_of(claim);
        if claim.asks.is_empty() {
            self.claims.waiting.remove(&key);
        } else {
            let (asks, is_one_share) = (claim.asks.clone(), claim.is_one_share);
            self.claims.waiting.insert(key, UnallocatedClaim { asks, is_one_share });
        }
        self.charge_claim(&claim.facts.uid, on_nodes(claim));
    }

    /// Charges a claim on these nodes, and on no other.
    fn charge_claim(&mut self, uid: &ResourceClaimUid, on: BTreeMap<NodeName, ResourceClaim>) {
        let before = self.claims.charged.remove(uid);
        match on.first_key_value() {
            Some(on) if before.is_none() || self.claims.uncounted.contains_key(uid) => {
                self.claims.uncounted.insert(uid.clone(), (on.0.clone(), on.1.clone()));
            }
            Some(_) => {}
            None => drop(self.claims.uncounted.remove(uid)),
        }
        for node in before.unwrap_or_default() {
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

fn key_of(claim: &WatchedResourceClaim) -> String {
    key(&claim.facts.namespace, &claim.facts.name)
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
        ends_with_pods: watched.ends_with_its_pod,
        devices,
    };
    devices.into_iter().map(|(node, devices)| (node, claim(devices))).collect()
}

#[cfg(test)]
mod tests {
    use cluster::{Allocated, DeviceResult, NodeFacts, ResourceClaimFacts, WatchCause};
    use jiff::SignedDuration;
    use placement::gpu::{Closed, Gpu, Isolation};
    use placement::units::{Cores, MiB, Units};

    use placement::names::Names;
    use placement::reading::ReadingCodec;
    use serde_json::json;

    use super::*;
    use crate::decisions::{DecidedPod, Decision, Evaluator};
    use crate::node_request::CandidateNodes;
    use crate::view::{BoundPod, PodEstimates, PodUse, View, WatchedPod, fixtures};

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
        WatchedResourceClaim {
            facts,
            unreadable: None,
            asks: Vec::new(),
            is_one_share: true,
            ends_with_its_pod: true,
        }
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

    /// 20 claims of a quarter of a GPU on nodes whose GPUs are given out by claims, each allocated after it waited.
    fn after_20_claims(are_bound: bool) -> View {
        let (view, memory) = (fixtures::view(), MiB(4096));
        let gpu = Gpu { closed: Some(Closed::Claims), ..fixtures::gpu() };
        let nodes = [("n", "1200m"), ("m", "64")].map(|(name, cpu)| {
            let status = json!({ "allocatable": { "cpu": cpu } });
            let node = json!({ "metadata": { "name": name }, "status": status });
            let node: cluster::Node = serde_json::from_value(node).unwrap();
            let facts = node.facts(&Names::default(), &ReadingCodec::default());
            NodeFacts { gpus: Some(Ok(vec![gpu.clone()])), ..facts }
        });
        view.apply_nodes(Event::Listed(nodes.into()), Timestamp::UNIX_EPOCH);
        let mut settled = HashSet::new();
        for event in [Event::Listing, Event::Listed(Vec::new())] {
            let _ = view.apply_pods(event, &mut settled, Timestamp::UNIX_EPOCH);
        }
        let (cores, isolation) = (Cores(0), Isolation::None);
        for number in 0..20 {
            let name = format!("c{number}");
            let mut waits = claim(&name, &[]);
            waits.asks = vec![ShareAsk { gpus: 1, memory: Some(memory), cores, isolation }];
            apply(&view, Event::Applied(waits));
            let mut allocated = claim(&name, &[("n", Some(memory.0))]);
            allocated.facts.reserved_for = vec![PodUid::from(name.as_str())];
            apply(&view, Event::Applied(allocated.clone()));
            let pod = json!({
                "metadata": { "uid": name },
                "spec": { "nodeName": "n", "containers": [{ "resources": { "requests": { "cpu": "500m" } } }] },
            });
            let pod: cluster::Pod = serde_json::from_value(pod).unwrap();
            let (names, at) = (Names::default(), Timestamp::UNIX_EPOCH);
            if are_bound {
                view.count_requests(&pod, &names, WatchCause::Changed, at);
            }
            view.renew_measure();
            view.count_requests(&pod, &names, WatchCause::Gone, at);
            apply(&view, Event::Gone(allocated));
        }
        view.renew_measure();
        view
    }

    #[test]
    fn what_is_kept_for_a_claim_ends_with_the_waiting_of_its_pod() {
        let (view, request) =
            (of_two_nodes(), GpuRequest::of_claim(1, Some(MiB(6_000)), Cores(0), Isolation::None));
        let request = request.unwrap();
        let uid = PodUid::from("p");
        let id = GpuPodId { uid: uid.clone(), namespace: "ml".to_owned(), name: "p".to_owned() };
        let of_claim = "c".to_owned();
        let waits = ClaimingPod { pod: id, claim: of_claim, priority: 7, created_at: None };
        let waits = WatchedPod::Claiming(uid.clone(), Some(waits));
        let at = Timestamp::UNIX_EPOCH;
        let (node, usage, ends_claims) = ("n".into(), PodUse::default(), false);
        let bound = BoundPod { uid: uid.clone(), node, at, usage, ends_claims };
        let keep = || {
            let gpus = ["GPU-0".into()];
            let kept =
                view.change(|index| index.keep_for_claim(&uid, &"n".into(), &gpus, &request));
            (kept, free(&view, "n"))
        };
        let apply = |event| {
            let _ = view.apply_pods(event, &mut HashSet::new(), at);
            free(&view, "n")
        };
        let mut asks = claim("c", &[]);
        asks.asks =
            vec![ShareAsk { gpus: 1, memory: None, cores: Cores(0), isolation: Isolation::None }];
        view.apply_resource_claims(Event::Applied(asks.clone()), at);
        assert_eq!(keep(), (false, Some(16)), "it does not wait");
        for end in [
            Event::Applied(WatchedPod::Bound(bound)),
            Event::Gone(waits.clone()),
            Event::Applied(WatchedPod::Claiming(uid.clone(), None)),
            Event::Listed(Vec::new()),
        ] {
            apply(Event::Applied(waits.clone()));
            assert_eq!(keep(), (true, Some(10)));
            assert_eq!(apply(Event::Listed(vec![waits.clone()])), Some(10));
            assert_eq!(apply(end), Some(16));
        }
        apply(Event::Applied(waits));
        assert_eq!(keep(), (true, Some(10)));
        view.change(|index| index.release_kept(&uid));
        assert_eq!(free(&view, "n"), Some(16));
        view.apply_resource_claims(Event::Gone(asks), at);
        assert_eq!(keep(), (false, Some(16)), "its claim does not wait");
    }

    #[test]
    fn what_is_allocated_counts_in_the_measure_once_its_pod_is_bound() {
        for are_bound in [false, true] {
            let measures = after_20_claims(are_bound).read().measures.clone();
            assert_eq!(measures.map(|measure| measure.is_some()), [false, are_bound]);
        }
    }

    #[test]
    fn cpu_that_gpus_need_for_claims_has_a_price_for_pods_without_gpus() {
        let view = after_20_claims(true);
        let pod =
            json!({ "spec": { "containers": [{ "resources": { "requests": { "cpu": "1" } } }] } });
        let pod: cluster::Pod = serde_json::from_value(pod).unwrap();
        let pod = DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO);
        let snapshot = view.read();
        let nodes = CandidateNodes::new(snapshot.names(), ["n", "m"]);
        let decision = Decision::new(snapshot, pod, None, nodes, Timestamp::UNIX_EPOCH);
        let [little, much] = Evaluator::new(&decision).costs_to_gpus().unwrap()[..] else {
            panic!()
        };
        assert!(little.0 > 0 && much.0 == 0, "{little:?} {much:?}");
    }
}
