//! A kubelet stand-in: the device manager of v1.36, as far as a device plugin can tell.
//!
//! Real gRPC over Unix sockets in both directions. It registers a plugin (dialling back), follows
//! its device list, admits pods one at a time with GetPreferredAllocation and Allocate for each
//! container in turn, calls PreStartContainer, keeps a checkpoint over restarts, and serves
//! PodResources with the kubelet's rate limit. What goes wrong in the real one goes wrong here:
//! List forgets ids in flight while a dead pod waits for its removal
//! (kubernetes/kubernetes#137534), and init containers are never listed.

mod account;
mod admit;
mod podresources;
mod registration;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gpushare_device_plugin::wire::v1beta1::ContainerAllocateResponse;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use account::{ContainerSpec, Part, PodSpec};
pub use admit::AdmitError;

use account::Account;
use podresources::Limiter;
use registration::Endpoint;

/// How long anything is waited for before the test is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// A kubelet. Dropping it ends it.
pub struct Kubelet {
    plugin_dir: PathBuf,
    records_socket: PathBuf,
    shared: Arc<Shared>,
    servers: Vec<JoinHandle<()>>,
    admission: tokio::sync::Mutex<()>,
}

/// What the servers and the admission share.
pub struct Shared {
    resource: String,
    account: Mutex<Account>,
    limiter: Mutex<Limiter>,
    endpoint: watch::Sender<Option<Endpoint>>,
    registrations: watch::Sender<usize>,
    /// Counts device lists, each of which has the books written down.
    checkpoints: watch::Sender<usize>,
}

impl Shared {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap()
    }
}

impl Kubelet {
    /// A kubelet whose sockets are under `root`, serving one resource.
    pub async fn start(root: &Path, resource: &str) -> Self {
        let shared = Shared {
            resource: resource.to_owned(),
            account: Mutex::default(),
            limiter: Mutex::new(Limiter::new()),
            endpoint: watch::Sender::new(None),
            registrations: watch::Sender::new(0),
            checkpoints: watch::Sender::new(0),
        };
        let mut kubelet = Self {
            plugin_dir: root.join("device-plugins"),
            records_socket: root.join("pod-resources/kubelet.sock"),
            shared: Arc::new(shared),
            servers: Vec::new(),
            admission: tokio::sync::Mutex::new(()),
        };
        kubelet.begin();
        kubelet
    }

    /// Starts as the real one does: every socket in the plugin directory is deleted first.
    pub fn begin(&mut self) {
        for directory in [self.plugin_dir.clone(), self.records_socket.parent().unwrap().to_owned()]
        {
            fs::create_dir_all(&directory).unwrap();
            for entry in fs::read_dir(&directory).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }
        let records = podresources::serve(&self.records_socket, self.shared.clone());
        let registration = registration::serve(&self.plugin_dir, self.shared.clone());
        self.servers = vec![records, registration];
    }

    /// The pods that were there at the start have been admitted: from now on dead ones are seen.
    pub fn started(&self) {
        self.shared.account().started();
    }

    /// Waits until what is written down satisfies `holds`.
    pub async fn written(&self, what: &str, holds: impl Fn(&BTreeSet<String>) -> bool) {
        let mut checkpoints = self.shared.checkpoints.subscribe();
        let written = checkpoints.wait_for(|_| holds(&self.shared.account().written()));
        tokio::time::timeout(PATIENCE, written).await.expect(what).unwrap();
    }

    /// Dies as by SIGKILL: the sockets stay behind, the checkpoint too.
    pub async fn kill(&mut self) {
        for server in self.servers.drain(..) {
            server.abort();
            let _ = server.await;
        }
        self.shared.endpoint.send_replace(None);
        self.shared.account().restore();
    }

    /// Replaces the registration socket; the old server and its stream live on for a while.
    pub fn replace_registration(&mut self) {
        fs::remove_file(self.plugin_dir.join("kubelet.sock")).unwrap();
        self.servers.push(registration::serve(&self.plugin_dir, self.shared.clone()));
    }

    /// Drops the device list stream, as a kubelet does by mistake when an older stream ends.
    pub fn drop_stream(&self) {
        self.shared.endpoint.send_replace(None);
    }

    /// Where plugins register.
    pub fn plugin_dir(&self) -> &Path {
        &self.plugin_dir
    }

    /// Where PodResources is served.
    pub fn records_socket(&self) -> &Path {
        &self.records_socket
    }

    /// Waits until a plugin has registered for the `count`th time.
    pub async fn registered(&self, count: usize) {
        let mut registrations = self.shared.registrations.subscribe();
        let waited = registrations.wait_for(|seen| *seen >= count);
        tokio::time::timeout(PATIENCE, waited).await.expect("a registration").unwrap();
    }

    /// Waits until the listed devices satisfy `holds`.
    pub async fn devices(
        &self,
        what: &str,
        holds: impl Fn(&BTreeMap<String, bool>) -> bool,
    ) -> BTreeMap<String, bool> {
        let mut endpoint = self.shared.endpoint.subscribe();
        let listed = |endpoint: &Option<Endpoint>| {
            endpoint.as_ref().is_some_and(|endpoint| holds(&endpoint.devices))
        };
        let found = tokio::time::timeout(PATIENCE, endpoint.wait_for(listed)).await.expect(what);
        found.unwrap().as_ref().unwrap().devices.clone()
    }

    /// Admits one pod, container by container.
    pub async fn admit(
        &self,
        pod: PodSpec,
    ) -> Result<BTreeMap<String, ContainerAllocateResponse>, AdmitError> {
        let _one_at_a_time = self.admission.lock().await;
        admit::admit(&self.shared, pod).await
    }

    /// Calls PreStartContainer for a container, as before every start of it.
    pub async fn start_container(&self, pod: &str, container: &str) -> Result<(), AdmitError> {
        admit::prestart(&self.shared, pod, container).await
    }

    /// Lets a pod in without asking any plugin, as when the resource is not registered.
    pub fn let_in(&self, pod: PodSpec) {
        self.shared.account().add(pod);
    }

    /// A pod's containers have stopped: its ids are free, and it waits for its removal until
    /// somebody lists.
    pub fn stop(&self, pod: &str) {
        self.shared.account().stop(pod);
    }

    /// Ids that a container holds by the kubelet's record.
    pub fn ids(&self, pod: &str, container: &str) -> BTreeSet<String> {
        self.shared.account().ids(pod, container)
    }

    /// Counts a pod's ids as free though it holds them: what is left of them after a List during
    /// its Allocate.
    pub fn forget_in_flight(&self, pod: &str) {
        let mut account = self.shared.account();
        let held: Vec<String> = account
            .pod(pod)
            .into_iter()
            .flat_map(|on| on.held.values().flatten().cloned())
            .collect();
        account.taken.retain(|id| !held.contains(id));
    }

    /// Takes all that the rate limit would let through now.
    pub fn exhaust_rate_limit(&self) {
        self.shared.limiter.lock().unwrap().exhaust();
    }

    /// Ids that the containers of two pods hold at once.
    pub fn shared_ids(&self) -> BTreeSet<String> {
        self.shared.account().doubles()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.servers.iter().for_each(JoinHandle::abort);
        self.shared.endpoint.send_replace(None);
    }
}
