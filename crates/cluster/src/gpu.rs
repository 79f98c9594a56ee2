//! The border between the JSON of `api` and placement's cards and claims.

use std::collections::BTreeMap;

use api::JsonError;
use api::allocation::Allocation;
use api::cards::{Cards, CardsError};
use jiff::Timestamp;
use placement::gpu::{Card, Claim, ContainerKind, GpuRequest, Reservation};
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

/// Reads a node's cards.
pub(crate) fn cards(text: &str) -> Result<Vec<Card>, CardsError> {
    let card = |card: api::cards::Card| Card {
        uuid: card.uuid,
        index: card.index,
        model: card.model,
        memory: card.memory,
        units: card.units,
        numa_node: card.numa_node,
        healthy: card.healthy,
        pods: card.pods,
    };
    Ok(Cards::from_json(text)?.0.into_iter().map(card).collect())
}

/// Reads a pod's claim, and checks it against the pod's spec.
pub(crate) fn claim(text: &str, request: &GpuRequest) -> Result<Claim, ClaimError> {
    let claimed = api::claim::Claim::from_json(text, request.containers().len());
    let claimed = claimed.map_err(ClaimError::Unreadable)?;
    Ok(Claim::checked(request, &claimed.containers)?)
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
    let pair = |key: &str, value: String| (key.to_owned(), value);
    [
        (names.claim(), wire(claim).to_json()),
        pair(aliyun::IDX, choice.index.to_string()),
        pair(aliyun::DEV, choice.units.to_string()),
        pair(aliyun::POD, request.peak().to_string()),
        pair(aliyun::ASSIGNED, "false".to_owned()),
        pair(aliyun::ASSUME_TIME, at.as_nanosecond().to_string()),
        pair(aliyun::ALLOCATION, allocation(request, choice.index).to_json()),
    ]
    .into()
}

fn wire(claim: &Claim) -> api::claim::Claim {
    let on = |units: &Units| [(claim.card().clone(), *units)].into();
    let containers = claim.containers().iter().map(|(name, units)| (name.clone(), on(units)));
    api::claim::Claim { containers: containers.collect() }
}

/// The app containers alone: Aliyun's tools know no others.
fn allocation(request: &GpuRequest, index: u32) -> Allocation {
    let apps = request.containers().iter().filter(|ask| ask.kind == ContainerKind::App);
    let containers: BTreeMap<usize, BTreeMap<u32, Units>> =
        apps.map(|ask| (ask.position, [(index, ask.units)].into())).collect();
    Allocation { containers }
}
