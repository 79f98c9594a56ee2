//! Inspect: cards and who is on them, in the JSON of Aliyun's extender, which existing tools read.

use std::sync::Arc;

use api::inspect::{Device, Inspected, Node, Pod};
use axum::Json;
use axum::extract::{Path, State};

use crate::Extender;
use crate::view::{Account, CardBook};

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
    let accounts = cards.accounts(name);
    let sum = |part: fn(&Account) -> u32| accounts.iter().map(|a| u64::from(part(a))).sum();
    (!accounts.is_empty()).then(|| Node {
        name: name.to_owned(),
        total: sum(|account| account.units.0),
        used: sum(|account| account.used.0),
        devs: accounts.iter().map(device).collect(),
    })
}

fn device(account: &Account) -> Device {
    let pods = account.pods.iter().map(|pod| Pod {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        used: pod.units.0,
    });
    Device { id: account.index, total: account.units.0, used: account.used.0, pods: pods.collect() }
}
