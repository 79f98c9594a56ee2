//! A node's load under a policy: may it take a pod, how good is it, and why.
//!
//! The rules are crane's: a missing or stale reading never rejects a node, but adds nothing to its
//! score; each whole hot value costs 10 of 100 points; DaemonSet pods pass the filter.
//!
//! [`Evaluation`] is the one place that applies them. Filter asks it for the verdict and Prioritize
//! for the score, which compute no more than they need; explain asks for the whole
//! [`LoadDecision`]. A node's [`NodeLoad`] does not depend on a policy: readings are kept by metric, and
//! a [`ResolvedPolicy`] knows their numbers in the [`MetricTable`].

mod decision;
mod metric_table;
mod node_load;
mod recent_pods;
mod resolved_policy;
mod score;

pub use decision::{
    Evaluation, LimitCheck, LimitOutcome, LoadDecision, ReadingStatus, Term, Verdict,
};
pub use metric_table::{MetricId, MetricTable};
pub use node_load::{NodeLoad, Readings};
pub use recent_pods::{IN_FLIGHT_MAX_AGE, RecentPods};
pub use resolved_policy::{ResolvedLimit, ResolvedPolicy, ResolvedWeight};
pub use score::Score;

/// Whether limits apply to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodKind {
    /// Owned by a DaemonSet: it belongs on its node, however loaded that is. No limit applies.
    Daemon,
    /// Any other pod.
    Ordinary,
}
