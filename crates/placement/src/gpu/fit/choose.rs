//! Which GPUs a request gets.

use std::cmp::Reverse;

use super::Choice;
use super::assign::assign;
use super::no_fit::{NoFit, why_no_fit};
use crate::gpu::choice_rule::Preference;
use crate::gpu::fragmentation::{Cost, Measure, MeasuredNode};
use crate::gpu::{ChoiceRule, FreeGpu, GpuRequest, GpuShare};

/// The cost of a GPU that the largest share does not fit.
const COST_OF_NO_FIT: Cost = Cost(i64::MAX);

/// Chooses the GPUs for a request by the request's own strategy or else that of the rule. `cpu` is the node's free
/// CPU, in thousandths of a core. Of equal GPUs it takes one on the NUMA node with the least free memory, so that
/// other NUMA nodes stay whole, and there the one with the lowest index. Several GPUs are on one NUMA node where that
/// is possible. CPU is no reason to reject a node here: kube-scheduler counts it.
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
    let numa = numa_free(&all);
    match rule.preference(request) {
        Preference::Cheapest(measure) => return cheapest(measure, &all, cpu, request),
        Preference::Fullest => {
            all.sort_by_cached_key(|gpu| (gpu.free, numa(gpu), gpu.index));
        }
        Preference::Emptiest => {
            all.sort_by_cached_key(|gpu| (Reverse(gpu.free), Reverse(numa(gpu)), gpu.index));
        }
    }
    let chosen = pick(&all, request).ok_or_else(|| why_no_fit(&all, request))?;
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
    let numa = numa_free(gpus);
    let node = MeasuredNode::new(measure, cpu, gpus);
    let mut priced: Vec<(Cost, u64, u32, &FreeGpu)> = Vec::with_capacity(gpus.len());
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
        priced.push((cost, numa(gpu), gpu.index, gpu));
    }
    priced.sort_by_key(|(cost, numa, index, _)| (*cost, *numa, *index));
    let by_cost: Vec<&FreeGpu> = priced.iter().map(|(.., gpu)| *gpu).collect();
    let chosen = pick(&by_cost, request).ok_or_else(|| why_no_fit(gpus, request))?;
    let mut shares = Vec::with_capacity(chosen.len());
    for (gpu, share) in chosen.iter().zip(request.shares()) {
        let position = gpus.iter().position(|other| std::ptr::eq(*other, *gpu));
        shares.extend(position.map(|at| (at, *share)));
    }
    Ok(choice(&chosen, request, Some(node.cost(request.cpu(), &shares))))
}

/// Units free on the open GPUs of a GPU's NUMA node; 0 if that is not known.
pub(in crate::gpu) fn numa_free(gpus: &[&FreeGpu]) -> impl Fn(&FreeGpu) -> u64 + use<> {
    let mut free: Vec<(u32, u64)> = Vec::new();
    for gpu in gpus.iter().filter(|gpu| gpu.is_open()) {
        let Some(node) = gpu.numa_node else { continue };
        let units = u64::from(gpu.free.0);
        match free.iter_mut().find(|(known, _)| *known == node) {
            Some((_, sum)) => *sum += units,
            None => free.push((node, units)),
        }
    }
    move |gpu| {
        gpu.numa_node
            .and_then(|node| free.iter().find(|(known, _)| *known == node).map(|(_, sum)| *sum))
            .unwrap_or(0)
    }
}

/// The first of `gpus`, in their order, that fit the request; on one NUMA node where that is possible.
fn pick<'a>(gpus: &[&'a FreeGpu], request: &GpuRequest) -> Option<Vec<&'a FreeGpu>> {
    on_one_numa_node(gpus, request).or_else(|| assign_all(gpus, request))
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

/// GPUs for several shares on one NUMA node: the one where the chosen GPUs have the fewest free units.
fn on_one_numa_node<'a>(gpus: &[&'a FreeGpu], request: &GpuRequest) -> Option<Vec<&'a FreeGpu>> {
    if request.shares().len() < 2 {
        return None;
    }
    let mut nodes: Vec<u32> = gpus.iter().filter_map(|gpu| gpu.numa_node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let on_node = |node: u32| {
        let mut near = gpus.to_vec();
        near.retain(|gpu| gpu.numa_node == Some(node));
        assign_all(&near, request)
    };
    let free = |all: &Vec<&FreeGpu>| all.iter().map(|gpu| u64::from(gpu.free.0)).sum::<u64>();
    nodes.into_iter().filter_map(on_node).min_by_key(free)
}

/// Whether a share costs the same on both GPUs.
fn costs_the_same(one: &FreeGpu, other: &FreeGpu) -> bool {
    one.free == other.free
        && one.units == other.units
        && one.idle == other.idle
        && one.free_cores == other.free_cores
        && one.model == other.model
}
