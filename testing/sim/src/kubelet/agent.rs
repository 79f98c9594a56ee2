//! One life of a kubelet: the loop that admits pods, starts their containers and lets go of what is gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;

use super::account::{Answers, PodKey};
use super::device_manager::DeviceManager;
use super::runtime::Runtime;
use super::{status, text};
use crate::follow::{Follow, News};
use crate::kind::PODS;
use crate::store::Store;

/// A container that could not start is tried again after this.
const START_AGAIN: Duration = Duration::from_secs(1);

/// The loop.
pub(super) struct Agent {
    manager: Arc<DeviceManager>,
    store: Store,
    runtime: Runtime,
    /// What keeps the containers of pods running, by the UIDs of the pods let in in this life.
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
        let mut follow = Follow::new(&self.store, PODS);
        loop {
            match follow.next().await {
                News::All(pods) => self.all(&pods).await,
                News::Changes(changes) => {
                    for change in changes {
                        match change.after {
                            Some(pod) => self.applied(&pod).await,
                            None => self.gone(text(&change.last["metadata"]["uid"])),
                        }
                    }
                }
            }
        }
    }

    /// After a list, pods come in the order of their creation, whatever the order of their binding.
    /// Until the first list is dealt with, what gone pods held counts as held.
    async fn all(&mut self, pods: &[Arc<Value>]) {
        let mut here: Vec<&Arc<Value>> = pods.iter().filter(|pod| self.is_here(pod)).collect();
        here.sort_by_key(|pod| text(&pod["metadata"]["creationTimestamp"]).to_owned());
        let listed: HashSet<&str> = here.iter().map(|pod| text(&pod["metadata"]["uid"])).collect();
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
        let uid = text(&pod["metadata"]["uid"]);
        let over = matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed");
        if over || pod["metadata"]["deletionTimestamp"].is_string() {
            self.gone(uid);
        } else if self.is_here(pod) && !self.pods.contains_key(uid) {
            self.admit(pod, uid).await;
        }
    }

    async fn admit(&mut self, pod: &Value, uid: &str) {
        let spec = status::pod_spec(pod, &self.runtime.settings().resource);
        match self.manager.admit_again(&spec, &self.runtime.started(uid)).await {
            Ok(answers) => {
                self.runtime.let_in(uid, spec.key());
                status::let_in(&self.store, pod);
                let start = start(self.manager.clone(), self.runtime.clone(), answers, pod.clone());
                let store = self.store.clone();
                let work = async move { status::running(&store, &start.await) };
                self.pods.insert(uid.to_owned(), Worker(tokio::spawn(work)));
            }
            Err(error) => {
                status::refused(&self.store, pod, &error.0);
                self.gone(uid);
            }
        }
    }

    /// Its ids are free as soon as somebody looks.
    fn gone(&mut self, uid: &str) {
        drop(self.pods.remove(uid));
        if let Some(pod) = self.runtime.end(uid) {
            self.manager.stop(pod);
        }
    }
}

/// Starts the containers that do not run yet one after another, each when PreStartContainer allows it.
/// Gives the pod back.
async fn start(
    manager: Arc<DeviceManager>,
    runtime: Runtime,
    mut answers: Answers,
    pod: Value,
) -> Value {
    let meta = &pod["metadata"];
    let uid = text(&meta["uid"]);
    let key = PodKey::new(text(&meta["namespace"]), text(&meta["name"]));
    let started = runtime.started(uid);
    let left = status::containers(&pod).filter(|c| !started.contains(text(&c["name"])));
    for container in left {
        let container_name = text(&container["name"]);
        while manager.start_container(key.clone(), container_name).await.is_err() {
            tokio::time::sleep(START_AGAIN).await;
        }
        runtime.start(&pod, container, answers.remove(container_name).unwrap_or_default());
    }
    pod
}
