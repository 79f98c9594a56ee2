//! Flags of the commands about pods.

use std::path::PathBuf;

use clap::Parser;

use super::access::{Namespaces, Query, node_name};

/// Flags of `why`.
#[derive(Debug, Parser)]
#[command(after_help = WHY_EXAMPLES)]
pub(crate) struct Why {
    /// The pod, or a workload as deploy/NAME, sts/NAME, ds/NAME, rs/NAME, job/NAME: then its newest pod that waits, or
    /// without one its newest.
    #[arg(value_name = "POD", required_unless_present = "file")]
    pub(crate) target: Option<String>,

    /// A manifest in place of a pod that exists: the first pod in it, or template of pods. `-` reads stdin.
    #[arg(long = "filename", short = 'f', value_name = "FILE", conflicts_with = "target")]
    pub(crate) file: Option<PathBuf>,

    /// The namespace [default: that of kubectl's context]
    #[arg(long, short = 'n', value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Only this node, as it is decided about among all, with each reading, its age and its window.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub(crate) node: Option<String>,

    /// All nodes, and not only the best ones and the nearest misses.
    #[arg(long)]
    pub(crate) all: bool,

    /// How many of the best nodes.
    #[arg(long, default_value_t = 10, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) limit: u16,

    /// What would be decided now, also for a pod that has a node.
    #[arg(long)]
    pub(crate) fresh: bool,

    #[command(flatten)]
    pub(crate) query: Query,
}

const WHY_EXAMPLES: &str = "\
Examples:
  # Why the pod is on its node, or waits
  kubectl plimsoll why web-0 -n shop

  # The newest pod of a Deployment that waits
  kubectl plimsoll why deploy/web -n shop

  # Where a pod would go that does not exist yet
  kubectl plimsoll why -f train.yaml

  # Everything about one node
  kubectl plimsoll why web-0 -n shop --node worker-1

  # The nodes that may not take the pod, and why
  kubectl plimsoll why web-0 -o json | jq '.nodes[] | select(.accepted | not) | {name, reasons}'";

/// Flags of `pending`.
#[derive(Debug, Parser)]
#[command(after_help = PENDING_EXAMPLES)]
pub(crate) struct Pending {
    #[command(flatten)]
    pub(crate) namespaces: Namespaces,

    /// Only pods with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    #[command(flatten)]
    pub(crate) query: Query,
}

const PENDING_EXAMPLES: &str = "\
Examples:
  # Every pod that waits, grouped by workload and reason
  kubectl plimsoll pending -A

  # Those of one namespace, by name
  kubectl plimsoll pending -n ml -o name

  # The nodes, and why each may not take one of them
  kubectl plimsoll why -n ml train-9";

/// Flags of `events`.
#[derive(Debug, Parser)]
#[command(after_help = EVENTS_EXAMPLES)]
pub(crate) struct Events {
    /// The namespace. Events of nodes are in `default` [default: all namespaces]
    #[arg(long, short = 'n', value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// All namespaces, which is the default.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,

    /// Go on with those that come, until Ctrl-C.
    #[arg(long, short = 'w')]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) query: Query,
}

const EVENTS_EXAMPLES: &str = "\
Examples:
  # What Plimsoll's programs told, the newest last
  kubectl plimsoll events

  # From now on too
  kubectl plimsoll events -w";
