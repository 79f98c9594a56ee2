//! Why a container gets no GPU. The texts become events of the pod.
//!
//! Invariant: every text names the pod where it is known, the reason, and what to do.

use cluster::{ClaimError, NODE_FAULT};
use placement::units::{GpuId, PodUid};

use crate::gpus::Unhealthy;
use crate::gpus::ids::first_few;
use crate::isolation::IsolationError;
use crate::isolation::support::Missing;
use crate::pods::PodRef;

/// Why a call of the kubelet is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The pod has no claim: the extender did not bind it.
    #[error(
        "pod {0} has no GPU claim: it was not bound by Plimsoll's scheduler-extender. Let kube-scheduler bind it \
         (no spec.nodeName; the extender's bind verb configured), and create it again"
    )]
    Unclaimed(PodRef),
    /// The pod has no claim, and no GPU has room for it.
    #[error(
        "pod {pod} has no GPU claim (something else than Plimsoll's scheduler-extender bound it), and this node has \
         no GPU for it: {why}. Let \
         kube-scheduler bind it (no spec.nodeName), and create it again"
    )]
    NoRoom {
        /// The pod being admitted.
        pod: PodRef,
        /// What the GPUs lack.
        why: String,
    },
    /// The claim is malformed or does not match the pod's spec.
    #[error(
        "pod {pod}: {cause}. Something other than the scheduler-extender wrote it; create the pod again"
    )]
    BadClaim {
        /// The pod being admitted.
        pod: PodRef,
        /// What is wrong with the claim.
        cause: ClaimError,
    },
    /// The claim gives the container no GPU.
    #[error(
        "pod {pod}, container {container}: its claim names no GPU for it; create the pod again"
    )]
    NotClaimed {
        /// The pod being admitted.
        pod: PodRef,
        /// The container's name.
        container: String,
    },
    /// The node does not have the claimed GPU.
    #[error(
        "pod {pod} claims GPU {gpu}, which this node does not have (any more); create the pod again"
    )]
    NoSuchGpu {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
    },
    /// The claimed GPU has become unhealthy.
    #[error(
        "pod {pod} claims GPU {gpu}, which has become unhealthy: {why}; create the pod again, and it goes to \
         another GPU"
    )]
    Unhealthy {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
        /// What is wrong with the GPU.
        why: Unhealthy,
    },
    /// The claimed GPU has too few free units.
    #[error(
        "pod {pod} claims {asked} units of GPU {gpu}, where {free} are free by the kubelet's record (a pod that is \
         still ending, or that the extender does not know, holds the rest); create the pod again"
    )]
    GpuFull {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
        /// Units of the GPU that no container holds.
        free: usize,
        /// Units that the kubelet requests.
        asked: usize,
    },
    /// Another pod has the claimed GPU exclusively.
    #[error(
        "pod {pod} claims GPU {gpu}, which another pod has for itself (`exclusive`) by the plugin's record; create \
         the pod \
         again, and it goes to another GPU"
    )]
    GpuTaken {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
    },
    /// Another pod holds the claimed GPU through another device plugin's resource, or by a resource claim.
    #[error(
        "pod {pod} claims GPU {gpu}, which the pod with UID {holder} holds through {resource}: let one device \
         plugin or DRA driver alone serve this \
         node's GPUs, and create the pod again"
    )]
    HeldElsewhere {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
        /// The other resource, or the claim's driver.
        resource: String,
        /// The UID of the pod that holds the GPU.
        holder: PodUid,
    },
    /// A DRA driver offers the claimed GPU as well.
    #[error(
        "pod {pod} claims GPU {gpu}, which the DRA driver {driver} offers as well: let one of both serve this node's \
         GPUs, and create the pod again"
    )]
    OfferedByDra {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
        /// The driver.
        driver: String,
    },
    /// ResourceClaims have the GPU for themselves.
    #[error(
        "pod {pod} claims GPU {gpu}, which ResourceClaims have for themselves, by the node's label gpu-mode or until the \
         last of them has ended: create the pod again"
    )]
    OfClaims {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
    },
    /// The pod claims the GPU exclusively, and another pod is on it.
    #[error(
        "pod {pod} claims GPU {gpu} for itself (`exclusive`), where another pod (one that is still ending, or that \
         the extender \
         does not know) holds units by the kubelet's record; create the pod again"
    )]
    NotAlone {
        /// The pod being admitted.
        pod: PodRef,
        /// The GPU of its claim.
        gpu: GpuId,
    },
    /// No pod of the node waits for that many units.
    #[error(
        "{size} units were asked for, but no pod on this node waits for that many; create the pod again. A static pod \
         gets no \
         units, since the kubelet admits it before the API server shows it: make it a DaemonSet's"
    )]
    NoPodAsks {
        /// Units that the kubelet requests.
        size: usize,
    },
    /// The API server does not have the pod.
    #[error(
        "{size} units were asked for, and the API server does not show {}: a static pod, which gets no units (make it \
         a \
         DaemonSet's), or one that was deleted by force",
        first_few(.pods)
    )]
    NotInApi {
        /// Units that the kubelet requests.
        size: usize,
        /// The pods that may be the one being admitted.
        pods: Vec<PodRef>,
    },
    /// Several pods may be the one being admitted, and none of them has a claim.
    #[error(
        "{size} units were asked for, and none of the pods that may be the one being admitted has a GPU claim ({}): \
         they were not \
         bound by Plimsoll's scheduler-extender. Let kube-scheduler bind them (no spec.nodeName; the extender's bind \
         verb \
         configured), and create them again",
        first_few(.pods)
    )]
    NoneClaimed {
        /// Units that the kubelet requests.
        size: usize,
        /// All pods that fit.
        pods: Vec<PodRef>,
    },
    /// Several pods may be the one being admitted.
    #[error(
        "{size} units were asked for, and each of {} may be the pod being admitted; create it again",
        first_few(.pods)
    )]
    Ambiguous {
        /// Units that the kubelet requests.
        size: usize,
        /// All pods that fit.
        pods: Vec<PodRef>,
    },
    /// The kubelet or the API server does not say which pod is being admitted.
    #[error(
        "cannot tell which pod the kubelet is admitting: {0}; create the pod again once that works"
    )]
    Unidentified(String),
    /// The required isolation cannot be enforced.
    #[error("pod {pod}: {cause}")]
    Isolation {
        /// The pod being admitted.
        pod: PodRef,
        /// Why not, and what to do.
        cause: IsolationError,
    },
    /// The CDI device of the container's limit cannot be written.
    #[error("pod {pod}: {cause}")]
    Limit {
        /// The pod being admitted.
        pod: PodRef,
        /// Why not, and what to do.
        cause: String,
    },
    /// The pod has as many limits as it may have.
    #[error("pod {pod}: {cause}")]
    TooManyLimits {
        /// The pod being admitted.
        pod: PodRef,
        /// Why not, and what to do.
        cause: String,
    },
    /// This plugin did not choose the ids.
    #[error(
        "device ids {0} were not chosen by this plugin for the pod being admitted; create the pod again"
    )]
    NotChosen(String),
    /// An id is on none of the container's claimed GPUs.
    #[error("device ids {0} are not on GPUs of this node that were claimed; create the pod again")]
    NotOnClaimedGpu(String),
}

impl Refusal {
    /// The text for the kubelet: the refusal, and whether the node is at fault.
    pub fn text(&self) -> String {
        if self.is_of_node() { format!("{self} {NODE_FAULT}") } else { self.to_string() }
    }

    /// Whether the node is at fault, so that any other pod of its kind would be refused too. What depends on the pod's
    /// own spec or annotations, or on what other pods do, is no fault of the node.
    fn is_of_node(&self) -> bool {
        match self {
            Self::Unhealthy { .. } | Self::HeldElsewhere { .. } => true,
            Self::OfferedByDra { .. } | Self::OfClaims { .. } | Self::Unidentified(_) => true,
            Self::Isolation { cause: IsolationError::NotKnown, .. } => true,
            Self::Limit { .. } => true,
            Self::Isolation { cause: IsolationError::Unavailable { missing, .. }, .. } => {
                !matches!(missing, Missing::MpsConflict(_))
            }
            _ => false,
        }
    }

    /// The label `reason` of `plimsoll_gpu_refusals_total`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unclaimed(_) => "unclaimed",
            Self::NoRoom { .. } => "no_room",
            Self::BadClaim { .. } => "bad_claim",
            Self::NotClaimed { .. } => "not_claimed",
            Self::NoSuchGpu { .. } => "no_such_card",
            Self::Unhealthy { .. } => "unhealthy",
            Self::GpuFull { .. } => "card_full",
            Self::GpuTaken { .. } => "card_taken",
            Self::NotAlone { .. } => "not_alone",
            Self::HeldElsewhere { .. } => "held_elsewhere",
            Self::OfferedByDra { .. } => "offered_by_dra",
            Self::OfClaims { .. } => "of_claims",
            Self::NoPodAsks { .. } => "no_pod_asks",
            Self::NotInApi { .. } => "not_in_api",
            Self::NoneClaimed { .. } => "unclaimed",
            Self::Ambiguous { .. } => "ambiguous",
            Self::Unidentified(_) => "unidentified",
            Self::Isolation { .. } => "isolation",
            Self::Limit { .. } | Self::TooManyLimits { .. } => "limit",
            Self::NotChosen(_) => "not_chosen",
            Self::NotOnClaimedGpu(_) => "not_on_claimed_card",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::cdi::CdiError;
    use crate::isolation::Isolation;
    use cluster::MpsConflict;

    /// What each text asks the reader to do. A new refusal does not compile without.
    fn fix(refusal: &Refusal) -> &'static [&'static str] {
        match refusal {
            Refusal::Unclaimed(_) => {
                &["Let kube-scheduler bind it", "bind verb", "create it again"]
            }
            Refusal::NoneClaimed { .. } => {
                &["Let kube-scheduler bind them", "bind verb", "create them again"]
            }
            Refusal::NotInApi { .. } => &["make it a DaemonSet's"],
            Refusal::NoRoom { .. } => &["Let kube-scheduler bind it", "create it again"],
            Refusal::BadClaim { .. } => &["Something other than", "create the pod again"],
            Refusal::NotClaimed { .. } | Refusal::NoSuchGpu { .. } | Refusal::NoPodAsks { .. } => {
                &["create the pod again"]
            }
            Refusal::GpuFull { .. } => &["holds the rest", "create the pod again"],
            Refusal::GpuTaken { .. } | Refusal::Unhealthy { .. } => {
                &["create the pod again", "another GPU"]
            }
            Refusal::NotAlone { .. } => &["holds units", "create the pod again"],
            Refusal::HeldElsewhere { .. } => &["one device plugin", "create the pod again"],
            Refusal::OfferedByDra { .. } => &["let one of both", "create the pod again"],
            Refusal::OfClaims { .. } => &["create the pod again"],
            Refusal::Ambiguous { .. } => &["create it again"],
            Refusal::Unidentified(_) => &["create the pod again once that works"],
            Refusal::Isolation { cause, .. } => match cause {
                IsolationError::Unknown(_) => &["set it to `driver`, `mps` or `none`", "create"],
                IsolationError::NotKnown => &["create the pod again"],
                IsolationError::MpsConflict(_) => &["take ", "create the pod again"],
                IsolationError::Required { .. } => {
                    &["Create the pod again", "take the annotation off"]
                }
                IsolationError::Unavailable { missing, .. } => match missing {
                    Missing::NotByCdi => &["--response=cdi"],
                    Missing::NoHook(_) => &["install NVIDIA's container toolkit", "generate"],
                    Missing::OldDriver(_) | Missing::UnknownDriver => &["install"],
                    Missing::NoCgroupV2(_) => &["boot the node with them", "mount the host's"],
                    Missing::AccountingOff(_) => &["take it out", "load that again"],
                    Missing::NotHeld(_) => &["restart the device plugin"],
                    Missing::NoMps => &["--mps-dir"],
                    Missing::NoDaemon(_) => &["run it on this node", "mps.enabled"],
                    Missing::NotTheDaemons { .. } => &["Remove it", "mps.enabled"],
                    Missing::MpsConflict(MpsConflict::Pipes) => &["mount it elsewhere"],
                    Missing::OldGpu { .. } => &["keep pods", "off this node"],
                    Missing::MpsConflict(_) => &["take ", " off"],
                },
            },
            Refusal::Limit { .. } => &["Mount the host's CDI directory"],
            Refusal::TooManyLimits { .. } => &["gpu-mem-limit", "create the pod again"],
            Refusal::NotChosen(_) | Refusal::NotOnClaimedGpu(_) => &["create the pod again"],
        }
    }

    fn pod() -> PodRef {
        PodRef::new("ml", "train-0")
    }

    fn unavailable(missing: Missing) -> Refusal {
        let cause = IsolationError::Unavailable { wanted: Isolation::Driver, missing };
        Refusal::Isolation { pod: pod(), cause }
    }

    #[test]
    fn every_text_names_its_fix_and_the_pod_where_it_is_known() {
        let claim = ClaimError::NoClaim(placement::gpu::ClaimError::Apart);
        let unwritten = CdiError::Write {
            path: "/var/run/cdi/own.json".into(),
            cause: std::io::ErrorKind::PermissionDenied.into(),
        };
        let known = [
            Refusal::Unclaimed(pod()),
            Refusal::NoRoom { pod: pod(), why: "no GPU with room".to_owned() },
            Refusal::BadClaim { pod: pod(), cause: claim },
            Refusal::NotClaimed { pod: pod(), container: "main".to_owned() },
            Refusal::NoSuchGpu { pod: pod(), gpu: "GPU-a".into() },
            Refusal::Unhealthy { pod: pod(), gpu: "GPU-a".into(), why: Unhealthy::Lost },
            Refusal::GpuFull { pod: pod(), gpu: "GPU-a".into(), free: 2, asked: 3 },
            Refusal::GpuTaken { pod: pod(), gpu: "GPU-a".into() },
            Refusal::NotAlone { pod: pod(), gpu: "GPU-a".into() },
            Refusal::HeldElsewhere {
                pod: pod(),
                gpu: "GPU-a".into(),
                resource: "nvidia.com/gpu".to_owned(),
                holder: "8b1f4a9e".into(),
            },
            Refusal::OfferedByDra {
                pod: pod(),
                gpu: "GPU-a".into(),
                driver: "gpu.nvidia.com".to_owned(),
            },
            Refusal::OfClaims { pod: pod(), gpu: "GPU-a".into() },
            Refusal::Ambiguous { size: 3, pods: vec![pod()] },
            Refusal::NoneClaimed { size: 3, pods: vec![pod()] },
            Refusal::NotInApi { size: 3, pods: vec![pod()] },
            Refusal::Isolation { pod: pod(), cause: IsolationError::Unknown("soft".to_owned()) },
            Refusal::Isolation { pod: pod(), cause: IsolationError::NotKnown },
            Refusal::Isolation {
                pod: pod(),
                cause: IsolationError::MpsConflict(MpsConflict::SharedMemory),
            },
            Refusal::Isolation {
                pod: pod(),
                cause: IsolationError::Required {
                    required: Isolation::Driver,
                    missing: Missing::UnknownDriver,
                },
            },
            unavailable(Missing::NotByCdi),
            unavailable(Missing::NoHook("GPU-a".to_owned())),
            unavailable(Missing::OldDriver("580.1".to_owned())),
            unavailable(Missing::UnknownDriver),
            unavailable(Missing::NoCgroupV2("/sys/fs/cgroup".into())),
            unavailable(Missing::AccountingOff("/proc/driver/nvidia/params".into())),
            unavailable(Missing::NotHeld("ml/train-0".to_owned())),
            unavailable(Missing::NoMps),
            unavailable(Missing::NoDaemon("/run/plimsoll-mps/pipe".into())),
            unavailable(Missing::NotTheDaemons { path: "/run/plimsoll-mps/pipe".into(), owner: 0 }),
            unavailable(Missing::MpsConflict(MpsConflict::HostIpc)),
            unavailable(Missing::MpsConflict(MpsConflict::SharedMemory)),
            unavailable(Missing::MpsConflict(MpsConflict::Pipes)),
            Refusal::Limit { pod: pod(), cause: unwritten.to_string() },
            Refusal::TooManyLimits { pod: pod(), cause: CdiError::TooManyLimits.to_string() },
        ];
        let unknown = [
            Refusal::NoPodAsks { size: 3 },
            Refusal::Unidentified("PodResources List: timed out".to_owned()),
            Refusal::NotChosen("aaaaaaaa-0".to_owned()),
            Refusal::NotOnClaimedGpu("aaaaaaaa-0".to_owned()),
        ];
        for refusal in known.iter().chain(&unknown) {
            let text = refusal.to_string();
            assert!(fix(refusal).iter().all(|fix| text.contains(fix)), "{text}");
        }
        for refusal in known {
            assert!(refusal.to_string().contains("ml/train-0"), "{refusal}");
        }
    }

    #[test]
    fn a_limit_that_cannot_be_written_is_the_nodes_fault_and_too_many_are_the_pods() {
        let cause = "no".to_owned();
        let unwritten = Refusal::Limit { pod: pod(), cause: cause.clone() };
        assert_eq!(unwritten.text(), format!("pod ml/train-0: no {NODE_FAULT}"));
        assert_eq!(Refusal::TooManyLimits { pod: pod(), cause }.text(), "pod ml/train-0: no");
    }

    #[test]
    fn the_text_names_pod_reason_and_remedy() {
        let text =
            Refusal::GpuFull { pod: pod(), gpu: "GPU-a".into(), free: 2, asked: 3 }.to_string();
        assert!(
            text.starts_with("pod ml/train-0 claims 3 units of GPU GPU-a, where 2 are free"),
            "{text}"
        );
        assert!(text.ends_with("create the pod again"), "{text}");
    }
}
