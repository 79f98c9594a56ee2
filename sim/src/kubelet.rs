//! A kubelet for one node: it follows the pods that are bound there, admits them one at a time, and
//! "runs" their containers as records of what a real process would see.
//!
//! Towards the device plugin it is a real kubelet: gRPC over Unix sockets in the kubelet's hook order
//! ([`DeviceManager`]). Invariant: a container is recorded as started only after Allocate and
//! PreStartContainer succeeded, and with exactly the environment and device nodes that its Allocate
//! response and the node's CDI specifications give it.

mod account;
mod admit;
mod cdi;
mod device_manager;
mod pod_resources;
mod registration;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

pub use account::{ContainerSpec, Ids, Part, PodSpec};
pub use admit::{AdmitError, Answers};
pub use device_manager::DeviceManager;

use crate::Sim;
use crate::follow::{Follow, News};
use crate::kind::PODS;
use crate::store::Store;

/// A container that could not start is tried again after this.
const START_AGAIN: Duration = Duration::from_secs(1);

/// One node's kubelet and runtime.
#[derive(Debug, Clone)]
pub struct KubeletSettings {
    /// The node's name.
    pub node: String,
    /// Under which `device-plugins/` and `pod-resources/` are made.
    pub root: PathBuf,
    /// Where the runtime reads CDI specifications.
    pub cdi_dir: PathBuf,
    /// The resource that device plugins may register.
    pub resource: String,
}

/// What a process in a container would see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its node.
    pub node: String,
    /// Its pod's UID.
    pub uid: String,
    /// Its pod's name.
    pub pod: String,
    /// Its container's name.
    pub container: String,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its device nodes, by the paths on the host.
    pub devices: Vec<String>,
}

/// What happens to processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// One runs.
    Started(Process),
    /// Those of a pod have ended.
    Ended {
        /// The pod's UID.
        uid: String,
    },
}

/// A running kubelet. Dropping it ends it.
#[derive(Debug)]
pub struct Kubelet {
    manager: Arc<DeviceManager>,
    runtime: Runtime,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What turns an answer of Allocate into a process.
#[derive(Debug, Clone)]
struct Runtime {
    settings: Arc<KubeletSettings>,
    events: UnboundedSender<ProcessEvent>,
    confused: Arc<AtomicBool>,
}

impl Kubelet {
    /// Starts the kubelet of a node that is already an object of `sim`.
    ///
    /// # Errors
    /// When its sockets cannot be made.
    pub fn start(
        sim: &Sim,
        settings: KubeletSettings,
        events: UnboundedSender<ProcessEvent>,
    ) -> io::Result<Self> {
        let manager = Arc::new(DeviceManager::start(&settings.root, &settings.resource)?);
        let store = sim.api.store.clone();
        let runtime = Runtime { settings: Arc::new(settings), events, confused: Arc::default() };
        let agent = Agent {
            manager: manager.clone(),
            store: store.clone(),
            runtime: runtime.clone(),
            pods: HashMap::new(),
        };
        let report = status::report_devices(store, runtime.settings.clone(), manager.clone());
        let tasks = vec![tokio::spawn(agent.run()), tokio::spawn(report)];
        Ok(Self { manager, runtime, tasks })
    }

    /// Its device manager.
    #[must_use]
    pub fn devices(&self) -> &DeviceManager {
        &self.manager
    }

    /// From now on its runtime hands every container the CDI devices of another card than it was
    /// told to: a node that is broken, for proving that somebody would notice.
    pub fn confuse_cards(&self) {
        self.runtime.confused.store(true, Ordering::Relaxed);
    }
}

/// The loop that admits pods.
struct Agent {
    manager: Arc<DeviceManager>,
    store: Store,
    runtime: Runtime,
    /// Pods that were let in, by UID, and what keeps their containers running.
    pods: HashMap<String, Running>,
}

struct Running {
    name: String,
    worker: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

impl Agent {
    async fn run(mut self) {
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
    async fn all(&mut self, pods: &[Arc<Value>]) {
        let mut here: Vec<&Arc<Value>> = pods.iter().filter(|pod| self.is_here(pod)).collect();
        here.sort_by_key(|pod| text(&pod["metadata"]["creationTimestamp"]).to_owned());
        let listed = |uid: &str| here.iter().any(|pod| pod["metadata"]["uid"] == uid);
        let gone: Vec<String> = self.pods.keys().filter(|uid| !listed(uid)).cloned().collect();
        gone.iter().for_each(|uid| self.gone(uid));
        for pod in here {
            self.applied(pod).await;
        }
    }

    fn is_here(&self, pod: &Value) -> bool {
        pod["spec"]["nodeName"] == self.runtime.settings.node.as_str()
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
        let spec = status::pod_spec(pod, &self.runtime.settings.resource);
        match self.manager.admit(&spec).await {
            Ok(answers) => {
                status::let_in(&self.store, pod);
                let start = start(self.manager.clone(), self.runtime.clone(), answers, pod.clone());
                let store = self.store.clone();
                let worker = tokio::spawn(async move { status::running(&store, &start.await) });
                self.pods.insert(uid.to_owned(), Running { name: spec.name, worker });
            }
            Err(error) => status::refused(&self.store, pod, &error.0),
        }
    }

    fn gone(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            pod.worker.abort();
            self.manager.remove(&pod.name);
            self.runtime.tell(ProcessEvent::Ended { uid: uid.to_owned() });
        }
    }
}

/// Starts the containers one after another, each when PreStartContainer allows it. Gives the pod back.
async fn start(
    manager: Arc<DeviceManager>,
    runtime: Runtime,
    mut answers: Answers,
    pod: Value,
) -> Value {
    let name = text(&pod["metadata"]["name"]);
    for container in status::containers(&pod) {
        let container_name = text(&container["name"]);
        while manager.start_container(name, container_name).await.is_err() {
            tokio::time::sleep(START_AGAIN).await;
        }
        let answer = answers.remove(container_name).unwrap_or_default();
        runtime.tell(ProcessEvent::Started(runtime.process(&pod, container, answer)));
    }
    pod
}

impl Runtime {
    fn tell(&self, event: ProcessEvent) {
        // Nobody needs to listen.
        let _ = self.events.send(event);
    }

    fn process(
        &self,
        pod: &Value,
        container: &Value,
        answer: kubelet_api::v1beta1::ContainerAllocateResponse,
    ) -> Process {
        let mut names: Vec<String> =
            answer.cdi_devices.into_iter().map(|device| device.name).collect();
        let specs = cdi::Specs::read(&self.settings.cdi_dir);
        if self.confused.load(Ordering::Relaxed) {
            names = names.iter().map(|name| specs.another(name)).collect();
        }
        let edits = specs.edits(&names);
        // The plugin's environment comes first, the pod's own overrides it, CDI's overrides both.
        let mut env: BTreeMap<String, String> = answer.envs.into_iter().collect();
        env.extend(status::own_env(container));
        env.extend(edits.env);
        let nodes = answer.devices.into_iter().map(|device| device.host_path);
        Process {
            node: self.settings.node.clone(),
            uid: text(&pod["metadata"]["uid"]).to_owned(),
            pod: text(&pod["metadata"]["name"]).to_owned(),
            container: text(&container["name"]).to_owned(),
            env,
            devices: nodes.chain(edits.devices).collect(),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
