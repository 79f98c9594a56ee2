//! What metrics-server reports of nodes: `metrics.k8s.io/v1beta1`, served through the API server.

use std::time::Duration;

use api::stored::time;
use jiff::Timestamp;
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use placement::resources::PerResource;
use placement::units::NodeName;
use serde::Deserialize;

use crate::answer::{OF_ALL_NODES, each};
use crate::call::{CallError, within};
use crate::meta::{Meta, null_is_default, resource};
use crate::quantity::{Quantities, amounts};

/// The path of the list in the API.
const PATH: &str = "/apis/metrics.k8s.io/v1beta1/nodes";

/// What a node used.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeUse {
    /// The node.
    pub node: NodeName,
    /// The end of the time in which it was measured, by the node's clock.
    pub at: Timestamp,
    /// Cores, as a mean over some 15 to 60 seconds, and bytes; `None` where it is not told.
    pub used: PerResource<Option<f64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    metadata: Meta,
    #[serde(deserialize_with = "time")]
    timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "null_is_default")]
    usage: Quantities,
}

resource!(Item, ClusterResourceScope, "metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes");

/// What each node used last, as metrics-server has it. A node that it could not scrape is left out.
///
/// # Errors
///
/// [`CallError`]; [`CallError::NotFound`] where the cluster has no metrics-server.
pub async fn list_node_uses(client: &Client, limit: Duration) -> Result<Vec<NodeUse>, CallError> {
    let mut uses = Vec::new();
    let all = ListParams::default();
    let items = Request::new(PATH);
    let listing = each(client, &items, &all, OF_ALL_NODES, |item: Item| {
        uses.extend(item.into_use());
    });
    within(limit, listing).await?;
    Ok(uses)
}

impl Item {
    /// `None` where it names no node or no time.
    fn into_use(self) -> Option<NodeUse> {
        let node = self.metadata.object.name?.into();
        Some(NodeUse { node, at: self.timestamp?, used: amounts(&self.usage) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As metrics-server 0.8 answers.
    const ANSWER: &str = r#"{
        "kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {},
        "items": [
            {
                "metadata": {"name": "node-1", "creationTimestamp": "2026-11-20T09:00:21Z", "labels": {"a": "b"}},
                "timestamp": "2026-11-20T09:00:07Z", "window": "10.064s",
                "usage": {"cpu": "251543711n", "memory": "1931844Ki"}
            },
            {"metadata": {"name": "node-2"}, "timestamp": "2026-11-20T09:00:09Z", "window": "20s", "usage": null}
        ]
    }"#;

    #[test]
    fn usage_is_read_in_cores_and_bytes_and_what_is_not_told_is_none() {
        let answer: serde_json::Value = serde_json::from_str(ANSWER).unwrap();
        let items: Vec<Item> = serde_json::from_value(answer["items"].clone()).unwrap();
        let uses: Vec<NodeUse> = items.into_iter().filter_map(Item::into_use).collect();
        assert_eq!(uses[0].node, "node-1".into());
        assert_eq!(uses[0].at, "2026-11-20T09:00:07Z".parse().unwrap());
        let used = PerResource { cpu: Some(0.251_543_711), memory: Some(1_931_844.0 * 1024.0) };
        assert_eq!(uses[0].used, used);
        assert_eq!(uses[1].used, PerResource::default());
    }
}
