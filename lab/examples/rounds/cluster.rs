//! The stand-in of the API server with its nodes, and the annotator's policy.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::slopes::IMAGES;
use serde_json::{Value, json};
use sim::{NODES, Sim, Verb};

/// The first node's address.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 0);

/// Metrics that are polled with each period.
const METRICS: [&str; 4] =
    ["cpu_usage_avg_5m", "mem_usage_avg_5m", "cpu_usage_max_avg_1h", "mem_usage_max_avg_1h"];

/// The API server and the files that name it.
pub(crate) struct Cluster {
    sim: Sim,
    kubeconfig: PathBuf,
    policy: PathBuf,
}

impl Cluster {
    pub(crate) async fn start(nodes: u32, period: Duration, folder: &Path) -> anyhow::Result<Self> {
        let sim = Sim::start().await?;
        for number in 0..nodes {
            sim.put(node(number));
        }
        let (kubeconfig, policy) = (folder.join("kubeconfig"), folder.join("policy.yaml"));
        sim.write_kubeconfig(&kubeconfig)?;
        let rules = METRICS.map(|metric| format!("  - {{name: {metric}, period: {period:?}}}\n"));
        let head = "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\n";
        // What nothing reads is not written for having moved.
        let weights = METRICS.map(|metric| format!("  - {{name: {metric}, weight: 1}}\n"));
        let (rules, weights) = (rules.concat(), weights.concat());
        fs::write(&policy, format!("{head}spec:\n  syncPolicy:\n{rules}  priority:\n{weights}"))?;
        Ok(Self { sim, kubeconfig, policy })
    }

    pub(crate) fn flags(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--policy-file={}", self.policy.display()),
        ]
    }

    /// Bytes of the last patch of a Node, and of the watch event with what it made of the Node; `None` where none was
    /// patched.
    pub(crate) fn last_patch(&self) -> Option<[usize; 2]> {
        let patches = self.sim.log().of(Verb::Patch, NODES);
        let patch = patches.last()?;
        let node = self.sim.node(&patch.name)?;
        let event = json!({ "type": "MODIFIED", "object": node });
        Some([patch.body.to_string().len(), event.to_string().len()])
    }
}

/// A node of the size that nodes have: the kubelet lists up to 50 images, which are most of it.
fn node(number: u32) -> Value {
    let address = Ipv4Addr::from(u32::from(FIRST) + number).to_string();
    let mut node = Value::from(sim::node(&format!("node-{number}")).address(&address));
    if let Some(status) = node.get_mut("status") {
        status["images"] = bench::images(IMAGES);
    }
    node
}
