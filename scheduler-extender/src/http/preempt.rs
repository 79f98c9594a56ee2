//! Preempt: which nodes remain candidates after kube-scheduler has chosen victims on them.
//!
//! kube-scheduler's dry run of preemption runs its own filters only: it sees no load, and of cards only a node's total.
//! Without this verb it evicts pods from a node that Filter then rejects, and goes on to the next (two victims for one
//! pod were measured). A node that is left out of the answer is no candidate. The entry for load returns the victims
//! unchanged; the entry for cards may choose others ([`crate::preemption`]).
//!
//! The entry for cards evicts none of [`placement::gpu::NodeCards::undrained_clients`]. It is not asked about pods
//! without a GPU request: for these the entry for load leaves out nodes with such a victim while there are others.
//!
//! The answer has no field for an error. kube-scheduler logs any other status than 200; then it continues without the
//! extender if that is ignorable, and otherwise ends the preemption.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use cluster::Pod;
use placement::load::Verdict;

use super::{Answer, timed};
use crate::preemption::Preemption;
use crate::victims::VictimSearch;
use crate::view::GpuPodId;
use crate::wire::{self, MetaVictims, Name, PreemptionResult};
use crate::{Decider, Extender};

const BY_LOAD: &str = "load-aware/preempt";

/// A node, and the pods to evict from it.
type Candidate<'a> = (Name<'a>, MetaVictims<'a>);

/// Leaves out overloaded nodes: an eviction does not change a reading at once. Where limits are soft and all candidates
/// are overloaded, the least loaded remain, as in Filter.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let args = match wire::read_preemption(body) {
        Ok(args) => args,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let pod = args.pod.clone();
    let victims: BTreeMap<_, _> = args.victims().collect();
    let nodes = victims.keys().map(Name::as_str);
    decider.end_in_flight(&pod);
    // Evictions free cards, so the entry for GPU pods checks cards with the victims.
    let decision = decider.decision_for(&pod, nodes, decider.now()).without_cards();
    let verdicts = decision.verdicts(decision.policy(), None);
    let asked = victims.len();
    let mut kept: Vec<_> = victims.into_iter().zip(verdicts.each).collect();
    kept.retain(|(_, verdict)| *verdict == Verdict::Accepted);
    let mut kept: Vec<_> = kept.into_iter().map(|(candidate, _)| candidate).collect();
    if matches!(pod.request(&decider.names), Ok(None)) {
        kept = sparing_neighbours(decider, kept);
    }
    answer(BY_LOAD, &pod, asked, kept)
}

/// The candidates on which no victim's end may end other pods on its GPU; all, if there are none.
fn sparing_neighbours<'a>(decider: &Decider, all: Vec<Candidate<'a>>) -> Vec<Candidate<'a>> {
    let snapshot = decider.view.read();
    let spares = |(node, victims): &Candidate<'a>| {
        let Some(cards) = snapshot.cards(node.as_str()) else { return true };
        let undrained = cards.undrained_clients();
        !victims.uids().any(|uid| undrained.iter().any(|client| client.as_str() == uid))
    };
    let (spare, others): (Vec<_>, Vec<_>) = all.into_iter().partition(spares);
    if spare.is_empty() { others } else { spare }
}

const BY_CARDS: &str = "gpushare-scheduler/preempt";

pub(super) const PATH_BY_CARDS: &str = "/gpushare-scheduler/preempt";

/// Chooses the fewest and least important pods whose eviction frees cards for the pod, and leaves out nodes where no
/// eviction does. A pod that requests no GPU memory keeps every candidate.
pub(super) async fn by_cards(State(extender): State<Arc<Extender>>, body: Bytes) -> Answer {
    timed(&extender.decider, BY_CARDS, cards(&extender, &body)).await
}

async fn cards(extender: &Extender, body: &[u8]) -> Answer {
    let decider = &extender.decider;
    let args = match wire::read_preemption(body) {
        Ok(args) => args,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let pod = args.pod.clone();
    let victims: BTreeMap<_, _> = args.victims().collect();
    let request = match pod.request(&decider.names) {
        Ok(Some(_)) if !decider.view.is_complete() => {
            return Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &"still reading the cluster");
        }
        Ok(Some(request)) => {
            request.with_beyond_units(decider.view.beyond_units_of(pod.namespace()))
        }
        Ok(None) => return answer(BY_CARDS, &pod, victims.len(), victims.into_iter().collect()),
        Err(_) => return answer(BY_CARDS, &pod, victims.len(), Vec::new()),
    };
    let id = GpuPodId::of(&pod);
    if decider.view.ask(|index| index.waits_for_deleted(&id, &request)).is_some() {
        // Filter would reject it after the evictions.
        return answer(BY_CARDS, &pod, victims.len(), Vec::new());
    }
    let search = VictimSearch {
        view: &decider.view,
        client: extender.binder.client(),
        names: &decider.names,
        pod: &pod,
        request: &request,
    };
    let preemption = Preemption { search, now: decider.now() };
    let asked = victims.len();
    answer(BY_CARDS, &pod, asked, preemption.answer(victims.into_iter()).await)
}

/// The candidates that are kept, of so many that were asked about.
fn answer(verb: &str, pod: &Pod, asked: usize, victims: Vec<Candidate<'_>>) -> Answer {
    let (uid, namespace, pod, kept) = (pod.uid(), pod.namespace(), pod.name(), victims.len());
    tracing::debug!(%uid, namespace, pod, nodes = asked, kept, "{verb}");
    let outcome = if victims.is_empty() { "no node" } else { "ok" };
    Answer::new(outcome, &PreemptionResult { victims })
}
