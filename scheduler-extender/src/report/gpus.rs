//! GPUs with the pods on them, by name.

use api::node::{AllGpus, Charge, ChargedGpu, NodeGpus, Sharing};
use api::state::Replica;
use jiff::Timestamp;
use placement::gpu::{self, Account, FreeGpu, Sharers};
use placement::units::NodeName;

use crate::view::{GpuMemory, View};

/// The GPUs of all nodes that report some.
pub fn all_gpus(view: &View, replica: Replica, now: Timestamp) -> AllGpus {
    let snapshot = view.read();
    let mut nodes: Vec<NodeGpus> = Vec::new();
    for (name, gpus) in snapshot.nodes_with_gpus() {
        if !gpus.accounts().is_empty() {
            let gpus = node_gpus(view, name, gpus, now);
            nodes.push(NodeGpus { name: name.to_string(), gpus });
        }
    }
    nodes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    AllGpus { time: now, replica, nodes }
}

/// The GPUs of one node, by index.
pub(super) fn node_gpus(
    view: &View,
    node: &NodeName,
    gpus: &gpu::NodeGpus,
    now: Timestamp,
) -> Vec<ChargedGpu> {
    let mut described = Vec::with_capacity(gpus.accounts().len());
    for (account, memory) in with_memory(view, node, gpus, now) {
        let gpu = &account.gpu;
        described.push(ChargedGpu {
            index: gpu.index,
            uuid: gpu.uuid.to_string(),
            model: gpu.model.to_string(),
            units: gpu.units.0,
            free: gpu.free.0,
            free_cores: gpu.free_cores.0,
            memory: memory.as_ref().map_or(0, |memory| memory.memory.0),
            used: memory.and_then(|memory| memory.used).map(|used| used.0),
            healthy: gpu.healthy,
            closed: gpu.closed,
            sharing: wire_sharing(gpu),
            mps_clients: has_clients(gpu).then_some(gpu.clients),
            most_mps_clients: gpu.isolation.mps_clients,
            charges: charges(view, account),
        });
    }
    described
}

/// The accounts of a node's GPUs, each with the GPU's memory where that is known.
pub(super) fn with_memory<'c>(
    view: &View,
    node: &NodeName,
    gpus: &'c gpu::NodeGpus,
    now: Timestamp,
) -> Vec<(&'c Account, Option<GpuMemory>)> {
    let mut memory = view.ask(|index| index.gpu_memory(node, now));
    let mut found = Vec::with_capacity(gpus.accounts().len());
    for account in gpus.accounts() {
        let own = memory.iter().position(|memory| memory.uuid == account.gpu.uuid);
        found.push((account, own.map(|own| memory.swap_remove(own))));
    }
    found
}

fn has_clients(gpu: &FreeGpu) -> bool {
    matches!(gpu.sharers, Sharers::Only(gpu::Sharing::Mps) | Sharers::Mixed)
}

/// Left out for GPUs of nodes without MPS, whose pods can share them in one way alone.
fn wire_sharing(gpu: &FreeGpu) -> Option<Sharing> {
    let has_mps = gpu.isolation.mps_clients.is_some();
    match gpu.sharers {
        Sharers::None => None,
        Sharers::Only(gpu::Sharing::Turns) if !has_mps => None,
        Sharers::Only(gpu::Sharing::Mps) => Some(Sharing::Mps),
        Sharers::Only(gpu::Sharing::Turns) => Some(Sharing::Turns),
        Sharers::Mixed => Some(Sharing::Mixed),
    }
}

fn charges(view: &View, account: &Account) -> Vec<Charge> {
    view.ask(|index| {
        let wire = |charge: &gpu::Charge| {
            let (namespace, name) = index.holder(charge);
            let memory = charge.claim.as_ref().and_then(|claim| claim.memory_on(&account.gpu.uuid));
            Charge {
                namespace,
                name,
                resource_claim: charge.claim.is_some(),
                units: charge.units.0,
                memory: memory.map(|memory| memory.0),
                cores: charge.cores.0,
                basis: charge.basis,
            }
        };
        account.charges.iter().map(wire).collect()
    })
}
