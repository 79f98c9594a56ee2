//! How containers are held to their share of a card: what the policy, the pod and the node come to.
//!
//! [`ability`] finds out what the node can do, [`limit`] is what a container is held to and the CDI device that says so, [`report`] what
//! is told on the Node, and [`watch`] looks again and again.
//!
//! Invariants: a pod's annotation only ever asks for more than the policy; a mode that the node cannot enforce is refused or
//! reported, never passed over.

pub mod ability;
pub mod limit;
pub mod report;
pub mod watch;

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

use tokio::sync::watch::Receiver;

use ability::{Ability, Missing};

/// A way to hold containers to their share, from the weakest.
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
    /// All ways.
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

/// What every container of the node is held to at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Wanted {
    /// By the driver where the node can, else not at all.
    Auto,
    /// By NVIDIA's driver.
    Driver,
    /// By NVIDIA's MPS.
    Mps,
    /// Not at all.
    None,
}

/// What is done where a mode cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Unavailable {
    /// The next weaker mode that the node can enforce, reported on the Node, in the log and in the metrics.
    Downgrade,
    /// The container is refused.
    Refuse,
}

/// The policy of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// What every container is held to at least.
    pub wanted: Wanted,
    /// What is done where that cannot be enforced.
    pub unavailable: Unavailable,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The mode in force.
    pub isolation: Isolation,
    /// Where it is weaker than what was wanted: what was wanted, and what the node lacks for it.
    pub instead_of: Option<(Isolation, Missing)>,
}

/// Why a container cannot be held to its share as wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsolationError {
    /// No mode has that name.
    #[error(
        "the annotation gpu-isolation is `{0}`: set it to `driver`, `mps` or `none`, or take it off, and create the pod again"
    )]
    Unknown(String),
    /// It is not found out yet.
    #[error("what this node can enforce is not known yet; create the pod again")]
    NotKnown,
    /// The node cannot enforce it.
    #[error(
        "isolation `{wanted}` cannot be enforced on this node: {missing}. Or run the device plugin with \
         --isolation-unavailable=downgrade, and create the pod again"
    )]
    Unavailable {
        /// What was wanted.
        wanted: Isolation,
        /// What the node lacks.
        missing: Missing,
    },
}

impl Policy {
    /// The mode of a container whose pod asks for `asked` by its annotation.
    ///
    /// # Errors
    /// Where the annotation is no mode, or where the mode cannot be enforced and that is to be refused.
    pub fn decide(
        self,
        asked: Option<&str>,
        ability: &Ability,
    ) -> Result<Decision, IsolationError> {
        let least = match self.wanted {
            Wanted::Auto if ability.driver.is_ok() => Isolation::Driver,
            Wanted::Auto | Wanted::None => Isolation::None,
            Wanted::Mps => Isolation::Mps,
            Wanted::Driver => Isolation::Driver,
        };
        let asked = asked.map(str::parse).transpose()?;
        let wanted = asked.map_or(least, |asked: Isolation| asked.max(least));
        let Err(missing) = ability.of(wanted) else {
            return Ok(Decision { isolation: wanted, instead_of: None });
        };
        if self.unavailable == Unavailable::Refuse {
            return Err(IsolationError::Unavailable { wanted, missing });
        }
        let mut weaker = Isolation::ALL.into_iter().rev().filter(|weaker| *weaker < wanted);
        let isolation = weaker.find(|weaker| ability.of(*weaker).is_ok()).unwrap_or_default();
        Ok(Decision { isolation, instead_of: Some((wanted, missing)) })
    }
}

/// The policy, and what the node can do, as it changes.
#[derive(Debug, Clone)]
pub struct NodeIsolation {
    /// What containers are to be held to.
    pub policy: Policy,
    /// What the node can do; `None` until that is found out.
    pub ability: Receiver<Option<Ability>>,
}

impl NodeIsolation {
    /// As [`Policy::decide`], by what the node can do now.
    ///
    /// # Errors
    /// As [`Policy::decide`], and until it is found out what the node can do.
    pub fn decide(&self, asked: Option<&str>) -> Result<Decision, IsolationError> {
        match &*self.ability.borrow() {
            Some(ability) => self.policy.decide(asked, ability),
            None => Err(IsolationError::NotKnown),
        }
    }

    /// What stands on the Node: the mode of pods without an annotation, `refused` where they are refused; `None` until that is
    /// known.
    pub fn on_node(&self) -> Option<&'static str> {
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

    fn ability(driver: bool, mps: bool) -> Ability {
        let of = |able: bool| if able { Ok(()) } else { Err(Missing::NotByCdi) };
        Ability { driver: of(driver), mps: of(mps) }
    }

    fn policy(wanted: Wanted) -> Policy {
        Policy { wanted, unavailable: Unavailable::Downgrade }
    }

    fn mode(wanted: Wanted, asked: Option<&str>, ability: &Ability) -> Isolation {
        policy(wanted).decide(asked, ability).unwrap().isolation
    }

    #[test]
    fn auto_is_the_driver_where_the_node_can_and_never_mps_by_itself() {
        assert_eq!(mode(Wanted::Auto, None, &ability(true, true)), Isolation::Driver);
        assert_eq!(mode(Wanted::Auto, None, &ability(false, true)), Isolation::None);
        assert_eq!(mode(Wanted::Auto, Some("mps"), &ability(false, true)), Isolation::Mps);
    }

    #[test]
    fn a_pod_asks_for_more_than_the_policy_and_never_for_less() {
        let all = ability(true, true);
        assert_eq!(mode(Wanted::None, Some("driver"), &all), Isolation::Driver);
        assert_eq!(mode(Wanted::Driver, Some("none"), &all), Isolation::Driver);
        assert_eq!(mode(Wanted::Mps, Some("none"), &all), Isolation::Mps);
    }

    #[test]
    fn an_annotation_that_is_no_mode_is_refused_and_never_none() {
        for wrong in ["", "Driver", "driver ", "hami"] {
            let refused = policy(Wanted::None).decide(Some(wrong), &ability(true, true));
            assert_eq!(refused, Err(IsolationError::Unknown(wrong.to_owned())));
        }
    }

    #[test]
    fn a_mode_that_the_node_cannot_enforce_is_refused_or_told() {
        let lacking = ability(false, true);
        let decided = policy(Wanted::Driver).decide(None, &lacking).unwrap();
        let instead_of = Some((Isolation::Driver, Missing::NotByCdi));
        assert_eq!(decided, Decision { isolation: Isolation::Mps, instead_of });
        let refuse = Policy { wanted: Wanted::Driver, unavailable: Unavailable::Refuse };
        let (wanted, missing) = (Isolation::Driver, Missing::NotByCdi);
        let unavailable = Err(IsolationError::Unavailable { wanted, missing });
        assert_eq!(refuse.decide(None, &lacking), unavailable);
        assert_eq!(
            policy(Wanted::Mps).decide(None, &ability(false, false)).unwrap().isolation,
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
