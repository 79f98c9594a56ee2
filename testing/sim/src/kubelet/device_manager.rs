//! The device manager of a v1.36 kubelet, as far as a device plugin can tell.
//!
//! Real gRPC over Unix sockets in both directions. It registers a plugin (dialling back), follows
//! its device list, admits pods one at a time with GetPreferredAllocation and Allocate for each
//! container in turn, calls PreStartContainer, keeps its books over restarts, and serves
//! PodResources with the kubelet's rate limit. What goes wrong in the real one goes wrong here:
//! List forgets ids in flight while a dead pod waits for its removal (kubernetes/kubernetes#137534),
//! and init containers are never listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::account::{Account, Answers, Ids, PodKey, PodSpec};
use super::admit::{self, AdmitError};
use super::pod_resources::{self, Limiter};
use super::registration::{self, Endpoint};
use super::socket::Served;

/// A device manager. Dropping it ends it; its sockets stay behind.
#[derive(Debug)]
pub struct DeviceManager {
    plugin_dir: PathBuf,
    records_socket: PathBuf,
    shared: Arc<Shared>,
    servers: Mutex<Vec<Served>>,
    admission: tokio::sync::Mutex<()>,
}

/// What the servers and the admission share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) resource: String,
    pub(super) account: Mutex<Account>,
    pub(super) limiter: Mutex<Limiter>,
    pub(super) endpoint: watch::Sender<Option<Endpoint>>,
    pub(super) registrations: watch::Sender<usize>,
    pub(super) vanished: watch::Sender<Ids>,
    /// Counts device lists, each of which has the books written down.
    pub(super) checkpoints: watch::Sender<usize>,
}

impl Shared {
    pub(super) fn account(&self) -> MutexGuard<'_, Account> {
        whole(&self.account)
    }

    pub(super) fn knows_the_resource(&self) -> bool {
        *self.registrations.borrow() > 0
    }
}

/// Every change under these locks is a single step, so what a panic left is whole.
pub(super) fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceManager {
    /// One whose sockets are under `root`, serving one resource.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(root: &Path, resource: &str) -> io::Result<Self> {
        let shared = Shared {
            resource: resource.to_owned(),
            account: Mutex::default(),
            limiter: Mutex::new(Limiter::new()),
            endpoint: watch::Sender::new(None),
            registrations: watch::Sender::new(0),
            vanished: watch::Sender::new(Ids::new()),
            checkpoints: watch::Sender::new(0),
        };
        let manager = Self {
            plugin_dir: root.join("device-plugins"),
            records_socket: root.join("pod-resources").join("kubelet.sock"),
            shared: Arc::new(shared),
            servers: Mutex::default(),
            admission: tokio::sync::Mutex::new(()),
        };
        manager.begin()?;
        Ok(manager)
    }

    /// Starts as the real one does: every socket in the plugin directory is deleted first.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn begin(&self) -> io::Result<()> {
        empty(&self.plugin_dir)?;
        empty(self.records_socket.parent().unwrap_or(Path::new("")))?;
        let records = pod_resources::serve(&self.records_socket, self.shared.clone())?;
        let registration = registration::serve(&self.plugin_dir, self.shared.clone())?;
        *whole(&self.servers) = vec![records, registration];
        Ok(())
    }

    /// The pods that were there at the start have been admitted: from now on dead ones are seen.
    pub fn started(&self) {
        self.shared.account().started();
    }

    /// Waits until the ids that are written down as taken satisfy `holds`.
    pub async fn written(&self, holds: impl Fn(&Ids) -> bool) {
        let mut checkpoints = self.shared.checkpoints.subscribe();
        // The sender is in `self`.
        let _ = checkpoints.wait_for(|_| holds(&self.shared.account().written())).await;
    }

    /// Replaces the registration socket; the old server and its stream live on for a while.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn replace_registration(&self) -> io::Result<()> {
        remove(&self.plugin_dir.join("kubelet.sock"))?;
        let served = registration::serve(&self.plugin_dir, self.shared.clone())?;
        whole(&self.servers).push(served);
        Ok(())
    }

    /// Dies as by SIGKILL: the sockets stay behind, and what was written down.
    pub async fn kill(&self) {
        let servers = std::mem::take(&mut *whole(&self.servers));
        for server in servers {
            server.end().await;
        }
        self.drop_stream();
        self.shared.account().restore();
    }

    /// Drops the device list stream, as a kubelet does by mistake when an older stream ends.
    pub fn drop_stream(&self) {
        self.shared.endpoint.send_replace(None);
    }

    /// Where plugins register.
    #[must_use]
    pub fn plugin_dir(&self) -> &Path {
        &self.plugin_dir
    }

    /// Where PodResources is served.
    #[must_use]
    pub fn records_socket(&self) -> &Path {
        &self.records_socket
    }

    /// Waits until a plugin has registered for the `count`th time.
    pub async fn registered(&self, count: usize) {
        let mut registrations = self.shared.registrations.subscribe();
        // The sender is in `self`.
        let _ = registrations.wait_for(|seen| *seen >= count).await;
    }

    /// Waits until the listed devices, with their health, satisfy `holds`. Without a plugin there are
    /// none.
    pub async fn devices(
        &self,
        holds: impl Fn(&BTreeMap<String, bool>) -> bool,
    ) -> BTreeMap<String, bool> {
        let mut endpoint = self.shared.endpoint.subscribe();
        loop {
            let devices = listed(&endpoint.borrow_and_update());
            if holds(&devices) {
                return devices;
            }
            // The sender is in `self`.
            let _ = endpoint.changed().await;
        }
    }

    /// Whether a plugin has registered in this or an earlier life. Until then nobody looks after the
    /// resource, and whoever asks for it runs without.
    #[must_use]
    pub fn knows_the_resource(&self) -> bool {
        self.shared.knows_the_resource()
    }

    /// Admits one pod, container by container.
    ///
    /// # Errors
    /// When the plugin refuses, or there are not enough devices.
    pub async fn admit(&self, pod: &PodSpec) -> Result<Answers, AdmitError> {
        self.admit_again(pod, &BTreeSet::new()).await
    }

    /// Admits one pod, which a life before may have admitted: containers that hold devices keep them
    /// and Allocate is not called. Those in `running` are not looked at.
    ///
    /// # Errors
    /// When the plugin refuses, there are not enough devices, or a container that does not run holds
    /// some that are not healthy.
    pub async fn admit_again(
        &self,
        pod: &PodSpec,
        running: &BTreeSet<String>,
    ) -> Result<Answers, AdmitError> {
        let _one_at_a_time = self.admission.lock().await;
        admit::admit(&self.shared, pod, running).await
    }

    /// Calls PreStartContainer for a container, as before every start of it.
    ///
    /// # Errors
    /// When the plugin refuses, or is gone.
    pub async fn start_container(
        &self,
        pod: impl Into<PodKey>,
        container: &str,
    ) -> Result<(), AdmitError> {
        admit::prestart(&self.shared, &pod.into(), container).await
    }

    /// Lets a pod in without asking any plugin, as when the resource is not registered.
    pub fn let_in(&self, pod: PodSpec) {
        self.shared.account().add(pod);
    }

    /// A pod's containers have stopped: its ids are free, and it waits for its removal until somebody
    /// lists.
    pub fn stop(&self, pod: impl Into<PodKey>) {
        self.shared.account().stop(&pod.into());
    }

    /// A pod is gone and off the books.
    pub fn remove(&self, pod: impl Into<PodKey>) {
        self.shared.account().remove(&pod.into());
    }

    /// Ids that a container holds by the kubelet's record.
    #[must_use]
    pub fn ids(&self, pod: impl Into<PodKey>, container: &str) -> Ids {
        self.shared.account().ids(&pod.into(), container)
    }

    /// Counts a pod's ids as free though it holds them: what is left of them after a List during its
    /// Allocate.
    pub fn forget_in_flight(&self, pod: impl Into<PodKey>) {
        let mut account = self.shared.account();
        let held: Vec<String> = account
            .pod(&pod.into())
            .into_iter()
            .flat_map(|on| on.held.values().flatten().cloned())
            .collect();
        account.taken.retain(|id| !held.contains(id));
    }

    /// Takes all that the rate limit would let through now.
    pub fn exhaust_rate_limit(&self) {
        whole(&self.shared.limiter).exhaust();
    }

    /// Ids that the containers of two pods hold at once.
    #[must_use]
    pub fn shared_ids(&self) -> Ids {
        self.shared.account().doubles()
    }

    /// Ids that a plugin has ever taken off its list instead of marking them unhealthy.
    #[must_use]
    pub fn vanished_ids(&self) -> Ids {
        self.shared.vanished.borrow().clone()
    }
}

fn listed(endpoint: &Option<Endpoint>) -> BTreeMap<String, bool> {
    endpoint.as_ref().map(|endpoint| endpoint.devices.clone()).unwrap_or_default()
}

/// Makes a directory, or empties it of files and sockets.
fn empty(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::read_dir(directory)?.try_for_each(|entry| remove(&entry?.path()))
}

/// A plugin that starts anew may take its socket away in the same moment.
fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

impl Drop for DeviceManager {
    fn drop(&mut self) {
        self.drop_stream();
    }
}
