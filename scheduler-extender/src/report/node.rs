//! Everything about one node.

use api::node::{Bands, NodeDetail};
use api::state::Replica;
use placement::bands::Band;
use placement::names::Names;
use placement::selector::Labels;
use placement::units::NodeName;

use super::gpus::node_gpus;
use super::row::pool_of;
use crate::{Decider, decisions};

/// Everything about a node; `None` if neither the watch nor a pod's claim has shown it.
pub fn node_detail(decider: &Decider, name: &str, replica: Replica) -> Option<NodeDetail> {
    let snapshot = decider.view.read();
    let node = NodeName::from(name);
    let (load, gpus) = (snapshot.load(name), snapshot.gpus(name));
    if load.is_none() && gpus.is_none() {
        return None;
    }
    let now = decider.now();
    // A pod that uses nothing: the limits and the score of the node alone.
    let decision = decider.decision_for_none([name], now);
    let explained = decisions::explain(&decision, api::explain::DecisionBasis::Now, [0]);
    let back_off = snapshot.back_offs.get(&node);
    let policy = &snapshot.policy;
    let pool = load.and_then(|load| pool_of(policy, &load.labels));
    Some(NodeDetail {
        time: now,
        replica,
        name: name.to_owned(),
        pool: pool.map(|pool| policy.policy.pools[pool].name.to_string()),
        load: explained.nodes.into_iter().next().and_then(|node| node.load),
        recent_pods: load.map_or(0, |load| u32::try_from(load.recent.len()).unwrap_or(u32::MAX)),
        requested_cpu: load.and_then(|load| load.requested_cpu),
        cpu: load.and_then(|load| load.capacity.cpu),
        memory: load.and_then(|load| load.capacity.memory),
        bands: load.and_then(|load| bands(&load.labels, &decider.names)),
        backed_off: back_off.is_some_and(|back_off| back_off.is_on(now)),
        gpus: gpus.map_or_else(Vec::new, |gpus| node_gpus(&decider.view, &node, gpus, now)),
    })
}

/// The bands that the annotator has written.
fn bands(labels: &Labels, names: &Names) -> Option<Bands> {
    let read = |key: &str| labels.get(key).and_then(|text| Band::parse(text)).map(Band::number);
    let bands = Bands { cpu: read(&names.cpu_band()), gpu: read(&names.gpu_band()) };
    (bands != Bands { cpu: None, gpu: None }).then_some(bands)
}
