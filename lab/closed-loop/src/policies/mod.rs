//! The placement policies that are compared, one file each.
//!
//! A [`Policy`] sees what its real counterpart would see: samples of nodes and pods as they are measured, the requests
//! of the pod to be placed, and bindings. It never sees what a pod will use.

mod crane_extender;
mod crane_plugin;
mod default;
mod koordinator;
mod load_variation_risk_balancing;
mod plimsoll;
mod target_load_packing;
mod watcher;

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use placement::policy::{LoadPolicy, PolicyError};

use self::koordinator::{Koordinator, Usage};
use self::load_variation_risk_balancing::LoadVariationRiskBalancing;
use self::target_load_packing::TargetLoadPacking;
use crate::cluster::NodeId;
use crate::time::Step;
use crate::workload::{AppId, AppKind, PodId};
use crate::world::Observation;

/// crane's policy as crane ships it.
const CRANE_POLICY: &str = include_str!("crane.yaml");

/// Parses [`CRANE_POLICY`].
///
/// # Errors
///
/// None but in development.
pub fn crane_policy() -> Result<LoadPolicy, PolicyError> {
    LoadPolicy::from_yaml(CRANE_POLICY)
}

/// What a scheduler knows of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodView {
    /// The pod.
    pub id: PodId,
    /// The Deployment or Job that controls it.
    pub app: AppId,
    /// Which of both.
    pub kind: AppKind,
    /// CPU request in thousandths of a core.
    pub cpu: u32,
    /// Memory request in MiB.
    pub memory: u32,
}

/// How a policy takes part in kube-scheduler's cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// A plugin in kube-scheduler: its filter is asked while nodes are looked for, so that a search goes on until
    /// enough nodes pass; its score, 0 to 100, counts times the weight.
    Plugin {
        /// Weight of the score.
        weight: i64,
    },
    /// An extender: its filter is asked about the nodes that a search found, and no others take the place of those that
    /// it leaves out. Its score, 0 to 10 by contract, counts times weight times 10; kube-scheduler does not clamp it.
    Extender {
        /// Weight of the score.
        weight: i64,
    },
}

impl Hook {
    /// What a point counts in the sum of all scores.
    pub fn per_point(self) -> i64 {
        match self {
            Self::Plugin { weight } => weight,
            Self::Extender { weight } => weight * 10,
        }
    }
}

/// A placement policy in its own world. All methods but [`Policy::hook`] may be left out.
pub trait Policy: Send {
    /// How it takes part in the scheduling cycle.
    fn hook(&self) -> Hook;

    /// Whether LeastAllocated and BalancedAllocation count beside it: some projects' documents switch them off.
    fn keeps_resource_scores(&self) -> bool {
        true
    }

    /// Called at each step before pods are placed: what can be measured now. A policy takes from it what its system
    /// would have read by now; periods and delays are its own.
    fn observe(&mut self, _observation: &Observation<'_>) {}

    /// Leaves out the nodes that may not take the pod; the order of the others stays.
    fn filter(&mut self, _pod: &PodView, _nodes: &mut Vec<NodeId>, _now: Step) {}

    /// Sets the points of each node, in the order of `nodes`; they are 0 before.
    fn score(&mut self, _pod: &PodView, _nodes: &[NodeId], _points: &mut [i64], _now: Step) {}

    /// The pod was bound to the node.
    fn bound(&mut self, _pod: &PodView, _node: NodeId, _now: Step) {}

    /// The pod ended, or was evicted from the node.
    fn unbound(&mut self, _pod: &PodView, _node: NodeId, _now: Step) {}
}

/// A kind of policy and how it is made, with the hard limit of CPU if one is given.
#[derive(Debug)]
pub struct Kind {
    /// Name on the command line and in the table.
    pub name: &'static str,
    new: fn(Option<f64>) -> anyhow::Result<Box<dyn Policy>>,
}

/// A policy that is run.
#[derive(Debug, Clone)]
pub struct Entry {
    kind: &'static Kind,
    /// The part of a node's CPU above which pods wait, in place of the soft limit that is shipped. Of `plimsoll` alone.
    hard_limit: Option<f64>,
}

impl Entry {
    /// Makes the policy for a world.
    ///
    /// # Errors
    ///
    /// None but in development.
    pub fn policy(&self) -> anyhow::Result<Box<dyn Policy>> {
        (self.kind.new)(self.hard_limit)
    }
}

/// Writes `plimsoll[hardLimit=0.62]`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        self.hard_limit.map_or(Ok(()), |limit| write!(f, "[hardLimit={limit}]"))
    }
}

impl FromStr for Entry {
    type Err = anyhow::Error;

    /// Reads `default` or `plimsoll[hardLimit=0.62]`.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, setting) = match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
            Some((name, setting)) => (name, Some(setting)),
            None => (text, None),
        };
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            bail!("no policy `{name}`, expected one of {}", names.join(", "));
        };
        let Some(setting) = setting else { return Ok(Self { kind, hard_limit: None }) };
        ensure!(name == "plimsoll", "`{name}` has no settings");
        let value = setting.strip_prefix("hardLimit=").and_then(|value| value.parse().ok());
        let limit =
            value.with_context(|| format!("expected `hardLimit=0.62`, found `{setting}`"))?;
        Ok(Self { kind, hard_limit: Some(limit) })
    }
}

/// The policy that others are compared with.
pub const REFERENCE: &str = "crane-plugin";

/// All kinds of policies.
pub const KINDS: &[Kind] = &[
    Kind {
        name: REFERENCE,
        new: |_| Ok(Box::new(crane_plugin::CranePlugin::new(&crane_policy()?))),
    },
    Kind { name: "default", new: |_| Ok(Box::new(default::Default)) },
    Kind {
        name: "crane-extender",
        new: |_| Ok(Box::new(crane_extender::CraneExtender::new(crane_policy()?))),
    },
    Kind { name: "koordinator-avg", new: |_| Ok(Box::new(Koordinator::new(Usage::Average))) },
    Kind {
        name: "koordinator-p95",
        new: |_| Ok(Box::new(Koordinator::new(Usage::P95OfFiveMinutes))),
    },
    Kind {
        name: "koordinator-p95-30m",
        new: |_| Ok(Box::new(Koordinator::new(Usage::P95OfHalfAnHour))),
    },
    Kind { name: "trimaran-tlp", new: |_| Ok(Box::new(TargetLoadPacking::default())) },
    Kind { name: "trimaran-lvrb", new: |_| Ok(Box::new(LoadVariationRiskBalancing::default())) },
    Kind { name: "plimsoll", new: |hard| Ok(Box::new(plimsoll::Plimsoll::new(hard)?)) },
];

/// The policies of a table that names none, in its order.
pub const DEFAULT: &[&str] = &[
    REFERENCE,
    "default",
    "crane-extender",
    "koordinator-avg",
    "koordinator-p95",
    "koordinator-p95-30m",
    "trimaran-tlp",
    "trimaran-lvrb",
    "plimsoll",
    "plimsoll[hardLimit=0.62]",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policys_name_reads_back_and_a_wrong_one_is_named() {
        for text in DEFAULT {
            assert_eq!(text.parse::<Entry>().unwrap().to_string(), *text);
        }
        let wrong = |text: &str| format!("{:#}", text.parse::<Entry>().unwrap_err());
        assert!(wrong("crane").starts_with("no policy `crane`, expected one of crane-plugin,"));
        assert_eq!(wrong("default[hardLimit=1]"), "`default` has no settings");
        assert_eq!(wrong("plimsoll[limit=1]"), "expected `hardLimit=0.62`, found `limit=1`");
    }
}
