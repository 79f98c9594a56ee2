//! The cases: how loaded the nodes are, what spreads the replicas, and how large a replica is.

use std::fmt;

use rand::SeedableRng as _;
use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::{Distribution as _, StandardNormal};

/// How many nodes there are, and how many replicas.
pub(crate) const NODES: [usize; 3] = [3, 10, 50];

/// CPU load of the nodes beside a colder one.
const WARM: f64 = 0.60;
/// Mean CPU load of nodes that differ.
const MEAN: f64 = 0.45;
/// Memory is two thirds as loaded as CPU.
const MEMORY: f64 = 2.0 / 3.0;
/// Pods use 65% of what they request.
const USED_OF_REQUESTS: f64 = 0.65;
/// The most that a node's other pods request of it: replicas of a tenth of a node fit on each node three times.
const MOST_REQUESTED: f64 = 0.70;

/// How the nodes' loads differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// One node is colder than the others by so many points of CPU.
    ColderNode(u32),
    /// One of three zones is colder than the others by so many points of CPU.
    ColderZone(u32),
    /// Loads are normal, with this deviation in tenths of a point: those that the closed loop's S40 and S55 have
    /// without load awareness.
    Uneven(u32),
}

impl Load {
    pub(crate) const ALL: [Self; 6] = [
        Self::ColderNode(20),
        Self::ColderNode(30),
        Self::ColderNode(60),
        Self::ColderZone(30),
        Self::Uneven(112),
        Self::Uneven(169),
    ];

    /// Loads are drawn anew for each repetition.
    pub(crate) fn is_drawn(self) -> bool {
        matches!(self, Self::Uneven(_))
    }

    /// The nodes of one draw. Without a draw all are alike.
    pub(crate) fn nodes(self, count: usize, draw: u64) -> Vec<Node> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(draw);
        let mut load_of = |number: usize| match self {
            Self::ColderNode(points) if number == 0 => WARM - f64::from(points) / 100.0,
            Self::ColderZone(points) if zone(number) == ZONES[0] => {
                WARM - f64::from(points) / 100.0
            }
            Self::ColderNode(_) | Self::ColderZone(_) => WARM,
            Self::Uneven(tenths) => {
                let normal: f64 = StandardNormal.sample(&mut rng);
                (MEAN + normal * f64::from(tenths) / 1000.0).clamp(0.02, 0.95)
            }
        };
        (0..count)
            .map(|number| Node {
                name: format!("node-{number:02}"),
                zone: matches!(self, Self::ColderZone(_)).then(|| zone(number)),
                cpu: load_of(number),
            })
            .collect()
    }
}

impl fmt::Display for Load {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ColderNode(points) => write!(out, "one node {points} points colder"),
            Self::ColderZone(points) => write!(out, "one of three zones {points} points colder"),
            Self::Uneven(tenths) => {
                write!(out, "deviation of {}.{} points", tenths / 10, tenths % 10)
            }
        }
    }
}

const ZONES: [&str; 3] = ["a", "b", "c"];

fn zone(number: usize) -> &'static str {
    ZONES[number % ZONES.len()]
}

/// A node, and what its other pods use and request.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) zone: Option<&'static str>,
    cpu: f64,
}

impl Node {
    /// The part of its CPU that is in use.
    pub(crate) fn cpu(&self) -> f64 {
        self.cpu
    }

    /// The part of its memory that is in use.
    pub(crate) fn memory(&self) -> f64 {
        self.cpu * MEMORY
    }
}

/// The part of a node that its other pods request, where they use this part of it.
pub(crate) fn requested(used: f64) -> f64 {
    (used / USED_OF_REQUESTS).min(MOST_REQUESTED)
}

/// What the replicas say of where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constraint {
    /// Nothing: kube-scheduler spreads the pods of a Service by itself.
    None,
    /// `topologySpreadConstraints` over nodes with `ScheduleAnyway`.
    Spread,
    /// Preferred anti-affinity over nodes, of weight 100.
    AntiAffinity,
}

impl Constraint {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Spread, Self::AntiAffinity];
}

impl fmt::Display for Constraint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "none",
            Self::Spread => "ScheduleAnyway",
            Self::AntiAffinity => "anti-affinity",
        })
    }
}

/// What a replica requests, and uses, of a node, in percent.
pub(crate) const REPLICAS: [u32; 2] = [1, 10];

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) load: Load,
    pub(crate) nodes: usize,
    pub(crate) constraint: Constraint,
    /// Percent of a node.
    pub(crate) replica: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { load, nodes, constraint, replica } = self;
        write!(out, "{load}, {nodes} nodes, {constraint}, replicas of {replica}%")
    }
}
