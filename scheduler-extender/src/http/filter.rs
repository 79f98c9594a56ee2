//! Filter: which nodes may take the pod, and why the others may not.

use std::collections::HashMap;

use placement::gpu::GpuRequest;
use placement::load::Verdict;
use placement::units::PodUid;

use super::Answer;
use crate::Decider;
use crate::wire::{self, FilterResult, Name};

const BY_LOAD: &str = "load-aware/filter";
const BY_CARDS: &str = "gpushare-scheduler/filter";

/// Rejects overloaded nodes, and those that are not of the pod's namespace.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return failed(&error),
    };
    // A pod that is asked about again, as after a failed binding, does not stand in its own way.
    decider.view.load.not_in_flight(&pod.uid());
    let decision = decider.decision(&pod, &names, decider.now());
    decider.note(&decision);
    let verdicts = decision.verdicts(&decision.policy);
    if !verdicts.over_limits.is_empty() {
        decider.metrics.passed_over_limits();
        decider.over_limits.report(&decision.pod);
    }
    // kube-scheduler asks for no scores of a single node, and binds there.
    let mut passing = (0..names.len()).filter(|at| verdicts.each[*at] == Verdict::Accepted);
    if let (Some(only), None) = (passing.next(), passing.next()) {
        let (uid, uses) = (&decision.pod.uid, decision.pod.uses());
        decider.view.load.in_flight(uid, names[only].as_str(), decision.time, uses);
    }
    pass_or_reject(decider, BY_LOAD, &names, |position, _| {
        // Removing pods changes no reading, and kube-scheduler's preemption, which does not know readings, would try
        // each of these nodes again and again.
        let verdict = verdicts.each[position];
        Some(Rejection { label: verdict.label()?, reason: verdict.reason()? })
    })
}

/// Rejects nodes without a card for the pod; pods that ask for none pass everywhere.
pub(super) fn by_cards(decider: &Decider, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return failed(&error),
    };
    match pod.request(&decider.names) {
        Ok(Some(_)) if !decider.view.is_complete() => failed(
            &"still reading the cluster; GPU pods wait until every node and pod has been seen",
        ),
        Ok(Some(request)) => {
            decider.note_if_new(&pod, &names);
            fit(decider, &pod.uid(), &request, &names)
        }
        Ok(None) => answer(FilterResult::default(), names.iter().map(Name::as_str).collect()),
        Err(error) => failed(&error),
    }
}

fn fit(decider: &Decider, pod: &PodUid, request: &GpuRequest, names: &[Name<'_>]) -> Answer {
    let cards = decider.view.cards.read();
    pass_or_reject(decider, BY_CARDS, names, |_, name| {
        // kube-scheduler got this far, so the node's total is enough and only the cards are not: its preemption, which
        // knows totals alone, would find no pod to remove and fail with "expected at least one victim".
        let why = cards.fit(name, pod, request).err()?;
        Some(Rejection { label: why.label(), reason: why.reason() })
    })
}

/// Why a node may not take the pod, whatever kube-scheduler removes.
struct Rejection<'a> {
    /// For metrics.
    label: &'a str,
    /// For the answer.
    reason: &'a str,
}

/// Answers which nodes pass, and counts why the others do not: metrics are touched once a reason.
fn pass_or_reject<'a>(
    decider: &Decider,
    verb: &'static str,
    names: &'a [Name<'_>],
    reject: impl Fn(usize, &str) -> Option<Rejection<'a>>,
) -> Answer {
    let mut rejected: HashMap<&str, u64> = HashMap::new();
    let mut result = FilterResult::default();
    let mut passed = Vec::with_capacity(names.len());
    for (position, name) in names.iter().map(Name::as_str).enumerate() {
        match reject(position, name) {
            None => passed.push(name),
            Some(Rejection { label, reason }) => {
                *rejected.entry(label).or_default() += 1;
                result.failed_and_unresolvable_nodes.0.push((name, reason));
            }
        }
    }
    for (label, nodes) in rejected {
        decider.metrics.rejected(verb, label, nodes);
    }
    answer(result, passed)
}

fn answer<'a>(mut result: FilterResult<'a>, passed: Vec<&'a str>) -> Answer {
    let outcome = if passed.is_empty() { "no node" } else { "ok" };
    result.node_names = Some(passed);
    Answer::new(outcome, &result)
}

fn failed(error: &impl ToString) -> Answer {
    Answer::new("error", &FilterResult::failed(error))
}
