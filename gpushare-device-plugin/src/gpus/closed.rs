//! Which GPUs take no new pods although they work: the node knows that a container could not start there, or that
//! others give the GPU out too.

use std::collections::BTreeMap;
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
}

impl ClosedGpus {
    /// Why a GPU takes no new pods; `None` if it takes some.
    pub fn of(&self, gpu: &GpuId) -> Option<Closed> {
        let by_dra = || self.offered.driver_of(gpu).map(|_| Closed::Dra);
        self.all.or_else(by_dra).or_else(|| self.gpus.get(gpu).copied())
    }
}
