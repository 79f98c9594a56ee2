//! Inspect: cards and the pods on them, in the JSON of Aliyun's extender, which existing tools read.

use std::sync::Arc;

use api::inspect::{Device, Inspected, Node, Pod};
use axum::Json;
use axum::extract::{Path, State};
use placement::gpu::Account;

use crate::Extender;
use crate::view::CardBook;

/// The paths for all nodes and for one.
pub(super) const PATH: &str = "/gpushare-scheduler/inspect";
pub(super) const PATH_OF_NODE: &str = "/gpushare-scheduler/inspect/{node}";

pub(super) async fn all(State(extender): State<Arc<Extender>>) -> Json<Inspected> {
    let cards = &extender.decider.view.cards;
    let mut names = cards.nodes();
    names.sort();
    let nodes = names.iter().filter_map(|name| node(cards, name.as_str()));
    Json(Inspected { nodes: nodes.collect(), error: String::new() })
}

pub(super) async fn one(
    State(extender): State<Arc<Extender>>,
    Path(name): Path<String>,
) -> Json<Inspected> {
    let nodes: Vec<Node> = node(&extender.decider.view.cards, &name).into_iter().collect();
    let error = match nodes.is_empty() {
        true => format!("node {name} reports no GPU cards"),
        false => String::new(),
    };
    Json(Inspected { nodes, error })
}

fn node(cards: &CardBook, name: &str) -> Option<Node> {
    let node = cards.read().node(name)?.clone();
    let accounts = node.accounts();
    let sum = |part: fn(&Account) -> u32| accounts.iter().map(|a| u64::from(part(a))).sum::<u64>();
    let unplaced = node.unplaced().iter().map(|(_, units)| u64::from(units.0)).sum::<u64>();
    (!accounts.is_empty()).then(|| Node {
        name: name.to_owned(),
        total: sum(|account| account.card.units.0),
        used: sum(|account| account.held().0) + unplaced,
        devs: accounts.iter().map(|account| device(cards, account)).collect(),
    })
}

fn device(cards: &CardBook, account: &Account) -> Device {
    let pods = cards.pods_on(account).into_iter().map(|pod| Pod {
        name: pod.name,
        namespace: pod.namespace,
        used: pod.units.0,
    });
    let card = &account.card;
    Device {
        id: card.index,
        total: card.units.0,
        used: account.held().0,
        pods: pods.collect(),
        unhealthy: !card.healthy,
    }
}
