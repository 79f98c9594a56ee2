//! The device manager of a v1.36 kubelet, as far as a device plugin can tell.
//!
//! It speaks gRPC over Unix sockets in both directions: it registers a plugin and connects to it, follows its device
//! list, admits pods one at a time with GetPreferredAllocation and Allocate for each container, calls
//! PreStartContainer, keeps its account over restarts, and serves PodResources with the kubelet's rate limit. Faults of
//! the real one are kept: List forgets ids whose Allocate is under way while a dead pod waits for its removal
//! (kubernetes/kubernetes#137534), and init containers are never listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubelet_api::podresources::DynamicResource;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::account::{Account, Answers, Ids, PodKey, PodSpec};
use super::admit::{self, AdmitError};
use super::pod_resources::{self, Limiter};
use super::registration::{self, Endpoint};
use super::socket::Served;

/// The checkpoint's file in the plugin directory.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// A running device manager. Dropping it ends it. Its sockets stay behind.
#[derive(Debug)]
pub struct DeviceManager {
    plugin_dir: PathBuf,
    records_socket: PathBuf,
    shared: Arc<Shared>,
    servers: Mutex<Vec<Served>>,
    admission: tokio::sync::Mutex<()>,
}

/// What the gRPC servers and the admission share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The checkpoint's file.
    checkpoint: PathBuf,
    pub(super) resource: String,
    /// Healthy ids of other plugins' resources.
    others: Mutex<BTreeMap<String, Ids>>,
    /// Checkpoint entries of other plugins' resources.
    others_held: Mutex<Vec<Value>>,
    /// Devices of resource claims, by the names of pod and container.
    dynamic: Mutex<BTreeMap<(String, String), Vec<DynamicResource>>>,
    /// Whether the next answer to Allocate is lost with the kubelet.
    pub(super) forgets: AtomicBool,
    /// Number of calls of List.
    pub(super) lists: AtomicUsize,
    pub(super) account: Mutex<Account>,
    /// Held while the checkpoint is written.
    writing: Mutex<()>,
    pub(super) limiter: Mutex<Limiter>,
    /// The plugin that is registered now.
    pub(super) endpoint: watch::Sender<Option<Endpoint>>,
    /// Number of registrations.
    pub(super) registrations: watch::Sender<usize>,
    /// Ids that a plugin has taken off its list.
    pub(super) vanished: watch::Sender<Ids>,
    /// Number of device lists. The checkpoint is written after each.
    pub(super) checkpoints: watch::Sender<usize>,
}

impl Shared {
    pub(super) fn account(&self) -> MutexGuard<'_, Account> {
        lock(&self.account)
    }

    pub(super) fn dynamic_resources(&self, pod: &str, container: &str) -> Vec<DynamicResource> {
        let of = (pod.to_owned(), container.to_owned());
        lock(&self.dynamic).get(&of).cloned().unwrap_or_default()
    }

    pub(super) fn knows_the_resource(&self) -> bool {
        *self.registrations.borrow() > 0
    }

    /// Writes the checkpoint, to the kubelet's file as well.
    pub(super) fn write_checkpoint(&self) {
        // Otherwise an older state could replace a newer one in the file.
        let _alone = lock(&self.writing);
        let mut registered = lock(&self.others).clone();
        registered.insert(self.resource.clone(), admit::healthy(self));
        let mut checkpoint = {
            let mut account = self.account();
            account.write_checkpoint();
            account.checkpoint(&self.resource, &registered)
        };
        if let Some(entries) = checkpoint["Data"]["PodDeviceEntries"].as_array_mut() {
            entries.extend(lock(&self.others_held).clone());
        }
        let text = checkpoint.to_string();
        let fresh = self.checkpoint.with_extension("new");
        // Fails if the test has removed its folder.
        let _ = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &self.checkpoint));
    }
}

/// Locks, even after a panic: each change under these locks is a single step, so a panic leaves none half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceManager {
    /// Starts one with its sockets under `root`, for one resource.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(root: &Path, resource: &str) -> io::Result<Self> {
        let plugin_dir = root.join("device-plugins");
        let shared = Shared {
            checkpoint: plugin_dir.join(CHECKPOINT),
            resource: resource.to_owned(),
            others: Mutex::default(),
            others_held: Mutex::default(),
            dynamic: Mutex::default(),
            forgets: AtomicBool::default(),
            lists: AtomicUsize::default(),
            account: Mutex::default(),
            writing: Mutex::default(),
            limiter: Mutex::new(Limiter::new()),
            endpoint: watch::Sender::new(None),
            registrations: watch::Sender::new(0),
            vanished: watch::Sender::new(Ids::new()),
            checkpoints: watch::Sender::new(0),
        };
        let manager = Self {
            plugin_dir,
            records_socket: root.join("pod-resources").join("kubelet.sock"),
            shared: Arc::new(shared),
            servers: Mutex::default(),
            admission: tokio::sync::Mutex::new(()),
        };
        manager.begin()?;
        Ok(manager)
    }

    /// Starts after [`DeviceManager::kill`]. As in the real one, every file in the plugin directory is deleted first.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn begin(&self) -> io::Result<()> {
        empty(&self.plugin_dir)?;
        empty(self.records_socket.parent().unwrap_or(Path::new("")))?;
        let records = pod_resources::serve(&self.records_socket, self.shared.clone())?;
        let registration = registration::serve(&self.plugin_dir, self.shared.clone())?;
        *lock(&self.servers) = vec![records, registration];
        Ok(())
    }

    /// Notes that the pods that were there at the start are admitted. From now on pods count as dead once they stop.
    pub fn started(&self) {
        self.shared.account().started();
    }

    /// Waits until the ids in the checkpoint satisfy `holds`.
    pub async fn written(&self, holds: impl Fn(&Ids) -> bool) {
        let mut checkpoints = self.shared.checkpoints.subscribe();
        // It cannot fail: `self` holds the sender.
        let _ = checkpoints.wait_for(|_| holds(&self.shared.account().written())).await;
    }

    /// Replaces the registration socket. The old server and its connections stay.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn replace_registration(&self) -> io::Result<()> {
        remove(&self.plugin_dir.join("kubelet.sock"))?;
        let served = registration::serve(&self.plugin_dir, self.shared.clone())?;
        lock(&self.servers).push(served);
        Ok(())
    }

    /// Ends as by SIGKILL: sockets and checkpoint stay behind.
    pub async fn kill(&self) {
        let servers = std::mem::take(&mut *lock(&self.servers));
        for server in servers {
            server.end().await;
        }
        self.drop_stream();
        self.shared.account().restore();
    }

    /// Removes the checkpoint of a manager that was [killed](DeviceManager::kill): it begins without what its pods
    /// hold.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn lose_checkpoint(&self) -> io::Result<()> {
        self.shared.account().lose_checkpoint();
        remove(&self.shared.checkpoint)
    }

    /// Drops the device list stream, as a kubelet wrongly does when an older stream ends.
    pub fn drop_stream(&self) {
        self.shared.endpoint.send_replace(None);
    }

    /// The directory in which plugins register.
    #[must_use]
    pub fn plugin_dir(&self) -> &Path {
        &self.plugin_dir
    }

    /// Records that a container has these devices by resource claims.
    pub fn give_dynamic(&self, pod: &str, container: &str, resources: Vec<DynamicResource>) {
        lock(&self.shared.dynamic).insert((pod.to_owned(), container.to_owned()), resources);
    }

    /// The socket of PodResources.
    #[must_use]
    pub fn records_socket(&self) -> &Path {
        &self.records_socket
    }

    /// Waits until a plugin has registered for the `count`th time.
    pub async fn registered(&self, count: usize) {
        let mut registrations = self.shared.registrations.subscribe();
        // It cannot fail: `self` holds the sender.
        let _ = registrations.wait_for(|seen| *seen >= count).await;
    }

    /// Waits until the listed devices satisfy `holds`, and returns them: id, and whether it is healthy. Without a
    /// plugin there are none.
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
            // It cannot fail: `self` holds the sender.
            let _ = endpoint.changed().await;
        }
    }

    /// Whether a plugin has ever registered, before restarts too. Until then pods that ask for the resource run
    /// without.
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

    /// Admits one pod that may have been admitted before a restart: containers that hold devices keep them, without a
    /// call of Allocate. Containers in `running` are left as they are.
    ///
    /// # Errors
    /// When the plugin refuses, there are not enough devices, or a container that does not run holds unhealthy ones.
    pub async fn admit_again(
        &self,
        pod: &PodSpec,
        running: &BTreeSet<String>,
    ) -> Result<Answers, AdmitError> {
        let _one_at_a_time = self.admission.lock().await;
        admit::admit(&self.shared, pod, running).await
    }

    /// Calls PreStartContainer, as the kubelet does before every start of a container.
    ///
    /// # Errors
    /// When the plugin refuses or is gone.
    pub async fn start_container(
        &self,
        pod: impl Into<PodKey>,
        container: &str,
    ) -> Result<(), AdmitError> {
        admit::prestart(&self.shared, &pod.into(), container).await
    }

    /// Admits a pod without asking a plugin, as the kubelet does where the resource is not registered.
    pub fn let_in(&self, pod: PodSpec) {
        self.shared.account().add(pod);
    }

    /// Marks a pod as dead: its containers have stopped. The next List or Allocate removes it and frees its ids.
    pub fn stop(&self, pod: impl Into<PodKey>) {
        self.shared.account().stop(&pod.into());
    }

    /// Removes a pod from the account.
    pub fn remove(&self, pod: impl Into<PodKey>) {
        self.shared.account().remove(&pod.into());
    }

    /// The ids that a container holds by the account.
    #[must_use]
    pub fn ids(&self, pod: impl Into<PodKey>, container: &str) -> Ids {
        self.shared.account().ids(&pod.into(), container)
    }

    /// The next admission fails after Allocate was answered, as when the kubelet dies before it records the
    /// answer.
    pub fn forget_next_allocation(&self) {
        self.shared.forgets.store(true, Ordering::Relaxed);
    }

    /// Registers another plugin's resource with these healthy ids.
    pub fn register_other(&self, resource: &str, ids: &[&str]) {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        lock(&self.shared.others).insert(resource.to_owned(), ids);
        self.shared.write_checkpoint();
    }

    /// Gives a device of another plugin's resource to a pod.
    pub fn hold_other(&self, pod_uid: &str, resource: &str, id: &str) {
        lock(&self.shared.others_held).push(json!({
            "PodUID": pod_uid, "ContainerName": "main", "ResourceName": resource,
            "DeviceIDs": {"-1": [id]}, "AllocResp": "",
        }));
        self.shared.write_checkpoint();
    }

    /// Number of calls of List.
    #[must_use]
    pub fn lists(&self) -> usize {
        self.shared.lists.load(Ordering::Relaxed)
    }

    /// Counts a pod's ids as free although it holds them, as after a List during its Allocate.
    pub fn forget_in_flight(&self, pod: impl Into<PodKey>) {
        let mut account = self.shared.account();
        let held: Vec<String> = account
            .pod(&pod.into())
            .into_iter()
            .flat_map(|on| on.held.values().flatten().cloned())
            .collect();
        account.taken.retain(|id| !held.contains(id));
    }

    /// Uses up the rate limit of PodResources: the next call is rejected.
    pub fn exhaust_rate_limit(&self) {
        lock(&self.shared.limiter).exhaust();
    }

    /// How many calls of PodResources the rate limit has rejected.
    #[must_use]
    pub fn calls_turned_away(&self) -> usize {
        lock(&self.shared.limiter).turned_away
    }

    /// Ids that two pods hold at the same time.
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

/// Makes a directory, or empties it but for the checkpoint.
fn empty(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let files = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let files = files.collect::<io::Result<Vec<_>>>()?;
    files.iter().filter(|file| !file.ends_with(CHECKPOINT)).try_for_each(|file| remove(file))
}

/// Removes a file that may be gone: a plugin that restarts removes its own socket.
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
