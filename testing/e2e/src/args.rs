//! Owns the command line of `plimsoll-cluster`.

use clap::{Parser, Subcommand};
use e2e::node_init::NodeInit;

/// A real Kubernetes cluster on this machine: two nodes, each a set of namespaces with its own containerd and kubelet
///
/// Needs root on Linux, Go 1.26 for the first start, and nothing else that it does not install itself. Programs are
/// built once into PLIMSOLL_CACHE (default: $XDG_CACHE_HOME/plimsoll or ~/.cache/plimsoll); E2E_BIN_DIR names a folder
/// of ready ones. E2E_PROFILE is the cargo profile of Plimsoll itself (default: release). Everything of a running cluster lies in PLIMSOLL_CLUSTER_DIR (default: /var/lib/plimsoll-cluster).
#[derive(Debug, Parser)]
#[command(name = "plimsoll-cluster", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Start a cluster, after removing what a former run left
    Up {
        /// Then compile Plimsoll and install it, as `plimsoll-cluster install` does
        #[arg(long)]
        install: bool,
    },
    /// Remove the cluster with everything that belongs to it
    Down,
    /// Show the nodes and pods of the running cluster
    Status,
    /// Compile Plimsoll and install it on the running cluster with the documented commands
    Install,
    /// Remove Plimsoll from the running cluster with the documented commands
    Uninstall,
    /// Run kubectl on the running cluster: plimsoll-cluster kubectl -- get pods
    Kubectl {
        /// What kubectl is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    #[command(hide = true)]
    NodeInit(NodeInit),
}
