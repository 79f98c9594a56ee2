//! When an overloaded node gets a taint, and when it loses it.
//!
//! Invariants: an unknown load is no reason for a taint. Between the limit and the limit less the margin the taint does
//! not change, so that a load that varies around its limit does not set and clear it in turn.

use jiff::{SignedDuration, Timestamp};

use crate::policy::{Limit, LoadPolicy};
use crate::reading::Reading;
use crate::selector::Labels;
use crate::units::MetricName;

/// The value of every such taint, by which it is recognised under any key.
pub const VALUE: &str = "plimsoll-hot";

/// When a taint is set and cleared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaintRules {
    /// How long a load must be over a limit.
    pub after: SignedDuration,
    /// How far below the limit the load must be to clear the taint, as a fraction of the node. At most half of the
    /// limit counts, so that a low load always clears it.
    pub margin: f64,
}

/// A node's load compared with the limits of the policy, hard or soft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heat {
    /// Over a limit.
    Over,
    /// Over no limit, but below at least one by less than the margin.
    Near,
    /// Below all limits by the margin, or unknown.
    Cool,
}

/// How long a node has been over a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overheating {
    since: Option<Timestamp>,
}

/// The load at or below which a node that was over `limit` counts as cool.
pub fn clear_line(limit: f64, margin: f64) -> f64 {
    limit - margin.min(limit / 2.0)
}

/// The limits of a node with these labels.
fn limits_of<'p>(policy: &'p LoadPolicy, labels: &Labels) -> &'p [Limit] {
    let pool = policy.pools.iter().find(|pool| pool.selector.matches(labels));
    pool.map_or(&policy.limits, |pool| &pool.limits)
}

/// The load that counts against a limit at `now`; `None` if it is missing or stale.
fn counted(limit: &Limit, reading: Option<Reading>, now: Timestamp) -> Option<f64> {
    let reading = reading?;
    let is_fresh = limit.max_age.is_some_and(|age| reading.is_fresh(now, age));
    let counts = is_fresh && reading.check(&limit.metric, now).is_ok();
    counts.then(|| reading.value.get())
}

/// The metrics of limits whose load is missing or stale at `now`: they neither set a taint nor keep one.
pub fn unknown_loads<'p>(
    policy: &'p LoadPolicy,
    labels: &Labels,
    reading: impl Fn(&MetricName) -> Option<Reading>,
    now: Timestamp,
) -> Vec<&'p MetricName> {
    let is_unknown = |limit: &&Limit| counted(limit, reading(&limit.metric), now).is_none();
    limits_of(policy, labels).iter().filter(is_unknown).map(|limit| &limit.metric).collect()
}

impl TaintRules {
    /// The heat of a node with these labels and readings.
    pub fn heat(
        &self,
        policy: &LoadPolicy,
        labels: &Labels,
        reading: impl Fn(&MetricName) -> Option<Reading>,
        now: Timestamp,
    ) -> Heat {
        let heat_by = |limit: &Limit| self.heat_by(limit, reading(&limit.metric), now);
        let all: Vec<Heat> = limits_of(policy, labels).iter().map(heat_by).collect();
        let hottest = [Heat::Over, Heat::Near].into_iter().find(|heat| all.contains(heat));
        hottest.unwrap_or(Heat::Cool)
    }

    fn heat_by(&self, limit: &Limit, reading: Option<Reading>, now: Timestamp) -> Heat {
        match counted(limit, reading, now) {
            Some(load) if load > limit.max => Heat::Over,
            Some(load) if load > clear_line(limit.max, self.margin) => Heat::Near,
            Some(_) | None => Heat::Cool,
        }
    }

    /// Whether the node should have the taint at `now`; `tainted` is whether it has it.
    pub fn is_wanted(
        &self,
        overheating: &mut Overheating,
        heat: Heat,
        tainted: bool,
        now: Timestamp,
    ) -> bool {
        match heat {
            Heat::Over => {
                // If the clock was set back, the time starts again.
                let since = overheating.since.filter(|since| *since <= now).unwrap_or(now);
                overheating.since = Some(since);
                tainted || now.duration_since(since) >= self.after
            }
            Heat::Near => {
                overheating.since = None;
                tainted
            }
            Heat::Cool => {
                overheating.since = None;
                false
            }
        }
    }
}
