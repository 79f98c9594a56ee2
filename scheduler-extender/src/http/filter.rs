//! Filter: which nodes may take the pod, and why the others may not.

use cluster::AskError;
use placement::gpu::NoFit;
use placement::load::Verdict;

use super::Answer;
use super::write::Rejections;
use crate::Decider;
use crate::asked::NamesJson;
use crate::card_evictions::CardEvictions;
use crate::decisions::Decision;
use crate::extender::AskedOn;
use crate::wire::FilterResult;

const BY_LOAD: &str = "load-aware/filter";
const BY_CARDS: &str = "gpushare-scheduler/filter";

/// Rejects overloaded nodes, and those that are not of the pod's namespace.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let asked = match decider.asked(body) {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    // A pod that is asked about again, as after a failed binding, does not stand in its own way.
    decider.view.load.not_in_flight(&asked.pod.uid());
    let (decision, names) = decider.decision(asked);
    decider.note(&decision);
    let verdicts = decision.verdicts(decision.policy());
    if !verdicts.over_limits.is_empty() {
        decider.metrics.passed_over_limits();
        decider.over_limits.report(&decision.pod);
    }
    // kube-scheduler asks for no scores of a single node, and binds there.
    let mut passing = (0..names.len()).filter(|at| verdicts.each[*at] == Verdict::Accepted);
    if let (Some(only), None) = (passing.next(), passing.next()) {
        decider.count_in_flight(&decision, only);
    }
    // Removing pods changes no reading, and kube-scheduler's preemption, which does not know readings, would try each of these
    // nodes again and again.
    let mut rejections = Rejections::default();
    for (position, verdict) in verdicts.each.iter().enumerate() {
        if let (Some(label), Some(reason)) = (verdict.label(), verdict.reason()) {
            rejections.add(position, label, reason);
        }
    }
    answer(decider, BY_LOAD, &names, &rejections)
}

/// Rejects nodes without a card for the pod; pods that ask for none pass everywhere.
pub(super) fn by_cards(decider: &Decider, body: &[u8]) -> Answer {
    let asked = match decider.asked(body) {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    match asked.pod.request(&decider.names) {
        Ok(Some(_)) if !decider.view.is_complete() => failed(
            &"still reading the cluster; GPU pods wait until every node and pod has been seen",
        ),
        Ok(Some(_)) => fit(decider, asked),
        Ok(None) => answer(decider, BY_CARDS, &asked.names, &Rejections::default()),
        Err(fault) => no_node(decider, &asked, &fault),
    }
}

/// Every node is refused to a pod that cannot be placed anywhere. kube-scheduler tries it again once it changes, which it would not
/// wait for after an error.
fn no_node(decider: &Decider, asked: &AskedOn<'_>, fault: &AskError) -> Answer {
    let mut rejections = Rejections::default();
    let reason = fault.reason();
    (0..asked.names.len()).for_each(|node| rejections.add(node, "faulty request", reason));
    answer(decider, BY_CARDS, &asked.names, &rejections)
}

fn fit(decider: &Decider, asked: AskedOn<'_>) -> Answer {
    let priority = asked.pod.may_preempt().then(|| asked.pod.priority());
    let (decision, names) = decider.decision(asked);
    decider.note_if_new(&decision);
    // kube-scheduler got this far, so the node's total is enough and only the cards are not: its preemption, which
    // knows totals alone, would find no pod to remove and fail with "expected at least one victim".
    let refused = decision.no_fits();
    let mut rejections = Rejections::default();
    for (position, why) in refused.iter().enumerate() {
        if let Some(why) = why {
            rejections.add(position, why.label(), why.reason());
        }
    }
    if let Some(evictions) = &decider.card_evictions {
        report(evictions, &decision, priority, &refused);
    }
    let is_free_soon = || (0..decision.len()).any(|node| decision.fits_soon(node));
    if refused.iter().all(Option::is_some) && is_free_soon() {
        // Nothing that kube-scheduler sees happens then: it is to try again by itself, as it does after an error.
        return failed(&"a card is free within seconds: a pod that was there was deleted by force");
    }
    answer(decider, BY_CARDS, &names, &rejections)
}

/// Tells of a pod for which others may be evicted, or that it needs that no more. A pod that may preempt none has no priority.
fn report(
    evictions: &CardEvictions,
    decision: &Decision,
    priority: Option<i32>,
    refused: &[Option<NoFit>],
) {
    let priority = priority.filter(|_| refused.iter().all(Option::is_some));
    let Some(priority) = priority else { return evictions.withdraw(&decision.pod.uid) };
    let may_be_lifted = |at: &usize| refused[*at].is_some_and(NoFit::may_be_lifted);
    let nodes = (0..refused.len()).filter(may_be_lifted);
    let nodes = nodes.map(|at| decision.candidate(at).name.clone());
    evictions.report(&decision.pod, priority, nodes);
}

/// Answers which nodes pass, and counts why the others do not: metrics are touched once a cause.
fn answer(
    decider: &Decider,
    verb: &'static str,
    names: &NamesJson<'_>,
    rejections: &Rejections<'_>,
) -> Answer {
    for cause in rejections.causes() {
        decider.metrics.rejected(verb, cause.label, cause.nodes);
    }
    let outcome = if rejections.len() == names.len() { "no node" } else { "ok" };
    Answer::of_json(outcome, rejections.answer(names))
}

fn failed(error: &impl ToString) -> Answer {
    Answer::new("error", &FilterResult::failed(error))
}
