//! Owns the cluster that the tests run on, the connection to its API, and what must be clean between two tests.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::command::wait_for;
use e2e::{Cluster, Load, Settings, install};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::tally::Tally;

/// Where the tests' pods live.
pub(crate) const NAMESPACE: &str = "plimsoll-e2e";

/// Everything a test may use.
pub(crate) struct World {
    /// The cluster's machines.
    pub(crate) cluster: Cluster,
    started_here: bool,
    client: Client,
    runtime: Runtime,
    tally: Mutex<Tally>,
}

impl World {
    /// Attaches to the running cluster, or brings one up with Plimsoll on it.
    pub(crate) fn enter() -> Result<Self> {
        let mut settings = Settings::from_env()?;
        settings.program = PathBuf::from(env!("CARGO_BIN_EXE_plimsoll-cluster"));
        let (cluster, started_here) = match Cluster::attach(settings.clone()) {
            Ok(cluster) => (cluster, false),
            Err(_) => (fresh(settings)?, true),
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(connect(&cluster))?;
        let world = Self { cluster, started_here, client, runtime, tally: Mutex::default() };
        world.make_namespace()?;
        Ok(world)
    }

    /// Removes what the tests made; the cluster stays where it was up before, or where a test failed.
    pub(crate) fn leave(&self, failed: bool) -> Result<()> {
        if self.started_here && !failed {
            return Cluster::down(self.cluster.settings());
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        self.wait(namespaces.delete(NAMESPACE, &DeleteParams::default()))?;
        Ok(())
    }

    /// Runs a test on a cluster without its predecessors' pods, load and held services.
    pub(crate) fn judge(&self, test: fn(&Self) -> Result<()>) -> Result<()> {
        self.tidy()?;
        test(self)
    }

    /// The API's objects of a kind in the tests' namespace.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Waits for one answer of the API.
    pub(crate) fn wait<T>(&self, answer: impl Future<Output = kube::Result<T>>) -> Result<T> {
        Ok(self.runtime.block_on(answer)?)
    }

    /// What was counted so far.
    pub(crate) fn tally(&self) -> Tally {
        *self.tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn tidy(&self) -> Result<()> {
        for node in self.cluster.nodes() {
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
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
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

fn fresh(settings: Settings) -> Result<Cluster> {
    let cluster = Cluster::up(settings)?;
    install::install(&cluster)?;
    Ok(cluster)
}

async fn connect(cluster: &Cluster) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
