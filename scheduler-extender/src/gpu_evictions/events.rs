//! The events about evictions for GPUs, on the pods that go and on the one that waits.

use cluster::{EventText, PodReference};
use placement::units::NodeName;

use super::waiting::KEEP_FOR;

pub(super) fn victim_warning(of: &PodReference) -> EventText {
    let PodReference { namespace, name, .. } = of;
    EventText {
        reason: "EvictedForGPUCard",
        action: "Evict",
        note: format!(
            "Its GPU is needed for pod {namespace}/{name}, which is more important, and finds room on no GPU"
        ),
    }
}

pub(super) fn moved_warning(of: &PodReference, to: &NodeName) -> EventText {
    let PodReference { namespace, name, .. } = of;
    EventText {
        reason: "MovedForGPUCard",
        action: "Evict",
        note: format!(
            "Its GPU is needed for pod {namespace}/{name}, which finds room on no GPU; its successor fits node {to}"
        ),
    }
}

pub(super) fn moves_warning(node: &NodeName, count: usize) -> EventText {
    EventText {
        reason: "MovingForGPUCard",
        action: "Evict",
        note: format!(
            "{count} pods of node {node} were evicted for it, whose successors fit elsewhere; their GPUs are kept for {} s",
            KEEP_FOR.as_secs()
        ),
    }
}

pub(super) fn beneficiary_warning(node: &NodeName, count: usize) -> EventText {
    EventText {
        reason: "EvictingForGPUCard",
        action: "Evict",
        note: format!(
            "{count} less important pods of node {node} were evicted for it; their GPU is kept for {} s",
            KEEP_FOR.as_secs()
        ),
    }
}
