//! A GPU with what is free of it, and whether a share of a request fits it.

use super::{
    Closed, Excess, GpuFilter, GpuIsolation, GpuRequest, GpuShare, Sharers, Sharing, Topology,
};
use crate::units::{Cores, GpuId, GpuModel, Units};

/// A GPU and what is left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeGpu {
    /// The GPU.
    pub uuid: GpuId,
    /// Its index, which breaks ties.
    pub index: u32,
    /// The product's name.
    pub model: GpuModel,
    /// Where it is in its machine.
    pub topology: Topology,
    /// All its units.
    pub units: Units,
    /// Units that are charged to no pod.
    pub free: Units,
    /// Percent of its compute that is charged to no pod.
    pub free_cores: Cores,
    /// Whether nothing is charged to any pod.
    pub idle: bool,
    /// Whether it works.
    pub healthy: bool,
    /// Why it takes no new pods although it may be healthy.
    pub closed: Option<Closed>,
    /// The isolation that its node reports for it.
    pub isolation: GpuIsolation,
    /// The kinds of pods that are charged.
    pub sharers: Sharers,
    /// Clients of MPS, with those that may be.
    pub clients: u16,
}

/// Whether a share fits one GPU, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuFit {
    /// It fits.
    Fits {
        /// Units that stay free.
        left: Units,
    },
    /// The GPU is reported unhealthy.
    Unhealthy,
    /// The GPU takes no new pods.
    Closed(Closed),
    /// The pod does not accept this model or UUID.
    NotAccepted,
    /// The node cannot enforce the isolation that the pod requires, or does not report that it can.
    WeakIsolation,
    /// Too few units are free.
    TooLittleFree {
        /// Units free.
        free: Units,
        /// Units missing.
        missing: Units,
    },
    /// Too little of the compute is free.
    TooFewCores {
        /// Percent free.
        free: Cores,
    },
    /// The pod requests the GPU exclusively, and another pod is on it.
    InUse,
    /// The pod would take more of the GPU than its units are of it, without a right to that.
    BeyondUnits(Excess),
    /// The pod shares GPUs by MPS and pods on the GPU do not, or the other way round.
    OtherSharing,
    /// The GPU does not serve as many more clients of MPS.
    TooManyClients {
        /// How many more it serves.
        left: u16,
    },
}

/// One of the chosen GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChosenGpu {
    /// The GPU.
    pub uuid: GpuId,
    /// Its index.
    pub index: u32,
    /// All its units.
    pub units: Units,
    /// Units that stay free once the share is on it.
    pub left: Units,
}

impl FreeGpu {
    /// Whether NVLink connects it with the other GPU.
    pub(super) fn is_linked_with(&self, other: &Self) -> bool {
        let (its, others) = (self.topology.linked, other.topology.linked);
        its.contains(other.index) && others.contains(self.index)
    }

    /// Whether a share of this request fits the GPU, or why not.
    pub fn fit(&self, share: GpuShare, request: &GpuRequest) -> GpuFit {
        if !self.is_named_by(request.filter()) {
            return GpuFit::NotAccepted;
        }
        if !request.filter().is_enforced_by(self.isolation.strongest) {
            return GpuFit::WeakIsolation;
        }
        if let Some(excess) = request.excess(share, self.units) {
            return GpuFit::BeyondUnits(excess);
        }
        if !self.healthy {
            return GpuFit::Unhealthy;
        }
        if let Some(why) = self.closed {
            return GpuFit::Closed(why);
        }
        if self.free < share.units {
            let missing = share.units.saturating_sub(self.free);
            return GpuFit::TooLittleFree { free: self.free, missing };
        }
        if share.exclusive && !self.idle {
            return GpuFit::InUse;
        }
        if self.free_cores < share.cores {
            return GpuFit::TooFewCores { free: self.free_cores };
        }
        let room = self.room();
        room.conflict(share, request, self.isolation)
            .unwrap_or_else(|| GpuFit::Fits { left: room.left(share) })
    }

    /// What is free of the GPU, whether it is healthy or not.
    pub(super) fn room(&self) -> Room {
        let Self { free: units, free_cores: cores, idle, sharers, clients, .. } = *self;
        Room { units, cores, idle, sharers, clients }
    }

    pub(super) fn is_accepted(&self, filter: &GpuFilter) -> bool {
        filter.accepts_all()
            || (filter.is_enforced_by(self.isolation.strongest) && self.is_named_by(filter))
    }

    pub(super) fn is_named_by(&self, filter: &GpuFilter) -> bool {
        filter.accepts_all() || filter.accepts(self.model.as_str(), self.uuid.as_str())
    }

    /// Whether new pods may be placed on it.
    pub(super) fn is_open(&self) -> bool {
        self.healthy && self.closed.is_none()
    }

    pub(super) fn fits(&self, share: GpuShare, request: &GpuRequest) -> bool {
        matches!(self.fit(share, request), GpuFit::Fits { .. })
    }

    /// The GPU with this much free.
    pub(super) fn with_room(&self, room: Room) -> Self {
        let Room { units: free, cores: free_cores, idle, sharers, clients } = room;
        Self { free, free_cores, idle, sharers, clients, ..self.clone() }
    }

    pub(super) fn has_memory(&self, share: GpuShare) -> bool {
        self.free >= share.units
    }

    pub(super) fn is_large_enough(&self, share: GpuShare) -> bool {
        self.units >= share.units
    }

    /// Whether the GPU is large enough, and the share takes no more of it than its units pay for.
    pub(super) fn is_allowed(&self, share: GpuShare, request: &GpuRequest) -> bool {
        self.is_large_enough(share) && request.excess(share, self.units).is_none()
    }

    /// The GPU as chosen for a share that fits it.
    pub(super) fn chosen(&self, share: GpuShare) -> ChosenGpu {
        let left = self.room().left(share);
        ChosenGpu { uuid: self.uuid.clone(), index: self.index, units: self.units, left }
    }
}

/// What is free of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Units free.
    pub(super) units: Units,
    /// Percent of its compute that is free.
    pub(super) cores: Cores,
    /// Whether nothing is charged to any pod.
    pub(super) idle: bool,
    /// As [`FreeGpu::sharers`].
    pub(super) sharers: Sharers,
    /// As [`FreeGpu::clients`].
    pub(super) clients: u16,
}

impl Room {
    /// Whether a share of the request fits, beside the pods on the GPU.
    pub(super) fn takes(
        self,
        share: GpuShare,
        request: &GpuRequest,
        isolation: GpuIsolation,
    ) -> bool {
        self.has_room(share) && self.conflict(share, request, isolation).is_none()
    }

    /// Whether there is room for a share, in whatever way its pod and those on the GPU share it.
    pub(super) fn has_room(self, share: GpuShare) -> bool {
        self.units >= share.units && self.cores >= share.cores && (self.idle || !share.exclusive)
    }

    /// Why the pods on the GPU cannot share it with one more; `None` if they can.
    pub(super) fn conflict(
        self,
        share: GpuShare,
        request: &GpuRequest,
        isolation: GpuIsolation,
    ) -> Option<GpuFit> {
        if share.exclusive {
            return None;
        }
        let sharing = isolation.sharing(request.isolation());
        if !self.sharers.admit(sharing) {
            return Some(GpuFit::OtherSharing);
        }
        let most = isolation.mps_clients.filter(|_| sharing == Sharing::Mps)?;
        let left = most.saturating_sub(self.clients);
        (share.processes > left).then_some(GpuFit::TooManyClients { left })
    }

    /// Units that stay free with the share on the GPU.
    pub(super) fn left(self, share: GpuShare) -> Units {
        if share.exclusive { Units::ZERO } else { self.units.saturating_sub(share.units) }
    }
}
