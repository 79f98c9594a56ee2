//! Prioritize: 0 to 10, or to 100 by the policy's scale, for every node that was asked about, known or not. A node left out would tie
//! with others in a way that kube-scheduler does not resolve at random. A bare list has no room for an error;
//! kube-scheduler ignores a failed Prioritize, and logs it.

use axum::http::StatusCode;
use jiff::Timestamp;
use placement::gpu::GpuRequest;
use placement::load::{Evaluation, PodToPlace, Score};
use placement::policy::Scale;
use placement::units::PodUid;

use super::Answer;
use crate::Decider;
use crate::decisions::DecidedPod;
use crate::view::{Board, CardIndex};
use crate::wire::{self, HostPriority, Name};

/// Cooler nodes are better; for a GPU pod the fit of the card counts as much as the load.
pub(super) fn by_load(decider: &Decider, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let (uid, request) = (pod.uid(), pod.request(&decider.names).ok().flatten());
    decider.view.load.not_in_flight(&uid);
    decider.note_if_new(&pod, &names);
    let now = decider.now();
    let decided = DecidedPod::new(&pod, decider.view.estimate(&pod, &decider.names), now);
    let (board, cards) = (decider.view.load.read(), decider.view.cards.read());
    let scale = board.policy.policy.scoring.scale;
    let scores = rank(&names, scale, |name| {
        let load = load_score(&board, name, decided.to_place(), now);
        let card = request.as_ref().map(|request| card_score(&cards, name, &uid, request));
        card.map_or(load, |card| card.mean(load))
    });
    if let Some(node) = likely(&scores, &uid) {
        decider.view.load.in_flight(&uid, node, now, decided.uses());
    }
    Answer::new("ok", &scores)
}

/// Where the pod will probably go: one of the best nodes. Which of several, kube-scheduler's own
/// plugins decide; they spread pods, and so does this.
fn likely<'a>(scores: &[HostPriority<'a>], pod: &PodUid) -> Option<&'a str> {
    let best = scores.iter().map(|node| node.score).max()?;
    let top = || scores.iter().filter(|node| node.score == best);
    let turn =
        pod.as_str().bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31) + usize::from(byte));
    top().nth(turn % top().count()).map(|node| node.host)
}

/// Fuller cards are better.
pub(super) fn by_cards(decider: &Decider, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let (uid, request) = (pod.uid(), pod.request(&decider.names).ok().flatten());
    let cards = decider.view.cards.read();
    let scores = rank(&names, Scale::Ten, |name| {
        let score = request.as_ref().map(|request| card_score(&cards, name, &uid, request));
        score.unwrap_or(Score::ZERO)
    });
    Answer::new("ok", &scores)
}

fn load_score(board: &Board, name: &str, pod: PodToPlace<'_>, now: Timestamp) -> Score {
    board.node(name).map_or(Score::ZERO, |node| {
        Evaluation { policy: &board.policy, node: &node, pod, now }.score()
    })
}

fn card_score(cards: &CardIndex, node: &str, pod: &PodUid, request: &GpuRequest) -> Score {
    let fit = cards.fit(node, pod, request);
    fit.map_or(Score::ZERO, |choice| choice.tightness())
}

fn rank<'a>(
    names: &'a [Name<'_>],
    scale: Scale,
    score: impl Fn(&str) -> Score,
) -> Vec<HostPriority<'a>> {
    let priority = |name: &Name<'_>| score(name.as_str()).on(scale);
    names.iter().map(|name| HostPriority { host: name.as_str(), score: priority(name) }).collect()
}
