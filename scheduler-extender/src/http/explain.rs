//! Explain: everything that Filter and Prioritize decide for a pod, node by node.
//!
//! A pod with a node is explained from the decision log, if it still has the pod's decision; a waiting pod, from the
//! current view. The pod is read from the API server: the view holds no waiting pods, and another pod may have the same
//! name by now. With several replicas, the one that received kube-scheduler's last request has the decision, so each
//! queries the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::explain::DecisionBasis;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use cluster::{CallError, Pod};
use jiff::Timestamp;
use serde::Deserialize;

use super::Answer;
use crate::decisions::{self, Decision, MAX_PODS};
use crate::wire::{self, ExplainPod, ExplainRequest, Name};
use crate::{Decider, Extender};
use crate::{field, node_request};

const EXPLAIN: &str = "explain";

pub(super) const PATH: &str = "/explain";

/// The timeout of reading one pod from the API server.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for a pod in the decision log, which is explained from there if the read fails: less than the 3 s for which
/// another replica waits for the answer.
const LOGGED_READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Names of unknown nodes in a request at most: each takes some kilobytes of the answer, and anyone who reaches the
/// port can make them up.
const MAX_UNKNOWN: usize = 1_000;

/// Explains the nodes of the request. A request without nodes means all: those of kube-scheduler's request for a logged
/// decision, otherwise all known nodes. The decision is always made among all of them, also if only some are shown.
pub(super) async fn explain(
    State(extender): State<Arc<Extender>>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let start = Instant::now();
    let answer = match (wire::read_explain_request(&body), extender.others_to_ask(&headers)) {
        (Ok(request), Some(others)) if request.pod.uses_decision_log() => {
            let (own, others) =
                tokio::join!(answer(&extender, request), others.query(PATH, Some(&body)));
            others.bodies.into_iter().fold(own, newer_decision)
        }
        (Ok(request), _) => answer(&extender, request).await,
        (Err(error), _) => Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let seconds = start.elapsed().as_secs_f64();
    extender.decider.metrics.count_call(EXPLAIN, answer.outcome, seconds);
    answer
}

/// The answer with the later logged decision. `own`, where `other` is not from the decision log, or is about another
/// pod than the API server shows.
fn newer_decision(own: Answer, other: Vec<u8>) -> Answer {
    let Some(other_meta) = AnswerMeta::of(&other) else { return own };
    let own_meta = AnswerMeta::of(own.json());
    let is_other_pod = own_meta
        .as_ref()
        .is_some_and(|own| own.basis == DecisionBasis::Now && own.pod.uid != other_meta.pod.uid);
    let decided_at = own_meta.and_then(|own| own.decided_at());
    if !is_other_pod && other_meta.decided_at() > decided_at {
        return Answer::of_json("ok", other);
    }
    own
}

/// The fields of an explanation by which answers of replicas are compared.
#[derive(Deserialize)]
struct AnswerMeta {
    pod: AnswerPod,
    time: Timestamp,
    basis: DecisionBasis,
}

#[derive(Deserialize)]
struct AnswerPod {
    uid: String,
}

impl AnswerMeta {
    /// `None` where the JSON is no explanation.
    fn of(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// The time of the logged decision; `None` for an answer from the current view.
    fn decided_at(&self) -> Option<Timestamp> {
        (self.basis == DecisionBasis::Decision).then_some(self.time)
    }
}

async fn answer(extender: &Extender, request: ExplainRequest<'_>) -> Answer {
    let nodes = request.node_names.as_deref();
    match request.pod {
        ExplainPod::Object(pod, text) => now(&extender.decider, &pod, text.as_bytes(), nodes),
        ExplainPod::Named { namespace, name, uid, fresh } => {
            let (namespace, name) = (namespace.as_str(), name.as_str());
            let named = NamedPod { namespace, name, uid: uid.as_ref().map(Name::as_str), fresh };
            named.explain(extender, nodes).await
        }
    }
}

struct NamedPod<'a> {
    namespace: &'a str,
    name: &'a str,
    /// Of pods that had this name one after another, which one; `None` for the newest.
    uid: Option<&'a str>,
    fresh: bool,
}

impl NamedPod<'_> {
    async fn explain(&self, extender: &Extender, nodes: Option<&[Name<'_>]>) -> Answer {
        let checked = field::label("namespace", self.namespace);
        if let Err(error) = checked.and_then(|()| field::subdomain("name", self.name)) {
            return Answer::failed(StatusCode::BAD_REQUEST, &error);
        }
        let decider = &extender.decider;
        let logged = if self.fresh {
            None
        } else {
            decider.decisions.find(self.namespace, self.name, self.uid)
        };
        let timeout = if logged.is_some() { LOGGED_READ_TIMEOUT } else { READ_TIMEOUT };
        let read = extender.binder.find_pod(self.namespace, self.name, timeout).await;
        match (logged, read) {
            (Some(logged), Ok(Some((pod, _))))
                if pod.uid() == logged.pod.uid && pod.node().is_some() =>
            {
                decider.decisions.set_node(&pod.uid(), pod.node().unwrap_or_default());
                at_decision(&logged, nodes)
            }
            (_, Ok(Some((pod, text)))) if self.is_meant(&pod) => now(decider, &pod, &text, nodes),
            (Some(logged), _) => at_decision(&logged, nodes),
            (None, Ok(_)) => Answer::failed(StatusCode::NOT_FOUND, &self.not_found()),
            (None, Err(error)) => {
                Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &self.read_error(&error))
            }
        }
    }

    /// Whether the pod that has the name now is the one of the request.
    fn is_meant(&self, pod: &Pod) -> bool {
        self.uid.is_none_or(|uid| *pod.uid().as_str() == *uid)
    }

    fn not_found(&self) -> String {
        let Self { namespace, name, .. } = self;
        format!(
            "there is no pod {namespace}/{name}, and it is none of the last {MAX_PODS} that were decided about; \
             check the namespace and the name"
        )
    }

    fn read_error(&self, error: &CallError) -> String {
        let Self { namespace, name, .. } = self;
        format!("pod {namespace}/{name} cannot be read from the API server: {error}")
    }
}

/// Explains a logged decision.
fn at_decision(decision: &Decision, nodes: Option<&[Name<'_>]>) -> Answer {
    let shown = positions(decision, nodes);
    Answer::new("ok", &decisions::explain(decision, DecisionBasis::Decision, shown))
}

/// Explains what would be decided now, among all known nodes and those of the request: the load of the others affects
/// whether a node passes over its limit, and the rank of its GPUs. `text` is the pod's JSON.
fn now(decider: &Decider, pod: &Pod, text: &[u8], nodes: Option<&[Name<'_>]>) -> Answer {
    let snapshot = decider.view.read();
    let asked = nodes.unwrap_or_default();
    if asked.iter().filter(|name| snapshot.load(name.as_str()).is_none()).count() > MAX_UNKNOWN {
        let error = format!("more than {MAX_UNKNOWN} of the node names are names of unknown nodes");
        return Answer::failed(StatusCode::BAD_REQUEST, &error);
    }
    let mut names: Vec<&str> = asked.iter().map(Name::as_str).collect();
    names.extend(snapshot.loads().map(|(name, _)| name.as_str()));
    // An explanation lists nodes by name.
    names.sort_unstable();
    names.dedup();
    let mut decision = decider.decision_for(&decider.view.current(), pod, names, decider.now());
    let large = node_request::large_stored_pod(text, decider.names.gpu_resource());
    if large.is_some() && pod.node().is_none() {
        decision = decision.without_gpus().with_fault(large);
    }
    let shown = positions(&decision, nodes);
    Answer::new("ok", &decisions::explain(&decision, DecisionBasis::Now, shown))
}

/// The positions in the decision of the request's nodes, each once; nodes that the decision does not have are left out.
/// All positions for a request without nodes.
fn positions(decision: &Decision, nodes: Option<&[Name<'_>]>) -> Vec<usize> {
    let all = 0..decision.len();
    let Some(nodes) = nodes else { return all.collect() };
    let mut positions: HashMap<&str, usize> =
        all.map(|position| (decision.name(position).as_str(), position)).collect();
    nodes.iter().filter_map(|name| positions.remove(name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn explanation(uid: &str, basis: DecisionBasis, second: i64) -> Vec<u8> {
        let time = Timestamp::from_second(second).unwrap();
        serde_json::to_vec(&json!({ "pod": { "uid": uid }, "time": time, "basis": basis })).unwrap()
    }

    fn own_is_shown(own: &[u8], other: Vec<u8>) -> bool {
        newer_decision(Answer::of_json("ok", own.to_vec()), other).json() == own
    }

    #[test]
    fn the_later_decision_is_shown_unless_it_is_about_another_pod_than_the_api_server_shows() {
        use DecisionBasis::{Decision, Now};
        assert!(!own_is_shown(&explanation("a", Now, 9), explanation("a", Decision, 5)));
        assert!(own_is_shown(&explanation("a", Now, 9), explanation("b", Decision, 5)));
        assert!(!own_is_shown(&explanation("a", Decision, 4), explanation("b", Decision, 5)));
        assert!(own_is_shown(&explanation("a", Decision, 5), explanation("a", Decision, 4)));
        assert!(own_is_shown(&explanation("a", Decision, 5), explanation("a", Now, 9)));
        assert!(!own_is_shown(b"\"there is no pod\"", explanation("a", Decision, 5)));
    }
}
