//! Prioritize: a score on the policy's scale for every node of the request, also for unknown
//! ones: among nodes that are left out, kube-scheduler does not choose at random. The answer is a JSON list, which has
//! no field for an error; kube-scheduler ignores a failed Prioritize, and logs it.

use axum::http::StatusCode;
use placement::load::Score;
use placement::policy::Scale;
use placement::units::PodUid;

use super::Answer;
use super::write::priorities;
use crate::decisions::{DecidedPod, Decision};
use crate::{Decided, Decider};

/// Scores nodes by load; for a GPU pod the score of the GPUs counts as much as the load.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let request = match decider.read_request(body) {
        Ok(request) => request,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    decider.end_in_flight(&request.pod);
    let decided = decider.decide(request);
    let Decided { decision, names, .. } = &decided;
    decider.record_if_new(decision);
    let evaluator = decided.evaluator();
    let scale = evaluator.scale();
    let scores: Vec<i64> = evaluator.scores().into_iter().map(|score| score.on(scale)).collect();
    if let Some(node) = likely_node(&scores, &decision.pod.uid) {
        decider.count_in_flight(decision, node);
    }
    log(decision, &scores);
    Answer::of_json("ok", priorities(names, &scores))
}

/// For who follows one pod by its UID.
fn log(decision: &Decision, scores: &[i64]) {
    let DecidedPod { uid, namespace, name: pod, .. } = &*decision.pod;
    let best = scores.iter().max();
    tracing::debug!(%uid, namespace, pod, nodes = scores.len(), best, "prioritize");
}

/// Position of the node where the pod will probably go: one of those with the best score. Among several,
/// kube-scheduler's own plugins decide; they spread pods, and so does this.
pub(super) fn likely_node(scores: &[i64], pod: &PodUid) -> Option<usize> {
    let best = scores.iter().max()?;
    let top: Vec<usize> = (0..scores.len()).filter(|node| scores[*node] == *best).collect();
    let turn =
        pod.as_str().bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31) + usize::from(byte));
    Some(top[turn % top.len()])
}

/// Scores nodes by how well their GPUs suit the pod.
pub(super) fn by_gpus(decider: &Decider, body: &[u8]) -> Answer {
    let request = match decider.read_request(body) {
        Ok(request) => request,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let decided = decider.decide(request);
    let Decided { decision, names, .. } = &decided;
    let by_gpus = decided.evaluator().gpu_scores();
    let exact = by_gpus.unwrap_or_else(|| vec![Score::ZERO; decision.len()]);
    let scores: Vec<i64> = exact.into_iter().map(|score| score.on(Scale::TEN)).collect();
    Answer::of_json("ok", priorities(names, &scores))
}
