//! A claim: which card each container of a pod is on, and its codecs.
//!
//! Written once, at Bind, in the same API write that sets the pod's node; read by the device plugin
//! and by every later extender. Pod annotations are untrusted: a claim counts only where it names
//! exactly the containers and units of the pod's own spec.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Choice, ContainerAsk, ContainerKind, GpuRequest};
use crate::names::{Names, aliyun};
use crate::units::{CardId, Units};

/// Per container, the cards it is on and the units it holds there. Schema of the `gpu-claim`
/// annotation: `{"<container>": {"<card UUID>": <units>}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Claim {
    containers: BTreeMap<String, BTreeMap<CardId, Units>>,
}

/// Why a claim does not count for its pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Not JSON of the schema.
    #[error("the claim is not `{{\"<container>\": {{\"<card UUID>\": <units>}}}}`: {0}")]
    Json(String),
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
}

impl Claim {
    /// The claim of `request` with all its containers on one card.
    pub fn on_card(request: &GpuRequest, card: &CardId) -> Self {
        let on = |ask: &ContainerAsk| (ask.name.clone(), [(card.clone(), ask.units)].into());
        Self { containers: request.containers().iter().map(on).collect() }
    }

    /// Writes the annotation.
    pub fn to_json(&self) -> String {
        // Maps with string keys: serialising them cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// [`ClaimError::Json`].
    pub fn from_json(text: &str) -> Result<Self, ClaimError> {
        serde_json::from_str(text).map_err(|e| ClaimError::Json(e.to_string()))
    }

    /// The cards of one container with its units on each; empty where it claims none.
    pub fn of(&self, container: &str) -> impl Iterator<Item = (&CardId, Units)> {
        self.containers.get(container).into_iter().flatten().map(|(card, units)| (card, *units))
    }

    /// The one card that the whole claim is on, if it is one.
    pub fn sole_card(&self) -> Option<&CardId> {
        let mut cards = self.containers.values().flat_map(BTreeMap::keys);
        let first = cards.next()?;
        cards.all(|card| card == first).then_some(first)
    }

    /// Units that the pod holds at most at one time on each card.
    ///
    /// # Errors
    ///
    /// [`ClaimError::Mismatch`] where the claim does not give every asking container exactly what
    /// the spec asks, or names another container.
    pub fn charge(&self, request: &GpuRequest) -> Result<BTreeMap<CardId, Units>, ClaimError> {
        self.check(request)?;
        let cards = self.containers.values().flat_map(BTreeMap::keys);
        let on = |card: &CardId| {
            let part = request
                .containers()
                .iter()
                .map(|ask| ContainerAsk { units: self.units(&ask.name, card), ..ask.clone() });
            GpuRequest::new(part).map_or(Units::ZERO, |part| part.peak())
        };
        Ok(cards.map(|card| (card.clone(), on(card))).collect())
    }

    fn check(&self, request: &GpuRequest) -> Result<(), ClaimError> {
        let mismatch = |container: &str, claimed, asked| {
            Err(ClaimError::Mismatch { container: container.to_owned(), claimed, asked })
        };
        for ask in request.containers() {
            let claimed = self.of(&ask.name).map(|(_, units)| units).sum();
            if claimed != ask.units {
                return mismatch(&ask.name, claimed, ask.units);
            }
        }
        let asks = |name: &str| request.containers().iter().any(|ask| ask.name == name);
        match self.containers.keys().find(|name| !asks(name)) {
            Some(name) => {
                let claimed = self.of(name).map(|(_, units)| units).sum();
                mismatch(name, claimed, Units::ZERO)
            }
            None => Ok(()),
        }
    }

    fn units(&self, container: &str, card: &CardId) -> Units {
        let units = self.containers.get(container).and_then(|cards| cards.get(card));
        units.copied().unwrap_or(Units::ZERO)
    }

    /// The pod annotations that record this claim: ours, and those that Aliyun's tools read.
    pub fn annotations(
        &self,
        names: &Names,
        request: &GpuRequest,
        choice: &Choice,
        at: Timestamp,
    ) -> BTreeMap<String, String> {
        let pair = |key: &str, value: String| (key.to_owned(), value);
        [
            (names.claim(), self.to_json()),
            pair(aliyun::IDX, choice.index.to_string()),
            pair(aliyun::DEV, choice.units.to_string()),
            pair(aliyun::POD, request.peak().to_string()),
            pair(aliyun::ASSIGNED, "false".to_owned()),
            pair(aliyun::ASSUME_TIME, at.as_nanosecond().to_string()),
            pair(aliyun::ALLOCATION, allocation(request, choice.index)),
        ]
        .into()
    }
}

/// `{"<position in spec.containers>": {"<card index>": units}}`, for the inspect client.
fn allocation(request: &GpuRequest, index: u32) -> String {
    let apps = request.containers().iter().filter(|ask| ask.kind == ContainerKind::App);
    let map: BTreeMap<usize, BTreeMap<u32, Units>> =
        apps.map(|ask| (ask.position, [(index, ask.units)].into())).collect();
    serde_json::to_string(&map).unwrap_or_default()
}

/// Where a bound pod's units are, as its annotations tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// Our claim, checked against the spec: units at most held on each card.
    Cards(BTreeMap<CardId, Units>),
    /// Only Aliyun's annotation: the whole pod on the card of this index.
    Index(u32),
    /// Nothing that counts: the pod may be on any card.
    Unknown,
}

impl Placed {
    /// Reads a pod's annotations through `annotation` (key to text).
    pub fn read<'a>(
        names: &Names,
        request: &GpuRequest,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Self {
        match annotation(&names.claim()) {
            Some(text) => match Claim::from_json(text).and_then(|claim| claim.charge(request)) {
                Ok(charge) => Self::Cards(charge),
                Err(_) => Self::Unknown,
            },
            None => {
                let index = annotation(aliyun::IDX).and_then(|text| text.parse().ok());
                index.map_or(Self::Unknown, Self::Index)
            }
        }
    }
}
