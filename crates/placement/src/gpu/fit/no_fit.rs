//! Why no GPUs fit a request.

use super::assign::assign;
use crate::gpu::{Excess, FreeGpu, GpuFit, GpuRequest, GpuShare};

/// Why no GPUs of a node fit a request. The text is the same whatever the numbers: kube-scheduler groups nodes by it
/// and uses it as a format string. The numbers are in [`Fit::gpus`](super::Fit::gpus).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.reason())]
pub enum NoFit {
    /// The node reports no GPUs.
    NoGpus,
    /// The node offers no GPU to ResourceClaims.
    NoShares,
    /// The pod accepts none of the node's GPUs.
    NotAccepted,
    /// The node cannot enforce the isolation that the pod requires.
    WeakIsolation,
    /// The node does not report which isolation it can enforce, and the pod requires some.
    UnknownIsolation,
    /// The node has refused several pods, and takes none for a while.
    BackedOff,
    /// The request is larger than any GPU of the node, or for more GPUs than it has: evicting pods does not help.
    TooLarge,
    /// Enough GPUs have room, but some of these are unhealthy.
    Unhealthy,
    /// Enough healthy GPUs have room, but some of these take no new pods.
    Closed,
    /// Enough GPUs have the memory, but some of them have too little compute.
    NoCores,
    /// Too few GPUs are without pods.
    InUse,
    /// Some GPUs have room, but fewer than the pod needs.
    TooFewGpus,
    /// Every GPU of that size has too few units free.
    NoRoom,
    /// The pod would take more of the GPUs than its units are of them, without a right to that.
    BeyondUnits(Excess),
    /// GPUs have room, but pods on them share them by MPS and this pod would not, or the other way round.
    OtherSharing,
    /// GPUs have room, but serve too few more clients of MPS.
    TooManyClients,
    /// GPUs have room, but the node's free units are needed for pods that are not on a GPU yet.
    NeededByUnplaced,
}

impl NoFit {
    /// The text for Filter's answer, events and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoGpus => {
                reason!("node reports no GPUs: is gpushare-device-plugin running there?")
            }
            Self::NoShares => reason!(
                "node offers no GPU to ResourceClaims: it has none, all are closed, or they are given out by units"
            ),
            Self::NotAccepted => reason!("node has no GPU of a model that the pod accepts"),
            Self::WeakIsolation => reason!(
                "node cannot enforce the pod's gpu-isolation (for mps: no daemon runs, or the pod mounts a /dev/shm or has the host's IPC)"
            ),
            Self::UnknownIsolation => reason!(
                "node does not report which gpu-isolation it can enforce: is its device plugin up to date?"
            ),
            Self::BackedOff => {
                reason!("node takes no GPU pods for a while: it has refused several of them")
            }
            Self::TooLarge => {
                reason!("Insufficient GPU Memory in one device: the node has no GPU of that size")
            }
            Self::Unhealthy => {
                reason!("Insufficient GPU Memory in one device: GPUs with room are unhealthy")
            }
            Self::Closed => reason!(
                "Insufficient GPU Memory in one device: GPUs with room take no new pods, see the events of the node"
            ),
            Self::NoCores => reason!("Insufficient GPU compute in one device"),
            Self::InUse => reason!("too few GPUs without pods"),
            Self::TooFewGpus => reason!("Insufficient GPU Memory in enough devices"),
            Self::NoRoom => reason!("Insufficient GPU Memory in one device"),
            Self::BeyondUnits(excess) => excess.reason(),
            Self::OtherSharing => reason!(
                "GPUs with room have pods of the other kind: pods with MPS and pods without it share no GPU"
            ),
            Self::TooManyClients => {
                reason!("GPUs with room serve no more clients of MPS")
            }
            Self::NeededByUnplaced => reason!(
                "free GPU memory of the node is needed for pods without a claim that the kubelet has not admitted yet"
            ),
        }
    }

    /// Whether the GPUs may fit once pods on them have ended.
    pub fn is_resolvable(self) -> bool {
        !matches!(
            self,
            Self::NoGpus
                | Self::NoShares
                | Self::NotAccepted
                | Self::WeakIsolation
                | Self::UnknownIsolation
                | Self::BackedOff
                | Self::TooLarge
                | Self::BeyondUnits(_)
        )
    }

    /// A short text, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoGpus => "no cards reported",
            Self::NoShares => "no GPU for claims",
            Self::NotAccepted => "no GPU of an accepted model",
            Self::WeakIsolation => "weaker isolation",
            Self::UnknownIsolation => "isolation not reported",
            Self::BackedOff => "backed off",
            Self::TooLarge => "larger than any GPU",
            Self::Unhealthy => "no healthy GPU with room",
            Self::Closed => "no open GPU with room",
            Self::NoCores => "no GPU with compute",
            Self::InUse => "no GPU without pods",
            Self::TooFewGpus => "too few GPUs with room",
            Self::NoRoom => "no GPU with room",
            Self::BeyondUnits(excess) => excess.label(),
            Self::OtherSharing => "GPUs shared in the other way",
            Self::TooManyClients => "too many clients of MPS",
            Self::NeededByUnplaced => "needed by unplaced pods",
        }
    }
}

/// Why none of `gpus` fit the request.
pub(in crate::gpu) fn why_no_fit(gpus: &[&FreeGpu], request: &GpuRequest) -> NoFit {
    let shares = request.shares();
    let largest = request.largest();
    let filter = request.filter();
    let named: Vec<&FreeGpu> = gpus.iter().copied().filter(|gpu| gpu.is_named_by(filter)).collect();
    let mut accepted = named.clone();
    accepted.retain(|gpu| filter.is_enforced_by(gpu.isolation.strongest));
    if gpus.is_empty() {
        NoFit::NoGpus
    } else if named.is_empty() {
        NoFit::NotAccepted
    } else if accepted.is_empty() && named.iter().all(|gpu| gpu.isolation.strongest.is_none()) {
        NoFit::UnknownIsolation
    } else if accepted.is_empty() {
        NoFit::WeakIsolation
    } else if !fits_if(&accepted, shares, FreeGpu::is_large_enough) {
        NoFit::TooLarge
    } else if !fits_if(&accepted, shares, |gpu, share| gpu.is_allowed(share, request))
        && let Some(excess) = excess(&accepted, request)
    {
        NoFit::BeyondUnits(excess)
    } else if fits_if(&accepted, shares, |gpu, share| {
        gpu.is_open() && gpu.is_allowed(share, request) && gpu.room().has_room(share)
    }) {
        if fits_if(&accepted, shares, |gpu, share| {
            matches!(gpu.fit(share, request), GpuFit::Fits { .. } | GpuFit::TooManyClients { .. })
        }) {
            NoFit::TooManyClients
        } else {
            NoFit::OtherSharing
        }
    } else if fits_if(&accepted, shares, |gpu, share| {
        gpu.healthy && gpu.is_allowed(share, request) && gpu.room().has_room(share)
    }) {
        NoFit::Closed
    } else if fits_if(&accepted, shares, |gpu, share| {
        gpu.is_allowed(share, request) && gpu.room().has_room(share)
    }) {
        NoFit::Unhealthy
    } else if largest.exclusive {
        NoFit::InUse
    } else if fits_if(&accepted, shares, |gpu, share| {
        gpu.is_allowed(share, request) && gpu.has_memory(share)
    }) {
        NoFit::NoCores
    } else if shares.len() > 1 && accepted.iter().any(|gpu| gpu.has_memory(largest)) {
        NoFit::TooFewGpus
    } else {
        NoFit::NoRoom
    }
}

/// Whether each share gets a GPU of its own, if a share fits a GPU on this condition.
fn fits_if(
    gpus: &[&FreeGpu],
    shares: &[GpuShare],
    condition: impl Fn(&FreeGpu, GpuShare) -> bool,
) -> bool {
    assign(gpus, shares, condition).is_some()
}

/// What the request would take beyond its units on a GPU that is large enough; the same in whatever order the GPUs
/// are.
fn excess(gpus: &[&FreeGpu], request: &GpuRequest) -> Option<Excess> {
    let mut least: Option<Excess> = None;
    for gpu in gpus {
        for share in request.shares().iter().filter(|share| gpu.is_large_enough(**share)) {
            least = least.into_iter().chain(request.excess(*share, gpu.units)).min();
        }
    }
    least
}
