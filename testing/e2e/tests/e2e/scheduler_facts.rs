//! What the scheduler's stand-in of the other tests claims holds for kube-scheduler too.
//!
//! The one under trial is a second one of the cluster's version, beside the cluster's own: it places the suite's
//! pods and no others, and asks the suite's extenders.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Child;

use anyhow::{Context, Result, ensure};
use conformance::scheduler::{self, Rig};
use e2e::Cluster;
use e2e::command::{append, command};
use e2e::progress::line;
use serde_json::json;

use crate::conformance::Kube;
use crate::world::{NAMESPACE, World};
use crate::{Fact, local};

pub(crate) const FACTS: &[Fact] =
    &[local("kube_scheduler_and_the_stand_in_treat_an_extender_alike", treats_extenders_alike)];

fn treats_extenders_alike(world: &World) -> Result<()> {
    let server = Kube(world.client());
    let mut rig = Rig::new(&server, NAMESPACE, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    let scheduler = Second::start(world.cluster()?, &rig)?;
    let mut refuted = Vec::new();
    for fact in scheduler::FACTS {
        let checked = world.wait(async { anyhow::Ok(fact.check(&mut rig).await) })?;
        line(&format!("{}: {}", fact.name, if checked.is_ok() { "holds" } else { "REFUTED" }));
        refuted.extend(checked.err().map(|why| format!("{}: {why}", fact.name)));
    }
    let left = world.wait(async { anyhow::Ok(rig.leave().await) })?;
    refuted.extend(left.err().map(|why| format!("leaving: {why}")));
    let log = scheduler.end()?;
    ensure!(refuted.is_empty(), "{}\nsee {}", refuted.join("\n"), log.display());
    Ok(())
}

/// A kube-scheduler of this host, as the cluster's administrator. It ends with this, and with this program however
/// that ends.
struct Second {
    process: Child,
    log: PathBuf,
}

impl Second {
    fn start(cluster: &Cluster, rig: &Rig<'_>) -> Result<Self> {
        let state = &cluster.settings().state;
        let (file, log) = (state.join("second-scheduler.json"), state.join("second-scheduler.log"));
        let mut config = rig.configuration();
        config["clientConnection"] = json!({"kubeconfig": cluster.kubeconfig()});
        fs::write(&file, config.to_string())?;
        let output = append(&log)?;
        let mut scheduler = command("setpriv");
        scheduler
            .args(["--pdeathsig", "KILL", "--"])
            .arg(cluster.binaries().join("kube-scheduler"));
        // Nobody asks how it is, so it needs no port.
        scheduler.arg("--config").arg(&file).arg("--secure-port=0");
        scheduler.stdout(output.try_clone()?).stderr(output);
        let process = scheduler.spawn().context("cannot start a second kube-scheduler")?;
        Ok(Self { process, log })
    }

    /// Where it wrote what it did; an error where it has ended by itself.
    fn end(mut self) -> Result<PathBuf> {
        let ended = self.process.try_wait()?;
        ensure!(ended.is_none(), "kube-scheduler ended by itself: see {}", self.log.display());
        Ok(self.log.clone())
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
