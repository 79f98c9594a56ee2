//! Chooses the pods of a node to evict so that a pod of higher priority finds GPUs there.
//!
//! kube-scheduler sees a node's total of units only, so the victims of its dry run often lie on several GPUs. Here one
//! GPU at a time is freed, by evicting the fewest pods of the lowest priority that make room on it. The other
//! resources that the pod needs stay covered.
//!
//! Invariant: none of [`NodeGpus::undrained_clients`] is chosen, also where the dry run would evict it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::account::room_left;
use super::{Account, Charge, Choice, ChoiceRule, FreeGpu, GpuRequest, GpuShare, NodeGpus};
use crate::units::{Cores, PodUid, Units};

/// A pod that may be evicted for another: one of lower priority.
#[derive(Debug, Clone, PartialEq)]
pub struct Evictable {
    /// The pod.
    pub uid: PodUid,
    /// Its priority.
    pub priority: i32,
    /// Whether its eviction violates a PodDisruptionBudget.
    pub violates_budget: bool,
    /// The amount that its eviction frees of each resource of [`Shortfall`], in the same order.
    pub frees: Vec<f64>,
}

impl Evictable {
    /// How much its eviction costs by itself: first by its disruption budget, then by its priority.
    fn level(&self) -> (bool, i32) {
        (self.violates_budget, self.priority)
    }
}

/// The amount of each other resource that has to be freed for the pod, in the same order as [`Evictable::frees`]. Not
/// negative.
pub type Shortfall = Vec<f64>;

/// The pods to evict from a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Victims {
    /// The pods, by UID.
    pub pods: BTreeSet<PodUid>,
    /// How many of them violate a PodDisruptionBudget.
    pub violations: usize,
    /// The GPUs that the pod gets after the evictions.
    pub choice: Choice,
}

/// The pods of a node from which the victims are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Candidates<'a> {
    /// All that may be evicted.
    pub evictable: &'a [Evictable],
    /// Those that kube-scheduler's dry run would evict.
    pub of_dry_run: &'a BTreeSet<PodUid>,
    /// What is missing of other resources.
    pub shortfall: &'a Shortfall,
}

/// The cost of an eviction. Compared as in kube-scheduler, except that kube-scheduler compares the number of pods last.
type EvictionCost = (usize, Option<i32>, usize, i64);

/// The pods to evict: those of kube-scheduler's dry run, or others where that costs less. `None` where no eviction
/// makes room.
pub fn victims(
    gpus: &NodeGpus,
    pod: &PodUid,
    request: &GpuRequest,
    candidates: Candidates<'_>,
    rule: &ChoiceRule,
) -> Option<Victims> {
    let undrained = gpus.undrained_clients();
    let mut evictable = candidates.evictable.to_vec();
    evictable.retain(|pod| !undrained.contains(&pod.uid));
    let candidates = Candidates { evictable: &evictable, ..candidates };
    let Candidates { evictable, of_dry_run, shortfall } = candidates;
    let mut sets: Vec<Vec<&Evictable>> = Vec::new();
    if !of_dry_run.iter().any(|pod| undrained.contains(pod)) {
        sets.push(evictable.iter().filter(|pod| of_dry_run.contains(&pod.uid)).collect());
    }
    if let Some(freeing) = freeing_gpus(gpus, pod, request, evictable) {
        let by_gpu = covering(freeing, candidates);
        // kube-scheduler has found that the pod fits nowhere without evictions: no pod to evict is no solution.
        if !by_gpu.is_empty() && is_covered(&by_gpu, shortfall) {
            sets.push(by_gpu);
        }
    }
    let (choice, chosen) = sets
        .into_iter()
        .filter_map(|chosen| {
            let is_gone = |uid: &PodUid| uid == pod || contains(&chosen, uid);
            Some((gpus.fit_without(is_gone, pod, request, rule).ok()?, chosen))
        })
        .min_by_key(|(_, chosen)| cost(chosen))?;
    let violations = chosen.iter().filter(|pod| pod.violates_budget).count();
    Some(Victims { pods: chosen.iter().map(|pod| pod.uid.clone()).collect(), violations, choice })
}

/// How many pods would have to go from a node's GPUs so that `pod` fits, if any could. `None` where it does not fit
/// without all of them.
pub fn fewest_on_gpus(
    gpus: &NodeGpus,
    pod: &PodUid,
    request: &GpuRequest,
    rule: &ChoiceRule,
) -> Option<usize> {
    let mut pods: BTreeSet<&PodUid> = BTreeSet::new();
    for account in gpus.accounts() {
        pods.extend(account.charges.iter().flat_map(Charge::pods));
    }
    let evictable = |uid| Evictable { uid, priority: 0, violates_budget: false, frees: Vec::new() };
    let all: Vec<Evictable> = pods.into_iter().cloned().map(evictable).collect();
    let from =
        Candidates { evictable: &all, of_dry_run: &BTreeSet::new(), shortfall: &Shortfall::new() };
    Some(victims(gpus, pod, request, from, rule)?.pods.len())
}

fn cost(pods: &[&Evictable]) -> EvictionCost {
    let violations = pods.iter().filter(|pod| pod.violates_budget).count();
    let sum = pods.iter().map(|pod| i64::from(pod.priority)).sum();
    (violations, pods.iter().map(|pod| pod.priority).max(), pods.len(), sum)
}

/// The pods to evict so that there is room on one GPU for each share of the request, on each GPU those that cost
/// least.
pub(crate) fn freeing_gpus<'e>(
    gpus: &NodeGpus,
    pod: &PodUid,
    request: &GpuRequest,
    evictable: &'e [Evictable],
) -> Option<Vec<&'e Evictable>> {
    let mut chosen: Vec<&Evictable> = Vec::new();
    let mut used: Vec<usize> = Vec::new();
    for share in request.shares() {
        let mut sets = Vec::new();
        for (at, Account { gpu, charges }) in gpus.accounts().iter().enumerate() {
            let gpu = OneGpu { gpu, charges, pod, request, share: *share };
            if !used.contains(&at) {
                sets.extend(gpu.freed_by(evictable, &chosen).map(|set| (set, at)));
            }
        }
        let (set, at) = sets.into_iter().min_by_key(|(set, at)| (cost(set), *at))?;
        used.push(at);
        chosen.extend(set);
    }
    Some(chosen)
}

/// One GPU, and the share that is to fit it.
struct OneGpu<'a> {
    gpu: &'a FreeGpu,
    charges: &'a [Charge],
    /// The pod that is to be placed: a GPU that is kept for it, or for a less important one, counts as free.
    pod: &'a PodUid,
    request: &'a GpuRequest,
    share: GpuShare,
}

impl OneGpu<'_> {
    /// The pods to evict from the GPU in addition to `going`, so that the share fits; `None` if no evictions make it
    /// fit.
    fn freed_by<'e>(
        &self,
        evictable: &'e [Evictable],
        going: &[&'e Evictable],
    ) -> Option<Vec<&'e Evictable>> {
        if !self.gpu.is_open()
            || !self.gpu.is_accepted(self.request.filter())
            || self.request.excess(self.share, self.gpu.units).is_some()
        {
            return None;
        }
        let mut pods: Vec<&Evictable> = evictable
            .iter()
            .filter(|pod| !contains(going, &pod.uid))
            .filter(|pod| self.charges.iter().any(|charge| charge.is_of(&pod.uid)))
            .collect();
        pods.sort_by_key(|pod| pod.level());
        // The lowest level, by violated budget and then priority, up to which evicting the GPU's pods makes enough
        // room.
        if self.has_room_without(going, &[]) {
            return Some(Vec::new());
        }
        let last = (1..=pods.len()).find(|count| self.has_room_without(going, &pods[..*count]))?;
        let highest = pods[last - 1].level();
        pods.retain(|pod| pod.level() <= highest);
        Some(self.fewest(pods, going))
    }

    /// The fewest of these pods that make enough room, together with `going`; of equally few the least important.
    fn fewest<'e>(&self, mut pods: Vec<&'e Evictable>, going: &[&Evictable]) -> Vec<&'e Evictable> {
        pods.sort_by_key(|pod| (Reverse(self.held_by(pod)), pod.priority));
        let count = (1..=pods.len())
            .find(|count| self.has_room_without(going, &pods[..*count]))
            .unwrap_or(pods.len());
        let mut chosen: Vec<&Evictable> = pods[..count].to_vec();
        let mut others: Vec<&Evictable> = pods[count..].to_vec();
        others.sort_by_key(|pod| (pod.level(), self.held_by(pod)));
        for at in 0..chosen.len() {
            for other in &mut others {
                let before = chosen[at];
                if (other.level(), self.held_by(other)) < (before.level(), self.held_by(before)) {
                    chosen[at] = *other;
                    if self.has_room_without(going, &chosen) {
                        *other = before;
                        break;
                    }
                    chosen[at] = before;
                }
            }
        }
        // Leaves out a pod if the others make enough room without it.
        let mut at = 0;
        while at < chosen.len() {
            let pod = chosen.remove(at);
            if !self.has_room_without(going, &chosen) {
                chosen.insert(at, pod);
                at += 1;
            }
        }
        chosen
    }

    /// The most that a pod holds of the GPU.
    fn held_by(&self, pod: &Evictable) -> (Units, Cores) {
        let of = |charge: &Charge| charge.is_of(&pod.uid).then_some((charge.units, charge.cores));
        self.charges.iter().filter_map(of).max().unwrap_or_default()
    }

    /// Whether the share fits once the pods of both sets are gone.
    fn has_room_without(&self, going: &[&Evictable], also: &[&Evictable]) -> bool {
        let is_gone = |pod: &PodUid| pod == self.pod || contains(going, pod) || contains(also, pod);
        let stays = |charge: &&Charge| {
            charge.counts_against(self.pod, self.request) && !charge.ends_without(is_gone)
        };
        let room = room_left(self.gpu.units, self.charges.iter().filter(stays));
        room.takes(self.share, self.request, self.gpu.isolation)
    }
}

fn contains(pods: &[&Evictable], uid: &PodUid) -> bool {
    pods.iter().any(|pod| pod.uid == *uid)
}

/// The chosen pods, and those of the dry run that have to be evicted as well for other resources, the least important
/// first.
fn covering<'e>(mut chosen: Vec<&'e Evictable>, candidates: Candidates<'e>) -> Vec<&'e Evictable> {
    let Candidates { evictable, of_dry_run, shortfall } = candidates;
    let mut others: Vec<&Evictable> =
        evictable.iter().filter(|pod| of_dry_run.contains(&pod.uid)).collect();
    others.sort_by_key(|pod| (pod.violates_budget, pod.priority));
    for pod in others {
        let helps = shortfall.iter().enumerate().any(|(at, shortfall)| {
            freed(&chosen, at) < *shortfall && pod.frees.get(at).is_some_and(|frees| *frees > 0.0)
        });
        if helps && !contains(&chosen, &pod.uid) {
            chosen.push(pod);
        }
    }
    chosen
}

fn freed(pods: &[&Evictable], resource: usize) -> f64 {
    pods.iter().filter_map(|pod| pod.frees.get(resource)).sum()
}

fn is_covered(pods: &[&Evictable], shortfall: &Shortfall) -> bool {
    shortfall.iter().enumerate().all(|(at, shortfall)| freed(pods, at) >= *shortfall)
}
