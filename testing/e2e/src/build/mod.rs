//! Owns everything that is compiled or packed before a cluster can start: Kubernetes of one release, etcd, containerd,
//! CoreDNS, Plimsoll's own programs, and their container images; and Helm, the descheduler and Kueue, once they are
//! wanted.

pub mod binaries;
pub mod descheduler;
pub mod go_program;
pub mod images;
pub mod kueue;
pub mod last_release;
pub mod programs;
pub mod release;
