//! The storm: how often kube-scheduler asks an extender about pods that it rejects, by how the annotator writes Nodes.
//!
//! A real etcd, API server and kube-scheduler without any kubelet, Node objects, the real annotator, an exporter for
//! each node with a noisy but steady load, and an extender that rejects every node. Prints one line a way of writing:
//! Filter calls, and patches of Nodes, a minute.
//!
//! ```sh
//! cargo build -p annotator && cargo run -p plimsoll-e2e --example storm
//! ```
//!
//! `STORM_NODES`, `STORM_PODS` and `STORM_MINUTES` are 5000, 100 and 7 by default: a steady node's readings are renewed
//! every six minutes, so fewer see few of the writes. `STORM_HOVERING`: how many nodes hover around a limit of the
//! policy, 0 by default. `STORM_WAYS`: some of `none`, `each`, `default`, by default all. `STORM_ANNOTATOR`: the
//! program, by default the one that `cargo build` makes.

#![allow(clippy::print_stdout)] // The figures are what it is run for.

mod control_plane;
mod exporters;
mod extender;
mod objects;
mod server;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::Settings;
use e2e::build::{binaries, release::Release};

use self::control_plane::ControlPlane;
use self::exporters::Exporters;
use self::extender::Extender;

/// What every run shares.
struct Storm {
    nodes: usize,
    pods: usize,
    hovering: usize,
    minutes: u64,
    annotator: PathBuf,
}

/// A way of writing Nodes: its name, and the annotator's flags; `None` where nothing is written.
type Way = (&'static str, Option<&'static [&'static str]>);

const WAYS: [Way; 3] = [
    ("none", None),
    ("each", Some(&["--burst-interval=0s", "--dead-band=0"])),
    ("default", Some(&[])),
];

/// A program of this run; dropping it ends it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let settings = Settings::from_env()?;
    let storm = Storm {
        nodes: number("STORM_NODES", 5000)?,
        pods: number("STORM_PODS", 100)?,
        hovering: number("STORM_HOVERING", 0)?,
        minutes: number("STORM_MINUTES", 7)? as u64,
        annotator: std::env::var_os("STORM_ANNOTATOR")
            .map_or_else(|| settings.sources.join("target/debug/annotator"), PathBuf::from),
    };
    let wanted = std::env::var("STORM_WAYS").unwrap_or_else(|_| "none,each,default".to_owned());
    let release = Release::find(&settings.sources, "newest")?;
    let programs = binaries::ensure(&settings, release)?;
    println!("{} nodes, {} rejected pods, {release}", storm.nodes, storm.pods);
    for (name, flags) in WAYS.into_iter().filter(|(name, _)| wanted.contains(name)) {
        let folder = tempfile::tempdir()?;
        if let Err(error) = storm.run(name, flags, &programs, &settings, folder.path()).await {
            bail!("{name}: {error:#}; logs are in {}", folder.keep().display());
        }
    }
    Ok(())
}

fn number(variable: &str, default: usize) -> Result<usize> {
    let Ok(text) = std::env::var(variable) else { return Ok(default) };
    text.parse().with_context(|| format!("{variable}={text} is no number"))
}

impl Storm {
    async fn run(
        &self,
        name: &str,
        flags: Option<&[&str]>,
        programs: &Path,
        settings: &Settings,
        folder: &Path,
    ) -> Result<()> {
        let extender = extender::start().await?;
        let exporters = exporters::start(self.hovering).await?;
        let plane = ControlPlane::start(programs, folder).await?;
        objects::create_nodes(&plane.client, self.nodes).await?;
        let _scheduler = plane.start_scheduler(programs, folder, extender.port)?;
        objects::create_pods(&plane.client, self.pods).await?;
        extender.until_rejected(self.pods).await?;
        let policy = settings.sources.join("deploy/chart/policies/shipped.yaml");
        let _annotator = match flags {
            Some(flags) => Some(self.annotator(flags, &policy, folder, exporters.port)?),
            None => None,
        };
        // Every node is polled within two minutes, and written for the first time.
        let settled = Duration::from_secs(150);
        tokio::time::sleep(settled).await;
        let before = counts(&plane, &extender, &exporters).await?;
        for _ in 0..self.minutes {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let after = counts(&plane, &extender, &exporters).await?;
        let [calls, patches, polls] =
            [0, 1, 2].map(|n: usize| (after[n] - before[n]) as f64 / self.minutes as f64);
        println!(
            "{name}: {calls:.0} Filter calls, {patches:.0} patches of Nodes, {polls:.0} polls a minute; \
             {:.1} patches a node and hour",
            patches * 60.0 / self.nodes as f64,
        );
        Ok(())
    }

    fn annotator(
        &self,
        flags: &[&str],
        policy: &Path,
        folder: &Path,
        exporters: u16,
    ) -> Result<Running> {
        let mut annotator = Command::new(&self.annotator);
        annotator
            .arg(format!("--kubeconfig={}", folder.join("kubeconfig").display()))
            .arg(format!("--policy-file={}", policy.display()))
            .arg(format!("--exporter-port={exporters}"))
            .arg("--admin-address=127.0.0.1:0")
            .args(flags);
        start(annotator, &folder.join("annotator.log"))
    }
}

/// Calls of Filter, patches of Nodes, and polls of exporters, up to now.
async fn counts(
    plane: &ControlPlane,
    extender: &Extender,
    exporters: &Exporters,
) -> Result<[u64; 3]> {
    Ok([extender.calls(), plane.patches().await?, exporters.polls()])
}

/// Starts a program whose output goes to `log`.
fn start(mut command: Command, log: &Path) -> Result<Running> {
    let out = std::fs::File::create(log)?;
    command.stdout(out.try_clone()?).stderr(out).env("NO_PROXY", "127.0.0.1");
    let child = command.spawn();
    child.map(Running).with_context(|| format!("cannot start {:?}", command.get_program()))
}
