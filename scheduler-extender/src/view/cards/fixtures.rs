//! Helpers of unit tests.

use placement::gpu::Card;
use placement::units::{MiB, Units};

/// The card `GPU-0` of 16 units, empty.
pub(crate) fn card() -> Card {
    Card {
        uuid: "GPU-0".into(),
        index: 0,
        model: "NVIDIA A10".into(),
        memory: MiB(16384),
        units: Units(16),
        numa_node: None,
        healthy: true,
        closed: None,
        isolation: None,
        pods: [].into(),
    }
}
