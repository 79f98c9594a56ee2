//! Owns the cluster's network: one bridge in a namespace of its own, a leg to each machine and one to this host.
//!
//! Nothing is routed out of it: the host gets an address on the bridge and forwards nothing.

use anyhow::Result;

use crate::command::{run, run_lines, words};
use crate::settings::{HOST_ADDRESS, LAN_PREFIX, MACHINES, Machine, POD_RANGE};

/// The namespace that holds the bridge.
pub(crate) const LAN: &str = "plimsoll-lan";
/// The host's leg.
pub(crate) const HOST_LINK: &str = "plimsoll0";

/// Creates the bridge, the host's leg and every machine's namespace with its routes.
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
    MACHINES.iter().try_for_each(connect)?;
    let first = MACHINES[0].address();
    run_lines(&format!("ip route add {POD_RANGE} via {first}"))?;
    MACHINES.iter().try_for_each(route_to_peers)
}

/// A default route without a gateway: addresses outside are looked for on the bridge, where nobody answers.
fn connect(machine: &Machine) -> Result<()> {
    let (space, name, address) = (machine.network(), machine.name, machine.address());
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

fn route_to_peers(machine: &Machine) -> Result<()> {
    let space = machine.network();
    for peer in MACHINES.iter().filter(|peer| *peer != machine) {
        let (range, address) = (peer.pod_range(), peer.address());
        run(&mut words(&format!("ip -n {space} route add {range} via {address}")))?;
    }
    Ok(())
}

/// Removes every namespace and link of ours; what is already gone is no error.
pub(crate) fn remove() {
    let spaces = MACHINES.iter().map(Machine::network).chain([LAN.to_owned()]);
    for space in spaces {
        let _ = run(&mut words(&format!("ip netns del {space}")));
    }
    let _ = run(&mut words(&format!("ip link del {HOST_LINK}")));
}
