//! Owns the cluster's network: one bridge in a namespace of its own, with a veth pair to each node and one to this
//! host.
//!
//! Nothing is routed out of it: the host has an address on the bridge and forwards nothing.

use anyhow::Result;

use crate::command::{run, run_lines, words};
use crate::node::spec::{HOST_ADDRESS, LAN_PREFIX, NODES, NodeSpec, POD_RANGE};

/// The namespace that holds the bridge.
pub(crate) const LAN: &str = "plimsoll-lan";
/// The host's end of its veth pair.
pub(crate) const HOST_LINK: &str = "plimsoll0";

/// Creates the bridge, the host's link to it and each node's namespace with its routes.
pub(crate) fn create() -> Result<()> {
    run_lines(&format!(
        "ip netns add {LAN}
         ip -n {LAN} link add bridge0 type bridge
         ip -n {LAN} link set bridge0 up
         ip link add {HOST_LINK} type veth peer name to-host netns {LAN}
         ip addr add {HOST_ADDRESS}/{LAN_PREFIX} dev {HOST_LINK}
         ip link set {HOST_LINK} up
         ip -n {LAN} link set to-host master bridge0 up"
    ))?;
    NODES.iter().try_for_each(connect)?;
    let first = NODES[0].address();
    run_lines(&format!("ip route add {POD_RANGE} via {first}"))?;
    NODES.iter().try_for_each(route_to_peers)
}

/// Creates a node's namespace. Its default route has no gateway, so addresses outside the cluster get no answer.
fn connect(node: &NodeSpec) -> Result<()> {
    let space = node.network();
    let name = node.name;
    let address = node.address();
    run_lines(&format!(
        "ip netns add {space}
         ip -n {space} link add lan0 type veth peer name to-{name} netns {LAN}
         ip -n {space} addr add {address}/{LAN_PREFIX} dev lan0
         ip -n {space} link set lo up
         ip -n {space} link set lan0 up
         ip -n {LAN} link set to-{name} master bridge0 up
         ip -n {space} route add default dev lan0
         nsenter --net=/run/netns/{space} sysctl -q -w net.ipv4.ip_forward=1"
    ))
}

fn route_to_peers(node: &NodeSpec) -> Result<()> {
    let space = node.network();
    for peer in NODES.iter().filter(|peer| *peer != node) {
        let range = peer.pod_range();
        let address = peer.address();
        run(&mut words(&format!("ip -n {space} route add {range} via {address}")))?;
    }
    Ok(())
}

/// Removes our namespaces and links. A missing one is no error.
pub(crate) fn remove() {
    let spaces = NODES.iter().map(NodeSpec::network).chain([LAN.to_owned()]);
    for space in spaces {
        let _ = run(&mut words(&format!("ip netns del {space}")));
    }
    let _ = run(&mut words(&format!("ip link del {HOST_LINK}")));
}
