//! One GPU with what pods and ResourceClaims are charged on it, and why each charge counts there.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::free_gpu::Room;
use super::{FreeGpu, Gpu, GpuRequest, GpuShare, ResourceClaim, Sharers, Sharing};
use crate::units::{Cores, PodUid, Units};

/// One GPU and what pods are charged on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The GPU.
    pub gpu: FreeGpu,
    /// One charge for each pod, sorted by UID, after those without a pod.
    pub charges: Vec<Charge>,
}

impl Account {
    /// Units that pods and ResourceClaims hold, as far as is known ([`Basis::is_held`]).
    pub fn held(&self) -> Units {
        self.sum(|charge| charge.basis.is_held())
    }

    fn sum(&self, counts: impl Fn(&Charge) -> bool) -> Units {
        self.charges.iter().filter(|charge| counts(charge)).map(|charge| charge.units).sum()
    }

    /// Units that are held beyond those of the GPU, by what is there by the kubelet's records, by Bind's choice or by
    /// a claim.
    pub fn overbooked(&self) -> Units {
        let mut certain = Units::ZERO;
        for charge in &self.charges {
            certain = certain.saturating_add(match charge.basis {
                Basis::Recorded | Basis::Chosen | Basis::Claimed => charge.units,
                // Units are rounded up for each ResourceClaim: others may have the rest of the last one.
                Basis::ResourceClaim => charge.units.saturating_sub(Units(1)),
                _ => Units::ZERO,
            });
        }
        certain.saturating_sub(self.gpu.units)
    }

    /// The account of a GPU that has these charges. What `gpu` itself has free does not matter.
    pub(super) fn new(gpu: &FreeGpu, charges: Vec<Charge>) -> Self {
        Self { gpu: gpu.with_room(room_left(gpu.units, charges.iter())), charges }
    }

    /// The GPU as the pod finds it.
    pub(super) fn for_pod(&self, pod: &PodUid, request: &GpuRequest) -> FreeGpu {
        self.with_charges(|charge| charge.counts_against(pod, request))
    }

    pub(super) fn with_charges(&self, stays: impl Fn(&&Charge) -> bool) -> FreeGpu {
        self.gpu.with_room(room_left(self.gpu.units, self.charges.iter().filter(stays)))
    }
}

/// What these charges leave free of a GPU with `units` units.
pub(super) fn room_left<'c>(units: Units, charges: impl Iterator<Item = &'c Charge>) -> Room {
    let sharers = Sharers::None;
    let mut room = Room { units, cores: Cores::ALL, idle: true, sharers, clients: 0 };
    for charge in charges {
        room.units = room.units.saturating_sub(charge.units);
        room.cores = room.cores.saturating_sub(charge.cores);
        room.idle = false;
        room.sharers = room.sharers.and(charge.sharing);
        if charge.sharing != Some(Sharing::Turns) {
            room.clients = room.clients.saturating_add(charge.processes);
        }
    }
    room
}

/// What one pod or ResourceClaim is charged on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The pod's UID; empty for a ResourceClaim, which several pods may share, and for unmanaged memory.
    pub pod: PodUid,
    /// Its units; never zero. All units of the GPU for an exclusive pod.
    pub units: Units,
    /// Percent of the GPU's compute.
    pub cores: Cores,
    /// Its processes that use the GPU at the same time.
    pub processes: u16,
    /// How it shares the GPU; `None` where that is not known, for a pod whose GPU is not known, for ResourceClaims and
    /// for unmanaged memory.
    pub sharing: Option<Sharing>,
    /// Why it counts here.
    pub basis: Basis,
    /// For a nominated pod, its priority: pods of higher priority take the units. `None` for what counts against all.
    pub kept_at: Option<i32>,
    /// The ResourceClaim; `None` for what pods hold by units, and for unmanaged memory.
    pub claim: Option<Arc<ResourceClaim>>,
}

/// Why a pod or a ResourceClaim counts on a GPU.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The kubelet's records place it there.
    Recorded,
    /// Bind chose the GPU; the kubelet's records do not place the pod yet.
    Chosen,
    /// Its claim names the GPU, or did; the kubelet's records do not place the pod yet.
    Claimed,
    /// Its GPU is unknown: it counts on every GPU of the node.
    UnknownPlace,
    /// Its claim names another GPU, and nothing else is known of the pod: it counts on every GPU of the node.
    UnprovenClaim,
    /// It holds nothing yet: pods were evicted for it, and the GPU is kept for it.
    Nominated,
    /// Unmanaged: memory in use beyond what pods hold.
    Unmanaged,
    /// kube-scheduler has allocated it to a ResourceClaim.
    ResourceClaim,
}

impl Basis {
    /// Whether the units are held, as far as is known. False for unproven claims, for nominated pods, which hold
    /// nothing yet, and for unmanaged memory.
    #[must_use]
    pub fn is_held(self) -> bool {
        !matches!(self, Self::UnprovenClaim | Self::Nominated | Self::Unmanaged)
    }
}

impl Charge {
    /// What a pod with this share is charged on a GPU with `gpu` units; `None` for an empty share.
    pub(super) fn of(
        pod: &PodUid,
        share: GpuShare,
        basis: Basis,
        sharing: Option<Sharing>,
        gpu: Units,
    ) -> Option<Self> {
        let (units, cores) = if share.exclusive {
            (share.units.max(gpu), share.cores.max(Cores::ALL))
        } else {
            (share.units, share.cores)
        };
        let (pod, processes, kept_at) = (pod.clone(), share.processes, None);
        let charge = Self { pod, units, cores, processes, sharing, basis, kept_at, claim: None };
        (!share.is_zero()).then_some(charge)
    }

    /// What a ResourceClaim is charged on a GPU; `unknown` is what it may have of any other than those where it has a
    /// device. How its pods share the GPU is not known here.
    pub(super) fn of_claim(
        claim: &Arc<ResourceClaim>,
        gpu: &Gpu,
        unknown: Option<GpuShare>,
    ) -> Option<Self> {
        let (share, basis) = match claim.share_of(gpu) {
            Some(share) => (share, Basis::ResourceClaim),
            None => (unknown?, Basis::UnknownPlace),
        };
        let charge = Self::of(&PodUid::from(""), share, basis, None, gpu.units)?;
        Some(Self { claim: Some(Arc::clone(claim)), ..charge })
    }

    /// Whether it is of the pod, or of a ResourceClaim that is reserved for it.
    #[must_use]
    pub fn is_of(&self, pod: &PodUid) -> bool {
        self.pod == *pod || self.claim.as_ref().is_some_and(|claim| claim.pods.contains(pod))
    }

    /// The pods that have it: of a ResourceClaim those that it is reserved for.
    #[must_use]
    pub fn pods(&self) -> &[PodUid] {
        self.claim.as_ref().map_or(std::slice::from_ref(&self.pod), |claim| &claim.pods)
    }

    /// Whether it ends once the pods are gone for which `gone` is true.
    pub(super) fn ends_without(&self, gone: impl Fn(&PodUid) -> bool) -> bool {
        self.claim.as_ref().is_none_or(|claim| claim.ends_with_pods)
            && !self.pods().is_empty()
            && self.pods().iter().all(gone)
    }

    /// Whether the units are taken for this pod. What is kept for itself, or for a less important pod, is not.
    pub(super) fn counts_against(&self, pod: &PodUid, request: &GpuRequest) -> bool {
        self.kept_at.is_none_or(|kept_at| self.pod != *pod && request.priority() <= kept_at)
    }
}
