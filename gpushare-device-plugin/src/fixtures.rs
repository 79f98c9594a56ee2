//! Cards, pods and ids for unit tests.

use std::sync::Arc;
use std::time::Instant;

use cluster::{GpuPod, PodFacts};
use placement::gpu::{CardUse, Claim, ContainerKind, ContainerRequest, GpuRequest};
use placement::load::PodKind;
use placement::units::{CardId, MiB, PodUid, Units};

use crate::cards::ids::Ids;
use crate::cards::inventory::Inventory;
use crate::cards::sizing::Sizing;
use crate::cards::{Card, Cards, Unhealthy};
use crate::pods::PodRef;
use crate::records::pod_resources::ListedPod;

/// A card whose device ids begin with `aaaaaaaa`.
pub(crate) const A: &str = "GPU-aaaaaaaa-1111";
/// A card whose device ids begin with `bbbbbbbb`.
pub(crate) const B: &str = "GPU-bbbbbbbb-1111";

/// Cards of these units, at indexes 0, 1, …
pub(crate) fn cards(cards: &[(&str, u32)]) -> Cards {
    let mut enumerated = Vec::new();
    for (index, (uuid, units)) in (0..).zip(cards) {
        enumerated.push(nvml::Card {
            uuid: (*uuid).to_owned(),
            index,
            memory_mib: Some(u64::from(*units) * 1024),
            ..nvml::Card::default()
        });
    }
    let mut inventory = Inventory::new(Sizing::of_unit(MiB(1024)));
    inventory.set_enumerated(enumerated, Instant::now());
    inventory.cards()
}

/// The same cards, this one unhealthy.
pub(crate) fn with_unhealthy(cards: &Cards, uuid: &str, why: Unhealthy) -> Cards {
    let mut changed: Vec<Card> = cards.iter().cloned().collect();
    for card in &mut changed {
        if card.uuid.as_str() == uuid {
            card.unhealthy = Some(why);
        }
    }
    Cards::new(changed).with_driver(cards.driver().map(str::to_owned))
}

/// A pod `default/<name>` with UID `<name>`, bound, not admitted yet, claimed on `card`.
pub(crate) fn pod(name: &str, card: &str, asks: &[(&str, ContainerKind, u32)]) -> PodFacts {
    claimed(name, request(asks, CardUse::default()), &[card])
}

/// A pod with this request, claimed on these cards.
pub(crate) fn claimed(name: &str, request: GpuRequest, cards: &[&str]) -> PodFacts {
    let on: Vec<CardId> = cards.iter().map(|card| CardId::from(*card)).collect();
    let claim = Claim::on_cards(&request, &on);
    let gpu = GpuPod {
        claim: Ok(Some(claim)),
        assigned: false,
        request,
        fault: None,
        isolation: None,
        mps_conflicts: Default::default(),
    };
    PodFacts {
        uid: PodUid::from(name),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        version: None,
        node: None,
        nominated_node: None,
        kind: PodKind::Ordinary,
        gpu: Ok(Some(gpu)),
        admitted: false,
        finished: false,
        refused: false,
        started: false,
        stopped: false,
        deleting: false,
        waits_at: None,
        created_at: None,
        bound_at: None,
    }
}

fn request(asks: &[(&str, ContainerKind, u32)], card_use: CardUse) -> GpuRequest {
    let mut requests = Vec::new();
    for (position, (name, kind, units)) in asks.iter().enumerate() {
        let name = (*name).to_owned();
        requests.push(ContainerRequest {
            name,
            kind: *kind,
            position,
            units: Units(*units),
            card_use,
        });
    }
    GpuRequest::new(requests).unwrap().unwrap()
}

/// A pod with one container `main` that uses its card in this way.
pub(crate) fn with_use(name: &str, card: &str, units: u32, card_use: CardUse) -> PodFacts {
    claimed(name, request(&[("main", ContainerKind::App, units)], card_use), &[card])
}

/// A pod with one container `main`.
pub(crate) fn simple(name: &str, card: &str, units: u32) -> Arc<PodFacts> {
    Arc::new(pod(name, card, &[("main", ContainerKind::App, units)]))
}

/// A pod with one container `main` that has half of its units on each of the cards [`A`] and [`B`].
pub(crate) fn on_two_cards(name: &str, units: u32) -> Arc<PodFacts> {
    let card_use = CardUse { cards: 2, ..CardUse::default() };
    let request = request(&[("main", ContainerKind::App, units)], card_use);
    Arc::new(claimed(name, request, &[A, B]))
}

/// A pod with an init container `init` and a container `main`.
pub(crate) fn with_init(name: &str, card: &str, init: u32, main: u32) -> Arc<PodFacts> {
    Arc::new(pod(
        name,
        card,
        &[("init", ContainerKind::Init, init), ("main", ContainerKind::App, main)],
    ))
}

/// Ids from their texts.
pub(crate) fn ids<const N: usize>(texts: [&str; N]) -> Ids {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The kubelet's entry of a pod `default/<name>` with one container `main`.
pub(crate) fn listed<const N: usize>(name: &str, held: [&str; N]) -> ListedPod {
    ListedPod {
        pod: PodRef::new("default", name),
        containers: [("main".to_owned(), ids(held))].into(),
    }
}
