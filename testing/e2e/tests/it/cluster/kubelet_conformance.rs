//! The conformance facts about a kubelet, checked on this one. Other tests check them on the stand-in.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use conformance::Later;
use conformance::kubelet::{self, KubeletRig, Machine};
use e2e::Node;
use e2e::build::images::BUSYBOX;
use e2e::progress::line;

use super::api_conformance::Kube;
use crate::env::{NAMESPACE, TestEnv};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "this_kubelet_and_the_stand_in_treat_a_device_plugin_alike",
    treats_plugins_alike,
)
.takes(109)
.smoke()];

/// A node of the cluster, for the suite.
struct RealNode<'a> {
    node: &'a Node,
    plugin_dir: PathBuf,
    records_socket: PathBuf,
}

impl Machine for RealNode<'_> {
    fn node(&self) -> &str {
        self.node.name()
    }

    fn plugin_dir(&self) -> &Path {
        &self.plugin_dir
    }

    fn records_socket(&self) -> &Path {
        &self.records_socket
    }

    fn image(&self) -> &str {
        BUSYBOX
    }

    fn stop_kubelet(&self) -> Later<'_, Result<(), String>> {
        Box::pin(async { self.node.hold("kubelet").map_err(|error| format!("{error:#}")) })
    }

    fn start_kubelet(&self) -> Later<'_, Result<(), String>> {
        Box::pin(async { self.node.release("kubelet").map_err(|error| format!("{error:#}")) })
    }
}

fn treats_plugins_alike(env: &TestEnv) -> Result<()> {
    // The control plane is on the other node.
    let node = &env.cluster()?.nodes()[1];
    let real = RealNode {
        node,
        plugin_dir: node.path("/var/lib/kubelet/device-plugins"),
        records_socket: node.path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    };
    let server = Kube(env.client());
    let mut rig = KubeletRig::new(&server, NAMESPACE, &real);
    let mut refuted = Vec::new();
    for fact in kubelet::FACTS {
        let checked = env.block_on(async { anyhow::Ok(fact.check(&mut rig).await) })?;
        line(&format!("{}: {}", fact.name, if checked.is_ok() { "holds" } else { "REFUTED" }));
        refuted.extend(checked.err().map(|why| format!("{}: {why}", fact.name)));
    }
    let left = env.block_on(async { anyhow::Ok(rig.leave().await) })?;
    refuted.extend(left.err().map(|why| format!("leaving: {why}")));
    ensure!(refuted.is_empty(), "{}", refuted.join("\n"));
    Ok(())
}
