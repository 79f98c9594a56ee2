//! Prioritize: 0 to 10 for every node that was asked about, known or not. A node left out would tie
//! with others in a way that kube-scheduler does not resolve at random.

use axum::http::StatusCode;
use jiff::Timestamp;
use placement::gpu::GpuRequest;
use placement::load::{self, Percent};
use placement::units::PodUid;

use super::Answer;
use crate::Judge;
use crate::view::Board;
use crate::wire::{self, HostPriority, Name, WireError};

/// Cooler nodes are better; for a GPU pod the fit of the card counts as much as the load.
pub(super) fn by_load(judge: &Judge, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return unread(&error),
    };
    let (uid, request) = (pod.uid(), pod.request(&judge.names).ok().flatten());
    let (board, now) = (judge.view.load.read(), judge.now());
    rank(&names, |name| {
        let load = load_score(&board, name, now);
        let card = request.as_ref().map(|request| card_score(judge, name, &uid, request));
        card.map_or(load, |card| card.mean(load))
    })
}

/// Fuller cards are better.
pub(super) fn by_cards(judge: &Judge, body: &[u8]) -> Answer {
    let (pod, names) = match wire::read(body) {
        Ok(read) => read,
        Err(error) => return unread(&error),
    };
    let (uid, request) = (pod.uid(), pod.request(&judge.names).ok().flatten());
    rank(&names, |name| {
        let score = request.as_ref().map(|request| card_score(judge, name, &uid, request));
        score.unwrap_or(Percent::truncated(0.0))
    })
}

fn load_score(board: &Board, name: &str, now: Timestamp) -> Percent {
    let node = board.node(name);
    node.map_or(Percent::truncated(0.0), |node| load::score(&board.policy, &node, now))
}

fn card_score(judge: &Judge, node: &str, pod: &PodUid, request: &GpuRequest) -> Percent {
    let fit = judge.view.cards.fit(node, pod, request);
    fit.map_or(Percent::truncated(0.0), |choice| choice.tightness())
}

fn rank(names: &[Name<'_>], score: impl Fn(&str) -> Percent) -> Answer {
    let priority = |name: &Name<'_>| score(name.as_str()).for_extender();
    let scores =
        names.iter().map(|name| HostPriority { host: name.as_str(), score: priority(name) });
    Answer::new("ok", &scores.collect::<Vec<_>>())
}

/// A bare list has no room for an error. kube-scheduler ignores a failed Prioritize, and logs this.
fn unread(error: &WireError) -> Answer {
    Answer { status: StatusCode::BAD_REQUEST, ..Answer::new("error", &error.to_string()) }
}
