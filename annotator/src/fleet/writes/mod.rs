//! Whether and when one node is written: the only place that decides it.
//!
//! A job may write two things of its node: its readings with the hot value ([`readings`]), and the share of its GPUs
//! ([`share`]). Each is in one of these states by itself:
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

pub(crate) mod plan;
pub(crate) mod readings;
pub(crate) mod share;
pub(crate) mod times;

use std::sync::Arc;

use cluster::CallError;
use jiff::Timestamp;
use placement::publish::NodeWriteRules;

use self::plan::WritePlan;
use self::readings::NodeReadings;
use self::share::ShareState;
use self::times::WriteTimes;
use super::retry::Retry;
use super::transition::Transition;
use crate::node_write::NodeWrite;

/// What is stored of one node, and what is due to be written.
#[derive(Debug, Clone)]
pub(crate) struct NodeWrites {
    pub(crate) readings: NodeReadings,
    pub(crate) share: ShareState,
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
}

impl NodeWrites {
    /// A node that is new to this process, with this share annotation.
    pub(crate) fn new(rules: Arc<NodeWriteRules>, share: Option<&str>) -> Self {
        Self {
            readings: NodeReadings::new(rules),
            share: ShareState::from_annotation(share),
            patches: Retry::default(),
        }
    }

    /// The earliest time of the next patch.
    pub(crate) fn not_before(&self) -> Timestamp {
        self.patches.not_before()
    }

    /// When the node should be written without a poll.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let earliest = self.readings.due().into_iter().chain(self.share.due()).min()?;
        Some(earliest.max(self.not_before()))
    }

    /// The plan of a job that starts at `now`.
    pub(crate) fn plan(&self, inputs: PlanInputs, now: Timestamp) -> WritePlan {
        let PlanInputs { hot_value, polls, next_poll, times } = inputs;
        let mut readings = None;
        if polls || self.readings.due().is_some() {
            let next_chance = times.next_burst().unwrap_or(next_poll);
            let least_urgent = times.least_urgent_at_once();
            readings = Some(self.readings.plan(hot_value, next_chance, least_urgent));
        }
        WritePlan { readings, share: self.share.plan(now) }
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
            if let Some(readings) = &write.readings {
                self.readings.record_write(readings);
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
        self.patches.record_success();
    }
}
