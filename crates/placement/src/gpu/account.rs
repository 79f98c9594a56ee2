//! One GPU with what pods are charged on it, and why each charge counts there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::free_gpu::Room;
use super::{FreeGpu, GpuRequest, GpuShare, Sharers, Sharing};
use crate::units::{Cores, PodUid, Units};

/// One GPU and what pods are charged on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The GPU.
    pub gpu: FreeGpu,
    /// One charge for each pod, sorted by UID.
    pub charges: Vec<Charge>,
}

impl Account {
    /// Units that pods hold, as far as is known ([`Basis::is_held`]).
    pub fn held(&self) -> Units {
        self.sum(Basis::is_held)
    }

    /// Units of the pods that are on this GPU by the kubelet's records, by Bind's choice or by their claim.
    pub fn of_known_place(&self) -> Units {
        self.sum(|basis| matches!(basis, Basis::Recorded | Basis::Chosen | Basis::Claimed))
    }

    fn sum(&self, counts: impl Fn(Basis) -> bool) -> Units {
        self.charges.iter().filter(|charge| counts(charge.basis)).map(|charge| charge.units).sum()
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

/// What one pod is charged on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The pod's UID; empty for unmanaged memory, which belongs to no pod.
    pub pod: PodUid,
    /// Its units; never zero. All units of the GPU for an exclusive pod.
    pub units: Units,
    /// Percent of the GPU's compute.
    pub cores: Cores,
    /// Its processes that use the GPU at the same time.
    pub processes: u16,
    /// How it shares the GPU; `None` where that is not known, for a pod whose GPU is not known, and for unmanaged
    /// memory.
    pub sharing: Option<Sharing>,
    /// Why it counts here.
    pub basis: Basis,
    /// For a nominated pod, its priority: pods of higher priority take the units. `None` for what counts against all.
    pub kept_at: Option<i32>,
}

/// Why a pod counts on a GPU.
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
}

impl Basis {
    /// Whether the pod holds the units, as far as is known. False for unproven claims, for nominated pods, which hold
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
        let charge = Self { pod, units, cores, processes, sharing, basis, kept_at };
        (!share.is_zero()).then_some(charge)
    }

    /// Whether the units are taken for this pod. What is kept for itself, or for a less important pod, is not.
    pub(super) fn counts_against(&self, pod: &PodUid, request: &GpuRequest) -> bool {
        self.kept_at.is_none_or(|kept_at| self.pod != *pod && request.priority() <= kept_at)
    }
}
