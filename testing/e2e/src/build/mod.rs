//! Owns everything that is compiled or packed before a cluster can start: Kubernetes of one release, etcd, containerd,
//! Plimsoll's own programs, and their container images; and the descheduler, once a test wants it.

pub mod binaries;
pub mod descheduler;
pub mod images;
pub mod programs;
pub mod release;
