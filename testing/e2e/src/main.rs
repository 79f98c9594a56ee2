//! `plimsoll-cluster`: a real Kubernetes cluster on this host, to try Plimsoll on and to test it with.

mod args;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use e2e::cluster::install::{self, Setup};
use e2e::node::init;
use e2e::progress::{line, step};
use e2e::{Cluster, Settings};

use args::{Args, Verb};

/// Printed when a cluster is up.
const NEXT: &str = "\
  kubectl get nodes -o wide              (kubectl lies beside the other programs: see PATH above)
  kubectl describe node node-a           readings and GPUs are annotations of the node
  make cluster-down                      removes everything again";

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    let settings = Settings::from_env()?;
    match args.verb {
        Verb::Up { install } => up(settings, install)?,
        Verb::Build => Cluster::build(&settings).map(drop)?,
        Verb::Down => down(&settings)?,
        Verb::Install { setup } => install::install(&Cluster::attach(settings)?, setup)?,
        Verb::Uninstall => install::uninstall(&Cluster::attach(settings)?)?,
        Verb::Status => status(settings)?,
        Verb::Kubectl { words } => return kubectl(settings, &words),
        Verb::NodeInit(init) => init::run(&init)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(settings: Settings, setup: Option<Setup>) -> Result<()> {
    let cluster = Cluster::up(settings)?;
    if let Some(setup) = setup {
        install::install(&cluster, setup)?;
    }
    step("the cluster is up");
    let kubeconfig = cluster.kubeconfig();
    line(&format!("\nexport KUBECONFIG={}", kubeconfig.display()));
    line(&format!("export PATH=$PATH:{}\n", cluster.binaries().display()));
    line(NEXT);
    Ok(())
}

fn down(settings: &Settings) -> Result<()> {
    Cluster::down(settings)?;
    step("the cluster is gone");
    Ok(())
}

fn status(settings: Settings) -> Result<()> {
    let cluster = Cluster::attach(settings)?;
    line(&cluster.kubectl_run(&["get", "nodes", "-o", "wide"])?);
    line(&cluster.kubectl_run(&["get", "pods", "--all-namespaces", "-o", "wide"])?);
    Ok(())
}

fn kubectl(settings: Settings, words: &[String]) -> Result<ExitCode> {
    let cluster = Cluster::attach(settings)?;
    let status = cluster.kubectl().args(words).stdin(std::process::Stdio::inherit()).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
