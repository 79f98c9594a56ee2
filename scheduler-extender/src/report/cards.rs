//! Cards with the pods on them, by name.

use api::explain::Basis as OutBasis;
use api::node::{AllCards, Card, Charge, NodeCards};
use api::state::Replica;
use jiff::Timestamp;
use placement::gpu::{self, Account, Basis, Closed};
use placement::units::NodeName;

use crate::view::View;

/// The cards of all nodes that report some.
pub fn all_cards(view: &View, replica: Replica, now: Timestamp) -> AllCards {
    let snapshot = view.read();
    let mut nodes: Vec<NodeCards> = Vec::new();
    for (name, cards) in snapshot.nodes_with_cards() {
        if !cards.accounts().is_empty() {
            let cards = node_cards(view, name, cards, now);
            nodes.push(NodeCards { name: name.to_string(), cards });
        }
    }
    nodes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    AllCards { time: now, replica, nodes }
}

/// The cards of one node, by index.
pub(super) fn node_cards(
    view: &View,
    node: &NodeName,
    cards: &gpu::NodeCards,
    now: Timestamp,
) -> Vec<Card> {
    let memory = view.ask(|index| index.card_memory(node, now));
    let mut described = Vec::with_capacity(cards.accounts().len());
    for account in cards.accounts() {
        let card = &account.card;
        let memory = memory.iter().find(|memory| memory.uuid == card.uuid);
        described.push(Card {
            index: card.index,
            uuid: card.uuid.to_string(),
            model: card.model.to_string(),
            units: card.units.0,
            free: card.free.0,
            free_cores: card.free_cores.0,
            memory: memory.map_or(0, |memory| memory.memory.0),
            used: memory.and_then(|memory| memory.used).map(|used| used.0),
            healthy: card.healthy,
            closed: card.closed.map(closed),
            charges: charges(view, account),
        });
    }
    described
}

fn charges(view: &View, account: &Account) -> Vec<Charge> {
    view.ask(|index| {
        let charges = account.charges.iter().map(|charge| {
            let (namespace, name) = if charge.basis == Basis::Unmanaged {
                (String::new(), String::new())
            } else {
                index.name_of(&charge.pod)
            };
            let (units, cores) = (charge.units.0, charge.cores.0);
            Charge { namespace, name, units, cores, basis: basis(charge.basis) }
        });
        charges.collect()
    })
}

/// The word for why a card takes no new pods.
pub(crate) fn closed(closed: Closed) -> api::cards::Closed {
    match closed {
        Closed::Isolation => api::cards::Closed::Isolation,
        Closed::Cdi => api::cards::Closed::Cdi,
        Closed::CdiFolder => api::cards::Closed::CdiFolder,
        Closed::Other => api::cards::Closed::Other,
    }
}

/// The word for why a pod counts on a card.
pub(crate) fn basis(basis: Basis) -> OutBasis {
    match basis {
        Basis::Recorded => OutBasis::Recorded,
        Basis::Chosen => OutBasis::Chosen,
        Basis::Claimed => OutBasis::Claimed,
        Basis::UnknownPlace => OutBasis::UnknownPlace,
        Basis::UnprovenClaim => OutBasis::UnprovenClaim,
        Basis::Nominated => OutBasis::Nominated,
        Basis::Unmanaged => OutBasis::Unmanaged,
    }
}
