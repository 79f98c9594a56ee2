//! Filter: which nodes may take the pod, and why the others may not.

use std::collections::HashMap;

use placement::gpu::{GpuRequest, NoCard};
use placement::load;
use placement::units::PodUid;

use super::Answer;
use crate::Judge;
use crate::wire::{self, FilterResult, Name};

const BY_LOAD: &str = "load-aware/filter";
const BY_CARDS: &str = "gpushare-scheduler/filter";

/// Turns down overloaded nodes. What is not known passes.
pub(super) fn by_load(judge: &Judge, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return failed(&error),
    };
    let (board, kind, now) = (judge.view.load.read(), pod.kind(), judge.now());
    let check = |name: &str| match board.node(name) {
        Some(node) => load::filter(&board.policy, &node, kind, now),
        None => Ok(()),
    };
    let mut tally = Tally::default();
    let mut result = FilterResult::default();
    let mut passed = Vec::with_capacity(names.len());
    for name in names.iter().map(Name::as_str) {
        match check(name) {
            Ok(()) => passed.push(name),
            Err(overload) => {
                tally.add(overload.metric.as_str());
                result.failed_nodes.0.push((name, overload.to_string()));
            }
        }
    }
    tally.report(judge, BY_LOAD);
    answer(result, passed)
}

/// Turns down nodes without a card for the pod; pods that ask for none pass everywhere.
pub(super) fn by_cards(judge: &Judge, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return failed(&error),
    };
    match pod.request(&judge.names) {
        Ok(Some(_)) if !judge.view.is_complete() => failed(
            &"still reading the cluster; GPU pods wait until every node and pod has been seen",
        ),
        Ok(Some(request)) => fit(judge, &pod.uid(), &request, &names),
        Ok(None) => answer(FilterResult::default(), names.iter().map(Name::as_str).collect()),
        Err(error) => failed(&error),
    }
}

fn fit(judge: &Judge, pod: &PodUid, request: &GpuRequest, names: &[Name<'_>]) -> Answer {
    let mut tally = Tally::default();
    let mut result = FilterResult::default();
    let mut passed = Vec::with_capacity(names.len());
    for name in names.iter().map(Name::as_str) {
        match judge.view.cards.fit(name, pod, request) {
            Ok(_) => passed.push(name),
            Err(why) => {
                tally.add(reason(&why));
                // kube-scheduler got this far, so the node's total is enough and only the cards are
                // not: its preemption, which knows totals alone, would find no pod to remove and fail
                // with "expected at least one victim".
                result.failed_and_unresolvable_nodes.0.push((name, why.to_string()));
            }
        }
    }
    tally.report(judge, BY_CARDS);
    answer(result, passed)
}

fn reason(why: &NoCard) -> &'static str {
    match why {
        NoCard { cards, .. } if cards.is_empty() => "no cards reported",
        NoCard { could_ever_fit: false, .. } => "larger than any card",
        NoCard { .. } => "no card with room",
    }
}

fn answer<'a>(mut result: FilterResult<'a>, passed: Vec<&'a str>) -> Answer {
    let outcome = if passed.is_empty() { "no node" } else { "ok" };
    result.node_names = Some(passed);
    Answer::new(outcome, &result)
}

fn failed(error: &impl ToString) -> Answer {
    Answer::new("error", &FilterResult::failed(error))
}

/// Counts reasons over one call, so that metrics are touched once a reason.
#[derive(Default)]
struct Tally(HashMap<String, u64>);

impl Tally {
    fn add(&mut self, reason: &str) {
        match self.0.get_mut(reason) {
            Some(count) => *count += 1,
            None => drop(self.0.insert(reason.to_owned(), 1)),
        }
    }

    fn report(self, judge: &Judge, verb: &'static str) {
        for (reason, nodes) in self.0 {
            judge.metrics.rejected(verb, &reason, nodes);
        }
    }
}
