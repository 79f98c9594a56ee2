//! Which cards a request gets.

use std::cmp::Reverse;

use super::Choice;
use super::assign::assign;
use super::no_fit::{NoFit, why_no_fit};
use crate::gpu::choice_rule::Preference;
use crate::gpu::fragmentation::{Cost, Measure, MeasuredNode};
use crate::gpu::{CardShare, ChoiceRule, FreeCard, GpuRequest};

/// The cost of a card that the largest share does not fit.
const COST_OF_NO_FIT: Cost = Cost(i64::MAX);

/// Chooses the cards for a request by the request's own strategy or else that of the rule. `cpu` is the node's free
/// CPU, in thousandths of a core. Of equal cards it takes one on the NUMA node with the least free memory, so that
/// other NUMA nodes stay whole, and there the one with the lowest index. Several cards are on one NUMA node where that
/// is possible. CPU is no reason to reject a node here: kube-scheduler counts it.
///
/// # Errors
///
/// Why none fit.
pub fn choose<'a>(
    cards: impl IntoIterator<Item = &'a FreeCard>,
    cpu: Option<u64>,
    request: &GpuRequest,
    rule: &ChoiceRule,
) -> Result<Choice, NoFit> {
    let mut all: Vec<&FreeCard> = cards.into_iter().collect();
    let numa = numa_free(&all);
    match rule.preference(request) {
        Preference::Cheapest(measure) => return cheapest(measure, &all, cpu, request),
        Preference::Fullest => {
            all.sort_by_cached_key(|card| (card.free, numa(card), card.index));
        }
        Preference::Emptiest => {
            all.sort_by_cached_key(|card| (Reverse(card.free), Reverse(numa(card)), card.index));
        }
    }
    let chosen = pick(&all, request).ok_or_else(|| why_no_fit(&all, request))?;
    Ok(choice(&chosen, request, None))
}

/// These cards, one for each share of the request.
fn choice(cards: &[&FreeCard], request: &GpuRequest, cost: Option<Cost>) -> Choice {
    let chosen = |(card, share): (&&FreeCard, &CardShare)| card.chosen(*share);
    Choice { cards: cards.iter().zip(request.shares()).map(chosen).collect(), cost }
}

/// The cards where a placement costs least. For several cards, each is the cheapest by itself.
fn cheapest(
    measure: &Measure,
    cards: &[&FreeCard],
    cpu: Option<u64>,
    request: &GpuRequest,
) -> Result<Choice, NoFit> {
    let share = request.largest();
    let numa = numa_free(cards);
    let node = MeasuredNode::new(measure, cpu, cards);
    let mut priced: Vec<(Cost, u64, u32, &FreeCard)> = Vec::with_capacity(cards.len());
    for (at, card) in cards.iter().enumerate() {
        let cost = if card.fits(share, request) {
            let alike = priced
                .iter()
                .find(|(cost, .., other)| *cost != COST_OF_NO_FIT && costs_the_same(card, other));
            match alike {
                Some((cost, ..)) => *cost,
                None => node.cost(request.cpu(), &[(at, share)]),
            }
        } else {
            COST_OF_NO_FIT
        };
        priced.push((cost, numa(card), card.index, card));
    }
    priced.sort_by_key(|(cost, numa, index, _)| (*cost, *numa, *index));
    let by_cost: Vec<&FreeCard> = priced.iter().map(|(.., card)| *card).collect();
    let chosen = pick(&by_cost, request).ok_or_else(|| why_no_fit(cards, request))?;
    let mut shares = Vec::with_capacity(chosen.len());
    for (card, share) in chosen.iter().zip(request.shares()) {
        let position = cards.iter().position(|other| std::ptr::eq(*other, *card));
        shares.extend(position.map(|at| (at, *share)));
    }
    Ok(choice(&chosen, request, Some(node.cost(request.cpu(), &shares))))
}

/// Units free on the open cards of a card's NUMA node; 0 if that is not known.
pub(in crate::gpu) fn numa_free(cards: &[&FreeCard]) -> impl Fn(&FreeCard) -> u64 + use<> {
    let mut free: Vec<(u32, u64)> = Vec::new();
    for card in cards.iter().filter(|card| card.is_open()) {
        let Some(node) = card.numa_node else { continue };
        let units = u64::from(card.free.0);
        match free.iter_mut().find(|(known, _)| *known == node) {
            Some((_, sum)) => *sum += units,
            None => free.push((node, units)),
        }
    }
    move |card| {
        card.numa_node
            .and_then(|node| free.iter().find(|(known, _)| *known == node).map(|(_, sum)| *sum))
            .unwrap_or(0)
    }
}

/// The first of `cards`, in their order, that fit the request; on one NUMA node where that is possible.
fn pick<'a>(cards: &[&'a FreeCard], request: &GpuRequest) -> Option<Vec<&'a FreeCard>> {
    on_one_numa_node(cards, request).or_else(|| assign_all(cards, request))
}

/// Whether cards fit a request, without choosing them.
///
/// # Errors
///
/// Why none fit.
pub(in crate::gpu) fn check(cards: &[&FreeCard], request: &GpuRequest) -> Result<(), NoFit> {
    assign_all(cards, request).map(|_| ()).ok_or_else(|| why_no_fit(cards, request))
}

/// A card for each share of the request, without regard to NUMA nodes.
fn assign_all<'a>(cards: &[&'a FreeCard], request: &GpuRequest) -> Option<Vec<&'a FreeCard>> {
    assign(cards, request.shares(), |card, share| card.fits(share, request))
}

/// Cards for several shares on one NUMA node: the one where the chosen cards have the fewest free units.
fn on_one_numa_node<'a>(cards: &[&'a FreeCard], request: &GpuRequest) -> Option<Vec<&'a FreeCard>> {
    if request.shares().len() < 2 {
        return None;
    }
    let mut nodes: Vec<u32> = cards.iter().filter_map(|card| card.numa_node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let on_node = |node: u32| {
        let mut near = cards.to_vec();
        near.retain(|card| card.numa_node == Some(node));
        assign_all(&near, request)
    };
    let free = |all: &Vec<&FreeCard>| all.iter().map(|card| u64::from(card.free.0)).sum::<u64>();
    nodes.into_iter().filter_map(on_node).min_by_key(free)
}

/// Whether a share costs the same on both cards.
fn costs_the_same(one: &FreeCard, other: &FreeCard) -> bool {
    one.free == other.free
        && one.units == other.units
        && one.idle == other.idle
        && one.free_cores == other.free_cores
        && one.model == other.model
}
