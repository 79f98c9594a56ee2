//! Owns the cluster that the tests run on, the connection to its API, and the reset between two tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use e2e::build::{programs, release};
use e2e::cluster::install::{self, Setup};
use e2e::command::{command, wait_for};
use e2e::kernel::processes::Pid;
use e2e::node::gpus::{GPU_MIB, GPUS};
use e2e::progress::line;
use e2e::{Cluster, Load, Settings};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::support::counts::Counts;
use crate::support::diagnostics;
use crate::support::offers::offered;
use crate::support::pods::{EVERY_GPU, GPU, processes_of, statuses};
use crate::support::resource_claims;

/// The namespace of the tests' pods.
pub(crate) const NAMESPACE: &str = "plimsoll-e2e";
/// What a node offers in units of 1 GiB.
const UNITS_OF_NODE: u64 = GPUS as u64 * GPU_MIB / 1024;
/// A program that was killed several times is started again after 5 minutes at most.
const BACK: Duration = Duration::from_secs(600);
/// How many of the slowest tests a run names first.
const SLOWEST: usize = 10;
/// The environment variable with the kubeconfig of another cluster, on which Plimsoll is installed.
const FOREIGN: &str = "E2E_KUBECONFIG";

/// Printed after a failed run on a cluster of `make cluster`.
const SETUP_STAYS: &str = "the cluster keeps the tests' setup, with crane's policy. What `make cluster` had installed is \
                           put back by: cargo run -p plimsoll-e2e --bin plimsoll-cluster -- install";

/// What a test can use.
pub(crate) struct TestEnv {
    /// `None` for a cluster of `E2E_KUBECONFIG`.
    cluster: Option<Cluster>,
    started_here: bool,
    /// What was installed before the tests; `None` if nothing was.
    found: Option<Setup>,
    uninstalled: AtomicBool,
    config: Config,
    client: Client,
    kubernetes: String,
    runtime: Runtime,
    counts: Mutex<Counts>,
    figures: Mutex<BTreeMap<String, String>>,
    /// How long each test took, the reset before it left out.
    took: Mutex<Vec<(Duration, String)>>,
}

impl TestEnv {
    /// Connects to the cluster of `E2E_KUBECONFIG`, or to the one that is up, or starts one and installs Plimsoll.
    pub(crate) fn start() -> Result<Self> {
        let foreign = std::env::var_os(FOREIGN).filter(|path| !path.is_empty()).map(PathBuf::from);
        let (cluster, started_here) = match foreign {
            Some(_) => (None, false),
            None => own_cluster().map(|(cluster, fresh)| (Some(cluster), fresh))?,
        };
        let found = cluster.as_ref().map(install::installed).transpose()?.flatten();
        if let Some(cluster) = &cluster {
            put_tests_setup(cluster, found)?;
        }
        let kubeconfig = foreign.or_else(|| cluster.as_ref().map(Cluster::kubeconfig));
        // A thread of its own: connections that the API server closes between two calls are noticed at once, not by the
        // next call.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let config = runtime.block_on(config_of(&kubeconfig.context("no cluster")?))?;
        let client = runtime.block_on(async { Client::try_from(config.clone()) })?;
        let kubernetes = runtime.block_on(client.apiserver_version())?.git_version;
        let env = Self {
            cluster,
            started_here,
            found,
            uninstalled: AtomicBool::new(false),
            config,
            client,
            kubernetes,
            runtime,
            counts: Mutex::default(),
            figures: Mutex::default(),
            took: Mutex::default(),
        };
        env.make_namespace()?;
        Ok(env)
    }

    /// Removes what the tests created. A cluster that was up before stays, with what was installed there. So does one
    /// where a test failed, but with the tests' setup.
    pub(crate) fn finish(&self, failed: bool) -> Result<()> {
        if let Some(cluster) = &self.cluster
            && self.started_here
            && !failed
        {
            return Cluster::down(cluster.settings());
        }
        let namespaces: Api<Namespace> = Api::all(self.client());
        self.block_on(namespaces.delete(NAMESPACE, &DeleteParams::default()))?;
        let Some(cluster) = &self.cluster else { return Ok(()) };
        if let Some(found) = self.found.filter(|found| *found != Setup::Tested) {
            if !failed {
                return install::apply(cluster, found);
            }
            line(SETUP_STAYS);
        }
        let uninstalled = self.uninstalled.load(Ordering::Relaxed);
        if uninstalled { install::apply(cluster, Setup::Tested) } else { Ok(()) }
    }

    /// Resets the cluster and runs a test. If it fails, its error names the folder with diagnostics.
    pub(crate) fn run(&self, name: &str, test: fn(&Self) -> Result<()>) -> Result<()> {
        self.reset()?;
        let start = Instant::now();
        let done = test(self);
        lock(&self.took).push((start.elapsed(), name.to_owned()));
        done.map_err(|error| match self.cluster.as_ref() {
            Some(cluster) => match diagnostics::write(cluster, name) {
                Ok(folder) => error.context(format!("see {}", folder.display())),
                Err(second) => error.context(format!("diagnostics failed: {second:#}")),
            },
            None => error,
        })
    }

    /// The cluster with its nodes. An error for a cluster of `E2E_KUBECONFIG`.
    pub(crate) fn cluster(&self) -> Result<&Cluster> {
        self.cluster.as_ref().context("this needs the nodes of `make cluster`")
    }

    /// `plimsoll`, the operators' command, with kubectl and its configuration for this cluster.
    pub(crate) fn operators_command(&self, words: &[&str]) -> Result<Command> {
        let cluster = self.cluster()?;
        let kubectl = cluster.kubectl();
        let folder = Path::new(kubectl.get_program()).parent().context("kubectl has no folder")?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = command(programs::operators_command(cluster.settings())?);
        command.args(words).env("PATH", format!("{}:{path}", folder.display()));
        command.env("KUBECONFIG", cluster.kubeconfig());
        Ok(command)
    }

    /// The version that the API server reports, such as v1.36.3.
    pub(crate) fn kubernetes(&self) -> &str {
        &self.kubernetes
    }

    /// Whether the cluster's release is older than the one that has this first. If so, it is said.
    pub(crate) fn lacks(&self, what: &str, since: &str) -> Result<bool> {
        let lacks = Some(self.cluster()?.release()) < release::parse(since);
        if lacks {
            line(&format!("SKIPPED: Kubernetes {} has no {what}", self.kubernetes));
        }
        Ok(lacks)
    }

    /// The connection to the API.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// A connection that is made of this.
    pub(crate) fn client_of(&self, config: Config) -> Result<Client> {
        self.block_on(async { Client::try_from(config) })
    }

    /// The API of the tests' pods.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    /// Runs a future to its end.
    pub(crate) fn block_on<T, E: Into<Error>>(
        &self,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        self.runtime.block_on(future).map_err(Into::into)
    }

    /// The processes of one of Plimsoll's programs, in all its pods.
    pub(crate) fn programs(&self, program: &str) -> Result<Vec<Pid>> {
        let mut all = Vec::new();
        for pod in self.program_pods(program)? {
            let runs = statuses(&pod).iter().any(|status| status.container_id.is_some());
            if runs {
                all.extend(processes_of(&pod, program)?);
            }
        }
        Ok(all)
    }

    /// Whether every pod of the program is ready. One that its kubelet has not reported yet has no statuses.
    pub(crate) fn program_ready(&self, program: &str) -> Result<bool> {
        let pods = self.program_pods(program)?;
        Ok(!pods.is_empty()
            && pods.iter().all(|pod| {
                let statuses = statuses(pod);
                !statuses.is_empty() && statuses.iter().all(|status| status.ready)
            }))
    }

    /// The page `/metrics` of each of the program's pods that is not ending, by the pod's name, fetched through the API
    /// server.
    pub(crate) fn metrics_of_each(
        &self,
        program: &str,
        port: u16,
    ) -> Result<BTreeMap<String, String>> {
        let pods = self.program_pods(program)?;
        let names = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| pod.metadata.name.as_deref());
        names.map(|name| Ok((name.to_owned(), self.page(name, port)?))).collect()
    }

    fn page(&self, name: &str, port: u16) -> Result<String> {
        let path = format!("/api/v1/namespaces/plimsoll/pods/{name}:{port}/proxy/metrics");
        self.block_on(self.client.request_text(http::Request::get(path).body(Vec::new())?))
    }

    /// Waits until a rollout of one of Plimsoll's Deployments is over, and until the pods before have ended: they
    /// answer and write until then.
    pub(crate) fn rolled_out(&self, program: &str) -> Result<()> {
        let deployment = format!("deployment/{program}");
        let status = ["-n", "plimsoll", "rollout", "status", &deployment, "--timeout=300s"];
        self.cluster()?.kubectl_run(&status)?;
        wait_for(&format!("the former pods of {program} to end"), Duration::from_secs(300), || {
            let pods = self.program_pods(program)?;
            Ok(pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()).then_some(()))
        })
    }

    /// Sets the number of pods of a Deployment of Plimsoll and waits until there are as many.
    pub(crate) fn scale(&self, program: &str, replicas: usize) -> Result<()> {
        let deployment = format!("deployment/{program}");
        let count = format!("--replicas={replicas}");
        self.cluster()?.kubectl_run(&["-n", "plimsoll", "scale", &deployment, &count])?;
        wait_for(&format!("{replicas} pods of {program}"), Duration::from_secs(300), || {
            let pods = self.program_pods(program)?.len();
            let ready = replicas == 0 || self.program_ready(program)?;
            Ok((pods == replicas && ready).then_some(()))
        })
    }

    /// Removes the object at this path of the API.
    pub(crate) fn remove(&self, path: &str) -> Result<()> {
        let request = http::Request::delete(path).body(Vec::new())?;
        self.block_on(self.client.request::<Value>(request)).map(drop)
    }

    /// The pods of one of Plimsoll's programs.
    pub(crate) fn program_pods(&self, program: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client(), "plimsoll");
        let named = ListParams::default().labels(&format!("app.kubernetes.io/name={program}"));
        Ok(self.block_on(pods.list(&named))?.items)
    }

    /// Changes the counts of the run.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut lock(&self.counts));
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }

    /// Records a measured figure for the end of the run.
    pub(crate) fn figure(&self, name: &str, value: String) {
        lock(&self.figures).insert(name.to_owned(), value);
    }

    /// The measured figures, one on each line.
    pub(crate) fn figures(&self) -> String {
        let figures = lock(&self.figures);
        figures.iter().map(|(name, value)| format!("figure  {name}: {value}\n")).collect()
    }

    /// How long each test took, in seconds, the slowest first; the ten slowest are the first ten.
    pub(crate) fn slowest(&self) -> String {
        let mut took = lock(&self.took).clone();
        took.sort_by(|a, b| b.cmp(a));
        let (ten, others) = took.split_at(took.len().min(SLOWEST));
        format!(
            "seconds of the {} slowest tests\n{}and of the others\n{}",
            ten.len(),
            rows(ten),
            rows(others)
        )
    }

    /// Notes that Plimsoll was uninstalled. [`TestEnv::finish`] installs it again on a cluster that was up before.
    pub(crate) fn note_uninstalled(&self) {
        self.uninstalled.store(true, Ordering::Relaxed);
    }

    /// Takes back what earlier tests may have left: pods, load, services that are held down, nodes that give out their
    /// GPUs by claims, and those that are not back yet.
    fn reset(&self) -> Result<()> {
        for node in self.cluster.iter().flat_map(Cluster::nodes) {
            node.set_load(Load::IDLE)?;
            node.forget_boot()?;
            ["containerd", "kubelet"].iter().for_each(|service| drop(node.release(service)));
        }
        self.delete_all_pods()?;
        self.cluster.iter().try_for_each(|cluster| {
            resource_claims::forget(self, cluster)?;
            self.nodes_are_back(cluster)
        })
    }

    /// Waits until each node is ready, without a taint of Kubernetes, and offers the units of all its GPUs, where
    /// Plimsoll is installed. A test that kills kubelets or device plugins ends before that.
    fn nodes_are_back(&self, cluster: &Cluster) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client());
        let is_uninstalled = self.uninstalled.load(Ordering::Relaxed);
        wait_for("the nodes to be ready and to offer their GPUs", BACK, || {
            let offered = offered(self, GPU)?;
            for host in cluster.nodes() {
                let name = host.name();
                let node = self.block_on(nodes.get(name))?;
                let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
                let of_kubernetes =
                    taints.iter().find(|taint| taint.key.starts_with("node.kubernetes.io/"));
                ensure!(of_kubernetes.is_none(), "{name} has the taint {of_kubernetes:?}");
                let conditions = node.status.and_then(|status| status.conditions);
                let mut conditions = conditions.into_iter().flatten();
                let ready = conditions.any(|it| it.type_ == "Ready" && it.status == "True");
                ensure!(ready, "{name} is not ready");
                let units = offered.get(name);
                ensure!(
                    is_uninstalled || units == Some(&UNITS_OF_NODE),
                    "{name} offers {units:?} units"
                );
            }
            Ok(Some(()))
        })
    }

    /// Deletes every pod of the tests and waits until the API server has removed them.
    pub(crate) fn delete_all_pods(&self) -> Result<()> {
        let pods = self.pods();
        self.block_on(pods.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
        wait_for("all pods to be gone", Duration::from_secs(300), || {
            Ok(self
                .block_on(pods.list_metadata(&ListParams::default()))?
                .items
                .is_empty()
                .then_some(()))
        })
    }

    fn make_namespace(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let namespace = parse(json!({"metadata": {"name": NAMESPACE}}))?;
        wait_for("the tests' namespace", Duration::from_secs(300), || {
            match self.block_on(namespaces.get_opt(NAMESPACE))? {
                Some(found) if found.metadata.deletion_timestamp.is_none() => Ok(Some(())),
                Some(_) => Ok(None),
                None => self
                    .block_on(namespaces.create(&PostParams::default(), &namespace))
                    .map(|_| None),
            }
        })?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client(), NAMESPACE);
        let every_gpu = parse(json!({
            "metadata": {"name": EVERY_GPU}, "data": {"NVIDIA_VISIBLE_DEVICES": "all"},
        }))?;
        match self.block_on(maps.get_opt(EVERY_GPU))? {
            Some(_) => Ok(()),
            None => self.block_on(maps.create(&PostParams::default(), &every_gpu)).map(drop),
        }
    }

    /// What a connection to the API is made of: the server, and the administrator's credentials.
    pub(crate) fn config(&self) -> Config {
        self.config.clone()
    }
}

fn rows(some: &[(Duration, String)]) -> String {
    some.iter().map(|(time, name)| format!("{:8.1}  {name}\n", time.as_secs_f64())).collect()
}

/// An API object from JSON.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("an object of the tests is malformed")
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cluster that is up, or a new one, and whether it is new.
fn own_cluster() -> Result<(Cluster, bool)> {
    let mut settings = Settings::from_env()?;
    settings.program = PathBuf::from(env!("CARGO_BIN_EXE_plimsoll-cluster"));
    match Cluster::running(settings.clone())? {
        Some(cluster) => Ok((cluster, false)),
        None => Ok((Cluster::up(settings)?, true)),
    }
}

/// Installs what the tests run on, where something else or nothing was `found`.
fn put_tests_setup(cluster: &Cluster, found: Option<Setup>) -> Result<()> {
    match found {
        None => install::install(cluster, Setup::Tested),
        Some(Setup::Shipped | Setup::Chart) => install::apply(cluster, Setup::Tested),
        Some(Setup::Tested) => Ok(()),
    }
}

async fn config_of(kubeconfig: &std::path::Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    // Ends idle connections before the API server does after 90 s: a request that is sent meanwhile would fail.
    config.read_timeout = Some(Duration::from_secs(80));
    config.reset_reader_on_write = true;
    Ok(config)
}
