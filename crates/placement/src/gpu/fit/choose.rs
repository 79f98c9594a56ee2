//! Which GPUs a request gets.

use std::cmp::Reverse;

use super::Choice;
use super::assign::assign;
use super::no_fit::{NoFit, why_no_fit};
use crate::gpu::choice_rule::Preference;
use crate::gpu::fragmentation::{Cost, Measure, MeasuredNode};
use crate::gpu::{ChoiceRule, FreeGpu, GpuRequest, GpuSet, GpuShare, Topology};

/// The cost of a GPU that the largest share does not fit.
const COST_OF_NO_FIT: Cost = Cost(i64::MAX);
/// The most groups of linked GPUs that are compared: eight pairs of 16 GPUs.
const MOST_GROUPS: usize = 8;

/// Chooses the GPUs for a request by the request's own strategy or else that of the rule. `cpu` is the node's free
/// CPU, in thousandths of a core. Of equal GPUs it takes one that has the least free memory near it, so that others
/// stay whole, and of these the one with the lowest index. Several GPUs are all linked by NVLink where that is no worse
/// by the strategy, and else on one NUMA node where that is possible. CPU is no reason to reject a node here:
/// kube-scheduler counts it.
///
/// # Errors
///
/// Why none fit.
pub fn choose<'a>(
    gpus: impl IntoIterator<Item = &'a FreeGpu>,
    cpu: Option<u64>,
    request: &GpuRequest,
    rule: &ChoiceRule,
) -> Result<Choice, NoFit> {
    let mut all: Vec<&FreeGpu> = gpus.into_iter().collect();
    let picked = match rule.preference(request) {
        Preference::Cheapest(measure) => return cheapest(measure, &all, cpu, request),
        Preference::Fullest => {
            let near = free_near(&all);
            all.sort_by_cached_key(|gpu| (gpu.free, near(gpu), gpu.index));
            pick(&all, request, free)
        }
        Preference::Emptiest => {
            let near = free_near(&all);
            all.sort_by_cached_key(|gpu| (Reverse(gpu.free), Reverse(near(gpu)), gpu.index));
            pick(&all, request, |gpus| Reverse(free(gpus)))
        }
    };
    let chosen = picked.ok_or_else(|| why_no_fit(&all, request))?;
    Ok(choice(&chosen, request, None))
}

/// These GPUs, one for each share of the request.
fn choice(gpus: &[&FreeGpu], request: &GpuRequest, cost: Option<Cost>) -> Choice {
    let chosen = |(gpu, share): (&&FreeGpu, &GpuShare)| gpu.chosen(*share);
    Choice { gpus: gpus.iter().zip(request.shares()).map(chosen).collect(), cost }
}

/// The GPUs where a placement costs least. For several GPUs, each is the cheapest by itself.
fn cheapest(
    measure: &Measure,
    gpus: &[&FreeGpu],
    cpu: Option<u64>,
    request: &GpuRequest,
) -> Result<Choice, NoFit> {
    let share = request.largest();
    let near = free_near(gpus);
    let node = MeasuredNode::new(measure, cpu, gpus);
    let mut priced: Vec<(Cost, FreeNear, u32, &FreeGpu)> = Vec::with_capacity(gpus.len());
    for (at, gpu) in gpus.iter().enumerate() {
        let cost = if gpu.fits(share, request) {
            let alike = priced
                .iter()
                .find(|(cost, .., other)| *cost != COST_OF_NO_FIT && costs_the_same(gpu, other));
            match alike {
                Some((cost, ..)) => *cost,
                None => node.cost(request.cpu(), &[(at, share)]),
            }
        } else {
            COST_OF_NO_FIT
        };
        priced.push((cost, near(gpu), gpu.index, gpu));
    }
    priced.sort_by_key(|(cost, near, index, _)| (*cost, *near, *index));
    let by_cost: Vec<&FreeGpu> = priced.iter().map(|(.., gpu)| *gpu).collect();
    let cost_of = |chosen: &[&FreeGpu]| {
        let mut shares = Vec::with_capacity(chosen.len());
        for (gpu, share) in chosen.iter().zip(request.shares()) {
            let position = gpus.iter().position(|other| std::ptr::eq(*other, *gpu));
            shares.extend(position.map(|at| (at, *share)));
        }
        node.cost(request.cpu(), &shares)
    };
    let chosen = pick(&by_cost, request, cost_of).ok_or_else(|| why_no_fit(gpus, request))?;
    Ok(choice(&chosen, request, Some(cost_of(&chosen))))
}

/// Units free on the open GPUs that a GPU reaches over NVLink and on itself, and on those of its NUMA node; each 0
/// where there are no others, or that is not known.
pub(in crate::gpu) type FreeNear = (u64, u64);

/// What is free near each GPU.
pub(in crate::gpu) fn free_near(gpus: &[&FreeGpu]) -> impl Fn(&FreeGpu) -> FreeNear + use<> {
    let mut open: Vec<(u32, Topology, u64)> = Vec::with_capacity(gpus.len());
    for gpu in gpus.iter().filter(|gpu| gpu.is_open()) {
        open.push((gpu.index, gpu.topology, u64::from(gpu.free.0)));
    }
    move |gpu| {
        let Topology { numa_node, linked } = gpu.topology;
        let mut near = (0, 0);
        for (index, other, free) in &open {
            if linked.contains(*index) || (*index == gpu.index && !linked.is_empty()) {
                near.0 += free;
            }
            if numa_node.is_some() && other.numa_node == numa_node {
                near.1 += free;
            }
        }
        near
    }
}

/// GPUs that fit the request, the first in the order of `gpus`: all linked by NVLink where `price` is no higher for it,
/// and else on one NUMA node where that is possible.
fn pick<'a, P: Ord>(
    gpus: &[&'a FreeGpu],
    request: &GpuRequest,
    price: impl Fn(&[&FreeGpu]) -> P,
) -> Option<Vec<&'a FreeGpu>> {
    let chosen = near(gpus, request, &price)?;
    if are_linked(&chosen) {
        return Some(chosen);
    }
    match linked(gpus, request, &price) {
        Some((least, linked)) if least <= price(&chosen) => Some(linked),
        _ => Some(chosen),
    }
}

/// Whether NVLink connects all of these with each other.
pub(super) fn are_linked(gpus: &[&FreeGpu]) -> bool {
    (1..gpus.len()).all(|at| gpus[..at].iter().all(|gpu| gpu.is_linked_with(gpus[at])))
}

/// The GPUs of least `price` for several shares that are all linked, with that price. From each GPU on, GPUs are added
/// in their order that are linked with all before; so the best is found where links are transitive, as behind switches
/// and bridges, and of no more than [`MOST_GROUPS`] kinds.
fn linked<'a, P: Ord>(
    gpus: &[&'a FreeGpu],
    request: &GpuRequest,
    price: impl Fn(&[&FreeGpu]) -> P,
) -> Option<(P, Vec<&'a FreeGpu>)> {
    let mut fitting = gpus.to_vec();
    fitting.retain(|gpu| !gpu.topology.linked.is_empty());
    fitting.retain(|gpu| request.shares().iter().any(|share| gpu.fits(*share, request)));
    let mut tried: Vec<GpuSet> = Vec::new();
    let mut best: Option<(P, Vec<&FreeGpu>)> = None;
    for first in &fitting {
        let mut group = vec![*first];
        for gpu in &fitting {
            if group.iter().all(|member| member.is_linked_with(gpu)) {
                group.push(gpu);
            }
        }
        let set: GpuSet = group.iter().map(|gpu| gpu.index).collect();
        if group.len() < request.shares().len() || tried.contains(&set) {
            continue;
        }
        if tried.len() == MOST_GROUPS {
            break;
        }
        tried.push(set);
        for chosen in [near(&group, request, &price), assign_all(&group, request)] {
            let Some(chosen) = chosen else { continue };
            let price = price(&chosen);
            if best.as_ref().is_none_or(|(least, _)| price < *least) {
                best = Some((price, chosen));
            }
        }
    }
    best
}

/// Units free on these GPUs.
fn free(gpus: &[&FreeGpu]) -> u64 {
    gpus.iter().map(|gpu| u64::from(gpu.free.0)).sum()
}

/// Whether GPUs fit a request, without choosing them.
///
/// # Errors
///
/// Why none fit.
pub(in crate::gpu) fn check(gpus: &[&FreeGpu], request: &GpuRequest) -> Result<(), NoFit> {
    assign_all(gpus, request).map(|_| ()).ok_or_else(|| why_no_fit(gpus, request))
}

/// A GPU for each share of the request, without regard to NUMA nodes.
fn assign_all<'a>(gpus: &[&'a FreeGpu], request: &GpuRequest) -> Option<Vec<&'a FreeGpu>> {
    assign(gpus, request.shares(), |gpu, share| gpu.fits(share, request))
}

/// GPUs for the request on one NUMA node where that is possible for several: the one of least `price`.
fn near<'a, P: Ord>(
    gpus: &[&'a FreeGpu],
    request: &GpuRequest,
    price: impl Fn(&[&FreeGpu]) -> P,
) -> Option<Vec<&'a FreeGpu>> {
    if request.shares().len() < 2 {
        return assign_all(gpus, request);
    }
    let mut nodes: Vec<u32> = gpus.iter().filter_map(|gpu| gpu.topology.numa_node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let on_node = |node: u32| {
        let mut near = gpus.to_vec();
        near.retain(|gpu| gpu.topology.numa_node == Some(node));
        assign_all(&near, request)
    };
    let mut on_one: Vec<Vec<&FreeGpu>> = nodes.into_iter().filter_map(on_node).collect();
    // Asks for no price where there is one.
    on_one.sort_by_cached_key(|all| (price(all), free(all)));
    on_one.into_iter().next().or_else(|| assign_all(gpus, request))
}

/// Whether a share costs the same on both GPUs.
fn costs_the_same(one: &FreeGpu, other: &FreeGpu) -> bool {
    one.free == other.free
        && one.units == other.units
        && one.idle == other.idle
        && one.free_cores == other.free_cores
        && one.model == other.model
}
