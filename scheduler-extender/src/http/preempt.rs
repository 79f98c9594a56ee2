//! Preempt: which nodes remain candidates after kube-scheduler has chosen victims on them.
//!
//! kube-scheduler's dry run of preemption runs its own filters only: it sees no load, and of GPUs only a node's total.
//! Without this verb it evicts pods from a node that Filter then rejects, and goes on to the next (two victims for one
//! pod were measured). A node that is left out of the answer is no candidate. The entry for load returns the victims
//! unchanged; the entry for GPUs may choose others ([`crate::preemption`]).
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

use super::answer::{Answer, timed};
use crate::decisions::Evaluator;
use crate::preemption::Preemption;
use crate::victims::{VictimSearch, rules_left};
use crate::view::GpuPodId;
use crate::wire::{self, MetaVictims, Name, PreemptionResult};
use crate::{Decider, Extender};

const BY_LOAD: &str = "load-aware/preempt";

/// Leaves out overloaded nodes: an eviction does not change a reading at once. Where limits are soft and all candidates
/// are overloaded, the least loaded remain, as in Filter.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let args = match wire::read_preemption(body) {
        Ok(args) => args,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let pod = args.pod.clone();
    let victims: BTreeMap<_, _> = args.victims().collect();
    decider.end_in_flight(&pod);
    // Evictions free GPUs, so the entry for GPU pods checks GPUs with the victims.
    let (current, names) = (decider.view.current(), victims.keys().map(Name::as_str));
    let decision = decider.decision_for(&current, &pod, names, decider.now()).without_gpus();
    let verdicts = Evaluator::new(&decision).verdicts();
    let mut passes = verdicts.each.iter().map(|verdict| *verdict == Verdict::Accepted);
    answer(BY_LOAD, &pod, victims, |_, _| passes.next().unwrap_or(false))
}

const BY_GPUS: &str = "gpushare-scheduler/preempt";

pub(super) const PATH_BY_GPUS: &str = "/gpushare-scheduler/preempt";

/// Chooses the fewest and least important pods whose eviction frees GPUs for the pod, and leaves out nodes where no
/// eviction does. A pod that requests no GPU memory keeps every candidate.
pub(super) async fn by_gpus(State(extender): State<Arc<Extender>>, body: Bytes) -> Answer {
    timed(&extender.decider, BY_GPUS, gpus(&extender, &body)).await
}

async fn gpus(extender: &Extender, body: &[u8]) -> Answer {
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
        Ok(None) => return answer(BY_GPUS, &pod, victims, |_, _| true),
        Err(_) => return answer(BY_GPUS, &pod, victims, |_, _| false),
    };
    let id = GpuPodId::of(&pod);
    if decider.view.waits_for_deleted(&id, &request).is_some() {
        // Filter would reject it after the evictions.
        return answer(BY_GPUS, &pod, victims, |_, _| false);
    }
    let search = VictimSearch {
        view: &decider.view,
        client: extender.binder.client(),
        names: &decider.names,
        pod: &pod,
        request: &request,
        rules: rules_left(&pod),
    };
    let preemption = Preemption { search, now: decider.now() };
    let nodes = victims.len();
    answer_with(BY_GPUS, &pod, nodes, preemption.answer(victims.into_iter()).await)
}

/// The candidates for which `keep` returns true. It is called in the order of their names.
fn answer<'a>(
    verb: &str,
    pod: &Pod,
    victims: BTreeMap<Name<'a>, MetaVictims<'a>>,
    mut keep: impl FnMut(&str, &MetaVictims<'_>) -> bool,
) -> Answer {
    let nodes = victims.len();
    let kept = victims.into_iter().filter(|(node, victims)| keep(node.as_str(), victims)).collect();
    answer_with(verb, pod, nodes, kept)
}

/// Answers with the candidates that are kept of `nodes`.
fn answer_with<'a>(
    verb: &str,
    pod: &Pod,
    nodes: usize,
    victims: Vec<(Name<'a>, MetaVictims<'a>)>,
) -> Answer {
    let (uid, namespace, pod) = (pod.uid(), pod.namespace(), pod.name());
    tracing::debug!(%uid, namespace, pod, nodes, kept = victims.len(), "{verb}");
    let outcome = if victims.is_empty() { "no node" } else { "ok" };
    Answer::new(outcome, &PreemptionResult { victims })
}
