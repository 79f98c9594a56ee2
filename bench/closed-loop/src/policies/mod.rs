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

use placement::policy::{LoadPolicy, PolicyError};

use self::load_variation_risk_balancing::LoadVariationRiskBalancing;
use self::plimsoll::{Plimsoll, Setting};
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

    /// Whether kube-scheduler looks at every node (`percentageOfNodesToScore: 100`), and not at a sample: 100 of 200.
    fn looks_at_all_nodes(&self) -> bool {
        false
    }

    /// How often its system wrote each node's readings an hour, on average; `None` where that is not simulated.
    fn writes_an_hour(&self) -> Option<f64> {
        None
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

/// A policy's name and how it is made.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name on the command line and in JSON.
    pub name: &'static str,
    /// Name in tables.
    pub title: &'static str,
    /// Makes one for a world.
    pub new: fn() -> Result<Box<dyn Policy>, PolicyError>,
}

/// The policy that others are compared with.
pub const REFERENCE: &str = "crane-plugin";

/// All policies, in the order of tables.
pub const ALL: &[Entry] = &[
    Entry {
        name: REFERENCE,
        title: "crane plugin ×3",
        new: || Ok(Box::new(crane_plugin::CranePlugin::new(&crane_policy()?))),
    },
    Entry { name: "default", title: "no load awareness", new: || Ok(Box::new(default::Default)) },
    Entry {
        name: "crane-extender",
        title: "crane by extender (0–10 × 3)",
        new: || Ok(Box::new(crane_extender::CraneExtender::new(crane_policy()?, false))),
    },
    Entry {
        name: "crane-extender-live",
        title: "the same with a live hot value",
        new: || Ok(Box::new(crane_extender::CraneExtender::new(crane_policy()?, true))),
    },
    Entry {
        name: "koordinator-avg",
        title: "Koordinator, avg of 5 min",
        new: || Ok(Box::new(koordinator::Koordinator::new(koordinator::Usage::Average))),
    },
    Entry {
        name: "koordinator-p95",
        title: "Koordinator, p95 of 5 min",
        new: || Ok(Box::new(koordinator::Koordinator::new(koordinator::Usage::P95OfFiveMinutes))),
    },
    Entry {
        name: "koordinator-p95-30m",
        title: "Koordinator, p95 of 30 min",
        new: || Ok(Box::new(koordinator::Koordinator::new(koordinator::Usage::P95OfHalfAnHour))),
    },
    Entry {
        name: "trimaran-tlp",
        title: "Trimaran TLP 40",
        new: || Ok(Box::new(TargetLoadPacking::new(false))),
    },
    Entry {
        name: "trimaran-tlp-beside",
        title: "the same beside resource scores",
        new: || Ok(Box::new(TargetLoadPacking::new(true))),
    },
    Entry {
        name: "trimaran-lvrb",
        title: "Trimaran LVRB",
        new: || Ok(Box::new(LoadVariationRiskBalancing::new(false))),
    },
    Entry {
        name: "trimaran-lvrb-beside",
        title: "the same beside resource scores",
        new: || Ok(Box::new(LoadVariationRiskBalancing::new(true))),
    },
    Entry {
        name: "plimsoll",
        title: "Plimsoll, soft limits (default)",
        new: || Ok(Box::new(Plimsoll::new(Setting::Shipped)?)),
    },
    Entry {
        name: "plimsoll-unlearned",
        title: "the same, nothing learned",
        new: || Ok(Box::new(Plimsoll::new(Setting::NothingLearned)?)),
    },
    Entry {
        name: "plimsoll-all-nodes",
        title: "the same, every node looked at",
        new: || Ok(Box::new(Plimsoll::new(Setting::AllNodes)?)),
    },
    Entry {
        name: "plimsoll-unpaired",
        title: "the same, not paired by requests",
        new: || Ok(Box::new(Plimsoll::new(Setting::Unpaired)?)),
    },
    Entry {
        name: "plimsoll-none-kept",
        title: "the same, no node kept for large pods",
        new: || Ok(Box::new(Plimsoll::new(Setting::NoneKept)?)),
    },
    Entry {
        name: "plimsoll-hard-62",
        title: "Plimsoll, hard limit 62%",
        new: || Ok(Box::new(Plimsoll::new(Setting::HardLimit(0.62))?)),
    },
    Entry {
        name: "plimsoll-hard-63",
        title: "Plimsoll, hard limit 63%",
        new: || Ok(Box::new(Plimsoll::new(Setting::HardLimit(0.63))?)),
    },
    Entry {
        name: "plimsoll-hard-58",
        title: "Plimsoll, hard limit 58%",
        new: || Ok(Box::new(Plimsoll::new(Setting::HardLimit(0.58))?)),
    },
];

/// The policy of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}
