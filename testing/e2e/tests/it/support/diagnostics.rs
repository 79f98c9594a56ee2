//! Owns what is collected after a failed test: objects, events and logs, in a folder named after the test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use e2e::Cluster;

use crate::env::NAMESPACE;

/// File names, and the kubectl arguments whose output they hold.
const COLLECTED: [(&str, &[&str]); 12] = [
    ("pods.txt", &["get", "pods", "--all-namespaces", "-o", "wide"]),
    ("test-pods.txt", &["-n", NAMESPACE, "describe", "pods"]),
    ("test-pods.yaml", &["-n", NAMESPACE, "get", "pods", "-o", "yaml"]),
    ("claims.yaml", &["get", "--all-namespaces", "resourceclaims,resourceslices", "-o", "yaml"]),
    ("kueue.yaml", &["get", "--all-namespaces", KUEUE, "-o", "yaml"]),
    ("kueue.log", &["-n", "kueue-system", "logs", "-l", "control-plane", "--tail=-1"]),
    ("nodes.yaml", &["get", "nodes", "-o", "yaml"]),
    ("events.txt", &["get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"]),
    ("plimsoll-pods.txt", &["-n", "plimsoll", "describe", "pods"]),
    ("plimsoll.log", &["-n", "plimsoll", "logs", "-l", PART, "--prefix", "--tail=-1"]),
    ("plimsoll-before.log", &["-n", "plimsoll", "logs", "-l", PART, "--prefix", "--tail=-1", "-p"]),
    (
        "kube-scheduler.log",
        &["-n", "kube-system", "logs", "-l", "component=kube-scheduler", "--tail=-1"],
    ),
];
const KUEUE: &str = "jobs,workloads.kueue.x-k8s.io,clusterqueues.kueue.x-k8s.io";
const PART: &str = "app.kubernetes.io/part-of=plimsoll";

/// Collects everything and returns the folder. A file whose command failed holds the error.
pub(crate) fn write(cluster: &Cluster, test: &str) -> Result<PathBuf> {
    let folder = folder(cluster, test);
    fs::create_dir_all(&folder)?;
    for (file, words) in COLLECTED {
        let output = cluster.kubectl().args(words).output()?;
        fs::write(folder.join(file), [output.stdout, output.stderr].concat())?;
    }
    for node in cluster.nodes() {
        for service in ["kubelet", "containerd"] {
            let copy = folder.join(format!("{service}-{}.log", node.name()));
            fs::copy(node.log(service), copy)?;
        }
    }
    Ok(folder)
}

fn folder(cluster: &Cluster, test: &str) -> PathBuf {
    let base = std::env::var_os("E2E_LOG_DIR")
        .map_or_else(|| cluster.settings().sources.join("target/e2e"), PathBuf::from);
    base.join(Path::new(test))
}
