//! Owns the chart's values of the tests, and the installation and removal of Plimsoll by Helm, with the commands of
//! docs/install.md.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Cluster;
use super::install;
use crate::build::go_program::go_program;
use crate::command::{command, run};
use crate::progress::step;

/// The chart, from the root of this repository.
pub(super) const CHART: &str = "deploy/chart";
/// Helm as `make cluster` uses it.
pub(super) const HELM: &str = "helm4";
/// The name of Helm's release.
pub(super) const RELEASE: &str = "plimsoll";
/// The folder of the tests' values, and the one of those that this cluster needs.
const VALUES: &str = "testing/e2e/deploy";
const SHIPPED: &str = "shipped";

/// Helm's flags for values of the tests: those below, each on top of the one before, and a policy beside them.
pub(super) fn values(sources: &Path, name: &str) -> Vec<String> {
    let mut layers = vec![SHIPPED];
    let of_users = [SHIPPED, "moved", "real-gpu-nodes"];
    if !of_users.contains(&name) && name != "tested" {
        layers.push("tested");
    }
    if name != SHIPPED {
        layers.push(name);
    }
    let folder = sources.join(VALUES);
    let mut flags = Vec::new();
    for layer in layers {
        flags.push(format!("--values={}", folder.join(layer).join("values.yaml").display()));
    }
    let policy = folder.join(name).join("policy.yaml");
    if policy.exists() {
        flags.push(format!("--set-file=policy.text={}", policy.display()));
    }
    flags
}

/// Helm's release of the chart in a namespace.
pub struct ChartRelease<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    /// Where the node agents are, in place of `namespace`.
    agents: Option<&'a str>,
    helm: PathBuf,
    chart: PathBuf,
}

impl<'a> ChartRelease<'a> {
    /// The release in `namespace`, which need not be installed. `helm` is `helm3` or `helm4`, which takes minutes when
    /// it is needed for the first time.
    pub fn new(cluster: &'a Cluster, namespace: &'a str, helm: &str) -> Result<Self> {
        let settings = cluster.settings();
        let (helm, chart) = (go_program(settings, helm)?, settings.sources.join(CHART));
        Ok(Self { cluster, namespace, agents: None, helm, chart })
    }

    /// The same release, with the node agents in a namespace of their own and the others in one that is restricted.
    pub fn with_agents_in(self, namespace: &'a str) -> Self {
        Self { agents: Some(namespace), ..self }
    }

    /// The same release, by another chart.
    pub fn by_chart(&self, chart: &Path) -> Self {
        Self { chart: chart.to_owned(), helm: self.helm.clone(), ..*self }
    }

    /// Labels the nodes, makes namespace and certificates, and installs the chart with these flags (`--set=…`).
    pub fn install(&self, flags: &[&str]) -> Result<()> {
        step(&format!("installing the chart in the namespace {}", self.namespace));
        install::label_gpu_nodes(self.cluster)?;
        self.cluster.kubectl_run(&["create", "namespace", self.namespace])?;
        let level = if self.agents.is_some() { "restricted" } else { "privileged" };
        let level = format!("pod-security.kubernetes.io/enforce={level}");
        self.cluster.kubectl_run(&["label", "namespace", self.namespace, &level])?;
        install::make_certificates(self.cluster, &["--namespace", self.namespace])?;
        self.helm_with_values("install", flags)
    }

    /// Has kube-scheduler ask the extender.
    pub fn enable_scheduler(&self) -> Result<()> {
        install::switch_scheduler(self.cluster, &["enable", "--namespace", self.namespace])
    }

    /// Upgrades to the chart's values with these flags (`--set=…`), and waits until the rollout is over.
    pub fn upgrade(&self, flags: &[&str]) -> Result<()> {
        step(&format!("helm upgrade {}", flags.join(" ")));
        self.helm_with_values("upgrade", flags)
    }

    /// Goes back to a revision with these flags, and waits until the rollout is over.
    pub fn rollback(&self, revision: &str, flags: &[&str]) -> Result<()> {
        step(&format!("helm rollback to revision {revision}"));
        let words = ["rollback", RELEASE, revision, "--wait", "--timeout=300s"];
        self.helm(&[&words[..], flags].concat())?;
        self.wait()
    }

    /// Has kube-scheduler ask the extender no more, then removes everything.
    pub fn uninstall(&self) -> Result<()> {
        step("removing Plimsoll and Helm's release");
        install::switch_scheduler(self.cluster, &["disable", "--namespace", self.namespace])?;
        self.helm(&["uninstall", RELEASE, "--wait", "--timeout=300s"])?;
        // Helm leaves the chart's one, too.
        for namespace in [Some(self.namespace), self.agents].into_iter().flatten() {
            let delete = ["delete", "namespace", namespace, "--ignore-not-found"];
            self.cluster.kubectl_run(&[&delete[..], &["--timeout=400s"]].concat())?;
        }
        install::unlabel_gpu_nodes(self.cluster)
    }

    fn helm_with_values(&self, verb: &str, flags: &[&str]) -> Result<()> {
        let values = values(&self.cluster.settings().sources, SHIPPED);
        let chart = self.chart.to_string_lossy();
        let words = [verb, RELEASE, &*chart, &*values[0], "--wait", "--timeout=300s"];
        let agents = self.agents.map(|namespace| format!("--set=nodeAgents.namespace={namespace}"));
        let agents: Vec<&str> = agents.iter().map(String::as_str).collect();
        self.helm(&[&words[..], &agents, flags].concat())?;
        self.wait()
    }

    /// Helm waits for a Deployment's available replicas, and not for the former ones to end.
    fn wait(&self) -> Result<()> {
        install::wait_for_rollouts(self.cluster, self.namespace)?;
        self.agents.map_or(Ok(()), |agents| install::wait_for_rollouts(self.cluster, agents))
    }

    /// Runs Helm as the administrator.
    pub fn helm(&self, words: &[&str]) -> Result<String> {
        let mut helm = command(&self.helm);
        helm.args(["--kubeconfig"]).arg(self.cluster.kubeconfig());
        // Helm keeps caches and settings there.
        helm.env("HOME", self.cluster.settings().state.join("helm"));
        run(helm.args(["--namespace", self.namespace]).args(words))
    }
}
