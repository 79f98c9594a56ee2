//! Owns the command line of `plimsoll-cluster`.

use clap::{Parser, Subcommand};
use e2e::cluster::install::Setup;
use e2e::node::init::NodeInit;

/// A real Kubernetes cluster on this host: two nodes, each a set of namespaces with its own containerd and kubelet
///
/// Needs root on Linux, and Go 1.26 for the first start. Missing Debian packages are installed. KUBERNETES chooses the
/// release: one of the folders in testing/e2e/go/releases, `oldest` or `newest` (the default). Its programs are built
/// once into PLIMSOLL_CACHE (default: $XDG_CACHE_HOME/plimsoll or ~/.cache/plimsoll); E2E_BIN_DIR names a folder of
/// ready ones instead. E2E_PROFILE says how Plimsoll itself is compiled: dev (the default), release as in the published
/// images, or test, which takes what `make test` has compiled. Everything of a running cluster lies in
/// PLIMSOLL_CLUSTER_DIR (default: /var/lib/plimsoll-cluster).
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
        #[arg(long, value_name = "SETUP", num_args = 0..=1, require_equals = true, default_missing_value = "shipped")]
        install: Option<Setup>,
    },
    /// Build the programs and images of the release, and start nothing
    Build,
    /// Remove the cluster with everything that belongs to it
    Down,
    /// Show the nodes and pods of the running cluster
    Status,
    /// Compile Plimsoll and install it on the running cluster with the documented commands
    Install {
        /// What to install
        #[arg(default_value = "shipped")]
        setup: Setup,
    },
    /// Remove Plimsoll from the running cluster with the documented commands
    Uninstall,
    /// Run kubectl on the running cluster: plimsoll-cluster kubectl -- get pods
    Kubectl {
        /// kubectl's arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    #[command(hide = true)]
    NodeInit(NodeInit),
}
