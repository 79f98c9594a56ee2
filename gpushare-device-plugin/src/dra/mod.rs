//! GPUs that drivers of dynamic resource allocation (DRA) offer as well, and those that they gave to pods.
//!
//! The node's ResourceSlices name the GPUs that a driver offers: these are closed. The kubelet's record of a pod with
//! resource claims has the names of its devices, and a slice says which GPU a device is on.
//!
//! Invariant: a device stays known when its slice goes, and one that no slice has shown, of a driver of GPUs, may be
//! on any GPU. Where Kubernetes has no slices, or this program may not read them, none is offered.

pub(crate) mod slices;
pub(crate) mod watch;
