//! Flags of the commands about nodes and GPUs.

use clap::{Parser, Subcommand};

use super::access::{Connection, Namespaces, Query, node_name};

/// Flags of `gpus`.
#[derive(Debug, Parser)]
#[command(after_help = GPUS_EXAMPLES)]
pub(crate) struct Gpus {
    /// One node; all nodes with GPUs where none is named.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub(crate) node: Option<String>,

    /// Only nodes with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR", conflicts_with = "node")]
    pub(crate) selector: Option<String>,

    #[command(flatten)]
    pub(crate) query: Query,
}

const GPUS_EXAMPLES: &str = "\
Examples:
  # Every GPU, who holds it, and what still fits
  kubectl plimsoll gpus

  # One node, with UUIDs, memory and compute
  kubectl plimsoll gpus worker-1 -o wide

  # Pods that hold units of GPUs, one a line
  kubectl plimsoll top pods -A -o name

  # Units of healthy GPUs that no pod holds, by node
  kubectl plimsoll gpus -o json |
    jq '.nodes[] | {name, free: ([.cards[] | select(.healthy and .closed == null) | .free] | add)}'";

/// Flags of `inspect`, the former name of `gpus`.
#[derive(Debug, Parser)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) gpus: Gpus,
}

/// Flags of `capacity`.
#[derive(Debug, Parser)]
#[command(after_help = CAPACITY_EXAMPLES)]
pub(crate) struct Capacity {
    /// The units that such a pod asks for on each GPU.
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) size: u32,

    /// On how many GPUs of one node.
    #[arg(long, default_value_t = 1, value_name = "GPUS", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) count: u32,

    /// Percent of each GPU's compute that it asks for.
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) cores: u32,

    /// Only nodes with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    #[command(flatten)]
    pub(crate) query: Query,
}

const CAPACITY_EXAMPLES: &str = "\
Examples:
  # How many more pods with 8 units fit
  kubectl plimsoll capacity --size 8

  # Pods with 4 whole GPUs of 80 units on one node
  kubectl plimsoll capacity --size 80 --count 4

  # In one pool
  kubectl plimsoll capacity --size 8 -l pool=inference";

/// Flags of `defragment`.
#[derive(Debug, Parser)]
#[command(after_help = DEFRAGMENT_EXAMPLES)]
pub(crate) struct Defragment {
    /// GPUs of one node, and units of each: 8x80. One GPU where there are units alone: 80.
    #[arg(long = "for", value_name = "CARDSxUNITS", value_parser = shape)]
    pub(crate) shape: GpuShape,

    /// The priority of the pod that needs the room. Only less important pods are moved then, and pods as important that
    /// have the annotation `cluster-autoscaler.kubernetes.io/safe-to-evict: "true"` [default: any pods are moved]
    #[arg(long, value_name = "PRIORITY", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,

    #[command(flatten)]
    pub(crate) query: Query,
}

const DEFRAGMENT_EXAMPLES: &str = "\
Examples:
  # A whole GPU of 80 units
  kubectl plimsoll defragment --for 80

  # A node's 8 GPUs
  kubectl plimsoll defragment --for 8x80

  # What would be moved for a pod of priority 1000
  kubectl plimsoll defragment --for 2x40 --priority 1000";

/// GPUs of one node, and units of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuShape {
    pub(crate) gpus: u32,
    pub(crate) units: u32,
}

fn shape(text: &str) -> Result<GpuShape, String> {
    let (gpus, units) = text.split_once('x').unwrap_or(("1", text));
    match (gpus.parse(), units.parse()) {
        (Ok(gpus @ 1..=64), Ok(units @ 1..)) => Ok(GpuShape { gpus, units }),
        _ => Err("expected GPUs and units of each, as 8x80; 64 GPUs at most".to_owned()),
    }
}

/// What `top` shows.
#[derive(Debug, Subcommand)]
pub(crate) enum Top {
    /// Show nodes by their load, those that are nearest to a limit first.
    ///
    /// LIMIT RATIO is the load by the limit that is nearest, with what is added for pods that no reading shows yet,
    /// over that limit: above 1 the node is over its limit. The loads are those of each metric with a limit; what is
    /// behind the sign is added for such pods.
    #[command(visible_alias = "node")]
    Nodes(TopRows),
    /// Show pods by the units of GPUs that they hold.
    #[command(visible_alias = "pod")]
    Pods(TopPods),
    /// Show GPUs, the fullest first.
    #[command(name = "gpus", visible_aliases = ["gpu", "cards"])]
    Gpus(TopRows),
}

/// Flags of `top nodes` and `top gpus`.
#[derive(Debug, Parser)]
pub(crate) struct TopRows {
    /// Only nodes with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    /// How many rows.
    #[arg(long, default_value_t = 20, value_name = "NUMBER")]
    pub(crate) limit: usize,

    /// All of them.
    #[arg(long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) query: Query,
}

/// Flags of `top pods`.
#[derive(Debug, Parser)]
pub(crate) struct TopPods {
    #[command(flatten)]
    pub(crate) namespaces: Namespaces,

    #[command(flatten)]
    pub(crate) rows: TopRows,
}

/// Flags of `cordon` and `uncordon`.
#[derive(Debug, Parser)]
#[command(after_help = CORDON_EXAMPLES)]
pub(crate) struct Cordon {
    /// The GPU's node.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub(crate) node: String,

    /// The GPU's index or its UUID, as `gpus -o wide` shows them.
    #[arg(value_name = "GPU")]
    pub(crate) gpu: String,

    /// Show what would be written, and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) connection: Connection,
}

const CORDON_EXAMPLES: &str = "\
Examples:
  # GPU 2 takes no new pods; those that are on it go on
  kubectl plimsoll cordon worker-1 2

  # It takes pods again
  kubectl plimsoll uncordon worker-1 2";
