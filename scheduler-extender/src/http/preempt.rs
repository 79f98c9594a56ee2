//! Preempt: which nodes remain candidates once kube-scheduler has chosen victims on them.
//!
//! kube-scheduler's dry run of preemption knows its own filters only: it knows no load, and of cards a node's total.
//! Without this verb it evicts pods from a node that Filter then rejects, and goes on to the next (two victims for one
//! pod were measured). A node that is left out of the answer is no candidate. Victims are sent back as they came: one
//! that frees nothing on the card may free what the node's total, or another resource, is short of.
//!
//! The answer has no room for an error. kube-scheduler logs another status; it goes on without an ignorable extender, and
//! ends the preemption where the extender is not.

use std::collections::{BTreeMap, HashSet};

use axum::http::StatusCode;
use placement::load::{PodToPlace, Verdict};

use super::Answer;
use super::filter::verdict;
use crate::Decider;
use crate::wire::{self, MetaVictims, PreemptionArgs, PreemptionResult};

/// Leaves out overloaded nodes: evicting pods changes no reading at once.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let args = match wire::read_preemption(body) {
        Ok(args) => args,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let (board, now) = (decider.view.load.read(), decider.now());
    let pod = PodToPlace { kind: args.pod.kind(), ..PodToPlace::ORDINARY };
    answer(args, |node, _| verdict(&board, node, pod, now) == Verdict::Accepted)
}

/// Leaves out the nodes where the pod fits on no card even without the victims. A pod that asks for no GPU memory keeps
/// every candidate.
pub(super) fn by_cards(decider: &Decider, body: &[u8]) -> Answer {
    let args = match wire::read_preemption(body) {
        Ok(args) => args,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let request = match args.pod.request(&decider.names) {
        Ok(Some(_)) if !decider.view.is_complete() => {
            return Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &"still reading the cluster");
        }
        Ok(Some(request)) => request,
        Ok(None) => return answer(args, |_, _| true),
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let (cards, pod) = (decider.view.cards.read(), args.pod.uid());
    answer(args, |node, victims| {
        let victims: HashSet<&str> = victims.uids().collect();
        let is_victim = |pod: &str| victims.contains(pod);
        cards.fit_without(node, |pod| is_victim(pod.as_str()), &pod, &request).is_ok()
    })
}

/// The candidates that `remains`, given their victims.
fn answer(args: PreemptionArgs<'_>, remains: impl Fn(&str, &MetaVictims<'_>) -> bool) -> Answer {
    let victims: BTreeMap<_, _> = args.victims().collect();
    let victims: Vec<_> =
        victims.into_iter().filter(|(node, victims)| remains(node.as_str(), victims)).collect();
    let outcome = if victims.is_empty() { "no node" } else { "ok" };
    Answer::new(outcome, &PreemptionResult { victims })
}
