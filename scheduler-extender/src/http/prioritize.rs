//! Prioritize: 0 to 10, or to 100 by the policy's scale, for every node that was asked about, known or not. A node left out would tie
//! with others in a way that kube-scheduler does not resolve at random. A bare list has no room for an error;
//! kube-scheduler ignores a failed Prioritize, and logs it.

use axum::http::StatusCode;
use placement::load::Score;
use placement::policy::Scale;
use placement::units::PodUid;

use super::Answer;
use super::write::priorities;
use crate::Decider;

/// Cooler nodes are better; for a GPU pod the fit of the card counts as much as the load.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let asked = match decider.asked(body) {
        Ok(asked) => asked,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    decider.view.load.not_in_flight(&asked.pod.uid());
    let (decision, names) = decider.decision(asked);
    decider.note_if_new(&decision);
    let scale = decision.policy().policy.scoring.scale;
    let scores: Vec<i64> = decision.scores().map(|score| score.on(scale)).collect();
    if let Some(node) = likely(&scores, &decision.pod.uid) {
        decider.count_in_flight(&decision, node);
    }
    Answer::of_json("ok", priorities(&names, &scores))
}

/// Position of the node where the pod will probably go: one of the best. Which of several, kube-scheduler's own
/// plugins decide; they spread pods, and so does this.
fn likely(scores: &[i64], pod: &PodUid) -> Option<usize> {
    let best = scores.iter().max()?;
    let top = || (0..scores.len()).filter(|node| scores[*node] == *best);
    let turn =
        pod.as_str().bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31) + usize::from(byte));
    top().nth(turn % top().count())
}

/// Nodes whose cards suit the pod are better.
pub(super) fn by_cards(decider: &Decider, body: &[u8]) -> Answer {
    let asked = match decider.asked(body) {
        Ok(asked) => asked,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let (decision, names) = decider.decision(asked);
    let scores = decision.card_scores().unwrap_or_else(|| vec![Score::ZERO; decision.len()]);
    let scores: Vec<i64> = scores.into_iter().map(|score| score.on(Scale::Ten)).collect();
    Answer::of_json("ok", priorities(&names, &scores))
}
