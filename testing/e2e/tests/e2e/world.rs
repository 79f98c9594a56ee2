//! Owns the cluster that the tests run on, the connection to its API, and what must be clean between two tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use e2e::command::wait_for;
use e2e::processes::Pid;
use e2e::{Cluster, Load, Settings, install};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::pods::{processes_of, statuses};
use crate::tally::Tally;
use crate::{diagnosis, figures};

/// Where the tests' pods live.
pub(crate) const NAMESPACE: &str = "plimsoll-e2e";
/// Names a cluster of somebody else's, with Plimsoll on it.
const FOREIGN: &str = "E2E_KUBECONFIG";

/// Everything a test may use.
pub(crate) struct World {
    /// The machines, unless the cluster is somebody else's.
    cluster: Option<Cluster>,
    started_here: bool,
    removed: AtomicBool,
    client: Client,
    kubernetes: String,
    runtime: Runtime,
    tally: Mutex<Tally>,
    figures: Mutex<BTreeMap<String, String>>,
}

impl World {
    /// The cluster of `E2E_KUBECONFIG`, or the one that is up, or a new one with Plimsoll on it.
    pub(crate) fn enter() -> Result<Self> {
        let foreign = std::env::var_os(FOREIGN).filter(|path| !path.is_empty()).map(PathBuf::from);
        let (cluster, started_here) = match foreign {
            Some(_) => (None, false),
            None => own_cluster().map(|(cluster, fresh)| (Some(cluster), fresh))?,
        };
        let kubeconfig = foreign.or_else(|| cluster.as_ref().map(Cluster::kubeconfig));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(connect(&kubeconfig.context("no cluster")?))?;
        let kubernetes = runtime.block_on(client.apiserver_version())?.git_version;
        let world = Self {
            cluster,
            started_here,
            removed: AtomicBool::new(false),
            client,
            kubernetes,
            runtime,
            tally: Mutex::default(),
            figures: Mutex::default(),
        };
        world.make_namespace()?;
        Ok(world)
    }

    /// Removes what the tests made. A cluster that was up before stays, with Plimsoll on it; so does one where a test
    /// failed.
    pub(crate) fn leave(&self, failed: bool) -> Result<()> {
        if let Some(cluster) = self.cluster.as_ref().filter(|_| self.started_here && !failed) {
            return Cluster::down(cluster.settings());
        }
        let namespaces: Api<Namespace> = Api::all(self.client());
        self.wait(namespaces.delete(NAMESPACE, &DeleteParams::default()))?;
        match &self.cluster {
            Some(cluster) if self.removed.load(Ordering::Relaxed) => install::apply(cluster),
            _ => Ok(()),
        }
    }

    /// Runs a test on a cluster without its predecessors' pods, load and held services.
    pub(crate) fn judge(&self, name: &str, test: fn(&Self) -> Result<()>) -> Result<()> {
        self.tidy()?;
        test(self).map_err(|error| match self.cluster.as_ref() {
            Some(cluster) => match diagnosis::write(cluster, name) {
                Ok(folder) => error.context(format!("see {}", folder.display())),
                Err(second) => error.context(format!("nothing could be collected: {second:#}")),
            },
            None => error,
        })
    }

    /// The machines; an error on a cluster of somebody else's.
    pub(crate) fn cluster(&self) -> Result<&Cluster> {
        self.cluster.as_ref().context("this needs the machines of `make cluster`")
    }

    /// The version that the API server tells.
    pub(crate) fn kubernetes(&self) -> &str {
        &self.kubernetes
    }

    /// The connection to the API.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The pods of the tests.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    /// Waits for an answer.
    pub(crate) fn wait<T, E: Into<Error>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        self.runtime.block_on(answer).map_err(Into::into)
    }

    /// The processes of one of our programs, over all its pods.
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

    /// Whether every pod of the program is ready.
    pub(crate) fn program_ready(&self, program: &str) -> Result<bool> {
        let pods = self.program_pods(program)?;
        Ok(!pods.is_empty()
            && pods.iter().all(|pod| statuses(pod).iter().all(|status| status.ready)))
    }

    /// What one of our programs tells on its admin port, asked through the API server.
    pub(crate) fn metrics(&self, program: &str, port: u16) -> Result<String> {
        let pods = self.program_pods(program)?;
        let name = pods.first().and_then(|pod| pod.metadata.name.as_deref());
        let name = name.with_context(|| format!("{program} has no pod"))?;
        let path = format!("/api/v1/namespaces/plimsoll/pods/{name}:{port}/proxy/metrics");
        self.wait(self.client.request_text(http::Request::get(path).body(Vec::new())?))
    }

    /// The pods of one of our programs.
    pub(crate) fn program_pods(&self, program: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client(), "plimsoll");
        let named = ListParams::default().labels(&format!("app.kubernetes.io/name={program}"));
        Ok(self.wait(pods.list(&named))?.items)
    }

    /// Adds to what all tests count.
    pub(crate) fn count(&self, add: impl FnOnce(&mut Tally)) {
        add(&mut lock(&self.tally));
    }

    /// What was counted so far.
    pub(crate) fn tally(&self) -> Tally {
        lock(&self.tally).clone()
    }

    /// Keeps a measured figure for the end of the run.
    pub(crate) fn figure(&self, name: &str, value: String) {
        lock(&self.figures).insert(name.to_owned(), value);
    }

    /// The measured figures, one a line.
    pub(crate) fn figures(&self) -> String {
        let figures = lock(&self.figures);
        figures.iter().map(|(name, value)| format!("figure  {name}: {value}\n")).collect()
    }

    /// Keeps the memory of our programs.
    pub(crate) fn note_memory(&self) -> Result<()> {
        figures::note_memory(self)
    }

    /// Notes that Plimsoll was taken off, so that a cluster which was up before gets it back.
    pub(crate) fn note_removal(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    fn tidy(&self) -> Result<()> {
        for node in self.cluster.iter().flat_map(Cluster::nodes) {
            node.set_load(Load::IDLE)?;
            ["containerd", "kubelet"].iter().for_each(|service| drop(node.release(service)));
        }
        self.delete_all_pods()
    }

    /// Deletes every pod of the tests and waits until the kubelets have let go of them.
    pub(crate) fn delete_all_pods(&self) -> Result<()> {
        let pods = self.pods();
        self.wait(pods.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
        wait_for("all pods to be gone", Duration::from_secs(120), || {
            Ok(self
                .wait(pods.list_metadata(&ListParams::default()))?
                .items
                .is_empty()
                .then_some(()))
        })
    }

    fn make_namespace(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let namespace = parse(json!({"metadata": {"name": NAMESPACE}}))?;
        wait_for("the tests' namespace", Duration::from_secs(60), || {
            match self.wait(namespaces.get_opt(NAMESPACE))? {
                Some(found) if found.metadata.deletion_timestamp.is_none() => Ok(Some(())),
                Some(_) => Ok(None),
                None => {
                    self.wait(namespaces.create(&PostParams::default(), &namespace)).map(|_| None)
                }
            }
        })
    }
}

/// Reads an object from JSON.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("the test's own object is wrong")
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cluster that is up, or a new one; and whether it is new.
fn own_cluster() -> Result<(Cluster, bool)> {
    let mut settings = Settings::from_env()?;
    settings.program = PathBuf::from(env!("CARGO_BIN_EXE_plimsoll-cluster"));
    let (cluster, fresh) = match Cluster::attach(settings.clone()) {
        Ok(cluster) => (cluster, false),
        Err(_) => (Cluster::up(settings)?, true),
    };
    if !install::is_installed(&cluster)? {
        install::install(&cluster)?;
    }
    Ok((cluster, fresh))
}

async fn connect(kubeconfig: &std::path::Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
