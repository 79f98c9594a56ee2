//! The container runtime: makes a process of an Allocate response, and knows which processes run. It outlives the
//! kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kubelet_api::v1beta1::ContainerAllocateResponse;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::account::PodKey;
use super::device_manager::lock;
use super::{KubeletSettings, cdi, status};
use crate::json::{name, text, uid};

/// What a process in a container would see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The node's name.
    pub node: String,
    /// The pod's UID.
    pub uid: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its device nodes, by the paths on the host.
    pub devices: Vec<String>,
}

/// The start or end of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A process has started.
    Started(Process),
    /// The processes of a pod have ended.
    Ended {
        /// The pod's UID.
        uid: String,
    },
}

/// An admitted pod, and the names of its containers that were started.
#[derive(Debug)]
struct Sandbox {
    pod: PodKey,
    started: BTreeSet<String>,
}

/// The runtime. Clones share one state.
#[derive(Debug, Clone)]
pub(super) struct Runtime {
    settings: Arc<KubeletSettings>,
    events: UnboundedSender<ProcessEvent>,
    wrong_gpus: Arc<AtomicBool>,
    /// The admitted pods by UID.
    sandboxes: Arc<Mutex<BTreeMap<String, Sandbox>>>,
}

impl Runtime {
    pub(super) fn new(settings: KubeletSettings, events: UnboundedSender<ProcessEvent>) -> Self {
        let settings = Arc::new(settings);
        Self { settings, events, wrong_gpus: Arc::default(), sandboxes: Arc::default() }
    }

    pub(super) fn settings(&self) -> &Arc<KubeletSettings> {
        &self.settings
    }

    pub(super) fn hand_over_wrong_gpus(&self) {
        self.wrong_gpus.store(true, Ordering::Relaxed);
    }

    /// Adds a pod, unless it is there.
    pub(super) fn add_pod(&self, uid: &str, pod: PodKey) {
        lock(&self.sandboxes)
            .entry(uid.to_owned())
            .or_insert_with(|| Sandbox { pod, started: BTreeSet::new() });
    }

    /// The UIDs of all pods.
    pub(super) fn pods(&self) -> Vec<String> {
        lock(&self.sandboxes).keys().cloned().collect()
    }

    /// The names of a pod's containers that were started.
    pub(super) fn started(&self, uid: &str) -> BTreeSet<String> {
        let sandboxes = lock(&self.sandboxes);
        sandboxes.get(uid).map(|sandbox| sandbox.started.clone()).unwrap_or_default()
    }

    /// Starts a container, unless its pod is gone.
    pub(super) fn start(&self, pod: &Value, container: &Value, answer: ContainerAllocateResponse) {
        let process = self.process(pod, container, answer);
        if let Some(sandbox) = lock(&self.sandboxes).get_mut(&process.uid) {
            sandbox.started.insert(process.container.clone());
            self.send(ProcessEvent::Started(process));
        }
    }

    /// Ends a pod's containers. Returns the pod, if there was one.
    pub(super) fn end(&self, uid: &str) -> Option<PodKey> {
        let sandbox = lock(&self.sandboxes).remove(uid)?;
        self.send(ProcessEvent::Ended { uid: uid.to_owned() });
        Some(sandbox.pod)
    }

    fn send(&self, event: ProcessEvent) {
        // The receiver may be dropped.
        let _ = self.events.send(event);
    }

    fn process(
        &self,
        pod: &Value,
        container: &Value,
        answer: ContainerAllocateResponse,
    ) -> Process {
        let mut names: Vec<String> =
            answer.cdi_devices.into_iter().map(|device| device.name).collect();
        let specs = cdi::Specs::read(&self.settings.cdi_dir);
        if self.wrong_gpus.load(Ordering::Relaxed) {
            names = names.iter().map(|name| specs.another(name)).collect();
        }
        let edits = specs.edits(&names);
        // The pod's own environment overrides the plugin's, and CDI's overrides both.
        let mut env: BTreeMap<String, String> = answer.envs.into_iter().collect();
        env.extend(status::own_env(container));
        env.extend(edits.env);
        let nodes = answer.devices.into_iter().map(|device| device.host_path);
        Process {
            node: self.settings.node.clone(),
            uid: uid(pod).to_owned(),
            pod: name(pod).to_owned(),
            container: text(&container["name"]).to_owned(),
            env,
            devices: nodes.chain(edits.devices).collect(),
        }
    }
}
