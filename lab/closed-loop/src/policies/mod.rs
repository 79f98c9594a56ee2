//! The placement policies that are compared, one file each.
//!
//! A [`Policy`] sees what its real counterpart would see: samples of nodes and pods as they are measured, the requests
//! of the pod to be placed, and bindings. It never sees what a pod will use.

mod bands;
mod crane_extender;
mod crane_plugin;
mod default;
mod koordinator;
mod load_variation_risk_balancing;
mod plimsoll;
mod settings;
mod target_load_packing;
mod watcher;

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};
use placement::policy::{LoadPolicy, PolicyError};

use self::koordinator::{Koordinator, Usage};
use self::load_variation_risk_balancing::LoadVariationRiskBalancing;
pub use self::settings::Settings;
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
    /// What a point counts in the sum of all scores, with another weight if one is given.
    pub fn per_point(self, weight: Option<i64>) -> i64 {
        match self {
            Self::Plugin { weight: own } => weight.unwrap_or(own),
            Self::Extender { weight: own } => weight.unwrap_or(own) * 10,
        }
    }
}

/// A placement policy in its own world. All methods but [`Policy::hook`] and [`Policy::copy`] may be left out.
pub trait Policy: Send {
    /// How it takes part in the scheduling cycle.
    fn hook(&self) -> Hook;

    /// A copy that decides as this one does now. It is asked where pods would go, and observes nothing.
    fn copy(&self) -> Box<dyn Policy>;

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

/// A kind of policy and how it is made.
#[derive(Debug)]
pub struct Kind {
    /// Name on the command line and in JSON.
    pub name: &'static str,
    /// Name in tables.
    pub title: &'static str,
    /// Makes one. Takes the settings that it knows out of the list.
    new: fn(&mut Settings) -> anyhow::Result<Box<dyn Policy>>,
}

/// A policy that is run: its kind, and how it differs from it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The kind.
    pub kind: &'static Kind,
    /// The settings as written.
    pub settings: Settings,
    /// What a point counts in place of the policy's own weight.
    pub weight: Option<i64>,
}

impl Entry {
    /// Makes the policy for a world.
    ///
    /// # Errors
    ///
    /// If a setting is not known to the policy, or has a wrong value.
    pub fn policy(&self) -> anyhow::Result<Box<dyn Policy>> {
        let mut settings = self.settings.clone();
        settings.take::<i64>("weight")?;
        let policy = (self.kind.new)(&mut settings)?;
        settings.none_is_left()?;
        Ok(policy)
    }

    /// Name in tables.
    pub fn title(&self) -> String {
        format!("{}{}", self.kind.title, self.settings)
    }
}

/// Writes `plimsoll[period=20]`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.name, self.settings)
    }
}

impl FromStr for Entry {
    type Err = anyhow::Error;

    /// Reads `plimsoll` or `plimsoll[period=20,scale=30]`.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, settings) = match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
            Some((name, settings)) => (name, settings.parse()?),
            None => (text, Settings::default()),
        };
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            bail!("no policy `{name}`, expected one of {}", names.join(", "));
        };
        let weight = settings.clone().take("weight")?;
        let entry = Self { kind, settings, weight };
        entry.policy().with_context(|| format!("policy `{text}`"))?;
        Ok(entry)
    }
}

/// The policies of a table of traces that names none.
pub const BESIDE_TRACES: &[&str] = &[
    "crane-plugin",
    "default",
    "koordinator-avg",
    "koordinator-p95",
    "koordinator-p95[weight=10]",
    "trimaran-tlp",
    "trimaran-tlp[weight=10]",
    "plimsoll",
];

/// kube-scheduler alone.
pub fn without_load_awareness() -> Box<dyn Policy> {
    Box::new(default::Default)
}

/// All kinds of policies.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "crane-plugin",
        title: "crane plugin ×3",
        new: |_| Ok(Box::new(crane_plugin::CranePlugin::new(&crane_policy()?))),
    },
    Kind { name: "default", title: "no load awareness", new: |_| Ok(without_load_awareness()) },
    Kind {
        name: "crane-extender",
        title: "crane by extender (0–10 × 3)",
        new: |_| Ok(Box::new(crane_extender::CraneExtender::new(crane_policy()?, false))),
    },
    Kind {
        name: "crane-extender-live",
        title: "crane by extender, live hot value",
        new: |_| Ok(Box::new(crane_extender::CraneExtender::new(crane_policy()?, true))),
    },
    Kind {
        name: "koordinator-avg",
        title: "Koordinator, avg of 5 min",
        new: |settings| koordinator(Usage::Average, settings),
    },
    Kind {
        name: "koordinator-p95",
        title: "Koordinator, p95 of 5 min",
        new: |settings| koordinator(Usage::P95OfFiveMinutes, settings),
    },
    Kind {
        name: "koordinator-p95-30m",
        title: "Koordinator, p95 of 30 min",
        new: |settings| koordinator(Usage::P95OfHalfAnHour, settings),
    },
    Kind {
        name: "trimaran-tlp",
        title: "Trimaran TLP 40",
        new: |_| Ok(Box::new(TargetLoadPacking::new(false))),
    },
    Kind {
        name: "trimaran-tlp-beside",
        title: "TLP beside resource scores",
        new: |_| Ok(Box::new(TargetLoadPacking::new(true))),
    },
    Kind {
        name: "trimaran-lvrb",
        title: "Trimaran LVRB",
        new: |_| Ok(Box::new(LoadVariationRiskBalancing::new(false))),
    },
    Kind {
        name: "trimaran-lvrb-beside",
        title: "LVRB beside resource scores",
        new: |_| Ok(Box::new(LoadVariationRiskBalancing::new(true))),
    },
    Kind {
        name: "bands",
        title: "taint and bands, no extender",
        new: |settings| Ok(Box::new(bands::NodeBands::new(settings)?)),
    },
    Kind {
        name: "plimsoll",
        title: "Plimsoll",
        new: |settings| Ok(Box::new(plimsoll::Plimsoll::new(plimsoll::Setup::of(settings)?))),
    },
];

/// The policies of a table that names none, in its order.
pub const DEFAULT: &[&str] = &[
    "crane-plugin",
    "default",
    "crane-extender",
    "crane-extender-live",
    "koordinator-avg",
    "koordinator-p95",
    "koordinator-p95[weight=10]",
    "koordinator-p95-30m",
    "trimaran-tlp",
    "trimaran-tlp[weight=10]",
    "trimaran-tlp-beside",
    "trimaran-lvrb",
    "trimaran-lvrb-beside",
    "plimsoll",
    "plimsoll[learned=off]",
    "plimsoll[allNodes=on]",
    "plimsoll[hardLimit=0.62]",
    "plimsoll[hardLimit=0.58]",
    "bands",
    "bands[bands=off]",
];

fn koordinator(usage: Usage, settings: &mut Settings) -> anyhow::Result<Box<dyn Policy>> {
    Ok(Box::new(Koordinator::new(usage, settings)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        format!("{:#}", text.parse::<Entry>().unwrap_err())
    }

    #[test]
    fn a_policys_name_with_settings_reads_back() {
        for text in DEFAULT {
            assert_eq!(text.parse::<Entry>().unwrap().to_string(), *text);
        }
        let entry: Entry = "trimaran-tlp[weight=10]".parse().unwrap();
        assert_eq!((entry.weight, entry.title()), (Some(10), "Trimaran TLP 40[weight=10]".into()));
    }

    #[test]
    fn a_wrong_setting_is_named() {
        assert!(wrong("crane").starts_with("no policy `crane`, expected one of crane-plugin,"));
        assert_eq!(
            wrong("default[limit=3]"),
            "policy `default[limit=3]`: it has no setting `limit`"
        );
        assert_eq!(
            wrong("plimsoll[period=x]"),
            "policy `plimsoll[period=x]`: setting `period` cannot be `x`"
        );
        assert!(wrong("plimsoll[period=15]").contains("`period` cannot be `15`"));
        assert!(wrong("plimsoll[learned=no]").contains("`learned` cannot be `no`"));
        assert_eq!(wrong("plimsoll[period]"), "expected `key=value`, found `period`");
        assert_eq!(wrong("plimsoll[scale=1,scale=2]"), "setting `scale` is there twice");
    }
}
