//! Explain: everything that Filter and Prioritize decide for a pod, node by node.
//!
//! A pod that has a node is explained by what was known at its decision, where the log still has that; one that waits, by
//! what is known now. The watch keeps no pods that wait, so that such a pod is read from the API server. Of several replicas the
//! one that kube-scheduler asked last knows the decision: each asks the others.

use std::collections::HashSet;
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

/// Answers for the nodes of the request, or where it names none for all: of a decision, all that kube-scheduler asked
/// about; else all that are known.
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

/// Of two answers, that of the later decision; the first one where the other is not by a decision.
fn of_last_decision(own: Answer, told: Vec<u8>) -> Answer {
    if Told::decided_at(&told) > Told::decided_at(own.json()) {
        return Answer::of_json("ok", told);
    }
    own
}

/// By what an answer is made.
#[derive(Deserialize)]
struct Told {
    time: Timestamp,
    basis: DecisionBasis,
}

impl Told {
    /// When it was decided what the answer tells; `None` where it tells no decision.
    fn decided_at(json: &[u8]) -> Option<Timestamp> {
        let Self { time, basis } = serde_json::from_slice(json).ok()?;
        (basis == DecisionBasis::Decision).then_some(time)
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
        if let Some(kept) = kept.as_ref().filter(|kept| kept.pod.node().is_some()) {
            return at_decision(kept, nodes);
        }
        let read = extender.binder.find_pod(self.namespace, self.name, READ_LIMIT).await;
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

/// What was decided.
fn at_decision(decision: &Decision, nodes: Option<&[Name<'_>]>) -> Answer {
    let only: Option<HashSet<&str>> = nodes.map(|names| names.iter().map(Name::as_str).collect());
    let explanation = decisions::explain(decision, DecisionBasis::Decision, only.as_ref());
    Answer::new("ok", &explanation)
}

/// What would be decided now.
fn now(decider: &Decider, pod: &Pod, nodes: Option<&[Name<'_>]>) -> Answer {
    let board = decider.view.load.read();
    let names: Vec<&str> = match nodes {
        Some(names) => {
            let mut seen = HashSet::new();
            names.iter().map(Name::as_str).filter(|name| seen.insert(*name)).collect()
        }
        None => {
            let mut names: Vec<&str> = board.names().iter().map(NodeName::as_str).collect();
            names.sort_unstable();
            names
        }
    };
    let decision = decider.decision_among(pod, names, decider.now());
    Answer::new("ok", &decisions::explain(&decision, DecisionBasis::Now, None))
}
