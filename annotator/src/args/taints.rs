//! The taint of hot nodes.

use std::time::Duration;

use clap::ValueEnum;
use cluster::{Taint, TaintEffect};
use jiff::SignedDuration;
use placement::taint::TaintRules;

use crate::taints::TaintSettings;

/// How far below its limit a load must be before the taint is cleared, a fraction of a whole; half of the limit at most
/// counts. By less, a node that hovers around its limit is written with each poll.
const MARGIN: f64 = 0.05;

/// The taint's key. Cluster Autoscaler counts a node with a key of this prefix as ready but full, and leaves it out of
/// its templates of new nodes.
pub const TAINT_KEY: &str = "status-taint.cluster-autoscaler.kubernetes.io/plimsoll-hot";

/// How long a load must be over its limit before the taint is set: for a shorter burst a write, which makes
/// kube-scheduler retry rejected pods, does not pay.
const TAINT_AFTER: Duration = Duration::from_secs(60);

/// The taint of nodes that are over a limit of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TaintHotNodes {
    /// None; those that are found are cleared.
    #[value(name = "off")]
    Off,
    /// Pods go there where no better node is left.
    #[value(name = "PreferNoSchedule")]
    Prefer,
    /// No pods go there but those that tolerate it.
    #[value(name = "NoSchedule")]
    Forbid,
}

/// The taint, and when it is set and cleared.
#[derive(Debug, Clone, clap::Args)]
pub struct TaintArgs {
    /// Whether a node over a limit of the policy, hard or soft, carries a taint, which kube-scheduler honours
    /// without a call. With NoSchedule the pods of DaemonSets need a toleration. With off, taints that are
    /// found are cleared.
    #[arg(long, env = "PLIMSOLL_TAINT_HOT_NODES", default_value = "off", value_name = "EFFECT")]
    pub taint_hot_nodes: TaintHotNodes,

    /// How long a load must be over its limit before the taint is set. No flag: a minute, and less in tests.
    #[arg(skip = TAINT_AFTER)]
    pub taint_after: Duration,
}

impl TaintArgs {
    /// The taint of hot nodes; `None` where there is none.
    pub(crate) fn taint(&self) -> Option<TaintSettings> {
        let effect = match self.taint_hot_nodes {
            TaintHotNodes::Off => return None,
            TaintHotNodes::Prefer => TaintEffect::PreferNoSchedule,
            TaintHotNodes::Forbid => TaintEffect::NoSchedule,
        };
        let after = SignedDuration::try_from(self.taint_after).unwrap_or(SignedDuration::MAX);
        let rules = TaintRules { after, margin: MARGIN };
        Some(TaintSettings { taint: Taint { key: TAINT_KEY.to_owned(), effect }, rules })
    }
}
