//! Explain: everything that Filter and Prioritize decide for a pod, node by node.
//!
//! A pod that has a node is explained by what was known at its decision, where the log still has that; one that waits, by
//! what is known now. Which it is, the API server says: the watch keeps no pods that wait, and a name may be another pod's by now.
//! Of several replicas the one that kube-scheduler asked last knows the decision: each asks the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::explain::DecisionBasis;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use cluster::{CallError, Pod};
use jiff::Timestamp;
use placement::units::NodeName;
use serde::Deserialize;

use super::Answer;
use crate::decisions::{self, Decision, MAX_PODS};
use crate::field;
use crate::replicas::FORWARDED;
use crate::wire::{self, AskedPod, Name, Question};
use crate::{Decider, Extender};

const EXPLAIN: &str = "explain";

/// Where it is asked for.
pub(super) const PATH: &str = "/explain";

/// For reading one pod from the API server.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The same, where a decision is to be told if that fails: less than the 3 s for which another replica waits for the answer.
const KEPT_READ_LIMIT: Duration = Duration::from_secs(2);

/// Answers for the nodes of the request, or where it names none for all: of a decision, all that kube-scheduler asked
/// about; else all that are known. Each node is decided about among all of these, whichever are shown.
pub(super) async fn explain(
    State(extender): State<Arc<Extender>>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let start = Instant::now();
    let others = extender.others.as_ref().filter(|_| !headers.contains_key(FORWARDED));
    let answer = match (wire::read_question(&body), others) {
        (Ok(question), Some(others)) if question.pod.is_by_decision() => {
            let (own, told) =
                tokio::join!(answer(&extender, question), others.ask(PATH, Some(&body)));
            told.into_iter().fold(own, of_last_decision)
        }
        (Ok(question), _) => answer(&extender, question).await,
        (Err(error), _) => Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let seconds = start.elapsed().as_secs_f64();
    extender.decider.metrics.call(EXPLAIN, answer.outcome, seconds);
    answer
}

/// Of two answers, that of the later decision; the first one where the other is not by a decision, or by one about another pod
/// than the API server has shown.
fn of_last_decision(own: Answer, told: Vec<u8>) -> Answer {
    let (of_own, of_other) = (Told::of(own.json()), Told::of(&told));
    let decided_at = |told: &Option<Told>| told.as_ref().and_then(Told::decided_at);
    let is_of_another = of_own.as_ref().zip(of_other.as_ref()).is_some_and(|(own, other)| {
        own.basis == DecisionBasis::Now && own.pod.uid != other.pod.uid
    });
    if !is_of_another && decided_at(&of_other) > decided_at(&of_own) {
        return Answer::of_json("ok", told);
    }
    own
}

/// By what an answer is made.
#[derive(Deserialize)]
struct Told {
    pod: ToldPod,
    time: Timestamp,
    basis: DecisionBasis,
}

#[derive(Deserialize)]
struct ToldPod {
    uid: String,
}

impl Told {
    /// `None` where it is no explanation.
    fn of(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// When it was decided what the answer tells; `None` where it tells no decision.
    fn decided_at(&self) -> Option<Timestamp> {
        (self.basis == DecisionBasis::Decision).then_some(self.time)
    }
}

async fn answer(extender: &Extender, question: Question<'_>) -> Answer {
    let nodes = question.node_names.as_deref();
    match question.pod {
        AskedPod::Object(pod) => now(&extender.decider, &pod, nodes),
        AskedPod::Named { namespace, name, fresh } => {
            let named = Named { namespace: namespace.as_str(), name: name.as_str(), fresh };
            named.explain(extender, nodes).await
        }
    }
}

struct Named<'a> {
    namespace: &'a str,
    name: &'a str,
    fresh: bool,
}

impl Named<'_> {
    async fn explain(&self, extender: &Extender, nodes: Option<&[Name<'_>]>) -> Answer {
        let checked = field::label("namespace", self.namespace);
        if let Err(error) = checked.and_then(|()| field::subdomain("name", self.name)) {
            return Answer::failed(StatusCode::BAD_REQUEST, &error);
        }
        let decider = &extender.decider;
        let kept = decider.decisions.find(self.namespace, self.name).filter(|_| !self.fresh);
        let limit = if kept.is_some() { KEPT_READ_LIMIT } else { READ_LIMIT };
        let read = extender.binder.find_pod(self.namespace, self.name, limit).await;
        match (kept, read) {
            (Some(kept), Ok(Some(pod))) if pod.uid() == kept.pod.uid && pod.node().is_some() => {
                decider.decisions.set_node(&pod.uid(), pod.node().unwrap_or_default());
                at_decision(&kept, nodes)
            }
            (_, Ok(Some(pod))) => now(decider, &pod, nodes),
            (Some(kept), Ok(None) | Err(_)) => at_decision(&kept, nodes),
            (None, Ok(None)) => Answer::failed(StatusCode::NOT_FOUND, &self.unknown()),
            (None, Err(error)) => {
                Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &self.unread(&error))
            }
        }
    }

    fn unknown(&self) -> String {
        let Self { namespace, name, .. } = self;
        format!(
            "there is no pod {namespace}/{name}, and it is none of the last {MAX_PODS} that were decided about; \
             check the namespace and the name"
        )
    }

    fn unread(&self, error: &CallError) -> String {
        let Self { namespace, name, .. } = self;
        format!("pod {namespace}/{name} cannot be read from the API server: {error}")
    }
}

/// What was decided, among the nodes that kube-scheduler asked about.
fn at_decision(decision: &Decision, nodes: Option<&[Name<'_>]>) -> Answer {
    let shown = positions(decision, nodes);
    Answer::new("ok", &decisions::explain(decision, DecisionBasis::Decision, shown))
}

/// What would be decided now, among all nodes that are known and those of the request: how loaded the others are bears on whether a
/// node passes over its limit, and on the rank of its cards.
fn now(decider: &Decider, pod: &Pod, nodes: Option<&[Name<'_>]>) -> Answer {
    let board = decider.view.load.read();
    let known = board.names().iter().map(NodeName::as_str);
    let mut names: Vec<&str> = known.chain(nodes.into_iter().flatten().map(Name::as_str)).collect();
    // Of equal nodes the first ones pass over their limits: the order is the same whatever is asked.
    names.sort_unstable();
    names.dedup();
    let decision = decider.decision_among(pod, names, decider.now());
    let shown = positions(&decision, nodes);
    Answer::new("ok", &decisions::explain(&decision, DecisionBasis::Now, shown))
}

/// Where the nodes of the request stand in the decision, each once; those that it is not about are left out. All where the request
/// names none.
fn positions(decision: &Decision, nodes: Option<&[Name<'_>]>) -> Vec<usize> {
    let all = 0..decision.len();
    let Some(nodes) = nodes else { return all.collect() };
    let mut places: HashMap<&str, usize> =
        all.map(|position| (decision.candidate(position).name.as_str(), position)).collect();
    nodes.iter().filter_map(|name| places.remove(name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(uid: &str, basis: DecisionBasis, second: i64) -> Vec<u8> {
        let time = Timestamp::from_second(second).unwrap();
        serde_json::to_vec(&json!({ "pod": { "uid": uid }, "time": time, "basis": basis })).unwrap()
    }

    #[test]
    fn the_later_decision_is_told_unless_it_is_about_another_pod_than_the_api_server_shows() {
        use DecisionBasis::{Decision, Now};
        let own_is_told = |own: Vec<u8>, other: Vec<u8>| {
            of_last_decision(Answer::of_json("ok", own.clone()), other).json() == own
        };
        assert!(!own_is_told(told("a", Now, 9), told("a", Decision, 5)));
        assert!(own_is_told(told("a", Now, 9), told("b", Decision, 5)));
        assert!(!own_is_told(told("a", Decision, 4), told("b", Decision, 5)));
        assert!(own_is_told(told("a", Decision, 5), told("a", Decision, 4)));
        assert!(own_is_told(told("a", Decision, 5), told("a", Now, 9)));
        assert!(!own_is_told(b"\"there is no pod\"".to_vec(), told("a", Decision, 5)));
    }
}
