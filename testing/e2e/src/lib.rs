//! A real Kubernetes on one Linux machine, and the tests that ask the processes what they see.
//!
//! [`Cluster::up`] makes two machines out of namespaces, runs kubeadm on them and answers with a handle whose
//! [`Node`]s can be asked and disturbed. Invariant: nothing of a cluster outlives [`Cluster::down`], however the run
//! before it ended.

pub mod binaries;
pub mod cards;
mod cgroups;
mod cluster;
pub mod command;
mod configs;
pub mod images;
pub mod install;
mod kubeadm;
pub mod memory;
mod network;
mod node;
pub mod node_init;
mod preflight;
pub mod processes;
pub mod programs;
pub mod progress;
pub mod scripted_proc;
pub mod settings;
mod teardown;

pub use cluster::Cluster;
pub use node::Node;
pub use scripted_proc::Load;
pub use settings::Settings;
