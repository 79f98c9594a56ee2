//! Follows the node's ResourceSlices, and what the kubelet gave to pods with resource claims.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cluster::{DeviceSlice, EventText, WatchHealth, has_device_slices, watch_device_slices};
use futures::StreamExt;
use placement::units::{GpuId, NodeName, PodUid};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::slices::Slices;
use crate::gpus::offered::OfferedGpus;
use crate::gpus::{Gpus, joined};
use crate::node_events::{NodeEvents, REPEAT_AFTER};
use crate::pods::{NodePod, PodCache, PodRef};
use crate::records::checkpoint::OtherPluginGpu;
use crate::records::pod_resources::{ClaimedDevices, PodResourcesClient};
use crate::records::{ClaimedGpus, SharedRecords};

/// Time for one call of the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the first list of slices. After it the GPUs open without the list, since an API server that answers
/// everything but that would keep them closed for ever.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before an API server that has no slices for this program is asked again.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// Pause before an API server that did not answer is asked again, and between two rounds of questions to the kubelet.
const ROUND_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a pod is looked at again whose containers have not started.
const EVERY: Duration = Duration::from_secs(10);

/// Follows the devices of drivers of dynamic resource allocation.
pub(crate) struct DraWatch {
    /// The API server's client.
    pub client: cluster::Client,
    /// This node.
    pub node: NodeName,
    /// Its GPUs, as they change.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Its pods, from a watch.
    pub pods: Arc<PodCache>,
    /// The kubelet's PodResources API.
    pub kubelet: PodResourcesClient,
    /// Where the GPUs of pods with resource claims are put.
    pub records: Arc<SharedRecords>,
    /// What the slices offer; `None` until that is known, for [`FIRST_LIST_TIMEOUT`] at most.
    pub offered: watch::Sender<Option<Arc<OfferedGpus>>>,
    /// This plugin's own driver.
    pub own_driver: String,
    /// Whether this plugin serves it: then slices are needed, and asked for again soon.
    pub serves_own: bool,
    /// Where its slices are put, as the API server has them; `None` before the first list.
    pub own_slices: watch::Sender<Option<Vec<DeviceSlice>>>,
    /// Writes events on the node.
    pub events: NodeEvents,
}

/// The devices of pods by their UIDs, as the kubelet had them.
#[derive(Default)]
struct Claimed {
    devices: BTreeMap<PodUid, ClaimedDevices>,
    /// The pods whose containers had started before: their devices change no more.
    settled: BTreeSet<PodUid>,
}

/// The GPUs of the last event, and when it was written.
#[derive(Default)]
struct ReportedOverlap(BTreeSet<GpuId>, Option<Instant>);

impl DraWatch {
    /// Follows them until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            _ = async { tokio::join!(self.follow(), self.give_up_waiting()) } => {}
        }
    }

    /// The time begins with the first GPU: before, none can open.
    async fn give_up_waiting(&self) {
        self.gpus_found().await;
        sleep(FIRST_LIST_TIMEOUT).await;
        if self.offered.borrow().is_none() {
            tracing::warn!(
                "the API server sent no list of ResourceSlices within {FIRST_LIST_TIMEOUT:?}: opening the GPUs \
                 without it"
            );
            self.publish(Arc::default());
        }
    }

    async fn follow(&self) {
        self.wait_for_slices().await;
        self.pods.listed().await;
        self.gpus_found().await;
        let mut slices = Slices::new(&self.own_driver);
        let mut claimed = Claimed::default();
        let mut reported = ReportedOverlap::default();
        let mut pods = self.pods.changes();
        let mut gpu_changes = self.gpus.clone();
        let mut events =
            watch_device_slices(self.client.clone(), self.node.clone(), WatchHealth::default());
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => slices.apply(event),
                    None => return,
                },
                changed = pods.changed() => if changed.is_err() { return },
                changed = gpu_changes.changed() => if changed.is_err() { return },
                () = sleep(EVERY) => {}
            }
            if !slices.is_listed() {
                continue;
            }
            daemon::publish(&self.own_slices, Some(slices.own()));
            let gpus = gpu_changes.borrow_and_update().clone();
            let has_asked = self.ask(&mut claimed).await;
            // Before the GPUs can open: what pods hold is known by then.
            self.charge(&claimed, &slices, &gpus);
            let offered = Arc::new(slices.offered());
            self.publish(offered.clone());
            self.report(&offered, &gpus, &mut reported).await;
            if has_asked {
                sleep(ROUND_PAUSE).await;
            }
        }
    }

    async fn gpus_found(&self) {
        // Fails only without a sender, which lives as long as the plugin.
        let _ = self.gpus.clone().wait_for(|gpus| !gpus.is_empty()).await;
    }

    /// Waits until the API server has slices that this program may read.
    async fn wait_for_slices(&self) {
        let mut is_told = false;
        loop {
            match has_device_slices(&self.client, &self.node, CALL_TIMEOUT).await {
                Ok(true) => return,
                Ok(false) => {
                    if !is_told {
                        is_told = true;
                        tracing::info!(
                            "the API server has no ResourceSlices, or none that this program may list: GPUs that a \
                             DRA driver offers as well are not seen"
                        );
                    }
                    self.publish(Arc::default());
                    sleep(if self.serves_own { EVERY } else { LOOK_AGAIN }).await;
                }
                Err(error) => {
                    tracing::debug!("cannot ask for ResourceSlices: {error}");
                    sleep(ROUND_PAUSE).await;
                }
            }
        }
    }

    fn publish(&self, offered: Arc<OfferedGpus>) {
        daemon::publish(&self.offered, Some(offered));
    }

    /// Writes an event when a driver begins to offer GPUs of this node, and every half hour while it does.
    async fn report(&self, offered: &OfferedGpus, gpus: &Gpus, reported: &mut ReportedOverlap) {
        let mut both = BTreeSet::new();
        let mut drivers = BTreeSet::new();
        for gpu in gpus.iter() {
            if let Some(driver) = offered.driver_of(&gpu.uuid) {
                both.insert(gpu.uuid.clone());
                drivers.insert(driver);
            }
        }
        let is_due = reported.1.is_none_or(|at| at.elapsed() >= REPEAT_AFTER) && !both.is_empty();
        if both == reported.0 && !is_due {
            return;
        }
        let opened = reported.0.difference(&both);
        if opened.clone().next().is_some() {
            tracing::info!("no DRA driver offers these GPUs any more: {}", joined(opened));
        }
        let has_new = !both.is_subset(&reported.0);
        *reported = ReportedOverlap(both, reported.1);
        if !has_new && !is_due {
            return;
        }
        reported.1 = Some(Instant::now());
        let drivers = Vec::from_iter(drivers).join(", ");
        let note = format!(
            "the DRA driver {drivers} offers GPUs of this node as well, which take no new pods with units: let one of \
             both serve them. Either disable the driver's GPUs here (NVIDIA's: resources.gpus.enabled=false), or \
             label the node gpushare=false. GPUs: {}",
            joined(&reported.0)
        );
        tracing::warn!("{note}");
        let reason = "GPUCardOfferedByDRA";
        self.events.warn(&EventText { reason, action: "CheckDRA", note }).await;
    }

    /// Asks the kubelet for the devices of pods with resource claims. Returns whether it was asked.
    async fn ask(&self, claimed: &mut Claimed) -> bool {
        let mut pods: HashMap<PodUid, NodePod> = self.pods.by_uids();
        pods.retain(|_, pod| pod.has_resource_claims && !pod.facts.finished);
        claimed.devices.retain(|uid, _| pods.contains_key(uid));
        claimed.settled.retain(|uid| pods.contains_key(uid));
        pods.retain(|uid, _| !claimed.settled.contains(uid));
        for (uid, pod) in &pods {
            match self.kubelet.claimed_devices(&PodRef::of(&pod.facts)).await {
                Ok(Some(devices)) => {
                    claimed.devices.insert(uid.clone(), devices);
                    if !pod.containers.is_empty() {
                        claimed.settled.insert(uid.clone());
                    }
                }
                Ok(None) => {}
                Err(status) => {
                    tracing::debug!("PodResources Get: {}", status.message());
                    break;
                }
            }
        }
        !pods.is_empty()
    }

    /// Puts the GPUs of these devices into the records. A device of a driver of GPUs that no slice has shown may be
    /// on every GPU.
    fn charge(&self, claimed: &Claimed, slices: &Slices, gpus: &Gpus) {
        let mut held: BTreeMap<PodUid, ClaimedGpus> = BTreeMap::new();
        for (uid, containers) in &claimed.devices {
            let of_pod = held.entry(uid.clone()).or_default();
            for (container, devices) in containers {
                let mut is_known = true;
                for device in devices {
                    let on = slices.gpus_of(device, gpus);
                    is_known &= on.is_some();
                    let on = match on {
                        Some(on) => on,
                        None if slices.has_gpus(&device.driver, gpus) => {
                            gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
                        }
                        None => Vec::new(),
                    };
                    let to = if device.driver == self.own_driver {
                        &mut of_pod.own
                    } else {
                        &mut of_pod.gpus
                    };
                    to.extend(on.into_iter().map(|gpu| OtherPluginGpu {
                        pod: uid.clone(),
                        container: container.clone(),
                        resource: device.driver.clone(),
                        gpu,
                    }));
                }
                if is_known {
                    of_pod.known.insert(container.clone());
                }
            }
        }
        if self.records.lock().set_claimed(held) {
            self.records.notify();
        }
    }
}
