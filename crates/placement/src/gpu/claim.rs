//! A claim: the card that a pod's containers are on, and the units that each of them holds there.
//!
//! Written once, at Bind, in the same API write that sets the pod's node; read by the device plugin and by every
//! later extender. Invariant: a [`Claim`] agrees with the spec that it was made or checked with.

use std::collections::{BTreeMap, BTreeSet};

use super::{ContainerAsk, GpuRequest};
use crate::units::{CardId, Units};

/// The card of a pod, and the units of each container that asks for any.
///
/// # Examples
///
/// ```
/// use placement::gpu::{Claim, GpuRequest};
/// use placement::units::{CardId, Units};
///
/// let request = GpuRequest::single("main", Units(3)).ok_or("asks for nothing")?;
/// let claim = Claim::on_card(&request, &CardId::from("GPU-7f2a"));
/// assert_eq!(claim.of("main"), Some(Units(3)));
/// // As read back from an annotation: only what Bind would have written is a claim.
/// let read = |units| Claim::checked(&request, &[("main".to_owned(), [("GPU-7f2a".into(), units)].into())].into());
/// assert_eq!(read(Units(3)), Ok(claim));
/// assert!(read(Units(1)).is_err());
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    card: CardId,
    containers: BTreeMap<String, Units>,
}

/// Why what an annotation claims is no claim of its pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Container and units do not match the spec.
    #[error("the claim gives container `{container}` {claimed} units, its spec asks for {asked}")]
    Mismatch {
        /// The container.
        container: String,
        /// Units in the claim.
        claimed: Units,
        /// Units in the spec.
        asked: Units,
    },
    /// All containers of a pod share one card.
    #[error("the claim names more than one card")]
    SeveralCards,
}

impl Claim {
    /// The claim of `request` with all its containers on one card.
    pub fn on_card(request: &GpuRequest, card: &CardId) -> Self {
        let part = |ask: &ContainerAsk| (ask.name.clone(), ask.units);
        Self { card: card.clone(), containers: request.containers().iter().map(part).collect() }
    }

    /// The claim that an annotation holds (container → card → units), checked against the pod's spec: each asking
    /// container has its units, no other has any, and all are on one card.
    ///
    /// # Errors
    ///
    /// What does not agree.
    pub fn checked(
        request: &GpuRequest,
        claimed: &BTreeMap<String, BTreeMap<CardId, Units>>,
    ) -> Result<Self, ClaimError> {
        let mut cards: BTreeSet<&CardId> = BTreeSet::new();
        let mut others: BTreeSet<&str> = claimed.keys().map(String::as_str).collect();
        for ask in request.containers() {
            let on = claimed.get(&ask.name);
            check(ask, on.into_iter().flat_map(BTreeMap::values).copied().sum())?;
            cards.extend(on.into_iter().flat_map(BTreeMap::keys));
            others.remove(ask.name.as_str());
        }
        if let Some(name) = others.first() {
            let claimed = claimed.get(*name).into_iter().flat_map(BTreeMap::values).copied().sum();
            return Err(mismatch(name, claimed, Units::ZERO));
        }
        let mut cards = cards.into_iter();
        match (cards.next(), cards.next()) {
            (Some(card), None) => Ok(Self::on_card(request, card)),
            _ => Err(ClaimError::SeveralCards),
        }
    }

    /// The card that the whole pod is on.
    pub fn card(&self) -> &CardId {
        &self.card
    }

    /// The units of one container; `None` where it asks for none.
    pub fn of(&self, container: &str) -> Option<Units> {
        self.containers.get(container).copied()
    }

    /// The units of each container that asks for any, by name.
    pub fn containers(&self) -> &BTreeMap<String, Units> {
        &self.containers
    }
}

fn check(ask: &ContainerAsk, claimed: Units) -> Result<(), ClaimError> {
    match claimed == ask.units {
        true => Ok(()),
        false => Err(mismatch(&ask.name, claimed, ask.units)),
    }
}

fn mismatch(container: &str, claimed: Units, asked: Units) -> ClaimError {
    ClaimError::Mismatch { container: container.to_owned(), claimed, asked }
}
