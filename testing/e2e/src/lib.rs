//! A real Kubernetes cluster on one Linux host, for tests that look into the processes of its containers.
//!
//! [`Cluster::up`] makes two nodes out of Linux namespaces and runs kubeadm on them. The tests query and disturb them
//! through [`Node`]. Invariant: nothing of a cluster outlives [`Cluster::down`], however the run before it ended.
//!
//! The modules use each other in this order only: [`kernel`] and [`settings`], [`build`], [`node`], [`cluster`].
//! [`chaos`] and [`quantity`] are used by the tests alone.

pub mod build;
pub mod chaos;
pub mod cluster;
pub mod command;
pub mod kernel;
pub mod node;
pub mod progress;
pub mod quantity;
pub mod settings;

pub use cluster::Cluster;
pub use node::Node;
pub use node::scripted_proc::Load;
pub use settings::Settings;
