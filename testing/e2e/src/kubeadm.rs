//! Owns the way from empty machines to a Kubernetes cluster: `kubeadm init`, `kubeadm join`, kube-proxy.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::command::{command, run, wait_for};
use crate::configs;
use crate::node::Node;
use crate::progress::step;
use crate::settings::Settings;

/// Where kubeadm's configuration lies, inside a machine.
const CONFIG: &str = "/etc/kubernetes/kubeadm.yaml";
/// Preflight looks for a package manager's kernel files and a systemd; CoreDNS and kube-proxy would need images.
const LENIENT: &str = "--ignore-preflight-errors=all";

/// Makes the first machine the control plane and joins the others.
pub(crate) fn build(settings: &Settings, nodes: &[Node], bin: &Path) -> Result<()> {
    let (first, others) = nodes.split_first().context("a cluster needs a machine")?;
    step("kubeadm init on node-a");
    fs::write(first.path(CONFIG), configs::init(first.machine()))?;
    first.run(&["kubeadm", "init", "--config", CONFIG, LENIENT, "--skip-phases=addon"])?;
    copy_kubeconfig(first, settings)?;
    let (token, hash) = invitation(first)?;
    thread::scope(|scope| {
        let joins: Vec<_> =
            others.iter().map(|node| scope.spawn(|| join(node, first, &token, &hash))).collect();
        joins
            .into_iter()
            .try_for_each(|join| join.join().map_err(|_| anyhow!("a join panicked"))?)
    })?;
    start_proxies(nodes)?;
    wait_until_ready(settings, nodes, bin)
}

/// Only root may read the administrator's key, in the copy as well.
fn copy_kubeconfig(node: &Node, settings: &Settings) -> Result<()> {
    fs::copy(node.path("/etc/kubernetes/admin.conf"), settings.kubeconfig())
        .context("cannot copy admin.conf")?;
    Ok(())
}

/// The token and the hash of the authority's certificate, as `kubeadm token create` prints them for people.
fn invitation(node: &Node) -> Result<(String, String)> {
    let printed = node.run(&["kubeadm", "token", "create", "--print-join-command"])?;
    let words: Vec<&str> = printed.split_whitespace().collect();
    let after = |flag: &str| {
        words.iter().skip_while(|word| **word != flag).nth(1).map(|word| (*word).to_owned())
    };
    after("--token")
        .zip(after("--discovery-token-ca-cert-hash"))
        .with_context(|| format!("kubeadm printed no join command but {printed:?}"))
}

fn join(node: &Node, control_plane: &Node, token: &str, hash: &str) -> Result<()> {
    step(&format!("kubeadm join on {}", node.name()));
    let config = configs::join(node.machine(), control_plane.machine(), token, hash);
    fs::write(node.path(CONFIG), config)?;
    node.run(&["kubeadm", "join", "--config", CONFIG, LENIENT]).map(drop)
}

/// kube-proxy runs as a process of the machine, under the identity that the cluster's roles foresee for it.
fn start_proxies(nodes: &[Node]) -> Result<()> {
    let first = nodes.first().context("a cluster needs a machine")?;
    let user = ["--client-name", "system:kube-proxy", "--config", CONFIG];
    let kubeconfig = first.run(&[&["kubeadm", "kubeconfig", "user"], &user[..]].concat())?;
    for node in nodes {
        fs::write(node.path("/etc/kubernetes/kube-proxy.conf"), &kubeconfig)?;
        fs::write(
            node.path("/etc/kubernetes/kube-proxy.yaml"),
            configs::kube_proxy(node.machine()),
        )?;
    }
    Ok(())
}

/// Pods can be created once every node is Ready and the default ServiceAccount exists.
fn wait_until_ready(settings: &Settings, nodes: &[Node], bin: &Path) -> Result<()> {
    let kubectl = |words: &[&str]| {
        run(command(bin.join("kubectl")).arg("--kubeconfig").arg(settings.kubeconfig()).args(words))
    };
    step("waiting for the nodes to be Ready");
    let names: Vec<&str> = nodes.iter().map(Node::name).collect();
    let ready = ["wait", "--for=condition=Ready", "--timeout=90s", "node"];
    kubectl(&[&ready, names.as_slice()].concat())?;
    wait_for("the default ServiceAccount", Duration::from_secs(30), || {
        kubectl(&["get", "serviceaccount", "default"]).map(Some)
    })
    .map(drop)
}
