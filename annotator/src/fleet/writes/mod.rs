//! Whether and when one node is written: the only place that decides it.
//!
//! A job may write three things of its node: its readings with the hot value ([`readings`]), the share of its cards
//! ([`share`]), and, while readings are in NodeLoads, other annotations of the Node ([`annotations`]). Each is in one
//! of these states by itself:
//!
//! ```text
//!              a reason to write                  the time has come                    patch succeeds
//!   unchanged ───────────────────> due at a time ───────────────────> in a job's plan ────────────────> unchanged
//!       ▲                           │         ▲                             │
//!       └── the watch shows it, or ─┘         └───────── patch fails ───────┘
//!           the change is reverted
//! ```
//!
//! The reason is from `placement::publish` for readings, and any change of the allocation for the share. The time
//! follows from the reason ([`times`]): at once, that is in the patch of the job that polled; soon; or with the next
//! burst. A job carries a [`WritePlan`] with all inputs, since the decision needs the answer of the job's own poll.

pub(crate) mod annotations;
pub(crate) mod notes;
pub(crate) mod plan;
pub(crate) mod readings;
pub(crate) mod share;
pub(crate) mod times;

use std::sync::Arc;

use cluster::CallError;
use jiff::Timestamp;
use placement::publish::NodeWriteRules;

use self::annotations::NodeAnnotations;
use self::plan::WritePlan;
use self::readings::NodeReadings;
use self::share::ShareState;
use self::times::WriteTimes;
use super::retry::Retry;
use super::transition::Transition;
use crate::store::NodeWrite;

/// What is stored of one node, and what is due to be written.
#[derive(Debug, Clone)]
pub(crate) struct NodeWrites {
    pub(crate) readings: NodeReadings,
    pub(crate) share: ShareState,
    pub(crate) annotations: NodeAnnotations,
    /// Back-off after failed patches.
    patches: Retry,
}

/// The inputs of a plan beside the node's own state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanInputs {
    /// The node's hot value; `None` if it is unknown or the policy has no rule for it.
    pub(crate) hot_value: Option<u64>,
    /// Whether the job polls readings.
    pub(crate) polls: bool,
    /// The time of the next poll: without bursts, the next chance to write.
    pub(crate) next_poll: Timestamp,
    pub(crate) times: WriteTimes,
    /// Whether readings are annotations of the Node.
    pub(crate) is_on_nodes: bool,
}

impl NodeWrites {
    /// A node that is new to this process, with this share annotation, and old readings with the keys `leftovers`.
    pub(crate) fn new(
        rules: Arc<NodeWriteRules>,
        share: Option<&str>,
        leftovers: Vec<String>,
    ) -> Self {
        Self {
            readings: NodeReadings::new(rules),
            share: ShareState::from_annotation(share),
            annotations: NodeAnnotations::new(leftovers),
            patches: Retry::default(),
        }
    }

    /// The earliest time of the next patch.
    pub(crate) fn not_before(&self) -> Timestamp {
        self.patches.not_before()
    }

    /// When the node should be written without a poll.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let due = [self.readings.due(), self.share.due(), self.annotations.due()];
        let earliest = due.into_iter().flatten().min()?;
        Some(earliest.max(self.not_before()))
    }

    /// The plan of a job that starts at `now`.
    pub(crate) fn plan(&self, inputs: PlanInputs, now: Timestamp) -> WritePlan {
        let PlanInputs { hot_value, polls, next_poll, times, is_on_nodes } = inputs;
        let mut readings = None;
        if polls || self.readings.due().is_some() {
            let next_chance = times.next_burst().unwrap_or(next_poll);
            let least_urgent = times.least_urgent_at_once();
            readings = Some(self.readings.plan(hot_value, next_chance, least_urgent));
        }
        let share = self.share.plan(now);
        let changes = self.annotations.changes(now);
        WritePlan { readings, share, changes, is_on_nodes }
    }

    /// A job has written, or tried to. `patch` is `None` if there was nothing to write, or this replica no longer
    /// leads.
    pub(crate) fn finish(
        &mut self,
        write: NodeWrite,
        patch: Option<&Result<(), CallError>>,
        times: WriteTimes,
        now: Timestamp,
    ) -> Option<Transition> {
        if patch.is_some_and(Result::is_ok) {
            self.annotations.record_write(&write.changes);
            if let Some(readings) = &write.readings {
                self.readings.record_write(readings);
                self.annotations.remove_leftovers(times.next_burst().unwrap_or(now));
            }
            if let Some(share) = write.share {
                self.share.record_write(share, times.next_burst(), now);
            }
        } else if let Some(readings) = &write.readings {
            self.readings.record_failed_write(readings, now);
        }
        let succeeded_before = self.patches == Retry::default();
        match patch? {
            Ok(()) => {
                self.patches.record_success();
                (!succeeded_before).then_some(Transition::PatchSucceeds)
            }
            Err(error) => {
                self.patches.record_failure(now);
                succeeded_before.then(|| Transition::PatchFails(error.clone()))
            }
        }
    }

    /// After a job at `now` that wrote no readings: a write of them that can wait only for some seconds becomes due.
    pub(crate) fn become_due_soon(&mut self, times: WriteTimes, now: Timestamp) {
        if let Some(soon) = times.soon(now)
            && let Some(next) = times.next_burst()
        {
            self.readings.become_due_soon(soon, now, next);
        }
    }

    /// The clock was set back, so the ends of waits may be far ahead: all waits are dropped.
    pub(crate) fn drop_waits(&mut self, now: Timestamp) {
        self.readings.drop_far_ahead(now);
        self.share.drop_waits();
        self.annotations.drop_waits();
        self.patches.record_success();
    }
}
