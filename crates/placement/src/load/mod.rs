//! A node's load under a policy: may it take a pod, how good is it, and why.
//!
//! A missing or stale reading rejects no node, unless the policy says so; DaemonSet pods pass every limit.
//!
//! [`Evaluation`] is the one place that applies a policy. Filter asks it for the verdict and Prioritize
//! for the score, which compute no more than they need; explain computes the whole
//! [`LoadDecision`]. A node's [`NodeLoad`] does not depend on a policy: readings are kept by metric, and
//! a [`ResolvedPolicy`] knows their numbers in the [`MetricTable`].

mod costs;
mod decision;
mod declared;
mod least_loaded;
mod metric_load;
mod metric_table;
mod model;
mod node_load;
mod pod;
mod prepared;
mod recent_pods;
mod resolved_policy;
mod score;
mod typical;

pub use costs::NodeCost;
pub use decision::{Evaluation, LimitCheck, LimitOutcome, LoadDecision, Term, Verdict};
pub use declared::DeclaredPods;
pub use least_loaded::pass_over_limits;
pub use metric_load::{KnownLoad, MetricLoad, ReadingStatus};
pub use metric_table::{MetricId, MetricTable};
pub use node_load::{NodeLoad, Readings};
pub use pod::{PodAdds, PodKind, PodToPlace};
pub use prepared::PreparedNodes;
pub use recent_pods::{
    IN_FLIGHT_MAX_AGE, RecentPods, STARTS_WITHIN, VOLUMES_BIND_WITHIN, is_in_flight,
};
pub use resolved_policy::{
    ResolvedDemand, ResolvedLimit, ResolvedMetric, ResolvedPolicy, ResolvedRules, ResolvedWeight,
};
pub use score::Score;
pub use typical::typical_load;
