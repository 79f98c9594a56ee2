//! Filter: which nodes may take the pod, and why the others may not.

use cluster::PodGroup;
use placement::gpu::NoFit;
use placement::load::Verdict;
use placement::units::{NodeName, PodUid};

use super::Answer;
use super::prioritize::likely_node;
use super::write::{Rejections, one_node};
use crate::Decider;
use crate::binder::HELD_BY_DELETED;
use crate::decisions::{DecidedPod, Decision, Evaluator};
use crate::extender::{Decided, PlacedRequest};
use crate::gpu_evictions::GpuEvictions;
use crate::node_request::NamesJson;
use crate::view::{GpuPodId, HeldByDeleted, Index};
use crate::wire::FilterResult;

const BY_LOAD: &str = "load-aware/filter";
const BY_GPUS: &str = "gpushare-scheduler/filter";

const FREE_IN_SECONDS: &str = placement::reason!("GPU memory of a deleted pod is free in seconds");

const KEPT_FOR_GANG: &str =
    placement::reason!("GPUs are kept for a second for pods that are placed together");

/// Rejects overloaded nodes, those that are for other namespaces, and, for a pod with ResourceClaims, those without a
/// GPU for it.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    if let Some((fault, names)) = decider.read_beside_large_pod(body) {
        return reject_all(decider, BY_LOAD, &names, "large pod", fault.reason());
    }
    let request = match decider.read_request(body) {
        Ok(request) => request,
        Err(error) => return failed(&error),
    };
    decider.end_in_flight(&request.pod);
    let nominated = request.pod.nominated_node().map(NodeName::from);
    let decided = decider.decide(request);
    let Decided { decision, names, .. } = &decided;
    decider.record(decision);
    let evaluator = decided.evaluator();
    let mut verdicts = evaluator.verdicts();
    let asks_again = decider.nominated.take(&decision.pod.uid);
    if !verdicts.over_limits.is_empty()
        && !asks_again
        && let Some(verdict) =
            nominated.and_then(|node| nominated_alone(&evaluator, decision, &node))
    {
        decider.nominated.reject(&decision.pod.uid);
        verdicts.each = vec![verdict];
        verdicts.over_limits.clear();
    }
    if !verdicts.over_limits.is_empty() {
        let cause = evaluator.over_limit_cause(&verdicts);
        decider.metrics.count_passed_over_limits(cause);
        decider.over_limits.report(&decision.pod, cause);
    }
    let refused = match decision.by_claims {
        Some(_) => evaluator.no_fits(),
        None => vec![None; names.len()],
    };
    // For a single feasible node kube-scheduler skips Prioritize and binds there. A pod that the GPUs' Filter rejects
    // is not bound, and counts nowhere.
    let mut passing = (0..names.len()).filter(|at| {
        verdicts.each[*at] == Verdict::Accepted
            && refused[*at].is_none()
            && decision.has_gpus_for_pod(*at)
    });
    if let (Some(only), None) = (passing.next(), passing.next()) {
        decider.count_in_flight(decision, only);
    }
    // Evictions change no reading at once. Without `FailedAndUnresolvableNodes`, kube-scheduler's preemption, which
    // sees no readings, would try each of these nodes again and again. It evicts for no ResourceClaim either.
    let mut rejections = Rejections::default();
    for (position, verdict) in verdicts.each.iter().enumerate() {
        if let (Some(label), Some(reason)) = (verdict.label(), verdict.reason()) {
            rejections.add(position, label, reason);
        } else if let Some(why) = refused[position] {
            rejections.add(position, why.label(), why.reason());
        }
    }
    log(BY_LOAD, decision, &rejections);
    answer(decider, BY_LOAD, names, &rejections)
}

/// For who follows one pod by its UID.
fn log(verb: &str, decision: &Decision, rejections: &Rejections) {
    let DecidedPod { uid, namespace, name: pod, .. } = &*decision.pod;
    let (nodes, rejected) = (decision.len(), rejections.len());
    tracing::debug!(%uid, namespace, pod, nodes, rejected, "{verb}");
}

/// The verdict by limits alone, if the request is about the nominated node of the pod and no other.
fn nominated_alone<'d>(
    evaluator: &Evaluator<'d>,
    decision: &Decision,
    nominated: &NodeName,
) -> Option<Verdict<'d>> {
    if decision.len() != 1 || decision.name(0) != nominated {
        return None;
    }
    Some(evaluator.by_node_alone(&*decision.load(0)?).verdict())
}

/// Rejects nodes without a GPU for the pod. A pod that requests none passes on every node.
pub(super) fn by_gpus(decider: &Decider, body: &[u8]) -> Answer {
    if let Some((fault, names)) = decider.read_beside_large_pod(body) {
        return reject_all(decider, BY_GPUS, &names, "large pod", fault.reason());
    }
    let request = match decider.read_request(body) {
        Ok(request) => request,
        Err(error) => return failed(&error),
    };
    match request.pod.request(&decider.names) {
        Ok(Some(_)) if !decider.view.is_complete() => failed(
            &"still reading the cluster; GPU pods wait until every node and pod has been seen",
        ),
        Ok(Some(asked)) => {
            let held = decider.view.waits_for_deleted(&GpuPodId::of(&request.pod), &asked);
            filter_by_gpus(decider, request, held)
        }
        Ok(None) => answer(decider, BY_GPUS, &request.names, &Rejections::default()),
        Err(fault) => {
            reject_all(decider, BY_GPUS, &request.names, "faulty request", fault.reason())
        }
    }
}

/// Rejects every node. kube-scheduler then retries the pod once something changes; after an error it would retry at
/// once.
fn reject_all(
    decider: &Decider,
    verb: &'static str,
    names: &NamesJson<'_>,
    label: &'static str,
    reason: &'static str,
) -> Answer {
    let mut rejections = Rejections::default();
    (0..names.len()).for_each(|node| rejections.add(node, label, reason));
    answer(decider, verb, names, &rejections)
}

/// Rejects the nodes whose GPUs do not fit the pod, and the others too while it is `held` by deleted pods of its
/// namespace: pods of other namespaces are not concerned.
fn filter_by_gpus(
    decider: &Decider,
    request: PlacedRequest<'_>,
    held: Option<HeldByDeleted>,
) -> Answer {
    let priority = request.pod.may_preempt().then(|| request.pod.priority());
    let group = request.pod.group();
    let look = || decider.view.half_bound_groups();
    if let Some(why) = decider.gangs.waits_for_half_bound(group.as_ref(), decider.now(), look) {
        return Answer::new("retry", &FilterResult::failed(&why));
    }
    let mut ended = decider.gangs.given_up(decider.now());
    if let Some(group) = &group {
        match decider.gangs.ask(group, &request.pod.uid(), decider.now()) {
            Ok(of_group) => ended.extend(of_group),
            Err(why) => return Answer::new("retry", &FilterResult::failed(&why)),
        }
    }
    if !ended.is_empty() {
        decider.view.change(|index| index.end_places(&ended));
    }
    let decided = decider.decide(request);
    let Decided { decision, names, .. } = &decided;
    decider.record_if_new(decision);
    // kube-scheduler has checked the node's total, so only the single GPUs do not suffice. Its preemption, which sees
    // totals only, would find no pod to evict and fail with "expected at least one victim".
    let refused = decided.evaluator().no_fits();
    // What frees units is an event for kube-scheduler too, which may ask before it was seen here; and what a timer
    // frees is none. An error makes kube-scheduler ask again by itself. But an error also ends its search for pods to
    // evict: there is none where a less important pod has GPUs.
    let fits_somewhere = refused.iter().any(Option::is_none);
    let retries = match held {
        Some(HeldByDeleted::Recently) if fits_somewhere => Some(HELD_BY_DELETED),
        Some(_) => None,
        None if fits_somewhere => None,
        // kube-scheduler tries a group again by itself, and gives up all its pods for an error.
        None if group.is_some() => None,
        None => frees_soon(decider, decision, priority),
    };
    let mut rejections = Rejections::default();
    for (position, why) in refused.iter().enumerate() {
        match why {
            Some(why) => rejections.add(position, why.label(), why.reason()),
            None if held.is_some() => {
                rejections.add(position, "held by deleted", HELD_BY_DELETED);
            }
            None => {}
        }
    }
    if let Some(evictions) = &decider.gpu_evictions {
        match held {
            Some(_) => evictions.withdraw(&decision.pod),
            // One eviction after the other would not make room for all of them.
            None if group.is_some() => {}
            None => report(evictions, decision, priority, &refused),
        }
    }
    if let Some(why) = retries {
        return Answer::new("retry", &FilterResult::failed(&why));
    }
    log(BY_GPUS, decision, &rejections);
    if let Some(group) = group {
        let best = || best(&decided.evaluator(), &refused, &decision.pod.uid);
        if let Some(position) = held.is_none().then(best).flatten() {
            keep_place(decider, decision, &group, position);
            count(decider, BY_GPUS, &rejections);
            return Answer::of_json("ok", one_node(names, position));
        }
        decider.gangs.answer(&group, &decision.pod.uid, false);
        decider.view.change(|index| index.renew_places(&group, decision.time));
    }
    answer(decider, BY_GPUS, names, &rejections)
}

/// Position of the best of the nodes that are not refused.
fn best(evaluator: &Evaluator<'_>, refused: &[Option<NoFit>], pod: &PodUid) -> Option<usize> {
    let passing: Vec<usize> = (0..refused.len()).filter(|at| refused[*at].is_none()).collect();
    let (scores, scale) = (evaluator.scores(), evaluator.scale());
    let scores: Vec<i64> = passing.iter().map(|at| scores[*at].on(scale)).collect();
    Some(passing[likely_node(&scores, pod)?])
}

/// Keeps the pod's place on the node at a position, while kube-scheduler asks about the other pods of its group. It
/// asks for no scores where one node is left.
fn keep_place(decider: &Decider, decision: &Decision, group: &PodGroup, position: usize) {
    let Some(request) = &decision.request else { return };
    let (uid, node) = (&decision.pod.uid, decision.name(position));
    decider.view.change(|index| {
        index.keep_in_group((group, uid), (request, &decision.rule), node, decision.time);
    });
    decider.gangs.answer(group, uid, true);
    decider.count_in_flight(decision, position);
}

/// Why the pod fits soon without an event, once pods are gone that leave or groups have been given up, where there is
/// nothing to evict for it.
fn frees_soon(
    decider: &Decider,
    decision: &Decision,
    priority: Option<i32>,
) -> Option<&'static str> {
    if decision.fits_without(&decider.view.ask(Index::leaving)) {
        let evicts = priority.is_some_and(|it| decider.view.ask(|index| index.has_pod_below(it)));
        return (!evicts).then_some(FREE_IN_SECONDS);
    }
    let placed = decider.view.ask(Index::placed_in_groups);
    decision.fits_without(&placed).then_some(KEPT_FOR_GANG)
}

/// Reports a pod that fits on no node to the evictor, or withdraws its report. `priority` is `None` for a pod that may
/// not preempt others.
fn report(
    evictions: &GpuEvictions,
    decision: &Decision,
    priority: Option<i32>,
    refused: &[Option<NoFit>],
) {
    let fits_somewhere = refused.iter().any(Option::is_none);
    match priority {
        Some(priority) if !fits_somewhere => {
            let helps = |position: &usize| refused[*position].is_some_and(NoFit::is_resolvable);
            let name = |position| decision.name(position).clone();
            evictions.report(&decision.pod, priority, (0..refused.len()).filter(helps).map(name));
        }
        _ => evictions.withdraw(&decision.pod),
    }
}

/// Counts rejections in metrics: one update for each cause.
fn count(decider: &Decider, verb: &'static str, rejections: &Rejections<'_>) {
    for cause in rejections.causes() {
        decider.metrics.count_rejected_nodes(verb, cause.label, cause.nodes);
    }
}

/// The answer, with its rejections counted.
fn answer(
    decider: &Decider,
    verb: &'static str,
    names: &NamesJson<'_>,
    rejections: &Rejections<'_>,
) -> Answer {
    count(decider, verb, rejections);
    let outcome = if rejections.len() == names.len() { "no node" } else { "ok" };
    Answer::of_json(outcome, rejections.answer(names))
}

fn failed(error: &impl ToString) -> Answer {
    Answer::new("error", &FilterResult::failed(error))
}
