//! An embedded cluster for tests and the demo: a small Kubernetes API over real HTTP ([`Sim`]), kubelets
//! that speak real gRPC to device plugins ([`kubelet`]), and kube-scheduler's side of the extender
//! protocol ([`scheduler`]). What it claims of the API is held against the real one by the crate
//! `conformance`.
//!
//! The API serves nodes, pods, events, leases, namespaces and config maps: get, list, watch, create,
//! update, merge patch and strategic merge patch, delete, the `status` subresource, and
//! `pods/binding` with the API server's own preconditions and error texts, all of it for real or as a dry
//! run. Objects are plain JSON, and nothing but JSON is taken. The one admission plugin is
//! ExtendedResourceToleration: a pod that is created over HTTP tolerates the taints of the extended
//! resources that it asks for. There is no other admission, no authorisation, no garbage collection and no
//! grace at deletion; of an object, its kind, name, namespace, labels and annotations are validated, and
//! nothing else; lists come in one page.
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

mod admission;
mod api;
mod binding;
mod client;
mod error;
mod event;
mod faults;
mod follow;
mod kind;
pub mod kubelet;
mod merge;
mod object;
mod proc_tree;
mod request;
pub mod scheduler;
mod selector;
mod server;
mod store;
mod strategic;
mod validity;
mod watch;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;

pub use client::http_client;
pub use error::Failure;
pub use faults::{Fault, Faults};
pub use follow::{ObjectEvent, Objects};
pub use kind::{CONFIG_MAPS, EVENTS, KINDS, Kind, LEASES, NAMESPACES, NEW_EVENTS, NODES, PODS};
pub use object::{NodeBuilder, PodBuilder, node, pod};
pub use proc_tree::{Load, ProcTree};
pub use request::{Request, RequestLog, Verb};

use api::Api;

/// How long [`Sim::until`] waits before it gives up on what a test expects.
const PATIENCE: Duration = Duration::from_secs(30);

/// Something that a test waited for did not come about.
#[derive(Debug, thiserror::Error)]
#[error("{what} did not come about within {PATIENCE:?}")]
pub struct NeverCame {
    what: String,
}

/// A running stand-in. Dropping it ends it and its connections.
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
    /// When no port can be had.
    pub async fn start() -> io::Result<Self> {
        let (listener, address) = server::listen().await?;
        let api = Api::new();
        let serve = server::serve(listener, api.clone());
        let server = tokio::spawn(async {
            serve.await;
        });
        Ok(Self { api, address, server })
    }

    /// Where it answers, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig that leads here.
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

    /// Creates or replaces an object, status and all. Returns it as stored, or `Null` where its
    /// kind is not served or it has no metadata.
    pub fn put(&self, object: impl Into<Value>) -> Value {
        let object = object.into();
        let Some(kind) = Kind::of(&object).filter(|_| api::sound(&object).is_ok()) else {
            return Value::Null;
        };
        let (namespace, name) = identity(kind, &object);
        let stored = self.api.store.change(kind, &namespace, &name, |_| Ok(Some(object)));
        stored.ok().flatten().map_or(Value::Null, |stored| Value::clone(&stored))
    }

    /// An object, if it is there; `namespace` is empty for cluster-wide kinds.
    #[must_use]
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let object = self.api.store.get(kind, namespace, name)?;
        Some(Value::clone(&object))
    }

    /// A node, if it is there.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<Value> {
        self.get(NODES, "", name)
    }

    /// A pod, if it is there.
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

    /// Changes an object in place; does nothing where it is missing.
    pub fn change(&self, kind: Kind, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        // The closure below never fails.
        let _ = self.api.store.change(kind, namespace, name, |before| {
            let mut object = before.cloned();
            object.as_mut().map(change);
            Ok(object)
        });
    }

    /// Deletes an object, if it is there.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) {
        // The closure below never fails.
        let _ = self.api.store.change(kind, namespace, name, |_| Ok(None));
    }

    /// Everything that happens to the objects of a kind, beginning with those that are there. Where
    /// the history was forgotten, objects that vanished meanwhile are not told of.
    #[must_use]
    pub fn follow(&self, kind: Kind) -> Objects {
        Objects::new(&self.api.store, kind)
    }

    /// Every request that came.
    #[must_use]
    pub fn log(&self) -> &RequestLog {
        &self.api.log
    }

    /// What shall go wrong.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.api.faults
    }

    /// Waits until `found` finds something; it is asked again after every request, every change
    /// of an object, and when a request begins or ceases to hang.
    ///
    /// # Errors
    /// After 30 seconds, with `what` in the message.
    pub async fn until<T>(
        &self,
        what: &str,
        found: impl Fn(&Self) -> Option<T>,
    ) -> Result<T, NeverCame> {
        let never = |_| NeverCame { what: what.to_owned() };
        tokio::time::timeout(PATIENCE, self.seek(found)).await.map_err(never)
    }

    fn seek<'a, T: 'a>(
        &'a self,
        found: impl Fn(&Self) -> Option<T> + 'a,
    ) -> impl Future<Output = T> + 'a {
        let (mut changed, mut asked) = (self.api.store.newest(), self.api.log.grown());
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

fn identity(kind: Kind, object: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let meta = &object["metadata"];
    let namespace = if kind.namespaced {
        text(&meta["namespace"]).unwrap_or_else(|| "default".to_owned())
    } else {
        String::new()
    };
    (namespace, text(&meta["name"]).unwrap_or_default())
}
