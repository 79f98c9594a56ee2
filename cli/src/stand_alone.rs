//! `plimsoll sim`: the API server stand-in alone, for trying things out by hand.

use std::process::ExitCode;

use anyhow::Context;
use sim::Sim;

use crate::demo::interrupted;

#[expect(clippy::print_stdout, reason = "this is the command's answer")]
pub(crate) async fn run() -> anyhow::Result<ExitCode> {
    let sim = Sim::start().await.context("cannot listen on the loopback")?;
    let directory = tempfile::Builder::new().prefix("plimsoll-").tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    sim.write_kubeconfig(&kubeconfig)?;
    println!("serving {}", sim.url());
    println!("try:    export KUBECONFIG={}", kubeconfig.display());
    println!("        kubectl run one --image=none; kubectl get pods --watch");
    println!("Ctrl-C ends it.");
    interrupted().await;
    Ok(ExitCode::SUCCESS)
}
