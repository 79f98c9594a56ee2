//! How containers are limited to their share of a card: the mode that follows from the policy, the pod and the node.
//!
//! [`support`] detects which modes the node can enforce, [`limit`] is the limit of one container and its CDI device, [`report`] logs
//! the mode in force, and [`watch`] polls.
//!
//! Invariants: a pod's annotation can only choose a stronger mode than the policy; a mode that the node cannot enforce is refused or
//! reported, never ignored.

pub mod limit;
pub mod report;
pub mod support;
pub mod watch;

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use cluster::MpsConflict;

use tokio::sync::watch::Receiver;

use support::{IsolationSupport, Missing};

/// A mode of isolation, from the weakest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isolation {
    /// Not at all: a container can use the whole card.
    #[default]
    None,
    /// By NVIDIA's MPS server, for programs that do not change their own environment.
    Mps,
    /// By NVIDIA's driver, on the container's control group.
    Driver,
}

impl Isolation {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::None, Self::Mps, Self::Driver];

    /// Its name in annotations, flags and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mps => "mps",
            Self::Driver => "driver",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isolation {
    type Err = IsolationError;

    fn from_str(text: &str) -> Result<Self, IsolationError> {
        let named = Self::ALL.into_iter().find(|isolation| isolation.name() == text);
        named.ok_or_else(|| IsolationError::Unknown(text.chars().take(QUOTED).collect()))
    }
}

/// Characters of an annotation that an error repeats.
const QUOTED: usize = 64;

/// The weakest mode for the node's containers (`--isolation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MinIsolation {
    /// By the driver where the node can, else not at all.
    Auto,
    /// By NVIDIA's driver.
    Driver,
    /// By NVIDIA's MPS.
    Mps,
    /// Not at all.
    None,
}

/// What happens if a mode cannot be enforced (`--isolation-unavailable`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnavailableAction {
    /// The next weaker mode that the node can enforce, reported on the Node, in the log and in the metrics.
    Downgrade,
    /// The container is refused.
    Refuse,
}

/// The policy of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The weakest mode for every container.
    pub minimum: MinIsolation,
    /// What happens if a mode cannot be enforced.
    pub unavailable: UnavailableAction,
}

/// The mode of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The mode in force.
    pub isolation: Isolation,
    /// If it is weaker than the required mode: the required mode, and what the node lacks for it.
    pub instead_of: Option<(Isolation, Missing)>,
}

/// Why the required mode cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsolationError {
    /// No mode has that name.
    #[error(
        "the annotation gpu-isolation is `{0}`: set it to `driver`, `mps` or `none`, or take it off, and create the pod again"
    )]
    Unknown(String),
    /// The node's support is not detected yet.
    #[error("what this node can enforce is not known yet; create the pod again")]
    NotKnown,
    /// The pod asks for MPS, and its spec excludes that.
    #[error(
        "isolation `mps` and the pod's spec exclude each other: {0}, or take the annotation gpu-isolation off, and create the pod again"
    )]
    MpsConflict(MpsConflict),
    /// The node cannot enforce it.
    #[error(
        "isolation `{wanted}` cannot be enforced on this node: {missing}. Or run the device plugin with \
         --isolation-unavailable=downgrade, and create the pod again"
    )]
    Unavailable {
        /// The required mode.
        wanted: Isolation,
        /// What the node lacks.
        missing: Missing,
    },
}

impl Policy {
    /// The mode of a container whose pod's annotation is `asked`.
    ///
    /// # Errors
    /// If the annotation is no mode, or the mode cannot be enforced and the policy refuses that.
    pub fn decide(
        self,
        asked: Option<&str>,
        support: &IsolationSupport,
    ) -> Result<Decision, IsolationError> {
        let least = match self.minimum {
            MinIsolation::Auto if support.driver.is_ok() => Isolation::Driver,
            MinIsolation::Auto | MinIsolation::None => Isolation::None,
            MinIsolation::Mps => Isolation::Mps,
            MinIsolation::Driver => Isolation::Driver,
        };
        let asked = asked.map(str::parse).transpose()?;
        let wanted = asked.map_or(least, |asked: Isolation| asked.max(least));
        let Err(missing) = support.of(wanted) else {
            return Ok(Decision { isolation: wanted, instead_of: None });
        };
        if self.unavailable == UnavailableAction::Refuse {
            return Err(IsolationError::Unavailable { wanted, missing });
        }
        let mut weaker = Isolation::ALL.into_iter().rev().filter(|weaker| *weaker < wanted);
        let isolation = weaker.find(|weaker| support.of(*weaker).is_ok()).unwrap_or_default();
        Ok(Decision { isolation, instead_of: Some((wanted, missing)) })
    }
}

/// The policy, and the node's support as it changes.
#[derive(Debug, Clone)]
pub struct NodeIsolation {
    /// The policy for containers.
    pub policy: Policy,
    /// The node's support; `None` until it is detected.
    pub support: Receiver<Option<IsolationSupport>>,
}

impl NodeIsolation {
    /// As [`Policy::decide`], with the node's current support.
    ///
    /// # Errors
    /// As [`Policy::decide`], and until the node's support is detected.
    pub fn decide(&self, asked: Option<&str>) -> Result<Decision, IsolationError> {
        match &*self.support.borrow() {
            Some(support) => self.policy.decide(asked, support),
            None => Err(IsolationError::NotKnown),
        }
    }

    /// The value of the Node's annotation: the mode of pods without an annotation, or `refused`; `None` until the node's support is
    /// detected.
    pub fn annotation_value(&self) -> Option<&'static str> {
        match self.decide(None) {
            Ok(decided) => Some(decided.isolation.name()),
            Err(IsolationError::NotKnown) => None,
            Err(_) => Some("refused"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn support(driver: bool, mps: bool) -> IsolationSupport {
        let of = |able: bool| if able { Ok(()) } else { Err(Missing::NotByCdi) };
        IsolationSupport { driver: of(driver), mps: of(mps) }
    }

    fn policy(wanted: MinIsolation) -> Policy {
        Policy { minimum: wanted, unavailable: UnavailableAction::Downgrade }
    }

    fn mode(wanted: MinIsolation, asked: Option<&str>, support: &IsolationSupport) -> Isolation {
        policy(wanted).decide(asked, support).unwrap().isolation
    }

    #[test]
    fn auto_is_the_driver_where_the_node_can_and_never_mps_by_itself() {
        assert_eq!(mode(MinIsolation::Auto, None, &support(true, true)), Isolation::Driver);
        assert_eq!(mode(MinIsolation::Auto, None, &support(false, true)), Isolation::None);
        assert_eq!(mode(MinIsolation::Auto, Some("mps"), &support(false, true)), Isolation::Mps);
    }

    #[test]
    fn a_pod_asks_for_more_than_the_policy_and_never_for_less() {
        let all = support(true, true);
        assert_eq!(mode(MinIsolation::None, Some("driver"), &all), Isolation::Driver);
        assert_eq!(mode(MinIsolation::Driver, Some("none"), &all), Isolation::Driver);
        assert_eq!(mode(MinIsolation::Mps, Some("none"), &all), Isolation::Mps);
    }

    #[test]
    fn an_annotation_that_is_no_mode_is_refused_and_never_none() {
        for wrong in ["", "Driver", "driver ", "hami"] {
            let refused = policy(MinIsolation::None).decide(Some(wrong), &support(true, true));
            assert_eq!(refused, Err(IsolationError::Unknown(wrong.to_owned())));
        }
    }

    #[test]
    fn a_mode_that_the_node_cannot_enforce_is_refused_or_told() {
        let lacking = support(false, true);
        let decided = policy(MinIsolation::Driver).decide(None, &lacking).unwrap();
        let instead_of = Some((Isolation::Driver, Missing::NotByCdi));
        assert_eq!(decided, Decision { isolation: Isolation::Mps, instead_of });
        let refuse =
            Policy { minimum: MinIsolation::Driver, unavailable: UnavailableAction::Refuse };
        let (wanted, missing) = (Isolation::Driver, Missing::NotByCdi);
        let unavailable = Err(IsolationError::Unavailable { wanted, missing });
        assert_eq!(refuse.decide(None, &lacking), unavailable);
        assert_eq!(
            policy(MinIsolation::Mps).decide(None, &support(false, false)).unwrap().isolation,
            Isolation::None
        );
    }

    #[test]
    fn every_mode_reads_back_by_its_name() {
        for mode in Isolation::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
    }
}
