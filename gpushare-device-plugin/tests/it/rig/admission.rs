//! An [`Admission`] without the rest of the plugin: with the kubelet stand-in, and an API server whose reads
//! of chosen pods fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cluster::{Event, PodFacts};
use futures::future::BoxFuture;
use gpushare_device_plugin::admission::Admission;
use gpushare_device_plugin::admission::sources::Sources;
use gpushare_device_plugin::admission::unclaimed::UnclaimedAction;
use gpushare_device_plugin::container::{Mode, Responder};
use gpushare_device_plugin::gpus::Gpus;
use gpushare_device_plugin::gpus::inventory::Inventory;
use gpushare_device_plugin::gpus::sizing::Sizing;
use gpushare_device_plugin::isolation::support::{IsolationSupport, Missing};
use gpushare_device_plugin::isolation::{MinIsolation, NodeIsolation, Policy, UnavailableAction};
use gpushare_device_plugin::lingering::Lingering;
use gpushare_device_plugin::lingering::file::GrantsFile;
use gpushare_device_plugin::lingering::groups::HostGroups;
use gpushare_device_plugin::metrics::Metrics;
use gpushare_device_plugin::pods::{PodCache, PodRef, ReadPod};
use gpushare_device_plugin::records::checkpoint::CheckpointFile;
use gpushare_device_plugin::records::pod_resources::PodResourcesClient;
use kubelet_api::v1beta1::ContainerPreferredAllocationRequest;
use placement::names::Names;
use placement::units::MiB;
use serde_json::Value;
use sim::kubelet::DeviceManager;
use tokio::sync::watch;

use super::{NODE, RESOURCE, claimed, spec};

/// The pods that the API server shows, those that it answers with an error, and those that it shows as failed after so
/// many reads.
#[derive(Default)]
pub struct Api {
    pods: Mutex<BTreeMap<PodRef, PodFacts>>,
    unreadable: Mutex<BTreeSet<PodRef>>,
    failing: Mutex<BTreeMap<PodRef, usize>>,
    reads: watch::Sender<BTreeMap<PodRef, usize>>,
    /// Reads in progress, and the most at one time.
    in_progress: Mutex<(usize, usize)>,
}

impl ReadPod for Api {
    fn read<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodFacts>, String>> {
        self.reads.send_modify(|reads| *reads.entry(pod.clone()).or_default() += 1);
        let unreadable = self.unreadable.lock().unwrap().contains(pod);
        let mut found = self.pods.lock().unwrap().get(pod).cloned();
        if let (Some(found), Some(reads)) = (&mut found, self.failing.lock().unwrap().get_mut(pod))
        {
            found.finished = *reads == 0;
            *reads = reads.saturating_sub(1);
        }
        Box::pin(async move {
            {
                let mut in_progress = self.in_progress.lock().unwrap();
                in_progress.0 += 1;
                in_progress.1 = in_progress.1.max(in_progress.0);
            }
            // Other reads begin meanwhile.
            tokio::task::yield_now().await;
            self.in_progress.lock().unwrap().0 -= 1;
            if unreadable { Err("broken".to_owned()) } else { Ok(found) }
        })
    }
}

/// The admission, and what it takes facts from.
pub struct AdmissionRig {
    pub kubelet: DeviceManager,
    pub admission: Admission,
    pub metrics: Metrics,
    api: Arc<Api>,
    cache: Arc<PodCache>,
    _dir: tempfile::TempDir,
    _gpus: watch::Sender<Arc<Gpus>>,
}

impl AdmissionRig {
    pub fn new(gpus: &[(&str, u64)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubelet = DeviceManager::start(dir.path(), RESOURCE).unwrap();
        let api = Arc::new(Api::default());
        let cache = Arc::default();
        let metrics = Metrics::default();
        let (_gpus, receiver) = watch::channel(Arc::new(inventory(gpus)));
        let records = Arc::default();
        let lingering = Lingering {
            pods: Arc::clone(&cache),
            records: Arc::clone(&records),
            groups: HostGroups::new(dir.path().join("cgroup"), metrics.clone()),
            file: GrantsFile::new(dir.path().join("state"), metrics.clone()),
            metrics: metrics.clone(),
        };
        let sources = Sources {
            gpus: receiver,
            closed: watch::channel(Arc::default()).1,
            pods: Arc::clone(&cache),
            api: api.clone(),
            kubelet: PodResourcesClient::new(kubelet.records_socket(), RESOURCE).unwrap(),
            checkpoint: CheckpointFile {
                directory: kubelet.plugin_dir().to_owned(),
                resource: RESOURCE.to_owned(),
            },
            records,
            lingering: Arc::new(lingering),
        };
        let nothing = IsolationSupport {
            driver: Err(Missing::NotByCdi),
            mps: Err(Missing::NotByCdi),
            drains_clients: None,
        };
        let (_, support) = watch::channel(Some(nothing));
        let policy =
            Policy { minimum: MinIsolation::Auto, unavailable: UnavailableAction::Downgrade };
        let isolation = NodeIsolation { policy, support };
        let responder = Responder {
            mode: Mode::Cdi,
            own_kind: "plimsoll.dev/gpu-mem".to_owned(),
            unit: MiB(1024),
            isolation,
            limits: None,
        };
        let admission =
            Admission::new(sources, responder, UnclaimedAction::Refuse, metrics.clone());
        Self { kubelet, admission, metrics, api, cache, _dir: dir, _gpus }
    }

    /// A pod that is bound with a claim on `gpu`, and listed by the kubelet.
    pub fn let_in(&self, pod: sim::PodBuilder, gpu: &str) -> PodRef {
        self.add(claimed(Value::from(pod.on(NODE)), gpu))
    }

    /// A pod that is bound without a claim, and listed by the kubelet.
    pub fn let_in_unclaimed(&self, pod: sim::PodBuilder) -> PodRef {
        self.add(Value::from(pod.on(NODE)))
    }

    fn add(&self, pod: Value) -> PodRef {
        self.kubelet.let_in(spec(&pod));
        let facts = serde_json::from_value::<cluster::Pod>(pod).unwrap().facts(&Names::default());
        let name = PodRef::of(&facts);
        self.api.pods.lock().unwrap().insert(name.clone(), facts);
        name
    }

    /// The watch shows the pod as it is now.
    pub fn show(&self, pod: &PodRef) {
        let facts = self.api.pods.lock().unwrap()[pod].clone();
        self.cache.apply(Event::Applied(facts.into()));
    }

    /// Changes the pod in the API server.
    pub fn change(&self, pod: &PodRef, change: impl FnOnce(&mut PodFacts)) {
        change(self.api.pods.lock().unwrap().get_mut(pod).unwrap());
    }

    /// Number of reads of the pod.
    pub fn reads(&self, pod: &PodRef) -> usize {
        self.api.reads.borrow().get(pod).copied().unwrap_or_default()
    }

    /// Number of reads.
    pub fn all_reads(&self) -> usize {
        self.api.reads.borrow().values().sum()
    }

    /// The most reads that were in progress at one time.
    pub fn most_reads_at_once(&self) -> usize {
        self.api.in_progress.lock().unwrap().1
    }

    /// Every read of the pod fails.
    pub fn break_reads(&self, pod: &PodRef) {
        self.api.unreadable.lock().unwrap().insert(pod.clone());
    }

    /// The pod's status says that it failed after so many reads of it.
    pub fn fail_after(&self, reads: usize, pod: &PodRef) {
        self.api.failing.lock().unwrap().insert(pod.clone(), reads);
    }

    /// Waits until the pod has been read twice more.
    pub async fn read_twice(&self, pod: &PodRef) {
        let mut reads = self.api.reads.subscribe();
        let before = self.reads(pod);
        reads
            .wait_for(|reads| reads.get(pod).copied().unwrap_or_default() >= before + 2)
            .await
            .unwrap();
    }

    /// The pod's object is gone, as after a deletion by force.
    pub fn forget(&self, pod: &PodRef) {
        self.api.pods.lock().unwrap().remove(pod);
    }

    /// GetPreferredAllocation of `size` among `available`.
    pub async fn prefer(&self, size: i32, available: &[&str]) -> Vec<String> {
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: available.iter().map(|id| (*id).to_owned()).collect(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: size,
        };
        self.admission.prefer(&request).await
    }
}

fn inventory(gpus: &[(&str, u64)]) -> Gpus {
    let mut enumerated = Vec::new();
    for (index, (uuid, units)) in (0..).zip(gpus) {
        enumerated.push(nvml::Gpu {
            uuid: (*uuid).to_owned(),
            index,
            memory_mib: Some(units * 1024),
            ..nvml::Gpu::default()
        });
    }
    let mut inventory = Inventory::new(Sizing::of_unit(MiB(1024)));
    inventory.set_enumerated(enumerated, Instant::now());
    inventory.gpus()
}
