//! A cache of the nodes' ratings for recent GPU requests: pods of one workload have equal requests, and few nodes
//! change between two of them. What it buys: bench/RESULTS.md.
//!
//! Invariant: a kept rating is used only for the same value of a node's GPUs, by its version, and not for a pod for
//! which GPUs of the node are set aside. So it is what [`NodeGpus::rate`](placement::gpu::NodeGpus::rate) returns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use placement::gpu::{ChoiceRule, GpuRequest, NoFit, NodeGpus, Rating};
use placement::units::PodUid;

use crate::view::{CHUNK, Place, Prepared, Snapshot};

/// Requests for which ratings are kept. With 5,000 nodes each takes 160 KB, all together 5 MB.
const REQUESTS: usize = 32;

/// The rating of a node for a request.
pub(super) type Rated = Result<Rating, NoFit>;

/// The ratings of one view's nodes for the last requests, the newest first.
#[derive(Debug, Default)]
pub struct RatingCache(Mutex<Vec<RatedRequest>>);

/// A GPU request, the rule by which GPUs are chosen for it, and the nodes' ratings.
#[derive(Debug)]
struct RatedRequest {
    request: GpuRequest,
    rule: ChoiceRule,
    /// By place: a rating, and the version of the GPUs that it is of; 0 for no rating.
    nodes: Vec<(u64, Rated)>,
}

impl RatedRequest {
    fn is(&self, request: &GpuRequest, rule: &ChoiceRule) -> bool {
        let is_same_measure = match (&self.rule.measure, &rule.measure) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let counts_cpu = rule.measure.is_some();
        is_same_measure
            && self.rule.strategy == rule.strategy
            && self.request.is_rated_as(request, counts_cpu)
    }

    /// The rating of the node at a place for a pod with this request; `None` for a node without GPUs. The nodes have
    /// to be [renewed](Self::renew).
    fn rating(
        &self,
        (snapshot, prepared): (&Snapshot, &Prepared),
        place: Place,
        pod: &PodUid,
    ) -> Option<Rated> {
        let (chunk, node) = (prepared.gpus_in(place.index() / CHUNK), place.index() % CHUNK);
        if chunk.versions[node] == 0 {
            return None;
        }
        if chunk.set_aside & (1 << node) != 0
            && let Some(gpus) = &snapshot.at(place).gpus
            && gpus.pods_with_set_aside_gpus().any(|other| other == pod)
        {
            return Some(rate(gpus, pod, (&self.request, &self.rule)));
        }
        Some(self.nodes[place.index()].1)
    }

    /// Rates the nodes whose GPUs have changed.
    fn renew(&mut self, snapshot: &Snapshot, prepared: &Prepared) {
        // No pod has this UID.
        let no_pod = PodUid::from("");
        self.nodes.resize(snapshot.chunks().len() * CHUNK, (0, Err(NoFit::NoGpus)));
        for (number, chunk) in snapshot.chunks().iter().enumerate() {
            let nodes = &mut self.nodes[number * CHUNK..];
            let versions = &prepared.gpus_in(number).versions;
            for (node, (kept, version)) in nodes.iter_mut().zip(versions).enumerate() {
                if *version != 0
                    && kept.0 != *version
                    && let Some(gpus) = &chunk.nodes()[node].gpus
                {
                    *kept = (*version, rate(gpus, &no_pod, (&self.request, &self.rule)));
                }
            }
        }
    }
}

impl RatingCache {
    /// Whether ratings are kept for that request.
    pub fn has(&self, request: &GpuRequest, rule: &ChoiceRule) -> bool {
        self.lock().iter().any(|rated| rated.is(request, rule))
    }

    /// The results of [`NodeGpus::rate`](placement::gpu::NodeGpus::rate) for a pod with that request and the nodes at
    /// these places; `None` for a node without GPUs or without a place.
    pub fn rate(
        &self,
        (snapshot, prepared): (&Snapshot, &Prepared),
        pod: &PodUid,
        (request, rule): (&GpuRequest, &ChoiceRule),
        places: &[Option<Place>],
    ) -> Vec<Option<Rated>> {
        if places.len() < snapshot.names().len() / 2 {
            let gpus = |place| snapshot.at(place).gpus.as_ref();
            let rate = |place| Some(rate(gpus(place)?, pod, (request, rule)));
            return places.iter().map(|place| place.and_then(rate)).collect();
        }
        let mut kept = self.lock();
        let rated = newest(&mut kept, request, rule);
        rated.renew(snapshot, prepared);
        let mut ratings = Vec::with_capacity(places.len());
        for place in places {
            ratings.push(place.and_then(|place| rated.rating((snapshot, prepared), place, pod)));
        }
        ratings
    }

    // A panic under this lock leaves no wrong rating: each is stored with its version.
    fn lock(&self) -> MutexGuard<'_, Vec<RatedRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`NodeGpus::rate`] of the GPUs that the request finds.
fn rate(gpus: &NodeGpus, pod: &PodUid, (request, rule): (&GpuRequest, &ChoiceRule)) -> Rated {
    gpus.found_by(request).ok_or(NoFit::NoShares)?.rate(pod, request, rule)
}

/// The entry of that request, moved to the front.
fn newest<'k>(
    kept: &'k mut Vec<RatedRequest>,
    request: &GpuRequest,
    rule: &ChoiceRule,
) -> &'k mut RatedRequest {
    if let Some(at) = kept.iter().position(|rated| rated.is(request, rule)) {
        kept[..=at].rotate_right(1);
    } else {
        kept.truncate(REQUESTS - 1);
        let (request, rule) = (request.clone(), rule.clone());
        kept.insert(0, RatedRequest { request, rule, nodes: Vec::new() });
    }
    &mut kept[0]
}

#[cfg(test)]
mod tests {
    use placement::gpu::fragmentation::{HeldParts, Measure, NodeClass, PodShape, TypicalPods};
    use placement::gpu::{self, Closed, Gpu, Isolation};
    use placement::units::{Cores, MiB, NodeName, Units};
    use proptest::prelude::*;

    use super::*;
    use crate::view::fixtures::{self, gpu};
    use crate::view::{GpuPodId, View};

    /// More than one chunk.
    const NODES: usize = 70;

    fn request((units, cpu): (u32, u64)) -> GpuRequest {
        GpuRequest::single("main", Units(units)).unwrap().with_cpu(cpu)
    }

    /// The same by a ResourceClaim: the GPUs of [`gpu`] have units of 1 GiB.
    fn by_claim((units, cpu): (u32, u64)) -> GpuRequest {
        let memory = Some(MiB(u64::from(units) * 1024));
        let request = GpuRequest::of_claim(1, memory, Cores(0), Isolation::None);
        request.unwrap().with_cpu(cpu)
    }

    fn id(pod: usize) -> GpuPodId {
        let name = format!("p{pod}");
        GpuPodId { uid: name.as_str().into(), namespace: "ml".to_owned(), name }
    }

    /// What a step does to a node and a pod.
    fn act(view: &View, (node, pod): (&NodeName, usize), request: &GpuRequest, act: u8) {
        let (pod, rule) = (id(pod), ChoiceRule::default());
        match act {
            0 | 1 => view.change(|index| {
                if index.held_on(&pod.uid).contains(node) {
                    index.cancel(&pod.uid, node);
                } else {
                    // A full node changes nothing.
                    let _ = index.reserve(&pod, request, node, &rule);
                }
            }),
            2 => view.change(|index| index.keep(&pod.uid, node, vec!["GPU-0".into()])),
            3 => view.change(|index| index.release_kept(&pod.uid)),
            4 => fixtures::join(view, node.as_str(), Vec::new()),
            5 => {
                let closed = Some(Closed::Claims);
                fixtures::join(view, node.as_str(), vec![Gpu { closed, ..gpu() }]);
            }
            _ => fixtures::join(view, node.as_str(), vec![gpu()]),
        }
    }

    proptest! {
        #[test]
        fn kept_ratings_are_those_of_each_node_now(
            steps in prop::collection::vec((0..NODES, 0..4_usize, kind(), 0..5_usize, 0..7_u8), 1..40),
            by_claims in prop::collection::vec(any::<bool>(), 40),
        ) {
            let names: Vec<_> = (0..NODES).map(|at| NodeName::from(format!("n{at}"))).collect();
            let (view, rules, cache) = (fixtures::view(), rules(), RatingCache::default());
            // One node has no GPUs.
            fixtures::join(&view, "n0", Vec::new());
            for name in &names[1..] {
                fixtures::join(&view, name.as_str(), vec![gpu()]);
            }
            for ((node, pod, kind, rule, kind_of_act), asks_by_claim) in steps.into_iter().zip(by_claims) {
                let (request, rule, uid) = (request(kind), &rules[rule], id(pod).uid);
                act(&view, (&names[node], pod), &request, kind_of_act);
                let request = if asks_by_claim { by_claim(kind) } else { request };
                let current = view.current();
                let (snapshot, prepared) = (&*current.snapshot, &current.prepared);
                let places: Vec<_> =
                    names.iter().rev().map(|name| snapshot.names().place(name.as_str())).collect();
                let requested = if kind_of_act > 0 { &places[..] } else { &places[..10] };
                let ratings = cache.rate((snapshot, prepared), &uid, (&request, rule), requested);
                for (name, rating) in names.iter().rev().zip(ratings) {
                    let gpus = snapshot.gpus(name.as_str());
                    let found = gpus.map(|gpus| gpus.found_by(&request).ok_or(NoFit::NoShares));
                    let rate = |gpus: &NodeGpus| gpus.rate(&uid, &request, rule);
                    prop_assert_eq!(rating, found.map(|found| found.and_then(rate)));
                    let check = |gpus: &NodeGpus| gpus.check(&uid, &request);
                    let check = found.map(|found| found.and_then(check));
                    prop_assert_eq!(rating.map(|rating| rating.map(|_| ())), check);
                }
            }
        }
    }

    /// Units and CPU, of more kinds than are kept.
    fn kind() -> impl Strategy<Value = (u32, u64)> {
        (prop::sample::select(vec![1, 4, 5, 16]), prop::sample::select(vec![0, 500, 4_000]))
            .boxed()
            .prop_union((1..17_u32, 0..3_u64).boxed())
    }

    /// Without a measure, and with one of two.
    fn rules() -> [ChoiceRule; 5] {
        let measured = |units: u32| {
            let mut typical = TypicalPods::default();
            (0..50).for_each(|_| typical.observe(&PodShape::of(&request((units, 1_000)))));
            let (model, gpu) = ("NVIDIA A10".to_owned(), Units(16));
            let class = NodeClass { count: NODES, cpu: Some(4_000), model, gpus: 1, units: gpu };
            let measure = Some(Arc::new(Measure::new(&typical, &HeldParts::default(), &[class])));
            ChoiceRule { strategy: gpu::Strategy::LeastFragmentation, measure }
        };
        let plain = |strategy| ChoiceRule { strategy, measure: None };
        let [least, pack, spread] = gpu::Strategy::ALL.map(plain);
        [least, pack, spread, measured(4), measured(16)]
    }

    #[test]
    fn ratings_are_kept_for_the_requests_of_last_time() {
        let (view, rule, cache) = (fixtures::view(), ChoiceRule::default(), RatingCache::default());
        fixtures::join(&view, "a", vec![gpu()]);
        let current = view.current();
        let (snapshot, prepared) = (&*current.snapshot, &current.prepared);
        let place = [snapshot.names().place("a")];
        let rate = |units: u32| {
            let request = request((units, 0));
            cache.rate((snapshot, prepared), &"p".into(), (&request, &rule), &place);
        };
        let has = |units: u32| cache.has(&request((units, 0)), &rule);
        assert!(!has(1));
        rate(1);
        for units in 2..100 {
            rate(units);
            rate(1);
            assert!(has(1) && has(units));
        }
        (2..40).for_each(rate);
        assert!(!has(1) && has(39) && has(8) && !has(7));
    }
}
