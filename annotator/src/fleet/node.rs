//! The state of one node: whether it waits for a job or has one, its exporter, and its writes.

use cluster::NodeFacts;
use jiff::{SignedDuration, Timestamp};
use placement::publish::WriteRules;
use placement::reading::Reading;
use placement::selector::Labels;
use placement::units::MetricName;

use super::exporter::ExporterState;
use super::job::{PollRequest, Report};
use super::lanes::{Lane, Place};
use super::transition::Transition;
use super::writes::NodeWrites;
use super::writes::times::WriteTimes;
use crate::exporter::endpoint::{Endpoint, NoEndpoint};

/// The shortest time between the end of a job and the next job of the same node: the shortest period of a sync rule.
/// It bounds the rate of writes whatever the node's annotations say.
const MIN_JOB_GAP: SignedDuration = SignedDuration::from_secs(1);

/// Where a node is between two jobs: see the drawing in [`super`].
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// It waits in these places of the lanes; in none if there is nothing to do.
    Waiting(Vec<Place>),
    /// A job is in flight.
    Running {
        /// The job's id.
        job: u64,
        /// There was a burst since the job started.
        missed_burst: bool,
    },
}

/// The state of one node.
#[derive(Debug, Clone)]
pub(super) struct NodeState {
    /// The Node's UID.
    pub(super) uid: String,
    /// The Node's labels, which select its rules for writes.
    labels: Labels,
    pub(super) stage: Stage,
    pub(super) exporter: ExporterState,
    pub(super) writes: NodeWrites,
    /// No job starts before this time.
    idle_until: Option<Timestamp>,
}

impl NodeState {
    /// A node that waits nowhere yet.
    pub(super) fn new(facts: &NodeFacts, exporter: ExporterState, writes: NodeWrites) -> Self {
        Self {
            uid: facts.uid.clone(),
            labels: facts.labels.clone(),
            stage: Stage::Waiting(Vec::new()),
            exporter,
            writes,
            idle_until: None,
        }
    }

    /// The job with this id has ended: the node waits again. Returns whether there was a burst during the job; `None`
    /// if another job or none is in flight.
    pub(super) fn end_job(&mut self, id: u64) -> Option<bool> {
        match self.stage {
            Stage::Running { job, missed_burst } if job == id => {
                self.stage = Stage::Waiting(Vec::new());
                Some(missed_burst)
            }
            _ => None,
        }
    }

    /// Sets the facts of the Node and the exporter's address.
    pub(super) fn set_facts(
        &mut self,
        facts: &NodeFacts,
        endpoint: Result<Endpoint, NoEndpoint>,
        rules: &WriteRules,
    ) {
        self.exporter.set_facts(facts, endpoint);
        if self.labels != facts.labels {
            self.labels.clone_from(&facts.labels);
            self.set_rules(rules);
        }
    }

    /// Other rules for writes are in force.
    pub(super) fn set_rules(&mut self, rules: &WriteRules) {
        let schedule = &self.exporter.schedule;
        self.writes.readings.set_rules(rules.of(&self.labels), |metric| schedule.has(metric));
    }

    /// The clock was set back, so the ends of waits may be far ahead: all waits are dropped.
    pub(super) fn drop_waits(&mut self, now: Timestamp) {
        self.idle_until = None;
        self.exporter.drop_waits();
        self.writes.drop_waits(now);
    }

    /// Applies the readings on the node. An annotation that is no reading counts as never written, and is overwritten.
    /// If the node `is_new` to this process, as after a restart, and a reading is valid until the node's next tick, the
    /// poll at its last tick counts as made, so that the polls of all nodes stay spread.
    pub(super) fn observe_readings(&mut self, facts: &NodeFacts, is_new: bool, now: Timestamp) {
        let schedule = &mut self.exporter.schedule;
        let readings = &mut self.writes.readings;
        readings.observe_metrics(valid_readings(facts).map(|(metric, _)| metric));
        let booted_at = schedule.booted_at();
        for (metric, reading) in valid_readings(facts) {
            if schedule.has(metric) && booted_at.is_none_or(|booted_at| booted_at <= reading.at) {
                readings.observe(metric, reading, now);
            }
            schedule.observe(metric, reading.at, now);
        }
        if is_new {
            schedule.count_as_polled(now);
        }
        readings.observe_hot_value(facts.hot_value, now);
    }

    /// When the exporter should be polled for readings. A node that cannot be written is not polled.
    fn poll_at(&self, now: Timestamp) -> Option<Timestamp> {
        Some(self.exporter.poll_at(now)?.max(self.writes.not_before()))
    }

    /// The places of the next jobs: one with a poll, and one that only writes. Empty where there is nothing to do.
    pub(super) fn next_jobs(&self, now: Timestamp) -> Vec<Place> {
        let idle_until = self.idle_until.unwrap_or(Timestamp::MIN);
        let mut places = Vec::new();
        let poll_at = self.poll_at(now).into_iter().chain(self.exporter.pods_poll_at()).min();
        if let Some(at) = poll_at {
            places.push(Place { lane: self.exporter.poll_lane(now), at: at.max(idle_until) });
        }
        if let Some(at) = self.writes.due() {
            places.push(Place { lane: Lane::Write, at: at.max(idle_until) });
        }
        places
    }

    /// The polls of a job that starts at `now` with a slot of `lane`: for readings, and for pods' use.
    pub(super) fn polls(
        &self,
        lane: Lane,
        now: Timestamp,
    ) -> (Option<PollRequest>, Option<Endpoint>) {
        if lane == Lane::Write {
            return (None, None);
        }
        let is_due = self.poll_at(now).is_some_and(|at| at <= now);
        let request = is_due.then(|| self.exporter.poll_request(now));
        (request, self.exporter.pods_poll(is_due, now))
    }

    /// Lets no job start for [`MIN_JOB_GAP`].
    pub(super) fn pause(&mut self, now: Timestamp) {
        self.idle_until = now.checked_add(MIN_JOB_GAP).ok();
    }

    /// Applies the result of the job that has ended.
    pub(super) fn finish(
        &mut self,
        report: Report,
        times: WriteTimes,
        now: Timestamp,
    ) -> Vec<Transition> {
        self.pause(now);
        let mut transitions = Vec::new();
        if let (Some(request), Some(result)) = (&report.job.poll, &report.poll) {
            transitions = self.exporter.finish_poll(request, result, report.at, now);
        }
        if let Some(answer) = &report.pods {
            self.exporter.finish_pods_poll(answer, now);
        }
        if let Some(booted_at) = self.exporter.schedule.booted_at() {
            self.writes.readings.drop_before(booted_at);
        }
        if let Some(Ok(result)) = &report.poll {
            self.writes.readings.record_poll(&result.usable);
        }
        let wrote_readings = report.write.readings.is_some();
        transitions.extend(self.writes.finish(report.write, report.patch.as_ref(), times, now));
        if let Some(Ok(result)) = report.poll {
            self.writes.share.record_measurements(result.gpus, report.at);
        }
        if !wrote_readings {
            self.writes.become_due_soon(times, now);
        }
        transitions
    }

    /// The time of the poll after one at `now`.
    pub(super) fn poll_after(&self, now: Timestamp) -> Timestamp {
        let period = self.exporter.schedule.shortest_period().unwrap_or_default();
        now.checked_add(period).unwrap_or(Timestamp::MAX)
    }
}

/// The readings on the node that could be parsed.
fn valid_readings(facts: &NodeFacts) -> impl Iterator<Item = (&MetricName, Reading)> + Clone {
    facts.readings.iter().filter_map(|(metric, reading)| Some((metric, *reading.as_ref().ok()?)))
}
