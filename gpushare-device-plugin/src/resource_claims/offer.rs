//! The node's ResourceSlice: one device a GPU, the fullest first.
//!
//! kube-scheduler takes the first device that fits, in the slice's order, so that this order is best fit
//! (pkg/scheduler: allocateOne of the structured allocator, 1.36). It lags behind a burst of pods.
//!
//! Invariant: a GPU that another driver offers, and one of a node whose GPUs are given out by units, is in no slice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::{
    CallError, DeviceAttribute, DeviceOffer, DeviceSlice, DeviceTaint, OfferedShare,
    delete_device_slice, write_device_slice,
};
use daemon::{Condition, Status};
use placement::gpu::Closed;
use placement::names::Names;
use placement::units::NodeName;
use tokio::sync::watch;
use tokio::time::sleep;

use super::device_name;
use crate::gpus::closed::ClosedGpus;
use crate::gpus::node_settings::NodeSettings;
use crate::gpus::{Gpu, Gpus, Unhealthy, units_of};
use crate::isolation::support::IsolationSupport;
use crate::records::{Records, SharedRecords};

/// The shortest time between two writes: a write wakes every pod that waits in kube-scheduler.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);
/// What is to be done where slices cannot be listed or written.
const REMEDY: &str =
    "is claims true in the chart's values, and Kubernetes at least 1.36 (docs/claims.md)?";
/// The longest pause after writes that failed.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes the slice.
pub(crate) struct Publisher {
    /// The API server's client.
    pub client: cluster::Client,
    /// This node.
    pub node: NodeName,
    /// The names on the wire.
    pub names: Names,
    /// The GPUs, as they change.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Those that take no new claims, and whether claims have the node.
    pub closed: watch::Receiver<Arc<ClosedGpus>>,
    /// What the node can enforce; `None` until it is known.
    pub support: watch::Receiver<Option<IsolationSupport>>,
    /// What operators set on the Node.
    pub settings: watch::Receiver<Option<NodeSettings>>,
    /// What is held of the GPUs.
    pub records: Arc<SharedRecords>,
    /// This driver's slices on this node, as the API server has them; `None` until that is known.
    pub slices: watch::Receiver<Option<Vec<DeviceSlice>>>,
    /// Whether the slice is as it should be.
    pub condition: Condition,
}

/// What was written last.
#[derive(Default)]
struct Published {
    generation: i64,
    /// The devices that the API server took without a part, so that their slice was deleted again.
    dropped: Option<Vec<OfferedShare>>,
}

impl Publisher {
    /// Writes the slice at each change until the shutdown.
    pub(crate) async fn run(mut self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&mut self) {
        self.condition.set(Status::failed(
            "the API server has not listed this node's ResourceSlices yet",
            REMEDY,
        ));
        let _ = self.slices.wait_for(Option::is_some).await;
        let _ = self.support.wait_for(Option::is_some).await;
        let _ = self.settings.wait_for(Option::is_some).await;
        let mut pause = BETWEEN_WRITES;
        let mut published = Published::default();
        let mut records = self.records.changes();
        loop {
            let slices = self.slices.borrow_and_update().clone().unwrap_or_default();
            let newest =
                slices.iter().filter_map(|slice| slice.generation).max().unwrap_or_default();
            published.generation = published.generation.max(newest);
            let outcome = self.bring_up_to_date(&slices, &mut published).await;
            let failed = outcome.is_err();
            match outcome {
                Ok(status) => self.condition.set(status),
                Err(error) => self.condition.set(Status::failed(
                    format!("the ResourceSlice cannot be written: {error}"),
                    REMEDY,
                )),
            }
            sleep(pause).await;
            if failed {
                pause = (pause * 2).min(MAX_PAUSE);
                continue;
            }
            pause = BETWEEN_WRITES;
            tokio::select! {
                changed = self.slices.changed() => if changed.is_err() { return },
                changed = self.gpus.changed() => if changed.is_err() { return },
                changed = self.closed.changed() => if changed.is_err() { return },
                changed = self.support.changed() => if changed.is_err() { return },
                changed = self.settings.changed() => if changed.is_err() { return },
                changed = records.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn bring_up_to_date(
        &mut self,
        slices: &[DeviceSlice],
        published: &mut Published,
    ) -> Result<Status, CallError> {
        let by_claims = self.closed.borrow_and_update().by_claims.all;
        let mut offer = self.offer(published.generation);
        let name = cluster::slice_name(&offer.node, &offer.driver);
        for other in slices.iter().filter(|slice| slice.name != name || !by_claims) {
            delete_device_slice(&self.client, &other.name, WRITE_TIMEOUT).await?;
        }
        if !by_claims {
            return Ok(Status::ok("the node's GPUs are given out by units"));
        }
        let current = slices.iter().find(|slice| slice.name == name);
        if current.is_some_and(|current| offer.is_in(current)) {
            return Ok(offered(&offer));
        }
        if published.dropped.as_ref() == Some(&offer.devices) {
            return Ok(not_shared());
        }
        offer.generation += 1;
        let written = write_device_slice(&self.client, &offer, WRITE_TIMEOUT).await?;
        published.generation = offer.generation;
        if offer.is_in(&written) {
            published.dropped = None;
            return Ok(offered(&offer));
        }
        // Without a part, such as its taints, it would offer what must not be given out.
        delete_device_slice(&self.client, &name, WRITE_TIMEOUT).await?;
        published.dropped = Some(offer.devices);
        Ok(not_shared())
    }

    fn offer(&mut self, generation: i64) -> DeviceOffer {
        let gpus = self.gpus.borrow_and_update().clone();
        let closed = self.closed.borrow_and_update().clone();
        let support = self.support.borrow_and_update().clone();
        let settings = self.settings.borrow_and_update().clone();
        let devices = devices(
            &gpus,
            &NodeState {
                closed: &closed,
                support: support.as_ref(),
                records: &self.records.lock(),
                names: &self.names,
            },
        );
        DeviceOffer {
            node: self.node.clone(),
            node_uid: settings.and_then(|settings| settings.uid),
            driver: self.names.claims_driver(),
            generation,
            devices,
        }
    }
}

fn offered(offer: &DeviceOffer) -> Status {
    Status::ok(format!("{} GPUs are offered to ResourceClaims", offer.devices.len()))
}

fn not_shared() -> Status {
    Status::failed(
        "the API server drops parts of the ResourceSlice: nothing is offered",
        "switch Kubernetes' feature gates DRAConsumableCapacity and DRADeviceTaints on (1.36 has them on, docs/claims.md)",
    )
}

/// What devices say of a node's state.
struct NodeState<'n> {
    closed: &'n ClosedGpus,
    support: Option<&'n IsolationSupport>,
    records: &'n Records,
    names: &'n Names,
}

/// The devices, the fullest first, and equal ones by index.
fn devices(gpus: &Gpus, state: &NodeState<'_>) -> Vec<OfferedShare> {
    let units = units_of(&state.records.ids_with_processes(), gpus);
    let mut devices = Vec::new();
    for gpu in gpus.iter() {
        if state.closed.offered.driver_of(&gpu.uuid).is_some() {
            continue;
        }
        let Some(name) = device_name(&gpu.uuid) else {
            tracing::warn!(
                "GPU {} is offered to no claim: its UUID is no name of a device",
                gpu.uuid
            );
            continue;
        };
        let taken = state.records.resource_claims.memory_on(&gpu.uuid);
        let left = gpu.offered.0.saturating_sub(taken.0);
        let device = OfferedShare {
            name,
            memory: gpu.offered,
            attributes: state.attributes(gpu),
            taints: state.taints(gpu, units.contains_key(&gpu.uuid)),
        };
        devices.push((left, gpu.index, device));
    }
    devices.sort_by_key(|(left, index, _)| (*left, *index));
    devices.into_iter().map(|(_, _, device)| device).collect()
}

impl NodeState<'_> {
    fn attributes(&self, gpu: &Gpu) -> BTreeMap<String, DeviceAttribute> {
        let mut attributes = BTreeMap::new();
        let mut add = |name: &str, value| drop(attributes.insert(name.to_owned(), value));
        add("uuid", DeviceAttribute::Text(gpu.uuid.to_string()));
        add("index", DeviceAttribute::Int(gpu.index.into()));
        // Also where it is unknown: a selector that reads an absent attribute ends a pod's scheduling on every node.
        add("model", DeviceAttribute::Text(gpu.model.clone()));
        if let Some(numa) = gpu.numa_node {
            add("resource.kubernetes.io/numaNode", DeviceAttribute::Int(numa.into()));
        }
        if let Some(bus) = &gpu.pci_bus {
            add("resource.kubernetes.io/pciBusID", DeviceAttribute::Text(bus.clone()));
        }
        if let Some(support) = self.support {
            add("isolationDriver", DeviceAttribute::Bool(support.driver.is_ok()));
            add("isolationMps", DeviceAttribute::Bool(support.mps.is_ok()));
        }
        if let Some(left) = self.sharers_left(gpu) {
            add("sharersLeft", DeviceAttribute::Int(left));
        }
        attributes
    }

    /// How many more claims a GPU takes under MPS, by its clients; `None` without MPS.
    fn sharers_left(&self, gpu: &Gpu) -> Option<i64> {
        let (_, clients) = self.support?.strongest();
        let claims = self.records.resource_claims.clients_on(&gpu.uuid);
        Some(i64::from(clients?) - i64::try_from(claims).unwrap_or(i64::MAX))
    }

    /// Why new claims do not get the GPU.
    fn taints(&self, gpu: &Gpu, has_units: bool) -> Vec<DeviceTaint> {
        let mut taints = Vec::new();
        if let Some(why) = gpu.unhealthy {
            let value = unhealthy_value(why).to_owned();
            taints.push(DeviceTaint { key: self.names.unhealthy_taint(), value });
        }
        let closed = self.closed.to_claims(&gpu.uuid).map(closed_value);
        let by_units = has_units.then(|| "units".to_owned());
        let is_elsewhere = self.records.elsewhere().any(|held| held.gpu == gpu.uuid);
        let elsewhere = is_elsewhere.then(|| "elsewhere".to_owned());
        let by_sharers = self.sharers_left(gpu).is_some_and(|left| left <= 0);
        let full = by_sharers.then(|| "sharers".to_owned());
        if let Some(value) = closed.or(by_units).or(elsewhere).or(full) {
            taints.push(DeviceTaint { key: self.names.closed_taint(), value });
        }
        taints
    }
}

/// The reason as the node's report writes it.
fn closed_value(why: Closed) -> String {
    let written = serde_json::to_value(why).unwrap_or_default();
    written.as_str().unwrap_or("other").to_owned()
}

fn unhealthy_value(why: Unhealthy) -> &'static str {
    match why {
        Unhealthy::Lost => "lost",
        Unhealthy::Recovery(_) => "needs-recovery",
        Unhealthy::Failed(_) => "failed",
        Unhealthy::Mig => "mig",
        Unhealthy::Cordoned => "cordoned",
        Unhealthy::Listed => "listed",
    }
}

#[cfg(test)]
mod tests {
    use placement::units::MiB;

    use super::*;
    use crate::fixtures::{A, B, booked, gpus, ids, share, simple, with_unhealthy};
    use crate::isolation::limit::{Limit, MpsLimit};
    use crate::isolation::support::Missing;
    use crate::records::resource_claims::BookedClaim;

    const C: &str = "GPU-cccccccc-1111";

    fn listed(
        gpus: &Gpus,
        closed: &ClosedGpus,
        support: Option<&IsolationSupport>,
        records: &Records,
    ) -> Vec<OfferedShare> {
        devices(gpus, &NodeState { closed, support, records, names: &Names::default() })
    }

    fn names(devices: &[OfferedShare]) -> Vec<&str> {
        devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn the_fullest_gpu_comes_first_and_one_of_another_driver_not_at_all() {
        let three = gpus(&[(A, 4), (B, 4), (C, 4)]);
        let mut records = Records::default();
        records.resource_claims.insert("u".into(), booked("a", &[share(C, 1024, 0)]));
        let closed = ClosedGpus::default();
        let order = listed(&three, &closed, None, &records);
        assert_eq!(names(&order), [C, A, B].map(str::to_lowercase));
        let other = cluster::OfferedDevice {
            name: cluster::DeviceName {
                driver: "gpu.nvidia.com".into(),
                pool: "n".into(),
                device: "0".into(),
            },
            texts: [C.to_owned()].into(),
        };
        let offered = Arc::new(crate::gpus::offered::OfferedGpus::of([&other]));
        let closed = ClosedGpus { offered, ..ClosedGpus::default() };
        assert_eq!(names(&listed(&three, &closed, None, &records)), [A, B].map(str::to_lowercase));
    }

    #[test]
    fn a_gpu_that_takes_no_claims_has_a_taint_that_says_why() {
        let two = with_unhealthy(&gpus(&[(A, 4), (B, 4)]), A, Unhealthy::Lost);
        let mut records = Records::default();
        records.grant(&simple("p", B, 1), "main", ids(["bbbbbbbb-0"]));
        let taints = |closed: &ClosedGpus, records: &Records| -> Vec<Vec<(String, String)>> {
            let devices = listed(&two, closed, None, records);
            let of = |device: OfferedShare| {
                device.taints.into_iter().map(|taint| (taint.key, taint.value)).collect()
            };
            devices.into_iter().map(of).collect()
        };
        let taint =
            |key: &str, value: &str| vec![(format!("plimsoll.dev/{key}"), value.to_owned())];
        assert_eq!(
            taints(&ClosedGpus::default(), &records),
            [taint("unhealthy", "lost"), taint("closed", "units")]
        );
        let closed =
            ClosedGpus { gpus: [(B.into(), Closed::ComputeMode)].into(), ..ClosedGpus::default() };
        assert_eq!(taints(&closed, &records)[1], taint("closed", "compute-mode"));
    }

    #[test]
    fn under_mps_a_gpu_says_how_many_more_claims_it_takes() {
        let one = gpus(&[(A, 4)]);
        let support =
            IsolationSupport { driver: Err(Missing::NotByCdi), mps: Ok(()), drains_clients: None };
        let mut records = Records::default();
        for number in 0..48 {
            let left = i64::from(48 - number);
            let device = listed(&one, &ClosedGpus::default(), Some(&support), &records).remove(0);
            assert_eq!(device.attributes["sharersLeft"], DeviceAttribute::Int(left));
            assert!(device.taints.is_empty());
            let mps = MpsLimit { gpus: 1, limit: MiB(1), threads: 100 };
            let client =
                BookedClaim { limit: Some(Limit::Mps(mps)), ..booked("a", &[share(A, 1, 0)]) };
            records.resource_claims.insert(number.to_string().into(), client);
        }
        let full = listed(&one, &ClosedGpus::default(), Some(&support), &records).remove(0);
        assert_eq!(full.taints[0].value, "sharers");
    }
}
