//! A kubelet for one node: it follows the pods that are bound there, admits them one at a time, and
//! "runs" their containers as records of what a real process would see.
//!
//! Towards the device plugin it is a real kubelet: gRPC over Unix sockets in the kubelet's hook order
//! ([`DeviceManager`]). It can be killed and begin again; containers outlive it. Invariant: a container
//! is recorded as started only after Allocate and PreStartContainer succeeded, and with exactly the
//! environment and device nodes that its Allocate response and the node's CDI specifications give it.
//!
//! Left out: containers do not end by themselves, and are not killed when a kubelet comes back.

mod account;
mod admit;
mod agent;
mod cdi;
mod device_manager;
mod pod_resources;
mod registration;
mod runtime;
mod socket;
mod status;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

pub use account::{Answers, ContainerSpec, Ids, Part, PodKey, PodSpec};
pub use admit::AdmitError;
pub use device_manager::DeviceManager;
pub use runtime::{Process, ProcessEvent};

use crate::Sim;
use crate::store::Store;
use agent::Agent;
use device_manager::whole;
use runtime::Runtime;

/// From a real kubelet's sockets to its first look at pods and its first report of the node, in which
/// plugins register again: 0.25 and 1.1 s after the sockets were measured.
const FIRST_LOOK: Duration = Duration::from_millis(850);

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

/// A kubelet. Dropping it ends it.
#[derive(Debug)]
pub struct Kubelet {
    manager: Arc<DeviceManager>,
    runtime: Runtime,
    store: Store,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        whole(&self.tasks).iter().for_each(JoinHandle::abort);
    }
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
        let runtime = Runtime::new(settings, events);
        let kubelet = Self { manager, runtime, store, tasks: Mutex::default() };
        kubelet.work(Duration::ZERO);
        Ok(kubelet)
    }

    /// Its device manager.
    #[must_use]
    pub fn devices(&self) -> &DeviceManager {
        &self.manager
    }

    /// From now on its runtime hands every container the CDI devices of another card than Allocate named, so that
    /// a test can prove that such a fault is noticed.
    pub fn hand_over_wrong_cards(&self) {
        self.runtime.hand_over_wrong_cards();
    }

    /// Dies as by SIGKILL: connections break, sockets stay behind, containers run on. An Allocate under
    /// way is forgotten, and the pod admitted anew in the next life.
    pub async fn kill(&self) {
        let tasks = std::mem::take(&mut *whole(&self.tasks));
        for task in tasks {
            task.abort();
            // Its only answer now is that it was aborted.
            let _ = task.await;
        }
        self.manager.kill().await;
    }

    /// Begins again after [`Kubelet::kill`]: every socket in its folders is deleted, plugins must
    /// register anew, and a moment later it looks after its pods again.
    ///
    /// # Errors
    /// When its sockets cannot be made.
    pub fn begin(&self) -> io::Result<()> {
        self.manager.begin()?;
        self.work(FIRST_LOOK);
        Ok(())
    }

    /// Killed, and begun again at once.
    ///
    /// # Errors
    /// When its sockets cannot be made.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill().await;
        self.begin()
    }

    fn work(&self, after: Duration) {
        let agent = Agent::new(self.manager.clone(), self.store.clone(), self.runtime.clone());
        let settings = self.runtime.settings().clone();
        let report = status::report_devices(self.store.clone(), settings, self.manager.clone());
        let work = [tokio::spawn(later(after, agent.run())), tokio::spawn(later(after, report))];
        whole(&self.tasks).extend(work);
    }
}

async fn later(after: Duration, work: impl Future<Output = ()>) {
    tokio::time::sleep(after).await;
    work.await;
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
