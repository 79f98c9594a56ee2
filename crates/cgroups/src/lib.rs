//! The kubelet's control groups: which folders are pods', and whether a pod has processes. Version 1 and 2, the
//! systemd and the cgroupfs driver, at the root or below a `--cgroup-root`.
//!
//! Invariant: a search is bounded for any tree, and keeps no state between two calls.
#![deny(missing_docs)]

mod folders;
mod processes;
mod tree;
mod uid;

pub use folders::{
    PodFolder, is_class, is_kubepods, is_service, kubepods, may_hold_kubepods, pods,
};
pub use processes::{NoGroups, PodGroup, Pods};
pub use tree::Unread;
pub use uid::PodUid;
