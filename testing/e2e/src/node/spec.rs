//! Owns what is fixed about the nodes before they exist: their names, roles, addresses and control groups.
//!
//! The names of network namespaces and links all start with `plimsoll`; `down` removes nothing else.

use std::net::Ipv4Addr;
use std::time::Duration;

/// The prefix length of the network that joins the nodes and this host. It leads nowhere else.
pub const LAN_PREFIX: u8 = 24;
/// This host's own address on that network.
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 209, 255, 1);
/// The addresses of all pods.
pub const POD_RANGE: &str = "10.209.0.0/16";
/// The addresses of all Services.
pub const SERVICE_RANGE: &str = "10.210.0.0/16";

/// How much longer a node has been up than this host. An exporter keeps samples of its node's uptime only, so tests can
/// give it a day of them.
pub const EXTRA_UPTIME: Duration = Duration::from_secs(2 * 86_400);

/// One node of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSpec {
    /// The Kubernetes node name, which is also the host name.
    pub name: &'static str,
    /// Distinguishes the node in addresses and GPU UUIDs.
    pub number: u8,
}

/// The nodes of the cluster. The first one is also the control plane.
pub const NODES: [NodeSpec; 2] =
    [NodeSpec { name: "node-a", number: 1 }, NodeSpec { name: "node-b", number: 2 }];

impl NodeSpec {
    /// The address on the cluster's network.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 209, 255, 10 + self.number)
    }

    /// The addresses of this node's pods.
    pub fn pod_range(&self) -> String {
        format!("10.209.{}.0/24", self.number)
    }

    /// The name of the network namespace.
    pub fn network(&self) -> String {
        format!("plimsoll-{}", self.name)
    }

    /// The control group that holds the node's pods, as a path from the root of each hierarchy.
    pub fn cgroup(&self) -> String {
        format!("/plimsoll-cluster/{}", self.name)
    }
}
