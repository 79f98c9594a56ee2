//! The state of one node: the exporter's health, what is due, and the effects of its jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::NodeFacts;
use jiff::{SignedDuration, Timestamp};
use placement::publish::{Urgency, WriteRules};
use placement::resources::PerResource;
use placement::selector::Labels;
use placement::units::MetricName;

use super::job::{PollRequest, PollResult, Report, Transition};
use super::lanes::{Lane, Place};
use super::node_annotations::NodeAnnotations;
use super::pods::PodsSchedule;
use super::readings::NodeReadings;
use super::retry::Retry;
use super::schedule::Schedule;
use super::status::Counts;
use super::write_plan::WritePlan;
use crate::exporter::endpoint::{Endpoint, NoEndpoint};
use crate::exporter::statistics::Format;
use crate::pods::share::{SharePlan, ShareState};

/// The shortest time between the end of a job and the next job of the same node: the shortest period of a sync rule.
/// It bounds the rate of writes whatever the node's annotations say.
const MIN_JOB_GAP: SignedDuration = SignedDuration::from_secs(1);

/// Time after which an exporter that answered in the flat format is polled for the detailed one again, since it may
/// have been upgraded.
const RETRY_DETAILED_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// Readings that have been due for longer than this when the program starts were due before it was stopped: the exporter
/// was silent, or the stop was long.
const LONG_OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// Age of a node, since its boot or join, below which it may lack metrics that it will have soon.
const YOUNG: SignedDuration = SignedDuration::from_mins(10);

/// The longest wait for a metric that a young node lacks.
const YOUNG_RETRY: SignedDuration = SignedDuration::from_secs(30);

/// An exporter's maxima of means change at full minutes since the boot, and are in its answers after this delay.
const AFTER_FULL_MINUTE: SignedDuration = SignedDuration::from_secs(2);

/// The longest poll of a prompt exporter.
const PROMPT: Duration = Duration::from_secs(1);

/// What the last poll of a node's exporter showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExporterHealth {
    /// It was not polled yet.
    Unknown,
    /// It answered within [`PROMPT`].
    Prompt,
    /// It answered later.
    Slow,
    /// It did not, for this reason ([`PollError::reason`](crate::exporter::error::PollError::reason)).
    Silent(&'static str),
}

/// The state of one node.
#[derive(Debug, Clone)]
pub(crate) struct NodeState {
    pub(crate) schedule: Schedule,
    pub(crate) readings: NodeReadings,
    pub(crate) share: ShareState,
    pub(crate) annotations: NodeAnnotations,
    /// The Node's UID.
    pub(crate) uid: String,
    /// When the exporter is polled for pods' use.
    pods: PodsSchedule,
    endpoint: Result<Endpoint, NoEndpoint>,
    /// When the Node object was created, by the API server's clock.
    created_at: Option<Timestamp>,
    /// Cores and bytes; `None` if the Node does not report it.
    capacity: PerResource<Option<f64>>,
    health: ExporterHealth,
    /// The format of the exporter's last answer.
    format: Option<Format>,
    /// The exporter is polled in the flat format until then.
    flat_until: Option<Timestamp>,
    /// The Node's labels.
    labels: Labels,
    /// The metrics that are held back, with their reason ([`label`](crate::exporter::statistics::HoldReason::label)).
    held_back: BTreeMap<MetricName, &'static str>,
    /// The metrics that the exporter's last answer did not hold.
    missing: BTreeSet<MetricName>,
    /// Back-off after failed polls.
    polls: Retry,
    /// Back-off after failed patches.
    patches: Retry,
    /// No job starts before this time.
    idle_until: Option<Timestamp>,
    /// The id of the job in flight.
    pub(crate) job: Option<u64>,
    /// The node's places in the fleet's lanes.
    pub(super) places: Vec<Place>,
}

impl NodeState {
    /// A node whose exporter was never polled.
    pub(crate) fn new(
        schedule: Schedule,
        readings: NodeReadings,
        share: ShareState,
        annotations: NodeAnnotations,
        pods: PodsSchedule,
        endpoint: Result<Endpoint, NoEndpoint>,
    ) -> Self {
        Self {
            schedule,
            readings,
            share,
            annotations,
            uid: String::new(),
            pods,
            endpoint,
            created_at: None,
            capacity: PerResource::default(),
            health: ExporterHealth::Unknown,
            format: None,
            flat_until: None,
            labels: Labels::new(),
            held_back: BTreeMap::new(),
            missing: BTreeSet::new(),
            polls: Retry::default(),
            patches: Retry::default(),
            idle_until: None,
            job: None,
            places: Vec::new(),
        }
    }

    /// Sets the creation time and the capacity of the Node.
    pub(crate) fn set_facts(&mut self, facts: &NodeFacts) {
        (self.created_at, self.capacity) = (facts.created_at, facts.capacity);
    }

    /// Sets the exporter's address. A new address ends the back-off, since it may be another exporter. The node's
    /// Ready condition does not: on a node that flaps it would end the back-off repeatedly.
    pub(crate) fn set_endpoint(&mut self, endpoint: Result<Endpoint, NoEndpoint>) {
        if self.endpoint != endpoint {
            self.polls.succeeded();
            self.pods.reset_back_off();
            self.flat_until = None;
        }
        self.endpoint = endpoint;
    }

    /// Replaces the schedule, as after a change of the policy.
    pub(crate) fn set_schedule(&mut self, schedule: Schedule) {
        self.held_back.retain(|metric, _| schedule.metrics().any(|other| other == metric));
        self.missing.retain(|metric| schedule.metrics().any(|other| other == metric));
        self.schedule = schedule;
    }

    /// Other rules for writes are in force.
    pub(crate) fn set_rules(&mut self, rules: &WriteRules) {
        let rules = rules.of(&self.labels);
        self.readings.set_rules(rules, |metric| self.schedule.metrics().any(|kept| kept == metric));
    }

    /// Sets the node's labels, which select its rules.
    pub(crate) fn set_labels(&mut self, labels: &Labels, rules: &WriteRules) {
        if self.labels != *labels {
            self.labels.clone_from(labels);
            self.set_rules(rules);
        }
    }

    /// The clock was set back, so the ends of waits may be far ahead: all waits are dropped.
    pub(crate) fn clock_set_back(&mut self, now: Timestamp) {
        self.readings.clock_set_back(now);
        self.polls.succeeded();
        self.patches.succeeded();
        self.idle_until = None;
        self.flat_until = None;
        self.schedule.clock_set_back();
        self.pods.clock_set_back();
        self.share.clock_set_back();
        self.annotations.clock_set_back();
    }

    /// Applies the readings on the node. An annotation that is no reading counts as never written, and is overwritten.
    /// If the node `is_new` to this process, as after a restart, and a reading is valid until the node's next tick, the poll at its
    /// last tick counts as made, so that the polls of all nodes stay spread.
    pub(crate) fn observe(&mut self, facts: &NodeFacts, is_new: bool, now: Timestamp) {
        let readings = || {
            let readings = facts.readings.iter();
            readings.filter_map(|(metric, reading)| Some((metric, *reading.as_ref().ok()?)))
        };
        self.readings.shown(readings().map(|(metric, _)| metric));
        let booted_at = self.schedule.booted_at();
        for (metric, reading) in readings() {
            let is_wanted = self.schedule.metrics().any(|wanted| wanted == metric);
            if is_wanted && booted_at.is_none_or(|booted_at| booted_at <= reading.at) {
                self.readings.observed(metric, reading, now);
            }
            self.schedule.observed(metric, reading.at, now);
        }
        if is_new {
            self.schedule.count_as_polled(now);
        }
        self.readings.hot_value_observed(facts.hot_value, now);
    }

    /// This replica begins to lead: readings of the last leader count as readings before a restart.
    pub(crate) fn leadership_gained(&mut self, now: Timestamp) {
        self.schedule.count_as_polled(now);
    }

    /// When the exporter should be polled next.
    fn poll_at(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.schedule.next(now)?;
        Some(due.max(self.polls.not_before()).max(self.patches.not_before()))
    }

    /// When the exporter should be polled for pods' use; `None` until it has answered a poll, and while it has no address.
    fn pod_use_at(&self) -> Option<Timestamp> {
        let answers = matches!(self.health, ExporterHealth::Prompt | ExporterHealth::Slow);
        self.pods.next().filter(|_| answers && self.endpoint.is_ok())
    }

    /// When the node should be written without a poll: its readings in a burst, its share, or other annotations.
    fn write_at(&self) -> Option<Timestamp> {
        let all = self.readings.due().into_iter().chain(self.share.due());
        let at = all.chain(self.annotations.due()).min()?;
        Some(at.max(self.patches.not_before()))
    }

    /// The next jobs: one with a poll, and one that only writes. Empty where there is nothing to do.
    pub(super) fn next_jobs(&self, now: Timestamp) -> Vec<Place> {
        let idle_until = self.idle_until.unwrap_or(Timestamp::MIN);
        let place = |lane, at: Timestamp| Place { lane, at: at.max(idle_until) };
        let ask_at = self.poll_at(now).into_iter().chain(self.pod_use_at()).min();
        let poll = ask_at.map(|at| place(self.poll_lane(now), at));
        poll.into_iter().chain(self.write_at().map(|at| place(Lane::Write, at))).collect()
    }

    /// The lane of a poll.
    fn poll_lane(&self, now: Timestamp) -> Lane {
        match self.health {
            ExporterHealth::Prompt => Lane::Prompt,
            ExporterHealth::Slow | ExporterHealth::Silent(_) => Lane::Slow,
            // After a restart, readings that are long overdue indicate a silent exporter.
            ExporterHealth::Unknown if self.schedule.is_overdue(now, LONG_OVERDUE) => Lane::Slow,
            ExporterHealth::Unknown => Lane::New,
        }
    }

    /// The tasks of a job that starts at `now` with a slot of `lane`, except due writes of readings: poll the exporter, write the
    /// share, poll pods' use.
    pub(crate) fn tasks(
        &self,
        lane: Lane,
        now: Timestamp,
    ) -> (Option<PollRequest>, Option<SharePlan>, Option<Endpoint>) {
        let slot_fits = lane != Lane::Write;
        let polls = slot_fits && self.poll_at(now).is_some_and(|at| at <= now);
        // Only an exporter that answers is polled for pods' use; a job with a poll finds out whether it does.
        let asks = slot_fits && (polls || self.pod_use_at().is_some());
        let asks = asks && self.pods.is_due(now, polls);
        let pods = self.endpoint.clone().ok().filter(|_| asks);
        (polls.then(|| self.poll_request(now)), self.share.plan(now), pods)
    }

    /// The write plan of a job that starts at `now`, for reasons at least as urgent as `least`. Without bursts the next
    /// poll is the next chance.
    pub(crate) fn write_plan(
        &self,
        least: Urgency,
        burst: Option<Timestamp>,
        now: Timestamp,
    ) -> WritePlan {
        let period = self.schedule.shortest_period().unwrap_or_default();
        let next_poll = || now.checked_add(period).unwrap_or(Timestamp::MAX);
        self.readings.plan(burst.unwrap_or_else(next_poll), least)
    }

    fn poll_request(&self, now: Timestamp) -> PollRequest {
        let flat = self.flat_until.is_some_and(|until| now < until);
        let format = if flat { Format::Flat } else { Format::Detailed };
        let (endpoint, created_at, capacity) =
            (self.endpoint.clone(), self.created_at, self.capacity);
        let wanted = self.schedule.metrics().cloned().collect();
        PollRequest { endpoint, created_at, capacity, format, wanted }
    }

    /// Lets no job start for [`MIN_JOB_GAP`].
    pub(crate) fn pause(&mut self, now: Timestamp) {
        self.idle_until = now.checked_add(MIN_JOB_GAP).ok();
    }

    /// Applies the result of the job in flight. The next burst is at `burst`.
    pub(crate) fn finish(
        &mut self,
        report: Report,
        burst: Option<Timestamp>,
        now: Timestamp,
    ) -> Vec<Transition> {
        self.job = None;
        self.pause(now);
        let mut transitions = self.poll_finished(&report, now);
        transitions.extend(self.patch_finished(&report, now));
        self.update_readings(&report);
        self.update_annotations(&report, burst, now);
        if let Some(answer) = &report.pods {
            self.pods.polled(answer.as_ref().err(), now);
        }
        if let (Some(Ok(())), Some(share)) = (report.patch, report.share) {
            self.share.written(share, burst, now);
        }
        if let Some(Ok(result)) = report.poll {
            self.share.record_measurements(result.cards, report.at);
        }
        transitions
    }

    /// Old readings in annotations are removed in the next burst.
    fn update_annotations(&mut self, report: &Report, burst: Option<Timestamp>, now: Timestamp) {
        if report.patch == Some(Ok(())) {
            self.annotations.written(&report.job.on_node);
            if report.write.is_some() {
                self.annotations.replaced(burst.unwrap_or(now));
            }
        }
    }

    fn update_readings(&mut self, report: &Report) {
        if let Some(booted_at) = self.schedule.booted_at() {
            self.readings.booted(booted_at);
        }
        if let Some(Ok(result)) = &report.poll {
            self.readings.polled(&result.usable);
        }
        match (&report.write, &report.patch) {
            (Some(write), Some(Ok(()))) => self.readings.written(write),
            (Some(write), _) => self.readings.not_written(write, report.at),
            (None, _) => {}
        }
    }

    /// Whether the last poll failed.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.health, ExporterHealth::Silent(_))
    }

    /// The node's part of the fleet's numbers.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            silent: usize::from(self.is_silent()),
            answering: usize::from(self.format.is_some()),
            unpolled: usize::from(self.health == ExporterHealth::Unknown),
            held_back: self.held_back.len(),
        }
    }

    /// The metrics that the exporter's last answer did not hold.
    pub(super) fn missing(&self) -> &BTreeSet<MetricName> {
        &self.missing
    }

    fn poll_finished(&mut self, report: &Report, now: Timestamp) -> Vec<Transition> {
        let before = self.health;
        match &report.poll {
            None => Vec::new(),
            Some(Ok(result)) => {
                self.health = match result.took <= PROMPT {
                    true => ExporterHealth::Prompt,
                    false => ExporterHealth::Slow,
                };
                self.polls.succeeded();
                self.update_schedule(report, result);
                self.update_missing(report, result);
                let answers = matches!(before, ExporterHealth::Silent(_))
                    .then_some(Transition::ExporterAnswers);
                let format = self.update_format(report, result.format, now);
                let held_back = self.update_held_back(result);
                answers.into_iter().chain(format).chain(held_back).collect()
            }
            Some(Err(error)) => {
                self.health = ExporterHealth::Silent(error.reason());
                self.polls.failed(now);
                self.flat_until = None;
                let changed = before != self.health;
                changed.then(|| Transition::ExporterSilent(error.clone())).into_iter().collect()
            }
        }
    }

    fn update_format(
        &mut self,
        report: &Report,
        format: Format,
        now: Timestamp,
    ) -> Option<Transition> {
        let requested = report.job.poll.as_ref().map(|poll| poll.format);
        match format {
            Format::Detailed => self.flat_until = None,
            Format::Flat if requested == Some(Format::Detailed) => {
                self.flat_until = now.checked_add(RETRY_DETAILED_AFTER).ok();
            }
            Format::Flat => {}
        }
        let before = self.format.replace(format).unwrap_or(Format::Detailed);
        (before != format).then_some(Transition::FormatChanged(format))
    }

    fn update_schedule(&mut self, report: &Report, result: &PollResult) {
        let wanted = report.job.poll.iter().flat_map(|poll| &poll.wanted);
        if let Some(booted_at) = result.uptime.and_then(|span| report.at.checked_sub(span).ok()) {
            self.schedule.booted(booted_at);
        }
        let longest_wait = self.longest_wait(report.at, result.uptime);
        for metric in wanted {
            if result.is_usable(metric) {
                self.schedule.polled(metric, report.at);
            } else if let Some(wait) = result.ready_in(metric) {
                self.schedule.held_back(metric, report.at, wait);
            } else {
                self.schedule.missing(metric, report.at, longest_wait);
            }
        }
    }

    /// The longest wait for a metric that the exporter lacks at `at`; `None` if the node is not young.
    fn longest_wait(
        &self,
        at: Timestamp,
        uptime: Option<SignedDuration>,
    ) -> Option<SignedDuration> {
        let is_young = |age: &SignedDuration| *age < YOUNG;
        let to_full_minute = |uptime: SignedDuration| {
            SignedDuration::from_secs(60 - uptime.as_secs() % 60) + AFTER_FULL_MINUTE
        };
        let since_creation = self.created_at.map(|created| at.duration_since(created));
        let by_uptime = uptime.filter(is_young).map(to_full_minute);
        by_uptime.or_else(|| since_creation.filter(is_young).map(|_| YOUNG_RETRY))
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
        let usable = result.usable.iter().map(|(metric, _)| metric);
        let released = usable.filter(|metric| self.held_back.remove(*metric).is_some());
        transitions.extend(released.cloned().map(Transition::Released));
        transitions
    }

    /// A metric that was not requested keeps its state.
    fn update_missing(&mut self, report: &Report, result: &PollResult) {
        for metric in report.job.poll.iter().flat_map(|poll| &poll.wanted) {
            let is_held_back = result.held_back.iter().any(|(other, _)| other == metric);
            if is_held_back || result.is_usable(metric) {
                self.missing.remove(metric);
            } else {
                self.missing.insert(metric.clone());
            }
        }
    }

    fn patch_finished(&mut self, report: &Report, now: Timestamp) -> Option<Transition> {
        let succeeded_before = self.patches == Retry::default();
        match report.patch.as_ref()? {
            Ok(()) => {
                self.patches.succeeded();
                (!succeeded_before).then_some(Transition::PatchSucceeds)
            }
            Err(error) => {
                self.patches.failed(now);
                succeeded_before.then(|| Transition::PatchFails(error.clone()))
            }
        }
    }
}
