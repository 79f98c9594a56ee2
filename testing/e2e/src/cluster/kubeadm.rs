//! Owns the steps from empty nodes to a Kubernetes cluster: `kubeadm init`, `kubeadm join`, kube-proxy.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::{Cluster, configs};
use crate::command::{command, run, wait_for};
use crate::node::Node;
use crate::progress::step;
use crate::settings::Settings;

/// kubeadm's configuration, inside a node.
const CONFIG: &str = "/etc/kubernetes/kubeadm.yaml";
/// The preflight checks ask for kernel files of a package manager and for systemd, which a node does not have.
const NO_PREFLIGHT: &str = "--ignore-preflight-errors=all";

/// Makes the first node the control plane and joins the others. kube-proxy runs as a service.
pub(crate) fn build(cluster: &Cluster) -> Result<()> {
    let settings = cluster.settings();
    let nodes = cluster.nodes();
    let bin = cluster.binaries();
    let (first, others) = nodes.split_first().context("a cluster needs a node")?;
    step("kubeadm init on node-a");
    fs::write(first.path(CONFIG), configs::init(first.spec(), cluster.release()))?;
    nodes.iter().try_for_each(|node| {
        fs::write(node.path(configs::PODS_RESOLVER), configs::NO_NAME_SERVER)
    })?;
    let without_proxy = "--skip-phases=addon/kube-proxy";
    first
        .run(&["kubeadm", "init", "--config", CONFIG, NO_PREFLIGHT, without_proxy])
        .with_context(|| control_plane_logs(first))?;
    copy_kubeconfig(first, settings)?;
    let (token, hash) = join_credentials(first)?;
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

/// The last lines of etcd and of the API server, which know why kubeadm got no answer.
fn control_plane_logs(node: &Node) -> String {
    let pods = "/var/log/pods/kube-system";
    let logs = format!("tail -n 5 {pods}_etcd-*/etcd/*.log {pods}_kube-apiserver-*/*/*.log 2>&1");
    let told = node.run(&["sh", "-c", &format!("{logs} | cut -c -400")]);
    told.unwrap_or_else(|error| format!("no logs of the control plane: {error:#}"))
}

/// Copies the administrator's kubeconfig, with its mode: only root may read the key in it.
fn copy_kubeconfig(node: &Node, settings: &Settings) -> Result<()> {
    fs::copy(node.path("/etc/kubernetes/admin.conf"), settings.kubeconfig())
        .context("cannot copy admin.conf")?;
    Ok(())
}

/// A bootstrap token and the hash of the authority's certificate, from the join command that kubeadm prints.
fn join_credentials(node: &Node) -> Result<(String, String)> {
    let printed = node.run(&["kubeadm", "token", "create", "--print-join-command"])?;
    let words: Vec<&str> = printed.split_whitespace().collect();
    word_after(&words, "--token")
        .zip(word_after(&words, "--discovery-token-ca-cert-hash"))
        .with_context(|| format!("kubeadm printed no join command but {printed:?}"))
}

fn word_after(words: &[&str], flag: &str) -> Option<String> {
    words.iter().skip_while(|word| **word != flag).nth(1).map(|word| (*word).to_owned())
}

fn join(node: &Node, control_plane: &Node, token: &str, hash: &str) -> Result<()> {
    step(&format!("kubeadm join on {}", node.name()));
    let config = configs::join(node.spec(), control_plane.spec(), token, hash);
    fs::write(node.path(CONFIG), config)?;
    node.run(&["kubeadm", "join", "--config", CONFIG, NO_PREFLIGHT]).map(drop)
}

/// Writes the files that let each node start kube-proxy, with the user that the cluster's roles name for it.
fn start_proxies(nodes: &[Node]) -> Result<()> {
    let first = nodes.first().context("a cluster needs a node")?;
    let user = ["--client-name", "system:kube-proxy", "--config", CONFIG];
    let kubeconfig = first.run(&[&["kubeadm", "kubeconfig", "user"], &user[..]].concat())?;
    for node in nodes {
        fs::write(node.path("/etc/kubernetes/kube-proxy.conf"), &kubeconfig)?;
        fs::write(node.path("/etc/kubernetes/kube-proxy.yaml"), configs::kube_proxy(node.spec()))?;
    }
    Ok(())
}

/// Waits until pods can be created: every node is Ready and the default ServiceAccount exists.
fn wait_until_ready(settings: &Settings, nodes: &[Node], bin: &Path) -> Result<()> {
    step("waiting for the nodes to be Ready");
    let names: Vec<&str> = nodes.iter().map(Node::name).collect();
    // `kubectl wait` gives up on a node at once that its kubelet has not registered yet.
    wait_for("the nodes", Duration::from_secs(300), || {
        kubectl(settings, bin, &[&["get", "node"], names.as_slice()].concat()).map(Some)
    })?;
    let ready = ["wait", "--for=condition=Ready", "--timeout=300s", "node"];
    kubectl(settings, bin, &[&ready, names.as_slice()].concat())?;
    wait_for("the default ServiceAccount", Duration::from_secs(300), || {
        kubectl(settings, bin, &["get", "serviceaccount", "default"]).map(Some)
    })
    .map(drop)
}

fn kubectl(settings: &Settings, bin: &Path, words: &[&str]) -> Result<String> {
    run(command(bin.join("kubectl")).arg("--kubeconfig").arg(settings.kubeconfig()).args(words))
}
