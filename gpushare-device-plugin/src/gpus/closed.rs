//! Which GPUs take no new pods although they work: the node knows that a container could not start there, or that
//! others give the GPU out too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use placement::gpu::Closed;
use placement::units::GpuId;

use super::offered::OfferedGpus;

/// The GPUs that take no new pods, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedGpus {
    /// Why no GPU of the node takes any.
    pub all: Option<Closed>,
    /// Why single GPUs take none.
    pub gpus: BTreeMap<GpuId, Closed>,
    /// Those that a DRA driver offers as well: they take none.
    pub offered: Arc<OfferedGpus>,
    /// Those that ResourceClaims have for themselves.
    pub by_claims: Arc<ByClaims>,
}

/// The GPUs that take no units, since ResourceClaims hold parts of them or are to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ByClaims {
    /// Whether the node's label says so, of every GPU.
    pub all: bool,
    /// Those that claims still hold parts of.
    pub gpus: BTreeSet<GpuId>,
}

impl ByClaims {
    /// Whether claims have that GPU.
    pub fn has(&self, gpu: &GpuId) -> bool {
        self.all || self.gpus.contains(gpu)
    }
}

impl ClosedGpus {
    /// Why a GPU takes no new pods with units; `None` if it takes some.
    pub fn of(&self, gpu: &GpuId) -> Option<Closed> {
        self.to_claims(gpu).or_else(|| self.by_claims.has(gpu).then_some(Closed::Claims))
    }

    /// Why a GPU takes no new ResourceClaims; `None` if it takes some.
    pub fn to_claims(&self, gpu: &GpuId) -> Option<Closed> {
        let by_dra = || self.offered.driver_of(gpu).map(|_| Closed::Dra);
        self.all.or_else(by_dra).or_else(|| self.gpus.get(gpu).copied())
    }
}
