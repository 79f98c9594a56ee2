//! The exporter of one node: whether it answers, and when it is polled.
//!
//! ```text
//!               answer within a second
//!   ┌─────────┐ ──────────────────────> Prompt ─┐
//!   │ Unknown │ later answer                    ├─ the result of each further poll decides in the same way
//!   └─────────┘ ──────────────────────> Slow ───┤
//!               no answer               Silent ─┘
//! ```
//!
//! The state decides the lane in which the next poll waits ([`ExporterState::poll_lane`]), so that silent and slow
//! exporters take no slot of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::pods::NodePods;
use cluster::NodeFacts;
use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::resources::PerResource;
use placement::units::{MetricName, NodeName};

use super::job::{PollRequest, PollResult};
use super::lanes::Lane;
use super::pods::PodsSchedule;
use super::retry::Retry;
use super::schedule::Schedule;
use super::status::Counts;
use super::transition::Transition;
use crate::exporter::endpoint::{Endpoint, NoEndpoint};
use crate::exporter::error::PollError;
use crate::exporter::statistics::Format;

/// Time after which an exporter that answered in the flat format is polled for the detailed one again, since it may
/// have been upgraded.
const RETRY_DETAILED_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// Readings that have been due for longer than this when the program starts were due before it was stopped: the
/// exporter was silent, or the stop was long.
const LONG_OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// Age of a node, since its boot or join, below which it may lack metrics that it will have soon.
const YOUNG: SignedDuration = SignedDuration::from_mins(10);

/// The longest wait for a metric that a young node lacks.
const YOUNG_RETRY: SignedDuration = SignedDuration::from_secs(30);

/// An exporter's maxima of means change at full minutes since the boot, and are in its answers after this delay.
const AFTER_FULL_MINUTE: SignedDuration = SignedDuration::from_secs(2);

/// The longest poll of a prompt exporter.
const PROMPT: Duration = Duration::from_secs(1);

/// How long an exporter is silent before that is told on its Node. Restarts and updates take less.
const LONG_SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// The same after the node's address has changed: the exporter then may be silent but for moments, since the kubelet
/// probes its pod at the address that it started with, and restarts it again and again.
const SILENCE_AFTER_MOVE: SignedDuration = SignedDuration::from_mins(2);

/// So many answers in a row at a new address mean that the exporter is there.
const ANSWERS_AFTER_MOVE: u32 = 15;

/// The node's InternalIP has changed, and the exporter may still listen at the one before.
#[derive(Debug, Clone)]
struct Move {
    /// The exporter's address before.
    from: Endpoint,
    /// Answers in a row at the new one.
    answers: u32,
    /// Whether it was told with a silence.
    is_told: bool,
}

/// Failed polls in a row.
#[derive(Debug, Clone, Copy)]
struct Silence {
    /// When the first one ended.
    since: Timestamp,
    /// Whether it was told to be a long one.
    is_long: bool,
}

/// What the last poll of a node's exporter showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExporterHealth {
    /// It was not polled yet.
    Unknown,
    /// It answered within [`PROMPT`].
    Prompt,
    /// It answered later.
    Slow,
    /// It did not, for this reason ([`PollError::reason`]).
    Silent(&'static str),
}

/// The state of one node's exporter.
#[derive(Debug, Clone)]
pub(crate) struct ExporterState {
    /// When each metric is polled.
    pub(crate) schedule: Schedule,
    /// When the exporter is polled for pods' use.
    pods: PodsSchedule,
    endpoint: Result<Endpoint, NoEndpoint>,
    /// When the Node object was created, by the API server's clock.
    created_at: Option<Timestamp>,
    /// Cores and bytes; `None` if the Node does not report it.
    capacity: PerResource<Option<f64>>,
    health: ExporterHealth,
    /// The format of the exporter's last answer since this replica leads.
    format: Option<Format>,
    /// The exporter is polled in the flat format until then.
    flat_until: Option<Timestamp>,
    /// The metrics that the exporter holds back, with their reason
    /// ([`label`](crate::exporter::statistics::HoldReason::label)); none while it is silent.
    held_back: BTreeMap<MetricName, &'static str>,
    /// The metrics that the exporter's last answer did not hold.
    missing: BTreeSet<MetricName>,
    /// Back-off after failed polls.
    polls: Retry,
    /// The silence, as far as this replica has polled the exporter since it leads.
    silence: Option<Silence>,
    /// `None` once the exporter has answered for long at its new address.
    moved: Option<Move>,
}

impl ExporterState {
    /// An exporter that was never polled.
    pub(crate) fn new(
        schedule: Schedule,
        pods: PodsSchedule,
        endpoint: Result<Endpoint, NoEndpoint>,
    ) -> Self {
        Self {
            schedule,
            pods,
            endpoint,
            created_at: None,
            capacity: PerResource::default(),
            health: ExporterHealth::Unknown,
            format: None,
            flat_until: None,
            held_back: BTreeMap::new(),
            missing: BTreeSet::new(),
            polls: Retry::default(),
            silence: None,
            moved: None,
        }
    }

    /// Sets the facts of the Node and the exporter's address. A new address ends the back-off, since it may be another
    /// exporter. The node's Ready condition does not: on a node that flaps it would end the back-off repeatedly.
    pub(crate) fn set_facts(&mut self, facts: &NodeFacts, endpoint: Result<Endpoint, NoEndpoint>) {
        self.created_at = facts.created_at;
        self.capacity = facts.capacity;
        if self.endpoint != endpoint {
            self.polls.record_success();
            self.pods.reset_back_off();
            self.flat_until = None;
            if let (Ok(from), Ok(_), None) = (&self.endpoint, &endpoint, &facts.exporter) {
                self.moved = Some(Move { from: from.clone(), answers: 0, is_told: false });
            }
            self.endpoint = endpoint;
        }
    }

    /// Another policy is in force.
    pub(crate) fn set_policy(&mut self, node: &NodeName, policy: &LoadPolicy) {
        let schedule = self.schedule.with_policy(node, policy);
        self.held_back.retain(|metric, _| schedule.has(metric));
        self.missing.retain(|metric| schedule.has(metric));
        self.schedule = schedule;
    }

    /// The clock was set back, so the ends of waits may be far ahead: all waits are dropped.
    pub(crate) fn drop_waits(&mut self) {
        self.polls.record_success();
        self.silence = None;
        self.flat_until = None;
        self.schedule.drop_waits();
        self.pods.drop_waits();
    }

    /// This replica leads from `now` on: no poll is due because another one led, and what the exporter answered or did
    /// not answer before is forgotten.
    pub(crate) fn start_leading(&mut self, now: Timestamp) {
        self.schedule.count_as_polled(now);
        self.health = ExporterHealth::Unknown;
        self.format = None;
        self.held_back.clear();
        self.missing.clear();
        self.silence = None;
    }

    /// When the exporter should be polled for readings.
    pub(crate) fn poll_at(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.schedule.next(now)?.max(self.polls.not_before()))
    }

    /// When the exporter should be polled for pods' use; `None` until it has answered a poll, and while it has no
    /// address.
    pub(crate) fn pods_poll_at(&self) -> Option<Timestamp> {
        let answers = matches!(self.health, ExporterHealth::Prompt | ExporterHealth::Slow);
        if answers && self.endpoint.is_ok() { self.pods.next() } else { None }
    }

    /// The lane of a poll.
    pub(crate) fn poll_lane(&self, now: Timestamp) -> Lane {
        match self.health {
            ExporterHealth::Prompt => Lane::Prompt,
            ExporterHealth::Slow | ExporterHealth::Silent(_) => Lane::Slow,
            // After a restart, readings that are long overdue indicate a silent exporter.
            ExporterHealth::Unknown if self.schedule.is_overdue(now, LONG_OVERDUE) => Lane::Slow,
            ExporterHealth::Unknown => Lane::New,
        }
    }

    /// The request of a poll at `now`.
    pub(crate) fn poll_request(&self, now: Timestamp) -> PollRequest {
        let is_flat = self.flat_until.is_some_and(|until| now < until);
        PollRequest {
            endpoint: self.endpoint.clone(),
            created_at: self.created_at,
            capacity: self.capacity,
            format: if is_flat { Format::Flat } else { Format::Detailed },
            wanted: self.schedule.metrics().cloned().collect(),
        }
    }

    /// The address for a poll of pods' use by a job that starts at `now`; `None` if it is not polled for that. `polls`:
    /// the job polls readings.
    pub(crate) fn pods_poll(&self, polls: bool, now: Timestamp) -> Option<Endpoint> {
        // Only an exporter that answers is polled for pods' use; a job with a poll finds out whether it does.
        let can_answer = polls || self.pods_poll_at().is_some();
        if can_answer && self.pods.is_due(now, polls) { self.endpoint.clone().ok() } else { None }
    }

    /// Whether the last poll failed.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.health, ExporterHealth::Silent(_))
    }

    /// The node's part of the fleet's numbers.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            silent: usize::from(self.is_silent()),
            answered: usize::from(self.format.is_some()),
            unpolled: usize::from(self.health == ExporterHealth::Unknown),
            held_back: self
                .held_back
                .iter()
                .map(|(metric, reason)| ((metric.clone(), *reason), 1))
                .collect(),
        }
    }

    /// The metrics that the exporter's last answer did not hold.
    pub(crate) fn missing(&self) -> &BTreeSet<MetricName> {
        &self.missing
    }

    /// A poll of pods' use has ended.
    pub(crate) fn finish_pods_poll(
        &mut self,
        answer: &Result<NodePods, PollError>,
        now: Timestamp,
    ) {
        self.pods.record_poll(answer.as_ref().err(), now);
    }

    /// The poll of `request` ended at `at` with `result`.
    pub(crate) fn finish_poll(
        &mut self,
        request: &PollRequest,
        result: &Result<PollResult, PollError>,
        at: Timestamp,
        now: Timestamp,
    ) -> Vec<Transition> {
        let before = self.health;
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                self.health = ExporterHealth::Silent(error.reason());
                self.polls.record_failure(now);
                self.flat_until = None;
                // It may have samples enough by now.
                self.held_back.clear();
                let mut transitions = Vec::new();
                if self.health != before {
                    transitions.push(Transition::ExporterSilent(error.clone()));
                }
                transitions.extend(self.prolong_silence(error, now));
                return transitions;
            }
        };
        self.health =
            if result.took <= PROMPT { ExporterHealth::Prompt } else { ExporterHealth::Slow };
        self.polls.record_success();
        if let Some(moved) = &mut self.moved {
            moved.answers += 1;
        }
        self.moved.take_if(|moved| moved.answers >= ANSWERS_AFTER_MOVE);
        self.update_schedule(request, result, at);
        self.update_missing(request, result);
        let mut transitions = Vec::new();
        let silence = self.silence.take();
        if matches!(before, ExporterHealth::Silent(_)) {
            let long = silence.filter(|silence| silence.is_long);
            let after = long.map(|silence| now.duration_since(silence.since));
            transitions.push(Transition::ExporterAnswers { after });
        }
        transitions.extend(self.update_format(request.format, result.format, now));
        transitions.extend(self.update_held_back(result));
        transitions
    }

    /// Another poll has failed: tells once that the silence is a long one, and once that the node's address changed.
    fn prolong_silence(&mut self, error: &PollError, now: Timestamp) -> Option<Transition> {
        let silence = self.silence.get_or_insert(Silence { since: now, is_long: false });
        // If the clock was set back, the time starts again.
        silence.since = silence.since.min(now);
        let lasts = now.duration_since(silence.since);
        let mut limit = LONG_SILENCE;
        let mut is_told = silence.is_long;
        if let Some(moved) = self.moved.as_mut() {
            moved.answers = 0;
            if !moved.is_told {
                (limit, is_told) = (SILENCE_AFTER_MOVE, false);
            }
            moved.is_told |= lasts >= limit;
        }
        if is_told || lasts < limit {
            return None;
        }
        silence.is_long = true;
        let moved_from = self.moved.as_ref().map(|moved| moved.from.address().to_owned());
        Some(Transition::ExporterSilentForLong { lasts, error: error.clone(), moved_from })
    }

    fn update_format(
        &mut self,
        requested: Format,
        format: Format,
        now: Timestamp,
    ) -> Option<Transition> {
        match format {
            Format::Detailed => self.flat_until = None,
            Format::Flat if requested == Format::Detailed => {
                self.flat_until = now.checked_add(RETRY_DETAILED_AFTER).ok();
            }
            Format::Flat => {}
        }
        let before = self.format.replace(format).unwrap_or(Format::Detailed);
        (before != format).then_some(Transition::FormatChanged(format))
    }

    fn update_schedule(&mut self, request: &PollRequest, result: &PollResult, at: Timestamp) {
        if let Some(booted_at) = result.uptime.and_then(|span| at.checked_sub(span).ok()) {
            self.schedule.record_boot(booted_at);
        }
        let longest_wait = self.longest_wait(at, result.uptime);
        for metric in &request.wanted {
            if result.is_usable(metric) {
                self.schedule.record_poll(metric, at);
            } else if let Some(wait) = result.ready_in(metric) {
                self.schedule.hold_back(metric, at, wait);
            } else {
                self.schedule.record_missing(metric, at, longest_wait);
            }
        }
    }

    /// The longest wait for a metric that the exporter lacks at `at`; `None` if the node is not young.
    fn longest_wait(
        &self,
        at: Timestamp,
        uptime: Option<SignedDuration>,
    ) -> Option<SignedDuration> {
        if let Some(uptime) = uptime.filter(|uptime| *uptime < YOUNG) {
            let to_full_minute = SignedDuration::from_secs(60 - uptime.as_secs() % 60);
            return Some(to_full_minute + AFTER_FULL_MINUTE);
        }
        // Also one that was created ahead of a clock that was set back: it is asked more often, and no less.
        let is_new = self.created_at.is_some_and(|created| at.duration_since(created) < YOUNG);
        is_new.then_some(YOUNG_RETRY)
    }

    /// A metric that is not in the answer keeps its state.
    fn update_held_back(&mut self, result: &PollResult) -> Vec<Transition> {
        let mut transitions = Vec::new();
        for (metric, reason) in &result.held_back {
            let before = self.held_back.insert(metric.clone(), reason.label());
            if before != Some(reason.label()) {
                transitions.push(Transition::HeldBack(metric.clone(), *reason));
            }
        }
        for (metric, _) in &result.usable {
            if self.held_back.remove(metric).is_some() {
                transitions.push(Transition::Released(metric.clone()));
            }
        }
        transitions
    }

    /// A metric that was not requested keeps its state.
    fn update_missing(&mut self, request: &PollRequest, result: &PollResult) {
        for metric in &request.wanted {
            let is_held_back = result.held_back.iter().any(|(other, _)| other == metric);
            if is_held_back || result.is_usable(metric) {
                self.missing.remove(metric);
            } else {
                self.missing.insert(metric.clone());
            }
        }
    }
}
