//! Owns what the nodes offer of a resource, as their Node objects say.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use e2e::quantity;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};

use crate::env::TestEnv;

/// What may be given out of a resource on each node that has it, by the node's name. 0 where the kubelet knows the
/// resource, and its plugin offers none.
pub(crate) fn offered(env: &TestEnv, resource: &str) -> Result<BTreeMap<String, u64>> {
    let nodes: Api<Node> = Api::all(env.client());
    let nodes = env.block_on(nodes.list(&ListParams::default()))?.items;
    nodes
        .into_iter()
        .filter_map(|node| {
            let name = node.metadata.name.unwrap_or_default();
            let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
            let text = &allocatable.get(resource)?.0;
            let units = quantity::whole(text);
            Some(
                units
                    .with_context(|| format!("{name} offers {text} of {resource}"))
                    .map(|n| (name, n)),
            )
        })
        .collect()
}
