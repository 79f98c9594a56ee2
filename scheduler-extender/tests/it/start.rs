//! What is said when the program cannot start (one line that names the flag, and each cause once), and where it
//! listens.

use std::net::TcpListener;

use clap::Parser;
use daemon::{Causes, Context};
use scheduler_extender::{Args, app};
use sim::Sim;

use crate::rig::{POLICY, Rig};

/// Arguments with which the program starts, and the folder of their files.
fn args(sim: &Sim, address: &str) -> (Args, tempfile::TempDir) {
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    sim.write_kubeconfig(&path("kubeconfig")).unwrap();
    std::fs::write(path("policy.yaml"), POLICY).unwrap();
    let mut args = Args::parse_from(["scheduler-extender", "--listen-address", address]);
    args.api.kubeconfig = Some(path("kubeconfig"));
    args.load.policy_file = path("policy.yaml");
    (args, files)
}

/// The line with which the program refuses to start.
async fn refused(args: Args) -> String {
    let context = Context::new(daemon::program!());
    let error = app::start(args, &context).await.unwrap_err();
    let causes = Causes(error.as_ref());
    assert!(causes.are_named_once(), "{causes}");
    assert!(context.tasks().running().is_empty(), "a task was started before the files were read");
    causes.to_string()
}

#[tokio::test]
async fn a_missing_policy_and_a_missing_kubeconfig_are_named_once() {
    let sim = Sim::start().await.unwrap();
    let missing = "No such file or directory (os error 2)";
    let (mut args, _files) = args(&sim, "127.0.0.1:0");
    args.api.kubeconfig = Some("/nowhere/config".into());
    let error = refused(args.clone()).await;
    assert!(error.starts_with("--kubeconfig /nowhere/config: "), "{error}");
    assert!(error.ends_with(missing) && error.matches(missing).count() == 1, "{error}");
    args.load.policy_file = "/nowhere/policy.yaml".into();
    assert_eq!(refused(args).await, format!("--policy-file /nowhere/policy.yaml: {missing}"));
}

#[tokio::test]
async fn a_taken_port_is_named_once() {
    let sim = Sim::start().await.unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (args, _files) = args(&sim, &address);
    let error = refused(args).await;
    assert!(error.starts_with(&format!("--listen-address {address}: cannot listen")), "{error}");
    assert!(error.ends_with(": Address already in use (os error 98)"), "{error}");
}

#[tokio::test]
async fn kube_scheduler_is_answered_over_ipv6_and_ipv4() {
    if !std::fs::exists("/proc/net/if_inet6").unwrap() {
        eprintln!("SKIPPED: no IPv6 on this machine, so no call over IPv6");
        return;
    }
    let sim = Sim::start().await.unwrap();
    let rig = Rig::start_at(&sim, "[::]:0").await;
    for host in ["[::1]", "127.0.0.1"] {
        let answer = rig.get_at(host, "/gpushare-scheduler/inspect").await;
        assert!(answer.contains("\"nodes\""), "{host}: {answer}");
    }
}
