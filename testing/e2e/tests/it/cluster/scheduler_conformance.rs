//! The conformance facts about kube-scheduler, checked on this one. Other tests check them on the stand-in.
//!
//! They run on a second kube-scheduler of the cluster's release, which places the suite's pods only and calls the
//! suite's extenders.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Child;

use anyhow::{Context, Result, ensure};
use conformance::scheduler::{self, SchedulerRig};
use e2e::Cluster;
use e2e::command::{append, command};
use e2e::progress::line;
use serde_json::json;

use super::api_conformance::Kube;
use crate::env::{NAMESPACE, TestEnv};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "kube_scheduler_and_the_stand_in_treat_an_extender_alike",
    treats_extenders_alike,
)
.takes(19)
.smoke()];

fn treats_extenders_alike(env: &TestEnv) -> Result<()> {
    let server = Kube(env.client());
    let mut rig = SchedulerRig::new(&server, NAMESPACE, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    let scheduler = SecondScheduler::start(env.cluster()?, &rig)?;
    let mut refuted = Vec::new();
    for fact in scheduler::FACTS {
        let checked = env.block_on(async { anyhow::Ok(fact.check(&mut rig).await) })?;
        line(&format!("{}: {}", fact.name, if checked.is_ok() { "holds" } else { "REFUTED" }));
        refuted.extend(checked.err().map(|why| format!("{}: {why}", fact.name)));
    }
    let left = env.block_on(async { anyhow::Ok(rig.leave().await) })?;
    refuted.extend(left.err().map(|why| format!("leaving: {why}")));
    let log = scheduler.end()?;
    ensure!(refuted.is_empty(), "{}\nsee {}", refuted.join("\n"), log.display());
    Ok(())
}

/// A kube-scheduler on this host with the administrator's kubeconfig. Dropping it ends the process, and so does the end
/// of this program.
struct SecondScheduler {
    process: Child,
    log: PathBuf,
}

impl SecondScheduler {
    fn start(cluster: &Cluster, rig: &SchedulerRig<'_>) -> Result<Self> {
        let state = &cluster.settings().state;
        let file = state.join("second-scheduler.json");
        let log = state.join("second-scheduler.log");
        let mut config = rig.configuration();
        config["clientConnection"] = json!({"kubeconfig": cluster.kubeconfig()});
        fs::write(&file, config.to_string())?;
        let output = append(&log)?;
        let mut scheduler = command("setpriv");
        scheduler
            .args(["--pdeathsig", "KILL", "--"])
            .arg(cluster.binaries().join("kube-scheduler"));
        // It needs no port: nothing reads its metrics.
        scheduler.arg("--config").arg(&file).arg("--secure-port=0");
        scheduler.stdout(output.try_clone()?).stderr(output);
        let process = scheduler.spawn().context("cannot start a second kube-scheduler")?;
        Ok(Self { process, log })
    }

    /// Ends it and returns its log. An error if it has ended by itself.
    fn end(mut self) -> Result<PathBuf> {
        let ended = self.process.try_wait()?;
        ensure!(ended.is_none(), "kube-scheduler ended by itself: see {}", self.log.display());
        Ok(self.log.clone())
    }
}

impl Drop for SecondScheduler {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
