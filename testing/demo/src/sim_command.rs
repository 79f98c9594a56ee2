//! `plimsoll-demo sim`: the embedded cluster alone, to try things out by hand.

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use sim::Sim;
use sim::kubelet::{Kubelet, KubeletSettings};
use sim::scheduler::{Scheduler, SchedulerConfig};
use tokio::sync::mpsc;

use crate::args::SimArgs;
use crate::cluster::SCHEDULER_CONFIG;
use crate::interrupt::Interrupt;
use crate::model::nodes::GPU_RESOURCE;
use crate::temp_dir;

pub(crate) async fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let mut interrupt = Interrupt::new()?;
    let directory = temp_dir::create()?;
    let sim = Sim::start().await.context("cannot listen on the loopback")?;
    let kubeconfig = directory.path().join("kubeconfig");
    sim.write_kubeconfig(&kubeconfig)?;
    // Nothing receives the events: the containers are not looked at.
    let (events, _) = mpsc::unbounded_channel();
    let mut kubelets = Vec::new();
    for number in 1..=args.nodes {
        let settings = create_node(&sim, directory.path(), &format!("node-{number}"))?;
        kubelets.push(Kubelet::start(&sim, settings, events.clone())?);
    }
    let config = match &args.extender {
        Some(extender) => SchedulerConfig::from_yaml(SCHEDULER_CONFIG)?.at(extender),
        None => SchedulerConfig::default(),
    };
    let _scheduler = Scheduler::start(&sim, config)?;
    writeln!(stdout(), "{}", instructions(&sim.url(), &kubeconfig, args))
        .context("cannot write to stdout")?;
    interrupt.received().await;
    Ok(ExitCode::SUCCESS)
}

fn create_node(sim: &Sim, root: &Path, name: &str) -> std::io::Result<KubeletSettings> {
    let node = sim::node(name).address("127.0.0.1").label("kubernetes.io/hostname", name);
    let mut node: serde_json::Value = node.with("cpu", 8).with("pods", 110).into();
    for part in ["capacity", "allocatable"] {
        node["status"][part]["memory"] = "32Gi".into();
    }
    sim.put(node);
    let root = root.join(name);
    let cdi_dir = root.join("var/run/cdi");
    fs::create_dir_all(&cdi_dir)?;
    let node = name.to_owned();
    let root = root.join("var/lib/kubelet");
    let resource = GPU_RESOURCE.to_owned();
    Ok(KubeletSettings { node, root, cdi_dir, resource })
}

fn instructions(url: &str, kubeconfig: &Path, args: &SimArgs) -> String {
    let config = kubeconfig.display();
    let nodes = args.nodes;
    let extender = match &args.extender {
        Some(extender) => format!("that asks the extender at {extender}"),
        None => "without extenders (--extender HOST:PORT adds one)".to_owned(),
    };
    format!(
        "An embedded cluster answers at {url}: {nodes} nodes, and a scheduler {extender}.

In another terminal:
    export KUBECONFIG={config}
    kubectl get nodes
    kubectl run one --image=none
    kubectl get pods --output wide --watch
    kubectl describe pod one
    kubectl annotate node node-1 cpu_shared_busy_avg_5m=0.9,$(date -u +%FT%TZ)

Plimsoll's programs take the same kubeconfig, e.g.
    annotator --kubeconfig=$KUBECONFIG --policy-file=deploy/chart/policies/shipped.yaml

Pods run in name only. There is no controller (a Deployment makes no pods), and no admission
but ExtendedResourceToleration's.
It serves nodes, pods, config maps and events, and reads JSON alone, which `kubectl apply -f` and
`kubectl create -f` send. `kubectl create configmap` sends protobuf: add --dry-run=client -o yaml
| kubectl apply -f -
A pod with another schedulerName is left to you to bind.
Ctrl-C ends it."
    )
}
