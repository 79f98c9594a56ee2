//! An embedded cluster for tests and the demo: a small Kubernetes API over real HTTP ([`Sim`]), kubelets that speak
//! real gRPC to device plugins ([`kubelet`]), and kube-scheduler's side of the extender protocol ([`scheduler`]). The
//! crate `conformance` holds all three against the real ones.
//!
//! The API serves nodes, pods, config maps, events and leases: get, list, watch, create, update, merge patch, delete,
//! the subresource `status`, and `pods/binding` with the API server's preconditions and error texts. It reads JSON
//! alone. Strategic merge patches are taken where they are merge patches, see `api_server/patch.rs`. There is one
//! admission plugin, ExtendedResourceToleration. There is no authorisation, no garbage collection, no dry run, no grace
//! period at deletion, and no controller. Of an object, its kind, name, namespace, labels and annotations are
//! validated.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! use sim::{Fault, Sim, node, pod};
//!
//! let sim = Sim::start().await?;
//! sim.put(node("worker-1").address("127.0.0.1"));
//! sim.put(pod("train").asking("aliyun.com/gpu-mem", 3));
//! sim.faults().next_bindings(1, Fault::DropReply);
//! // … a client at `sim.url()` binds the pod, and its reply is lost …
//! assert!(sim.log().bindings().is_empty());
//! # Ok(())
//! # }
//! ```

mod api_server;
mod builders;
mod client;
mod json;
pub mod kubelet;
pub mod memory;
mod objects;
mod proc_tree;
pub mod scheduler;
pub mod stored;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;

pub use api_server::faults::{Fault, Faults};
pub use api_server::request::{Request, RequestLog, Verb};
pub use builders::{NodeBuilder, PodBuilder, node, pod};
pub use client::{KeptAddress, http_client};
pub use objects::failure::Failure;
pub use objects::follow::{ObjectEvent, Objects};
pub use objects::kind::{
    CONFIG_MAPS, DISRUPTION_BUDGETS, ENDPOINT_SLICES, EVENTS, KINDS, Kind, LEASES, NODE_METRICS,
    NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, WRITTEN_EVENTS,
};
pub use proc_tree::{Load, ProcTree};

use api_server::{Api, server};
use json::{name, namespace};
use objects::validation::check_shape;

/// Longest wait of [`Sim::until`], on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a test waited for did not come about.
#[derive(Debug, thiserror::Error)]
#[error("{what} did not come about within {PATIENCE:?}")]
pub struct TimedOut {
    what: String,
}

/// A running API server. Dropping it ends it and its connections.
#[derive(Debug)]
pub struct Sim {
    api: Api,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Sim {
    /// Starts one on a free port of the loopback.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> io::Result<Self> {
        let (listener, address) = server::listen().await?;
        let api = Api::new();
        let serve = server::serve(listener, api.clone());
        let server = tokio::spawn(async {
            serve.await;
        });
        Ok(Self { api, address, server })
    }

    /// Its URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig for it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) -> io::Result<()> {
        let url = self.url();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: sim\n\
             clusters: [{{name: sim, cluster: {{server: \"{url}\"}}}}]\n\
             users: [{{name: sim, user: {{}}}}]\n\
             contexts: [{{name: sim, context: {{cluster: sim, user: sim, namespace: default}}}}]\n"
        );
        std::fs::write(path, text)
    }

    /// Creates or replaces an object with its status, past admission and validation. A namespaced object without a
    /// namespace goes to `default`. Returns the object as stored, or `Null` where its kind is not served or it has no
    /// metadata.
    pub fn put(&self, object: impl Into<Value>) -> Value {
        let object = object.into();
        let Some(kind) = Kind::of(&object) else { return Value::Null };
        if check_shape(&object).is_err() {
            return Value::Null;
        }
        let namespace = match namespace(&object) {
            _ if !kind.namespaced => "",
            "" => "default",
            namespace => namespace,
        };
        let namespace = namespace.to_owned();
        let name = name(&object).to_owned();
        let stored = self.api.store.change(kind, &namespace, &name, |_| Ok(Some(object)));
        stored.ok().flatten().map_or(Value::Null, |stored| Value::clone(&stored))
    }

    /// An object; `namespace` is empty for kinds without.
    #[must_use]
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let object = self.api.store.get(kind, namespace, name)?;
        Some(Value::clone(&object))
    }

    /// A node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<Value> {
        self.get(NODES, "", name)
    }

    /// A pod.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.get(PODS, namespace, name)
    }

    /// Every object of a kind.
    #[must_use]
    pub fn list(&self, kind: Kind) -> Vec<Value> {
        let (objects, _) = self.api.store.list(kind);
        objects.iter().map(|object| Value::clone(object)).collect()
    }

    /// Changes an object in place. Does nothing where it is missing.
    pub fn change(&self, kind: Kind, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        // The closure cannot fail.
        let _ = self.api.store.change(kind, namespace, name, |before| {
            let mut object = before.cloned();
            object.as_mut().map(change);
            Ok(object)
        });
    }

    /// Deletes an object. Does nothing where it is missing.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        // The closure cannot fail.
        let _ = self.api.store.change(kind, namespace, name, |_| Ok(None));
    }

    /// Everything that happens to the objects of a kind, beginning with the present ones. Deletions that happened
    /// before a [`Faults::expire_watches`] and were not read by then are missing.
    #[must_use]
    pub fn follow(&self, kind: Kind) -> Objects {
        Objects::new(&self.api.store, kind)
    }

    /// Answers requests about a kind from now on as if it were not known, as in a release before it.
    pub fn stop_serving(&self, kind: Kind) {
        self.api.unserved.lock().unwrap_or_else(PoisonError::into_inner).insert(kind);
    }

    /// Refuses lists that are asked for as watches from now on, as where the feature WatchList is off.
    pub fn refuse_streamed_lists(&self) {
        self.api.refuses_streamed_lists.store(true, Ordering::Relaxed);
    }

    /// The requests so far.
    #[must_use]
    pub fn log(&self) -> &RequestLog {
        &self.api.log
    }

    /// Plans faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.api.faults
    }

    /// Waits until `found` returns something. It is called again after every request, after every change of an object,
    /// and when the number of hanging requests changes.
    ///
    /// # Errors
    /// After two minutes, with `what` in the message.
    pub async fn until<T>(
        &self,
        what: &str,
        found: impl Fn(&Self) -> Option<T>,
    ) -> Result<T, TimedOut> {
        tokio::time::timeout(PATIENCE, self.seek(found))
            .await
            .map_err(|_| TimedOut { what: what.to_owned() })
    }

    fn seek<'a, T: 'a>(
        &'a self,
        found: impl Fn(&Self) -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        let mut changed = self.api.store.newest();
        let mut asked = self.api.log.grown();
        let mut hanging = self.api.faults.hanging_changes();
        async move {
            loop {
                if let Some(it) = found(self) {
                    return it;
                }
                tokio::select! {
                    _ = changed.changed() => {}
                    _ = asked.changed() => {}
                    _ = hanging.changed() => {}
                }
            }
        }
    }
}
