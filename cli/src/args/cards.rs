//! Flags of the commands about nodes and cards.

use clap::{Parser, Subcommand};

use super::access::{Access, Connection, Format, Namespaces, node_name};

/// Flags of `gpus`.
#[derive(Debug, Parser)]
#[command(after_help = GPUS_EXAMPLES)]
pub(crate) struct Gpus {
    /// One node; all nodes with cards where none is named.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub(crate) node: Option<String>,

    /// Only nodes with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR", conflicts_with = "node")]
    pub(crate) selector: Option<String>,

    #[command(flatten)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) access: Access,
}

const GPUS_EXAMPLES: &str = "\
Examples:
  # Every card, who holds it, and what still fits
  kubectl plimsoll gpus

  # One node, with UUIDs, memory and compute
  kubectl plimsoll gpus worker-1 -o wide

  # Pods that hold units of cards, one a line
  kubectl plimsoll top pods -A -o name

  # Units of healthy cards that no pod holds, by node
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
    /// The units that such a pod asks for on each card.
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) size: u32,

    /// On how many cards of one node.
    #[arg(long, default_value_t = 1, value_name = "CARDS", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) count: u32,

    /// Percent of each card's compute that it asks for.
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) cores: u32,

    /// Only nodes with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    #[command(flatten)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) access: Access,
}

const CAPACITY_EXAMPLES: &str = "\
Examples:
  # How many more pods with 8 units fit
  kubectl plimsoll capacity --size 8

  # Pods with 4 whole cards of 80 units on one node
  kubectl plimsoll capacity --size 80 --count 4

  # In one pool
  kubectl plimsoll capacity --size 8 -l pool=inference";

/// Flags of `defragment`.
#[derive(Debug, Parser)]
#[command(after_help = DEFRAGMENT_EXAMPLES)]
pub(crate) struct Defragment {
    /// Cards of one node, and units of each: 8x80. One card where there are units alone: 80.
    #[arg(long = "for", value_name = "CARDSxUNITS", value_parser = shape)]
    pub(crate) shape: CardShape,

    /// The priority of the pod that needs the room. Only less important pods are moved then, and pods as important that
    /// have the annotation `cluster-autoscaler.kubernetes.io/safe-to-evict: "true"` [default: any pods are moved]
    #[arg(long, value_name = "PRIORITY", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,

    #[command(flatten)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) access: Access,
}

const DEFRAGMENT_EXAMPLES: &str = "\
Examples:
  # A whole card of 80 units
  kubectl plimsoll defragment --for 80

  # A node's 8 cards
  kubectl plimsoll defragment --for 8x80

  # What would be moved for a pod of priority 1000
  kubectl plimsoll defragment --for 2x40 --priority 1000";

/// Cards of one node, and units of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CardShape {
    pub(crate) cards: u32,
    pub(crate) units: u32,
}

fn shape(text: &str) -> Result<CardShape, String> {
    let (cards, units) = text.split_once('x').unwrap_or(("1", text));
    match (cards.parse(), units.parse()) {
        (Ok(cards @ 1..=64), Ok(units @ 1..)) => Ok(CardShape { cards, units }),
        _ => Err("expected cards and units of each, as 8x80; 64 cards at most".to_owned()),
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
    /// Show pods by the units of cards that they hold.
    #[command(visible_alias = "pod")]
    Pods(TopPods),
    /// Show cards, the fullest first.
    #[command(name = "gpus", visible_aliases = ["gpu", "cards"])]
    Cards(TopRows),
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
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) access: Access,
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
    /// The card's node.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub(crate) node: String,

    /// The card's index or its UUID, as `gpus -o wide` shows them.
    #[arg(value_name = "CARD")]
    pub(crate) card: String,

    /// Show what would be written, and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) connection: Connection,
}

const CORDON_EXAMPLES: &str = "\
Examples:
  # Card 2 takes no new pods; those that are on it go on
  kubectl plimsoll cordon worker-1 2

  # It takes pods again
  kubectl plimsoll uncordon worker-1 2";
