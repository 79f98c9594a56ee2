//! The driver for ResourceClaims (DRA): shares of the node's GPUs, given out by kube-scheduler and held by the same
//! records, limits and health as units.
//!
//! [`offer`] writes the node's ResourceSlice, [`wanted`] reads what a claim was allocated, [`files`] has the CDI
//! specification of each claim, [`driver`] prepares and unprepares claims, [`follow`] keeps that true while others
//! change it, [`service`] is the gRPC of it and [`session`] registers with the kubelet. [`mode`] follows whether the
//! node's GPUs are given out in this way.
//!
//! Invariants: a claim is booked and saved before the kubelet hears of it. What would be over is refused with the
//! reason, and the kubelet asks again: the pod waits and does not fail.

pub(crate) mod driver;
pub(crate) mod files;
pub(crate) mod follow;
pub(crate) mod mode;
pub(crate) mod offer;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod wanted;

use placement::units::GpuId;

/// The name of a GPU as a device of the driver: its UUID in lower case, so that it is the same for as long as the GPU
/// is. `None` for a UUID that is no DNS label, as none of NVIDIA's is.
pub(crate) fn device_name(gpu: &GpuId) -> Option<String> {
    let name = gpu.as_str().to_lowercase();
    let is_label = name.len() <= 63
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_label { Some(name) } else { None }
}
