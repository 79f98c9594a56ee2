//! A stand-in for the kubelet and the container runtime of one node. It follows the pods that are bound there, admits
//! them one at a time, and "runs" each container as a record of what a real process would see ([`Process`]).
//!
//! To device plugins it speaks gRPC over Unix sockets, with the calls in the kubelet's order ([`DeviceManager`]). It
//! can be killed and started again; containers outlive it. Invariant: a container is recorded as started only after
//! Allocate and PreStartContainer succeeded, with exactly the environment and device nodes that its Allocate response
//! and the node's CDI specifications give it.
//!
//! Left out: containers that end by themselves, and the kubelet's killing of containers when it starts again.

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

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

pub use account::{Answers, ContainerSpec, Ids, Part, PodKey, PodSpec};
pub use admit::AdmitError;
pub use device_manager::DeviceManager;
pub use runtime::{Process, ProcessEvent};

use crate::Sim;
use crate::objects::store::Store;
use agent::Agent;
use device_manager::lock;
use runtime::Runtime;

/// Time from the sockets of a kubelet that starts again to its first pod and its first report of the node. Plugins
/// register again meanwhile. Of a real kubelet 0.25 s and 1.1 s were measured.
const START_UP: Duration = Duration::from_millis(850);

/// Settings of one node's kubelet and runtime.
#[derive(Debug, Clone)]
pub struct KubeletSettings {
    /// The node's name.
    pub node: String,
    /// Directory in which `device-plugins/` and `pod-resources/` are made.
    pub root: PathBuf,
    /// Directory of the node's CDI specifications.
    pub cdi_dir: PathBuf,
    /// The one resource that a device plugin may register.
    pub resource: String,
}

/// A running kubelet. Dropping it ends it.
#[derive(Debug)]
pub struct Kubelet {
    manager: Arc<DeviceManager>,
    runtime: Runtime,
    store: Store,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        lock(&self.tasks).iter().for_each(JoinHandle::abort);
    }
}

impl Kubelet {
    /// Starts the kubelet of a node that is already an object of `sim`.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(
        sim: &Sim,
        settings: KubeletSettings,
        events: UnboundedSender<ProcessEvent>,
    ) -> io::Result<Self> {
        let manager = Arc::new(DeviceManager::start(&settings.root, &settings.resource)?);
        let store = sim.api.store.clone();
        let runtime = Runtime::new(settings, events);
        let kubelet = Self { manager, runtime, store, tasks: Mutex::default() };
        kubelet.spawn_tasks(Duration::ZERO);
        Ok(kubelet)
    }

    /// Its device manager.
    #[must_use]
    pub fn devices(&self) -> &DeviceManager {
        &self.manager
    }

    /// From now on the runtime gives every container the CDI devices of another GPU than Allocate named. With it a
    /// test shows that such a fault is noticed.
    pub fn hand_over_wrong_gpus(&self) {
        self.runtime.hand_over_wrong_gpus();
    }

    /// Ends as by SIGKILL: connections break, sockets stay behind, containers run on. A pod whose Allocate is under way
    /// is admitted anew after the next start.
    pub async fn kill(&self) {
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks {
            task.abort();
            // The result of an aborted task is that it was aborted.
            let _ = task.await;
        }
        self.manager.kill().await;
    }

    /// Starts again after [`Kubelet::kill`]: deletes every socket in its directories, so that plugins must register
    /// anew, and 0.85 s later goes on with its pods.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn begin(&self) -> io::Result<()> {
        self.manager.begin()?;
        self.spawn_tasks(START_UP);
        Ok(())
    }

    /// Kills it and starts it again at once.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill().await;
        self.begin()
    }

    fn spawn_tasks(&self, after: Duration) {
        let agent = Agent::new(self.manager.clone(), self.store.clone(), self.runtime.clone());
        let settings = self.runtime.settings().clone();
        let report = status::report_devices(self.store.clone(), settings, self.manager.clone());
        let tasks =
            [tokio::spawn(run_after(after, agent.run())), tokio::spawn(run_after(after, report))];
        lock(&self.tasks).extend(tasks);
    }
}

async fn run_after(time: Duration, work: impl Future<Output = ()>) {
    tokio::time::sleep(time).await;
    work.await;
}
