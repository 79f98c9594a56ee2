//! The border between the JSON of `api` and placement's cards and claims.

use std::collections::BTreeMap;

use api::JsonError;
use api::allocation::Allocation;
use api::cards::{Cards, CardsError, MAX_CARDS};
use api::claim::Share;
use api::share::NodeShare;
use jiff::Timestamp;
use placement::gpu::{
    Card, CardIsolation, CardShare, CardUse, Choice, Claim, Closed, ContainerKind,
    ContainerRequest, GpuRequest, Isolation, MeasuredCard, MeasuredMemory, Reservation,
};
use placement::names::{Names, aliyun};
use placement::units::Units;

use crate::meta::Annotations;

/// Why a pod's claim annotation does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Longer than any that Bind writes for this pod, or not JSON of the schema.
    #[error("the claim is not `{{\"<container>\": {{\"<card UUID>\": <units>}}}}`: {0}")]
    Unreadable(JsonError),
    /// Not what Bind would write for this pod.
    #[error(transparent)]
    NoClaim(#[from] placement::gpu::ClaimError),
}

/// Reads a node's cards. `isolation` is the mode of the Node's own annotation, which is in force for pods that require
/// none. An older device plugin reports none for each card: then it is the strongest that is known, too.
pub(crate) fn cards(text: &str, isolation: Option<Isolation>) -> Result<Vec<Card>, CardsError> {
    let cards = Cards::from_json(text)?.0;
    Ok(cards.into_iter().map(|card| read_card(card, isolation)).collect())
}

fn read_card(card: api::cards::Card, isolation_of_node: Option<Isolation>) -> Card {
    Card {
        uuid: card.uuid,
        index: card.index,
        model: card.model.into(),
        memory: card.memory,
        units: card.units,
        numa_node: card.numa_node,
        healthy: card.healthy,
        closed: card.closed.map(closed),
        isolation: CardIsolation {
            strongest: card.isolation.map_or(isolation_of_node, enforced),
            minimum: isolation_of_node.unwrap_or_default(),
            mps_clients: card.mps_clients,
            drains_clients: card.mps_drain.unwrap_or(false),
        },
        outside_mps: card.outside_mps,
        pods: card.pods,
    }
}

fn closed(why: api::cards::Closed) -> Closed {
    match why {
        api::cards::Closed::Isolation => Closed::Isolation,
        api::cards::Closed::Cdi => Closed::Cdi,
        api::cards::Closed::CdiFolder => Closed::CdiFolder,
        api::cards::Closed::ComputeMode => Closed::ComputeMode,
        api::cards::Closed::Context => Closed::Context,
        api::cards::Closed::Dra => Closed::Dra,
        api::cards::Closed::Plugin => Closed::Plugin,
        api::cards::Closed::Other => Closed::Other,
    }
}

/// The word of the annotation for why a card takes no new pods.
#[must_use]
pub fn wire_closed(why: Closed) -> api::cards::Closed {
    match why {
        Closed::Isolation => api::cards::Closed::Isolation,
        Closed::Cdi => api::cards::Closed::Cdi,
        Closed::CdiFolder => api::cards::Closed::CdiFolder,
        Closed::ComputeMode => api::cards::Closed::ComputeMode,
        Closed::Context => api::cards::Closed::Context,
        Closed::Dra => api::cards::Closed::Dra,
        Closed::Plugin => api::cards::Closed::Plugin,
        Closed::Other => api::cards::Closed::Other,
    }
}

fn enforced(isolation: api::cards::Isolation) -> Option<Isolation> {
    match isolation {
        api::cards::Isolation::None => Some(Isolation::None),
        api::cards::Isolation::Mps => Some(Isolation::Mps),
        api::cards::Isolation::Driver => Some(Isolation::Driver),
        api::cards::Isolation::Other => None,
    }
}

/// Reads what is in use on a node's cards.
pub(crate) fn measured(text: &str) -> Option<MeasuredMemory> {
    let NodeShare { time, cards } = NodeShare::from_json(text).ok()?;
    let measured = |card: api::share::CardShare| {
        Some(MeasuredCard { uuid: card.uuid, used: card.used?, held: card.allocated })
    };
    Some(MeasuredMemory { at: time, cards: cards.into_iter().filter_map(measured).collect() })
}

/// The request of a bound pod as its claim has it; `None` where that is no claim of a pod with these units.
pub(crate) fn as_claimed(text: &str, request: &GpuRequest) -> Option<GpuRequest> {
    let shares = request.containers().len() * MAX_CARDS;
    let claim = api::claim::Claim::from_json(text, shares).ok()?;
    let claimed = claim.shares();
    let limits = claim.limits();
    let on_a_node = claimed.values().all(|shares| shares.len() <= MAX_CARDS);
    on_a_node.then(|| request.as_claimed(&claimed, &limits))?
}

/// What the claim of a bound pod gives each of its containers, as a request; `None` where it is no claim. For a pod
/// whose spec cannot be read: all of its containers count as if they ran together.
pub(crate) fn request_of_claim(text: &str) -> Option<GpuRequest> {
    let claim = api::claim::Claim::from_json(text, MAX_CARDS * MAX_CARDS).ok()?;
    let limits = claim.limits();
    let mut containers = Vec::new();
    for (position, (name, shares)) in claim.shares().into_iter().enumerate() {
        let CardShare { cores, exclusive, .. } = *shares.values().next()?;
        let units = shares.values().map(|share| share.units).sum();
        let limit = limits.get(&name).copied();
        let card_use = CardUse {
            cards: u32::try_from(shares.len()).ok()?,
            exclusive,
            cores,
            limit,
            processes: 1,
        };
        containers.push(ContainerRequest {
            name,
            kind: ContainerKind::App,
            position,
            units,
            card_use,
        });
    }
    GpuRequest::new(containers).ok()?
}

/// Reads a pod's claim, and checks it against the pod's spec.
pub(crate) fn claim(text: &str, request: &GpuRequest) -> Result<Claim, ClaimError> {
    let shares = request.containers().iter().map(|ask| ask.card_use.cards as usize).sum();
    let claimed = api::claim::Claim::from_json(text, shares).map_err(ClaimError::Unreadable)?;
    Ok(Claim::checked(request, &claimed.shares())?)
}

/// The pod annotations that Bind writes: our claim, and those that Aliyun's tools read. `at`: when the card was chosen.
#[must_use]
pub fn claim_annotations(
    names: &Names,
    request: &GpuRequest,
    reservation: &Reservation,
    at: Timestamp,
) -> Annotations {
    let Reservation { claim, choice } = reservation;
    let texts = [
        wire(claim).to_json(),
        choice.first_index().to_string(),
        units_of_first(choice).to_string(),
        request.peak().to_string(),
        "false".to_owned(),
        at.as_nanosecond().to_string(),
        allocation(request, reservation).to_json(),
    ];
    written_keys(names).into_iter().zip(texts).collect()
}

/// The bytes of keys and values that the annotations of a pod may have together once it is bound: Kubernetes' limit
/// (`TotalAnnotationSizeLimitB`), less 64 KiB for those who write to the pod later.
///
/// Kubernetes checks the limit at each update, of a status too, and not what a binding adds. A pod beyond it runs, and
/// its kubelet can report nothing of it, nor can anything evict or preempt it.
pub const MAX_ANNOTATION_BYTES: usize = (256 - 64) << 10;

/// The most bytes of keys and values that [`claim_annotations`] has for this request, whatever the cards.
pub(crate) fn most_claim_bytes(names: &Names, request: &GpuRequest) -> usize {
    let mut bytes: usize = written_keys(names).iter().map(String::len).sum();
    // An index, two numbers of units, `false`, and a time in nanoseconds; the braces of both objects.
    bytes += 3 * 10 + 5 + 20 + 4;
    let share = api::claim::MAX_SHARE + api::allocation::MAX_SHARE;
    for ask in request.containers() {
        bytes += ask.name.len() + api::allocation::MAX_CONTAINER;
        bytes += share * ask.card_use.cards as usize;
    }
    bytes
}

/// The keys of [`claim_annotations`], in the order of its texts.
pub(crate) fn written_keys(names: &Names) -> [String; 7] {
    [
        names.claim(),
        aliyun::IDX.to_owned(),
        aliyun::DEV.to_owned(),
        aliyun::POD.to_owned(),
        aliyun::ASSIGNED.to_owned(),
        aliyun::ASSUME_TIME.to_owned(),
        aliyun::ALLOCATION.to_owned(),
    ]
}

/// The annotations of a binding for a pod that asks for no GPU memory: a claim of nothing, since admission refuses
/// bindings of the extender without a claim.
pub fn no_claim(names: &Names) -> Annotations {
    let none = api::claim::Claim { containers: BTreeMap::new() };
    [(names.claim(), none.to_json())].into()
}

/// Aliyun's tools know one card a pod by these annotations, and several by the allocation.
fn units_of_first(choice: &Choice) -> Units {
    let first = choice.cards.iter().min_by_key(|card| card.index);
    first.map_or(Units::ZERO, |card| card.units)
}

fn wire(claim: &Claim) -> api::claim::Claim {
    let mut containers = BTreeMap::new();
    for (name, shares) in claim.containers() {
        let limit = claim.limit_of(name);
        let cards =
            shares.iter().map(|(card, share)| (card.clone(), Share::new(*share, limit))).collect();
        containers.insert(name.clone(), cards);
    }
    api::claim::Claim { containers }
}

/// The app containers alone: Aliyun's tools know no others. A pod that has cards for itself is shown with all their
/// units.
fn allocation(request: &GpuRequest, Reservation { claim, choice }: &Reservation) -> Allocation {
    let mut containers = BTreeMap::new();
    for ask in request.containers().iter().filter(|ask| ask.kind == ContainerKind::App) {
        let mut units_by_index = BTreeMap::new();
        for (card, share) in claim.of(&ask.name).into_iter().flatten() {
            if let Some(chosen) = choice.cards.iter().find(|chosen| chosen.uuid == *card) {
                let units = if share.exclusive { chosen.units } else { share.units };
                units_by_index.insert(chosen.index, units);
            }
        }
        containers.insert(ask.position, units_by_index);
    }
    Allocation { containers }
}
