//! What the kubelet stand-in of the other tests claims holds for this kubelet too.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use conformance::Later;
use conformance::kubelet::{self, Machine, Rig};
use e2e::Node;
use e2e::images::BUSYBOX;
use e2e::progress::line;

use crate::conformance::Kube;
use crate::world::{NAMESPACE, World};
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] =
    &[local("this_kubelet_and_the_stand_in_treat_a_device_plugin_alike", treats_plugins_alike)];

struct Real<'a> {
    node: &'a Node,
    plugin_dir: PathBuf,
    records_socket: PathBuf,
}

impl Machine for Real<'_> {
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

fn treats_plugins_alike(world: &World) -> Result<()> {
    // The last node: the control plane is not on it.
    let node = &world.cluster()?.nodes()[1];
    let machine = Real {
        node,
        plugin_dir: node.path("/var/lib/kubelet/device-plugins"),
        records_socket: node.path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    };
    let server = Kube(world.client());
    let mut rig = Rig::new(&server, NAMESPACE, &machine);
    let mut refuted = Vec::new();
    for fact in kubelet::FACTS {
        let checked = world.wait(async { anyhow::Ok(fact.check(&mut rig).await) })?;
        line(&format!("{}: {}", fact.name, if checked.is_ok() { "holds" } else { "REFUTED" }));
        refuted.extend(checked.err().map(|why| format!("{}: {why}", fact.name)));
    }
    let left = world.wait(async { anyhow::Ok(rig.leave().await) })?;
    refuted.extend(left.err().map(|why| format!("leaving: {why}")));
    ensure!(refuted.is_empty(), "{}", refuted.join("\n"));
    Ok(())
}
