//! How containers are limited to their share of a GPU: the mode that follows from the policy, the pod and the node.
//! The mode is that of memory. Compute is limited by MPS alone, in each mode but `none`.
//!
//! [`support`] detects which modes the node can enforce, [`limit`] is the limit of one container and its CDI device,
//! and [`report`] logs the mode in force. [`crate::cdi_watch`] polls.
//!
//! Invariants: a pod's annotation can only choose a stronger mode than the policy, and is never weakened; a mode that
//! the policy requires and the node cannot enforce is refused or reported, never ignored.

pub mod limit;
pub(crate) mod report;
pub mod support;

use clap::ValueEnum;
use cluster::MpsConflict;
pub use placement::gpu::Isolation;

use tokio::sync::watch::Receiver;

use support::{IsolationSupport, Missing};

/// Characters of an annotation that an error repeats.
const QUOTED: usize = 64;

/// The weakest mode for the node's containers (`--isolation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MinIsolation {
    /// Not at all, until the driver's limit has been seen to hold.
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

/// Why a container is not held to its `gpu-cores`, for which the extender accounts in any case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComputeNotEnforced {
    /// The container is not limited at all.
    #[error(
        "MPS alone limits compute: set the annotation gpu-isolation to `mps`, and create the pod again"
    )]
    NotLimited,
    /// The node lacks MPS, or the container cannot be a client of it.
    #[error("MPS alone limits compute, and {0}")]
    NoMps(Missing),
}

/// Whether MPS holds a container with this mode to its part of the compute. In the mode `driver` too: memory and
/// compute are two requirements.
///
/// # Errors
/// Why it does not.
pub fn compute_by_mps(
    isolation: Isolation,
    support: &IsolationSupport,
) -> Result<(), ComputeNotEnforced> {
    support.mps.clone().map_err(ComputeNotEnforced::NoMps)?;
    if isolation == Isolation::None { Err(ComputeNotEnforced::NotLimited) } else { Ok(()) }
}

/// Why the required mode cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsolationError {
    /// No mode has that name.
    #[error(
        "the annotation gpu-isolation is `{0}`: set it to `driver`, `mps` or `none`, or take it off, and create the \
         pod again"
    )]
    Unknown(String),
    /// The node's support is not detected yet.
    #[error("what this node can enforce is not known yet; create the pod again")]
    NotKnown,
    /// The pod asks for MPS, and its spec excludes that.
    #[error(
        "isolation `mps` and the pod's spec exclude each other: {0}, or take the annotation gpu-isolation off, and \
         create the pod again"
    )]
    MpsConflict(MpsConflict),
    /// The node cannot enforce what the pod's annotation requires.
    #[error(
        "the annotation gpu-isolation requires `{required}`, which this node cannot enforce: {missing}. Create the \
         pod again, and the \
         scheduler-extender finds a node that can, or take the annotation off"
    )]
    Required {
        /// The mode of the annotation.
        required: Isolation,
        /// What the node lacks.
        missing: Missing,
    },
    /// The node cannot enforce the minimum of its policy.
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
    /// The mode of a container whose pod's annotation is `asked`: the weakest that the node can enforce of those that
    /// are at least as strong as the policy's and the pod's.
    ///
    /// # Errors
    /// If the annotation is no mode, if the node can enforce none that is as strong as the annotation, or if the
    /// policy's minimum cannot be enforced and the policy refuses that.
    pub fn decide(
        self,
        asked: Option<&str>,
        support: &IsolationSupport,
    ) -> Result<Decision, IsolationError> {
        let least = match self.minimum {
            MinIsolation::Auto | MinIsolation::None => Isolation::None,
            MinIsolation::Mps => Isolation::Mps,
            MinIsolation::Driver => Isolation::Driver,
        };
        let required = asked.map_or(Ok(Isolation::None), required)?;
        let wanted = required.max(least);
        let Err(missing) = support.of(wanted) else {
            return Ok(Decision { isolation: wanted, instead_of: None });
        };
        if let Some(isolation) = support.modes().find(|mode| *mode > wanted) {
            return Ok(Decision { isolation, instead_of: None });
        }
        let isolation = support.modes().rfind(|mode| *mode < wanted).unwrap_or_default();
        if isolation < required {
            let missing = support.of(required).err().unwrap_or(missing);
            return Err(IsolationError::Required { required, missing });
        }
        if self.unavailable == UnavailableAction::Refuse {
            return Err(IsolationError::Unavailable { wanted, missing });
        }
        Ok(Decision { isolation, instead_of: Some((wanted, missing)) })
    }
}

/// The mode that a pod's annotation requires.
fn required(annotation: &str) -> Result<Isolation, IsolationError> {
    annotation
        .parse()
        .map_err(|_| IsolationError::Unknown(annotation.chars().take(QUOTED).collect()))
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

    /// The value of the Node's annotation: the mode of pods without an annotation, or `refused`; `None` until the
    /// node's support is detected.
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
        IsolationSupport { driver: enforced(driver), mps: enforced(mps), drains_clients: None }
    }

    fn enforced(is_enforced: bool) -> Result<(), Missing> {
        if is_enforced { Ok(()) } else { Err(Missing::NotByCdi) }
    }

    fn policy(wanted: MinIsolation) -> Policy {
        Policy { minimum: wanted, unavailable: UnavailableAction::Downgrade }
    }

    fn mode(wanted: MinIsolation, asked: Option<&str>, support: &IsolationSupport) -> Isolation {
        policy(wanted).decide(asked, support).unwrap().isolation
    }

    #[test]
    fn auto_is_none_whatever_the_node_can_and_a_pod_may_ask_for_more() {
        for (driver, mps) in [(true, true), (true, false), (false, true), (false, false)] {
            assert_eq!(mode(MinIsolation::Auto, None, &support(driver, mps)), Isolation::None);
        }
        let all = support(true, true);
        assert_eq!(mode(MinIsolation::Auto, Some("mps"), &all), Isolation::Mps);
        assert_eq!(mode(MinIsolation::Auto, Some("driver"), &all), Isolation::Driver);
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
        let unavailable = Err(IsolationError::Unavailable {
            wanted: Isolation::Driver,
            missing: Missing::NotByCdi,
        });
        assert_eq!(refuse.decide(None, &lacking), unavailable);
        assert_eq!(
            policy(MinIsolation::Mps).decide(None, &support(false, false)).unwrap().isolation,
            Isolation::None
        );
    }

    #[test]
    fn what_a_pod_requires_is_never_weakened_whatever_the_policy() {
        let lacking = support(false, true);
        for unavailable in [UnavailableAction::Downgrade, UnavailableAction::Refuse] {
            for minimum in [MinIsolation::Auto, MinIsolation::None, MinIsolation::Mps] {
                let refused = Policy { minimum, unavailable }.decide(Some("driver"), &lacking);
                let expected = IsolationError::Required {
                    required: Isolation::Driver,
                    missing: Missing::NotByCdi,
                };
                assert_eq!(refused, Err(expected));
            }
        }
        // The node's own minimum may be weakened, down to what the pod requires.
        let decided = policy(MinIsolation::Driver).decide(Some("mps"), &lacking).unwrap();
        assert_eq!(decided.isolation, Isolation::Mps);
    }

    #[test]
    fn a_stronger_mode_does_for_a_weaker_one_that_the_node_cannot_enforce() {
        let driver_only = support(true, false);
        assert_eq!(mode(MinIsolation::None, Some("mps"), &driver_only), Isolation::Driver);
        assert_eq!(mode(MinIsolation::Mps, None, &driver_only), Isolation::Driver);
    }

    #[test]
    fn the_extender_knows_from_the_report_which_pods_are_clients_of_mps() {
        use placement::gpu::{GpuIsolation, PodIsolation, Sharing};
        let asked = [None, Some(Isolation::None), Some(Isolation::Mps), Some(Isolation::Driver)];
        for (minimum, driver, mps, asked) in all_cases(asked) {
            let support = support(driver, mps);
            let policy = policy(minimum);
            let Ok(decided) = policy.decide(asked.map(Isolation::name), &support) else { continue };
            let minimum = policy.decide(None, &support).unwrap().isolation;
            let (strongest, mps_clients) = support.strongest();
            let strongest = Some(strongest);
            let gpu = GpuIsolation { strongest, minimum, mps_clients, drains_clients: true };
            let required = asked.unwrap_or_default();
            for asks_for_compute in [false, true] {
                let pod = PodIsolation { required, excludes_mps: false, asks_for_compute };
                let by_mps = compute_by_mps(decided.isolation, &support).is_ok();
                let is_client = decided.isolation == Isolation::Mps || asks_for_compute && by_mps;
                assert_eq!(gpu.sharing(pod) == Sharing::Mps, is_client, "{gpu:?} {pod:?}");
            }
        }
    }

    /// Every policy, support and annotation.
    fn all_cases(
        asked: [Option<Isolation>; 4],
    ) -> impl Iterator<Item = (MinIsolation, bool, bool, Option<Isolation>)> {
        MinIsolation::value_variants().iter().flat_map(move |minimum| {
            [(false, false), (false, true), (true, false), (true, true)].into_iter().flat_map(
                move |(driver, mps)| {
                    asked.into_iter().map(move |asked| (*minimum, driver, mps, asked))
                },
            )
        })
    }

    #[test]
    fn every_mode_reads_back_by_its_name() {
        for mode in Isolation::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
    }
}
