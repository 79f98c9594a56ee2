//! Owns what the kernel says about processes and control groups. Nothing here asks Kubernetes or containerd, so it can
//! contradict both.

pub mod memory;
pub mod processes;
