//! Cards with the pods on them, by name.

use api::node::{AllCards, Card, Charge, NodeCards, Sharing};
use api::state::Replica;
use cluster::wire_closed;
use jiff::Timestamp;
use placement::gpu::{self, Account, Basis, FreeCard, Sharers};
use placement::units::NodeName;

use crate::decisions::wire_basis;
use crate::view::{CardMemory, View};

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
    let mut described = Vec::with_capacity(cards.accounts().len());
    for (account, memory) in with_memory(view, node, cards, now) {
        let card = &account.card;
        described.push(Card {
            index: card.index,
            uuid: card.uuid.to_string(),
            model: card.model.to_string(),
            units: card.units.0,
            free: card.free.0,
            free_cores: card.free_cores.0,
            memory: memory.as_ref().map_or(0, |memory| memory.memory.0),
            used: memory.and_then(|memory| memory.used).map(|used| used.0),
            healthy: card.healthy,
            closed: card.closed.map(wire_closed),
            sharing: wire_sharing(card),
            mps_clients: has_clients(card).then_some(card.clients),
            most_mps_clients: card.isolation.mps_clients,
            charges: charges(view, account),
        });
    }
    described
}

/// The accounts of a node's cards, each with the card's memory where that is known.
pub(super) fn with_memory<'c>(
    view: &View,
    node: &NodeName,
    cards: &'c gpu::NodeCards,
    now: Timestamp,
) -> Vec<(&'c Account, Option<CardMemory>)> {
    let mut memory = view.ask(|index| index.card_memory(node, now));
    let mut found = Vec::with_capacity(cards.accounts().len());
    for account in cards.accounts() {
        let own = memory.iter().position(|memory| memory.uuid == account.card.uuid);
        found.push((account, own.map(|own| memory.swap_remove(own))));
    }
    found
}

fn has_clients(card: &FreeCard) -> bool {
    matches!(card.sharers, Sharers::Only(gpu::Sharing::Mps) | Sharers::Mixed)
}

/// Left out for cards of nodes without MPS, whose pods can share them in one way alone.
fn wire_sharing(card: &FreeCard) -> Option<Sharing> {
    let has_mps = card.isolation.mps_clients.is_some();
    match card.sharers {
        Sharers::None => None,
        Sharers::Only(gpu::Sharing::Turns) if !has_mps => None,
        Sharers::Only(gpu::Sharing::Mps) => Some(Sharing::Mps),
        Sharers::Only(gpu::Sharing::Turns) => Some(Sharing::Turns),
        Sharers::Mixed => Some(Sharing::Mixed),
    }
}

fn charges(view: &View, account: &Account) -> Vec<Charge> {
    view.ask(|index| {
        let wire = |charge: &gpu::Charge| {
            let (namespace, name) = if charge.basis == Basis::Unmanaged {
                (String::new(), String::new())
            } else {
                index.name_of(&charge.pod)
            };
            let (units, cores) = (charge.units.0, charge.cores.0);
            Charge { namespace, name, units, cores, basis: wire_basis(charge.basis) }
        };
        account.charges.iter().map(wire).collect()
    })
}
