//! Watches the GPUs: opens NVML, polls health, receives errors, publishes changes.
//!
//! Invariants: GPUs are prepared (written to the CDI specification) before they are published. If NVML has worked in
//! this process and then fails for some minutes, the process ends: its container may have lost its device nodes, and
//! gets them back only when it starts again. That happens where `systemctl daemon-reload` makes systemd apply the
//! container's own device rules, without those that NVIDIA's runtime added. It also ends if NVML has never worked on a
//! node with a GPU: the container may be older than the setup of NVIDIA's runtime, which adds the library.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{EventKind, EventText};
use nvml::{Probe, Status};
use placement::units::GpuId;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::errors::{ErrorWatches, GpuEvent};
use super::file::GpusFile;
use super::inventory::Inventory;
use super::node_settings::NodeSettings;
use super::search::has_nvidia_controller;
use super::sizing::Sizing;
use super::{Gpu, Gpus, Open, Unhealthy};
use crate::metrics::Metrics;
use crate::node_events::NodeEvents;

/// The longest pause before a failed publication of GPUs is retried.
const RETRY: Duration = Duration::from_secs(5);
/// Pause before a failed attempt to open NVML is retried. Installing a driver takes minutes.
pub(crate) const REOPEN_PAUSE: Duration = Duration::from_secs(10);
/// Failed attempts in a row to open or poll NVML after which the process ends, if NVML has worked in it: five minutes.
const GIVE_UP_AFTER: u32 = 30;
/// The same if NVML has never worked in it and the PCI bus has a GPU: 15 minutes. After ten the kubelet starts a
/// container again at once, and does not count it as one that crashes in a loop.
const GIVE_UP_WITHOUT_NVML_AFTER: u32 = 90;
/// Time for the API server to say which GPUs are cordoned.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for one poll of all GPUs. After it NVML counts as hanging.
const POLL_TIMEOUT: Duration = Duration::from_secs(30);

/// NVML, while it is open.
pub(crate) type OpenNvml = Option<Arc<dyn Probe>>;

/// Called with GPUs before they are published; the error says why they cannot be used yet.
pub(crate) type Prepare = Box<dyn Fn(&Gpus) -> Result<(), String> + Send + Sync>;

/// Watches the GPUs of this node.
pub(crate) struct GpuWatch {
    /// Opens NVML; called at the start, and again when NVML no longer enumerates.
    pub open: Open,
    /// How many units a GPU has.
    pub sizing: Sizing,
    /// Time between two polls.
    pub every: Duration,
    /// XIDs that do not make a GPU unhealthy, in addition to those that applications cause.
    pub ignored_xids: Vec<u64>,
    /// What operators set on the Node; `None` until it is known.
    pub settings: watch::Receiver<Option<NodeSettings>>,
    /// Indexes of GPUs that take no pods, from the ConfigMap.
    pub unhealthy_indexes: watch::Receiver<BTreeSet<u32>>,
    /// Called before each publication.
    pub prepare: Prepare,
    /// The GPUs of earlier processes, and for later ones.
    pub file: GpusFile,
    /// Writes events of GPUs that are not offered; `None` for no events.
    pub events: Option<NodeEvents>,
    /// Publishes changed GPUs.
    pub gpus: watch::Sender<Arc<Gpus>>,
    /// Publishes NVML while it is open.
    pub probe: watch::Sender<OpenNvml>,
    /// Metrics of the GPUs.
    pub metrics: Metrics,
    /// Pause before a failed attempt to open NVML is retried.
    pub reopen_pause: Duration,
    /// The kernel's folder of PCI devices.
    pub pci_dir: PathBuf,
    /// The GPUs that were reported as not offered, since their memory is unknown.
    pub without_size: BTreeSet<String>,
}

/// One poll: the GPUs that the driver enumerates, and the status of each.
struct Poll {
    begun: Instant,
    driver: Option<String>,
    gpus: Vec<nvml::Gpu>,
    answers: Vec<(GpuId, Option<Status>)>,
}

impl GpuWatch {
    /// Runs until the shutdown. Calls `found` after each poll: `Ok` if there are GPUs, or why there are none.
    ///
    /// # Errors
    /// If NVML does not work, and may do so in a process that starts again.
    pub(crate) async fn run(
        self,
        shutdown: daemon::Shutdown,
        found: impl Fn(Result<(), String>),
    ) -> Result<(), NvmlLost> {
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            lost = self.watch(found) => Err(lost),
        }
    }

    /// Reopens a driver that no longer enumerates, for example while it is replaced. Returns why it gives up.
    async fn watch(mut self, found: impl Fn(Result<(), String>)) -> NvmlLost {
        let ignored = std::mem::take(&mut self.ignored_xids);
        let mut inventory =
            Inventory::new(self.sizing).ignoring(ignored).with_earlier(self.file.read());
        self.wait_for_settings().await;
        let mut has_worked = false;
        let mut failures = 0_u32;
        loop {
            let (pause, why) = match self.open_nvml().await {
                Ok(probe) => {
                    self.probe.send_replace(Some(probe.clone()));
                    let ended = self.follow(&probe, &mut inventory, &found).await;
                    // The library is unloaded once nothing holds it, so the next open loads a new driver's library.
                    drop(probe);
                    self.probe.send_replace(None);
                    tracing::warn!("NVML does not answer, opening it anew: {}", ended.why);
                    inventory.forget_driver();
                    found(self.publish(&inventory).await);
                    if ended.polled {
                        has_worked = true;
                        failures = 0;
                    }
                    (self.every, ended.why)
                }
                Err(why) => {
                    found(Err(why.clone()));
                    (self.reopen_pause, why)
                }
            };
            failures += 1;
            if has_worked && failures >= GIVE_UP_AFTER {
                return NvmlLost::Lost { attempts: failures, why };
            }
            let is_due = !has_worked && failures >= GIVE_UP_WITHOUT_NVML_AFTER;
            if is_due && has_nvidia_controller(&self.pci_dir) {
                return NvmlLost::NeverThere { attempts: failures, why };
            }
            sleep(pause).await;
        }
    }

    /// No GPU is offered before it is known whether it is cordoned, unless the API server does not answer for long:
    /// containers that start again need their GPUs, and without it no new pods come.
    async fn wait_for_settings(&mut self) {
        if timeout(SETTINGS_TIMEOUT, self.settings.wait_for(Option::is_some)).await.is_err() {
            tracing::warn!(
                "the API server did not say within {SETTINGS_TIMEOUT:?} which GPUs are cordoned: offering them all"
            );
        }
        self.settings.mark_changed();
    }

    async fn open_nvml(&self) -> Result<Arc<dyn Probe>, String> {
        let open = self.open.clone();
        match tokio::task::spawn_blocking(move || open()).await {
            Ok(opened) => opened.map_err(|error| error.to_string()),
            Err(panicked) => Err(panicked.to_string()),
        }
    }

    /// Polls an open driver until it no longer enumerates.
    async fn follow(
        &mut self,
        probe: &Arc<dyn Probe>,
        inventory: &mut Inventory,
        found: &impl Fn(Result<(), String>),
    ) -> Ended {
        let mut polled = false;
        let mut errors = ErrorWatches::new(probe.clone());
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut indexes = self.unhealthy_indexes.clone();
        indexes.mark_changed();
        let mut settings = self.settings.clone();
        settings.mark_changed();
        loop {
            tokio::select! {
                biased;
                Ok(()) = settings.changed() => {
                    inventory.set_cordoned(settings.borrow_and_update().clone().unwrap_or_default().cordoned);
                }
                // An error means no sender: no ConfigMap is watched.
                Ok(()) = indexes.changed() => inventory.set_unhealthy_indexes(indexes.borrow_and_update().clone()),
                _ = ticks.tick() => match poll_all(probe).await {
                    Ok(poll) => {
                        poll.record(inventory, &mut errors);
                        polled = true;
                    }
                    Err(why) => return Ended { polled, why },
                },
                (gpu, event) = errors.next() => self.record(&gpu, event, inventory),
            }
            let published = self.publish(inventory).await;
            if published.is_err() {
                ticks.reset_after(self.every.min(RETRY));
            }
            found(published);
        }
    }

    fn record(&self, gpu: &GpuId, event: GpuEvent, inventory: &mut Inventory) {
        match event {
            GpuEvent::Raised(xid) => {
                tracing::debug!(%gpu, "the GPU raised {xid}");
                let number = xid.number.map_or("unknown".to_owned(), |number| number.to_string());
                self.metrics.gpu_errors.with([gpu.to_string(), number]).inc();
                inventory.record_error(gpu, xid, Instant::now());
            }
            GpuEvent::Lost => inventory.mark_lost(gpu),
        }
    }

    async fn publish(&mut self, inventory: &Inventory) -> Result<(), String> {
        self.file.write(&inventory.to_save());
        self.report_without_size(inventory).await;
        let gpus = inventory.gpus();
        let before = self.gpus.borrow().clone();
        if *before != gpus {
            (self.prepare)(&gpus)?;
            gpus.iter().for_each(|gpu| self.record_health(gpu, before.get(&gpu.uuid)));
            self.gpus.send_replace(Arc::new(gpus));
        }
        if !self.gpus.borrow().is_empty() {
            return Ok(());
        }
        Err(match inventory.without_size().next() {
            Some(gpu) => without_size(gpu),
            None => "NVML enumerates no GPU whose memory it can tell".to_owned(),
        })
    }

    /// Reports each GPU that is not offered since its memory is unknown, once.
    async fn report_without_size(&mut self, inventory: &Inventory) {
        for gpu in inventory.without_size() {
            if !self.without_size.insert(gpu.uuid.clone()) {
                continue;
            }
            let note = without_size(gpu);
            tracing::warn!(gpu = gpu.uuid, "{note}");
            if let Some(events) = &self.events {
                let reason = "GPUCardWithoutSize";
                events.warn(&EventText { reason, action: "CheckCards", note }).await;
            }
        }
    }

    /// Sets a GPU's metrics, and logs a change of its health, with an event on the node.
    fn record_health(&self, gpu: &Gpu, before: Option<&Gpu>) {
        let label = [gpu.uuid.to_string()];
        self.metrics.gpu_healthy.with(label.clone()).set(gpu.is_healthy().into());
        self.metrics.gpu_units.with(label).set(gpu.units.0.into());
        let units = gpu.units.0;
        let model = &gpu.model;
        match (gpu.unhealthy, before.map(|before| before.unhealthy)) {
            (now, Some(then)) if now == then => {}
            (Some(why), _) => {
                tracing::warn!(gpu = %gpu.uuid, model, units, "the GPU is unhealthy: {why}");
                self.tell_health(gpu, Some(why));
            }
            (None, then) => {
                tracing::info!(gpu = %gpu.uuid, model, units, "the GPU is healthy");
                if then.is_some() {
                    self.tell_health(gpu, None);
                }
            }
        }
    }

    /// Writes an event on the node. The GPUs' polls do not wait for it.
    fn tell_health(&self, gpu: &Gpu, unhealthy: Option<Unhealthy>) {
        let Some(events) = self.events.clone() else { return };
        let (index, model, uuid) = (gpu.index, &gpu.model, &gpu.uuid);
        let name = format!("GPU {index} ({model}, {uuid})");
        let (kind, reason, note) = match unhealthy {
            Some(why) => (
                EventKind::Warning,
                "GPUCardUnhealthy",
                format!("{name} takes no new pods: {why}. Pods that are on it keep their units."),
            ),
            None => (EventKind::Normal, "GPUCardHealthy", format!("{name} takes pods again.")),
        };
        let text = EventText { reason, action: "CheckCards", note };
        tokio::spawn(async move { events.write(kind, &text).await });
    }
}

/// The end of an opened NVML.
struct Ended {
    /// Whether a poll has succeeded.
    polled: bool,
    why: String,
}

/// Why the process ends, so that it gets a new container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NvmlLost {
    /// NVML has worked in this process, and does not any more.
    #[error(
        "NVML worked and has failed {attempts} times in a row since, so this process ends to get its devices anew: \
         {why}. If that repeats, look at the driver on the host (nvidia-smi)"
    )]
    Lost { attempts: u32, why: String },
    /// NVML has not worked yet, and the node has a GPU.
    #[error(
        "NVML has failed {attempts} times though the PCI bus has a GPU of NVIDIA's, so this process ends to get the \
         library that NVIDIA's runtime may have by now: {why}. If that repeats, look at the driver on the host \
         (nvidia-smi) and at its container runtime"
    )]
    NeverThere { attempts: u32, why: String },
}

/// Why a GPU is not offered.
fn without_size(gpu: &nvml::Gpu) -> String {
    let (uuid, model) = (&gpu.uuid, gpu.model.as_deref().unwrap_or("model unknown"));
    if gpu.has_no_own_memory {
        format!(
            "GPU {uuid} ({model}) is not offered: it shares the host's memory, so NVML has no size for it. Set how \
             much of that pods may have of it with --unified-memory-mib"
        )
    } else {
        format!("GPU {uuid} ({model}) is not offered: NVML does not tell its memory")
    }
}

impl Poll {
    fn of(probe: &dyn Probe) -> Result<Self, nvml::Error> {
        let begun = Instant::now();
        let gpus = probe.gpus()?;
        let mut answers = Vec::with_capacity(gpus.len());
        for gpu in &gpus {
            answers.push((GpuId::from(gpu.uuid.as_str()), probe.status(&gpu.uuid).ok()));
        }
        Ok(Self { begun, driver: probe.driver(), gpus, answers })
    }

    fn record(self, inventory: &mut Inventory, errors: &mut ErrorWatches) {
        inventory.set_driver(self.driver);
        inventory.set_enumerated(self.gpus, Instant::now());
        for (gpu, status) in &self.answers {
            match status {
                Some(status) => {
                    errors.start(gpu, self.begun);
                    inventory.record_status(gpu, status, Instant::now());
                }
                None => inventory.mark_lost(gpu),
            }
        }
    }
}

/// Polls on a thread that may block. A hanging thread is abandoned. Reopening NVML then hangs as well, so at
/// most one thread is abandoned.
async fn poll_all(probe: &Arc<dyn Probe>) -> Result<Poll, String> {
    let polled = probe.clone();
    let poll = tokio::task::spawn_blocking(move || Poll::of(&*polled));
    match timeout(POLL_TIMEOUT, poll).await {
        Ok(Ok(poll)) => poll.map_err(|error| error.to_string()),
        Ok(Err(panicked)) => Err(panicked.to_string()),
        Err(_) => Err(format!("no answer within {POLL_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use nvml::{Recovery, Scripted, Xid};
    use placement::units::MiB;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::fixtures::{A, B};

    /// A watch over two GPUs, polled every millisecond.
    struct GpuBench {
        probe: Arc<Scripted>,
        /// Whether NVML cannot be opened.
        closed: Arc<AtomicBool>,
        /// Attempts to open it.
        attempts: Arc<AtomicU32>,
        gpus: watch::Receiver<Arc<Gpus>>,
        /// Every list of GPUs that was published.
        published: Arc<Mutex<Vec<Vec<Option<Unhealthy>>>>>,
        metrics: Metrics,
        task: JoinHandle<NvmlLost>,
        folder: tempfile::TempDir,
    }

    fn gpu(uuid: &str, index: u32) -> nvml::Gpu {
        nvml::Gpu { uuid: uuid.to_owned(), index, memory_mib: Some(4096), ..nvml::Gpu::default() }
    }

    impl GpuBench {
        fn new() -> Self {
            Self::with(false)
        }

        fn with(closed: bool) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let probe = Arc::new(Scripted::new(vec![gpu(A, 0), gpu(B, 1)]));
            let (sender, gpus) = watch::channel(Arc::default());
            let published = Arc::new(Mutex::new(Vec::new()));
            let metrics = Metrics::default();
            let opened = probe.clone();
            let seen = published.clone();
            let closed = Arc::new(AtomicBool::new(closed));
            let attempts = Arc::new(AtomicU32::new(0));
            let is_closed = closed.clone();
            let count = attempts.clone();
            let watch = GpuWatch {
                open: Arc::new(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                    if is_closed.load(Ordering::Relaxed) {
                        return Err(nvml::Error::LibraryAbsent { library: "nvml".into() });
                    }
                    Ok(opened.clone() as Arc<dyn Probe>)
                }),
                sizing: Sizing::of_unit(MiB(1024)),
                every: Duration::from_millis(1),
                ignored_xids: Vec::new(),
                settings: watch::channel(Some(NodeSettings::default())).1,
                unhealthy_indexes: watch::channel(BTreeSet::new()).1,
                prepare: Box::new(move |gpus| {
                    let healths = gpus.iter().map(|gpu| gpu.unhealthy).collect();
                    seen.lock().unwrap().push(healths);
                    Ok(())
                }),
                gpus: sender,
                probe: watch::Sender::default(),
                file: GpusFile::new(folder.path().into()),
                events: None,
                reopen_pause: Duration::from_millis(1),
                pci_dir: folder.path().join("pci"),
                without_size: BTreeSet::new(),
                metrics: metrics.clone(),
            };
            let task = tokio::spawn(watch.watch(|_| {}));
            Self { probe, closed, attempts, gpus, published, metrics, task, folder }
        }

        /// Why the process ends, once it does.
        async fn end(&mut self) -> String {
            let lost = timeout(Duration::from_secs(120), &mut self.task).await;
            lost.unwrap().unwrap().to_string()
        }

        async fn until(&mut self, healths: [Option<Unhealthy>; 2]) {
            let reached =
                self.gpus.wait_for(|gpus| gpus.iter().map(|gpu| gpu.unhealthy).eq(healths));
            timeout(Duration::from_secs(120), reached).await.unwrap().unwrap();
        }
    }

    impl Drop for GpuBench {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    #[tokio::test]
    async fn a_lost_gpu_is_published_once_and_recovers_while_the_others_stay_healthy() {
        let mut bench = GpuBench::new();
        bench.until([None, None]).await;
        bench.probe.set_lost(A, true);
        bench.until([Some(Unhealthy::Lost), None]).await;
        // Polls go on for as long as the other GPU is lost and back.
        bench.probe.set_lost(B, true);
        bench.until([Some(Unhealthy::Lost), Some(Unhealthy::Lost)]).await;
        bench.probe.set_lost(B, false);
        bench.until([Some(Unhealthy::Lost), None]).await;
        bench.probe.set_lost(A, false);
        bench.until([None, None]).await;
        let lost = Some(Unhealthy::Lost);
        let all = [[None, None], [lost, None], [lost, lost], [lost, None], [None, None]];
        assert_eq!(*bench.published.lock().unwrap(), all.map(Vec::from));
    }

    #[tokio::test]
    async fn errors_reach_their_gpu_also_after_it_was_lost() {
        let mut bench = GpuBench::new();
        bench.until([None, None]).await;
        bench.probe.set_lost(B, true);
        bench.until([None, Some(Unhealthy::Lost)]).await;
        bench.probe.set_lost(B, false);
        bench.until([None, None]).await;
        let xid = Xid { number: Some(79) };
        bench.probe.raise(B, xid);
        bench.until([None, Some(Unhealthy::Failed(xid))]).await;
        let recovered = Status { recovery: Some(Recovery::Unneeded), ..Status::default() };
        bench.probe.set_status(B, recovered);
        bench.until([None, None]).await;
        assert_eq!(bench.metrics.gpu_errors.with([B, "79"]).get(), 1);
    }

    #[tokio::test]
    async fn a_process_whose_nvml_worked_and_cannot_be_opened_any_more_ends_and_says_why() {
        let mut bench = GpuBench::new();
        bench.until([None, None]).await;
        bench.closed.store(true, Ordering::Relaxed);
        bench.probe.set_enumerates(false);
        let lost = Some(Unhealthy::Lost);
        bench.until([lost, lost]).await;
        let why = bench.end().await;
        assert!(why.starts_with("NVML worked") && why.contains("no NVML library"), "{why}");
    }

    #[tokio::test]
    async fn a_process_that_never_saw_nvml_ends_and_says_why_where_the_bus_has_a_gpu() {
        let mut bench = GpuBench::with(true);
        let device = bench.folder.path().join("pci/0000:00:05.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("vendor"), "0x10de\n").unwrap();
        std::fs::write(device.join("class"), "0x030200\n").unwrap();
        let why = bench.end().await;
        assert!(why.starts_with("NVML has failed") && why.contains("no NVML library"), "{why}");
        let attempts = bench.attempts.load(Ordering::Relaxed);
        assert!(attempts >= GIVE_UP_WITHOUT_NVML_AFTER, "{attempts}");
    }

    #[tokio::test]
    async fn a_process_that_never_saw_nvml_waits_for_the_driver() {
        let mut bench = GpuBench::with(true);
        let attempts = bench.attempts.clone();
        let many = async {
            while attempts.load(Ordering::Relaxed) <= 2 * GIVE_UP_WITHOUT_NVML_AFTER {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(120), many).await.unwrap();
        bench.closed.store(false, Ordering::Relaxed);
        bench.until([None, None]).await;
    }

    #[tokio::test]
    async fn each_error_of_a_storm_is_counted() {
        let mut bench = GpuBench::new();
        bench.until([None, None]).await;
        let xid = Xid { number: Some(31) };
        (0..1000).for_each(|_| bench.probe.raise(A, xid));
        bench.probe.raise(A, Xid { number: Some(79) });
        bench.until([Some(Unhealthy::Failed(Xid { number: Some(79) })), None]).await;
        assert_eq!(bench.metrics.gpu_errors.with([A, "31"]).get(), 1000);
    }
}
