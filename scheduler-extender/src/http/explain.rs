//! Explain: everything that Filter and Prioritize would decide for a pod now, node by node.

use std::collections::HashSet;
use std::sync::Arc;

use api::explain as out;
use axum::http::StatusCode;
use cluster::Pod;
use jiff::Timestamp;
use placement::gpu::{Account, Basis, CardFit, Charge, Fit, FreeCard, GpuRequest, NodeCards};
use placement::load::{
    Evaluation, LimitCheck, LimitOutcome, LoadDecision, NodeLoad, PodToPlace, ReadingStatus, Score,
    Term,
};
use placement::units::{NodeName, PodUid};

use super::Answer;
use crate::Decider;
use crate::view::{Board, CardIndex};
use crate::wire::{self, Name};

/// Answers for the nodes of the request, or for all that are known where it names none.
pub(super) fn explain(decider: &Decider, body: &[u8]) -> Answer {
    let args = match wire::read_args(body) {
        Ok(args) => args,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let request = match args.pod.request(&decider.names) {
        Ok(request) => request,
        Err(error) => return Answer::failed(StatusCode::BAD_REQUEST, &error),
    };
    let (board, now) = (decider.view.load.read(), decider.now());
    let cards = decider.view.cards.read();
    let asked = Asked { board: &board, cards: &cards, pod: &args.pod, request, now };
    let nodes = match &args.node_names {
        Some(names) => {
            let mut seen = HashSet::new();
            let names = names.iter().map(Name::as_str).filter(|name| seen.insert(*name));
            names.map(|name| asked.node(name)).collect()
        }
        None => {
            let mut names: Vec<&str> = board.names().map(NodeName::as_str).collect();
            names.sort_unstable();
            names.into_iter().map(|name| asked.node(name)).collect()
        }
    };
    Answer::new("ok", &out::Explanation { pod: asked.pod(), time: now, nodes })
}

/// What every node is asked.
struct Asked<'a> {
    board: &'a Board,
    cards: &'a CardIndex,
    pod: &'a Pod,
    request: Option<GpuRequest>,
    now: Timestamp,
}

impl Asked<'_> {
    fn pod(&self) -> out::Pod {
        let (namespace, name) = (self.pod.namespace().to_owned(), self.pod.name().to_owned());
        out::Pod { namespace, name, uid: self.pod.uid().to_string() }
    }

    fn node(&self, name: &str) -> out::Node {
        let uid = self.pod.uid();
        let load = self.board.node(name).map(|node| without(&node, &uid));
        let pod = PodToPlace { kind: self.pod.kind(), ..PodToPlace::ORDINARY };
        let policy = &*self.board.policy;
        let evaluation = |node| Evaluation { policy, node, pod, now: self.now };
        let evaluation = load.as_ref().map(evaluation);
        let decision = evaluation.map(|evaluation| evaluation.decide());
        let cards = self.cards.node(name).map(|cards| Arc::clone(&cards)).unwrap_or_default();
        let fit = self.request.as_ref().map(|request| cards.explain(&uid, request));
        let mut reasons: Vec<String> = Vec::new();
        reasons.extend(decision.iter().flat_map(LoadDecision::reasons).map(str::to_owned));
        let no_fit = fit.as_ref().and_then(|fit| fit.outcome.as_ref().err());
        reasons.extend(no_fit.map(|why| why.reason().to_owned()));
        let load_score = decision.as_ref().map_or(Score::ZERO, |decision| decision.score);
        let score = fit.as_ref().map_or(load_score, |fit| fit.score().mean(load_score));
        out::Node {
            name: name.to_owned(),
            known: decision.is_some(),
            accepted: reasons.is_empty(),
            reasons,
            score: score.get(),
            extender_score: score.on(self.board.policy.policy.scoring.scale),
            load: evaluation
                .zip(decision)
                .map(|(evaluation, decision)| self.load(&evaluation, &decision)),
            cards: fit.as_ref().map(|fit| explain_cards(&cards, fit)),
        }
    }

    fn load(&self, evaluation: &Evaluation<'_, '_>, decision: &LoadDecision<'_>) -> out::Load {
        out::Load {
            limits: decision.limits.iter().map(|check| self.limit(check)).collect(),
            terms: decision.terms.iter().map(|term| self.term(evaluation, term)).collect(),
            hot_value: decision.hot_value,
            score: decision.score.get(),
        }
    }

    fn limit(&self, check: &LimitCheck<'_>) -> out::Limit {
        out::Limit {
            metric: check.limit.metric.name.to_string(),
            max: check.limit.max,
            outcome: match check.outcome {
                LimitOutcome::Met => out::LimitOutcome::Met,
                LimitOutcome::Exceeded => out::LimitOutcome::Exceeded,
                LimitOutcome::Unknown => out::LimitOutcome::Unknown,
                LimitOutcome::UnknownRejected => out::LimitOutcome::UnknownRejected,
                LimitOutcome::Exempt => out::LimitOutcome::Exempt,
            },
            reading: self.reading(check.load.reading),
        }
    }

    fn term(&self, evaluation: &Evaluation<'_, '_>, term: &Term<'_>) -> out::Term {
        out::Term {
            metric: term.weight.metric.name.to_string(),
            share: term.weight.share,
            points: evaluation.points(term).filter(|points| points.is_finite()),
            reading: self.reading(term.load.reading),
        }
    }

    fn reading(&self, reading: ReadingStatus) -> out::Reading {
        let (status, reading) = match reading {
            ReadingStatus::Fresh(reading) => (out::ReadingStatus::Fresh, Some(reading)),
            ReadingStatus::Stale(reading) => (out::ReadingStatus::Stale, Some(reading)),
            ReadingStatus::Missing => (out::ReadingStatus::Missing, None),
            ReadingStatus::NotFetched => (out::ReadingStatus::NotFetched, None),
        };
        out::Reading {
            status,
            value: reading.map(|reading| reading.value.get()).filter(|value| value.is_finite()),
            time: reading.map(|reading| reading.at),
            age_seconds: reading.map(|reading| self.now.duration_since(reading.at).as_secs()),
        }
    }
}

fn explain_cards(cards: &NodeCards, fit: &Fit) -> out::Cards {
    let accounts = cards.accounts().iter();
    let card = |(account, (card, fit)): (&Account, &(FreeCard, CardFit))| out::Card {
        index: card.index,
        uuid: card.uuid.to_string(),
        units: card.units.0,
        free: card.free.0,
        outcome: match fit {
            CardFit::Fits { .. } => out::CardOutcome::Fits,
            CardFit::TooLittleFree { .. } => out::CardOutcome::TooLittleFree,
            CardFit::Unhealthy => out::CardOutcome::Unhealthy,
        },
        charges: account.charges.iter().map(explain_charge).collect(),
    };
    out::Cards {
        asked: fit.asked.0,
        chosen: fit.outcome.as_ref().ok().map(|choice| choice.index),
        cards: accounts.zip(&fit.cards).map(card).collect(),
        score: fit.score().get(),
    }
}

fn explain_charge(charge: &Charge) -> out::Charge {
    let basis = match charge.basis {
        Basis::Recorded => out::Basis::Recorded,
        Basis::Chosen => out::Basis::Chosen,
        Basis::Claimed => out::Basis::Claimed,
        Basis::UnknownPlace => out::Basis::UnknownPlace,
        Basis::UnprovenClaim => out::Basis::UnprovenClaim,
    };
    out::Charge { pod: charge.pod.to_string(), units: charge.units.0, basis }
}

/// The node's load as it is without the pod itself: one that was asked about a moment ago is in flight.
fn without(node: &NodeLoad, pod: &PodUid) -> NodeLoad {
    let mut node = node.clone();
    Arc::make_mut(&mut node.recent).not_in_flight(pod);
    node
}
