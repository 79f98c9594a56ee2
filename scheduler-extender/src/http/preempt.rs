//! Preempt: which nodes remain candidates once kube-scheduler has chosen victims on them.
//!
//! kube-scheduler's dry run of preemption knows its own filters only. Without this verb it evicts pods
//! from a node that Filter then rejects, and goes on to the next (two victims for one pod were measured).
//! A node that is left out of the answer is no candidate; victims are sent back as they came.

use std::collections::BTreeMap;

use axum::http::StatusCode;

use super::Answer;
use super::filter::exceeded;
use crate::Decider;
use crate::wire::{self, MetaVictims, PreemptionArgs, PreemptionResult, WireError};

/// Leaves out overloaded nodes: evicting pods changes no reading at once.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let args = match wire::parse::<PreemptionArgs<'_>>(body) {
        Ok(args) => args,
        Err(error) => return failed(&error),
    };
    let (board, kind, now) = (decider.view.load.read(), args.pod.kind(), decider.now());
    answer(args, |node, _| exceeded(&board, node, kind, now).is_none())
}

/// The candidates that `remains`, given their victims.
fn answer(args: PreemptionArgs<'_>, remains: impl Fn(&str, &MetaVictims<'_>) -> bool) -> Answer {
    let victims: BTreeMap<_, _> = args.victims().collect();
    let victims: Vec<_> =
        victims.into_iter().filter(|(node, victims)| remains(node.as_str(), victims)).collect();
    let outcome = if victims.is_empty() { "no node" } else { "ok" };
    Answer::new(outcome, &PreemptionResult { victims })
}

/// The answer has no room for an error. kube-scheduler leaves an ignorable extender out and logs this.
fn failed(error: &WireError) -> Answer {
    Answer { status: StatusCode::BAD_REQUEST, ..Answer::new("error", &error.to_string()) }
}
