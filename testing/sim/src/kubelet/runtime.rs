//! The container runtime: what turns an answer of Allocate into a process, and knows which run. It
//! outlives the kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kubelet_api::v1beta1::ContainerAllocateResponse;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::account::PodKey;
use super::device_manager::whole;
use super::{KubeletSettings, cdi, status, text};

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

/// A pod that was let in.
#[derive(Debug)]
struct Sandbox {
    pod: PodKey,
    started: BTreeSet<String>,
}

/// The runtime; clones share one.
#[derive(Debug, Clone)]
pub(super) struct Runtime {
    settings: Arc<KubeletSettings>,
    events: UnboundedSender<ProcessEvent>,
    wrong_cards: Arc<AtomicBool>,
    /// By the pods' UIDs.
    sandboxes: Arc<Mutex<BTreeMap<String, Sandbox>>>,
}

impl Runtime {
    pub(super) fn new(settings: KubeletSettings, events: UnboundedSender<ProcessEvent>) -> Self {
        let settings = Arc::new(settings);
        Self { settings, events, wrong_cards: Arc::default(), sandboxes: Arc::default() }
    }

    pub(super) fn settings(&self) -> &Arc<KubeletSettings> {
        &self.settings
    }

    pub(super) fn hand_over_wrong_cards(&self) {
        self.wrong_cards.store(true, Ordering::Relaxed);
    }

    /// A pod was let in; nothing changes where it was before.
    pub(super) fn let_in(&self, uid: &str, pod: PodKey) {
        let fresh = || Sandbox { pod, started: BTreeSet::new() };
        whole(&self.sandboxes).entry(uid.to_owned()).or_insert_with(fresh);
    }

    /// The UIDs of the pods that were let in.
    pub(super) fn pods(&self) -> Vec<String> {
        whole(&self.sandboxes).keys().cloned().collect()
    }

    /// The containers of a pod that were started.
    pub(super) fn started(&self, uid: &str) -> BTreeSet<String> {
        let sandboxes = whole(&self.sandboxes);
        sandboxes.get(uid).map(|sandbox| sandbox.started.clone()).unwrap_or_default()
    }

    /// Starts a container, unless its pod has gone.
    pub(super) fn start(&self, pod: &Value, container: &Value, answer: ContainerAllocateResponse) {
        let process = self.process(pod, container, answer);
        if let Some(sandbox) = whole(&self.sandboxes).get_mut(&process.uid) {
            sandbox.started.insert(process.container.clone());
            self.tell(ProcessEvent::Started(process));
        }
    }

    /// Ends a pod's containers. Gives the pod, if there was one.
    pub(super) fn end(&self, uid: &str) -> Option<PodKey> {
        let sandbox = whole(&self.sandboxes).remove(uid)?;
        self.tell(ProcessEvent::Ended { uid: uid.to_owned() });
        Some(sandbox.pod)
    }

    fn tell(&self, event: ProcessEvent) {
        // Nobody needs to listen.
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
        if self.wrong_cards.load(Ordering::Relaxed) {
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
