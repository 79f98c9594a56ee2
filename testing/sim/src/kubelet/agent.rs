//! The kubelet's loop from a start to the next kill: it admits pods, starts their containers, and removes pods that are
//! gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;

use super::account::{Answers, PodKey};
use super::device_manager::DeviceManager;
use super::runtime::Runtime;
use super::status;
use crate::json::{name, namespace, text, uid};
use crate::objects::follow::{Follower, Update};
use crate::objects::kind::PODS;
use crate::objects::store::Store;

/// Time after which a container that could not start is tried again.
const RETRY_START: Duration = Duration::from_secs(1);

/// The loop.
pub(super) struct Agent {
    manager: Arc<DeviceManager>,
    store: Store,
    runtime: Runtime,
    /// The tasks that start the containers of the pods admitted since the kubelet's start, by the pods' UIDs.
    pods: HashMap<String, Worker>,
}

struct Worker(JoinHandle<()>);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Agent {
    pub(super) fn new(manager: Arc<DeviceManager>, store: Store, runtime: Runtime) -> Self {
        Self { manager, store, runtime, pods: HashMap::new() }
    }

    pub(super) async fn run(mut self) {
        let mut pods = Follower::new(&self.store, PODS);
        loop {
            match pods.next().await {
                Update::All(pods) => self.all(&pods).await,
                Update::Changes(changes) => {
                    for change in changes {
                        match change.after {
                            Some(pod) => self.applied(&pod).await,
                            None => self.gone(uid(&change.last)),
                        }
                    }
                }
            }
        }
    }

    /// Takes over a list of pods, in the order of their creation, whatever the order of their binding. Until all of the
    /// first list are admitted, the devices of removed pods count as held.
    async fn all(&mut self, pods: &[Arc<Value>]) {
        let mut here: Vec<&Arc<Value>> = pods.iter().filter(|pod| self.is_here(pod)).collect();
        here.sort_by_key(|pod| text(&pod["metadata"]["creationTimestamp"]).to_owned());
        let listed: HashSet<&str> = here.iter().map(|pod| uid(pod)).collect();
        let known = self.runtime.pods();
        known.iter().filter(|uid| !listed.contains(uid.as_str())).for_each(|uid| self.gone(uid));
        for pod in here {
            self.applied(pod).await;
        }
        self.manager.started();
    }

    fn is_here(&self, pod: &Value) -> bool {
        pod["spec"]["nodeName"] == self.runtime.settings().node.as_str()
    }

    async fn applied(&mut self, pod: &Value) {
        let uid = uid(pod);
        let has_ended = matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed");
        if has_ended || pod["metadata"]["deletionTimestamp"].is_string() {
            self.gone(uid);
        } else if self.is_here(pod) && !self.pods.contains_key(uid) {
            self.admit(pod, uid).await;
        }
    }

    async fn admit(&mut self, pod: &Value, uid: &str) {
        let spec = status::pod_spec(pod, &self.runtime.settings().resource);
        match self.manager.admit_again(&spec, &self.runtime.started(uid)).await {
            Ok(answers) => {
                self.runtime.add_pod(uid, spec.key());
                status::admitted(&self.store, pod);
                let start = start(self.manager.clone(), self.runtime.clone(), answers, pod.clone());
                let store = self.store.clone();
                let work = async move { status::running(&store, &start.await) };
                self.pods.insert(uid.to_owned(), Worker(tokio::spawn(work)));
            }
            Err(error) => {
                status::rejected(&self.store, pod, &error.0);
                self.gone(uid);
            }
        }
    }

    /// Ends a pod's containers. The next List or Allocate frees its ids.
    fn gone(&mut self, uid: &str) {
        drop(self.pods.remove(uid));
        if let Some(pod) = self.runtime.end(uid) {
            self.manager.stop(pod);
        }
    }
}

/// Starts the containers that do not run yet, one after another, each once PreStartContainer succeeds. Returns the pod.
async fn start(
    manager: Arc<DeviceManager>,
    runtime: Runtime,
    mut answers: Answers,
    pod: Value,
) -> Value {
    let key = PodKey::new(namespace(&pod), name(&pod));
    let started = runtime.started(uid(&pod));
    let others = status::containers(&pod).filter(|c| !started.contains(text(&c["name"])));
    for container in others {
        let container_name = text(&container["name"]);
        while manager.start_container(key.clone(), container_name).await.is_err() {
            tokio::time::sleep(RETRY_START).await;
        }
        runtime.start(&pod, container, answers.remove(container_name).unwrap_or_default());
    }
    pod
}
