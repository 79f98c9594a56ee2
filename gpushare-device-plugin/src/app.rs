//! The wiring: [`Wiring::start`] makes the parts, and one function for each task starts it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use cluster::{DeviceSlice, Scope, WatchHealth};
use daemon::{Condition, Context, Shutdown};
use nvml::{Library, Probe};
use placement::units::MiB;
use tokio::sync::watch;

use crate::admission::sources::Sources;
use crate::admission::withheld::{self, StatusWriter};
use crate::admission::{Admission, downgrades, free, limits};
use crate::api_reach::{ApiReach, Pauses};
use crate::args::Args;
use crate::audit::limits::{DriverLimit, LimitWatch};
use crate::audit::watch::Audit;
use crate::cdi_watch::SpecWatch;
use crate::container::cdi::SpecFile;
use crate::container::{Mode, Responder};
use crate::contexts::watch::ContextWatch;
use crate::departure::{Departure, Phase};
use crate::dra::watch::DraWatch;
use crate::drain::{Drain, DrainPipe};
use crate::gpus::closed::{ByClaims, ClosedGpus};
use crate::gpus::context::FailedContexts;
use crate::gpus::file::GpusFile;
use crate::gpus::node_settings::{self, NodeSettings};
use crate::gpus::offered::OfferedGpus;
use crate::gpus::search::{GpuSearch, POLLS_PER_LOOK};
use crate::gpus::sizing::Sizing;
use crate::gpus::watch::{GpuWatch, OpenNvml, Prepare, REOPEN_PAUSE};
use crate::gpus::{Gpus, Open};
use crate::health::{self, set};
use crate::host::HostPaths;
use crate::isolation::NodeIsolation;
use crate::isolation::support::{Host, Missing};
use crate::kubelet::session::Plugin;
use crate::lingering::Lingering;
use crate::lingering::file::GrantsFile;
use crate::lingering::groups::HostGroups;
use crate::metrics::Metrics;
use crate::node_events::NodeEvents;
use crate::nvidia::CdiLocation;
use crate::pods::{ApiServer, NodePod, PodCache, ReadPod};
use crate::processes::Snapshot;
use crate::processes::host::HostProcesses;
use crate::processes::metrics::{GpuUse, set_gpu_use};
use crate::processes::watch::ProcessWatch;
use crate::records::SharedRecords;
use crate::records::checkpoint::CheckpointFile;
use crate::records::pod_resources::PodResourcesClient;
use crate::report::Reporter;
use crate::resource_claims::driver::Driver;
use crate::resource_claims::files::ClaimFiles;
use crate::resource_claims::mode::ModeWatch;
use crate::resource_claims::offer::Publisher;
use crate::resource_claims::service::DriverService;
use crate::resource_claims::session::Session as ClaimSession;
use crate::startup::{prepare, prepare_gpus};
use crate::unhealthy_map::UnhealthyMap;

/// Time for one read of a pod while the kubelet waits. A read that fails or takes longer is repeated.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Polls of the GPUs' health from one look at their processes to the next.
const POLLS_PER_LOOK_AT_PROCESSES: u32 = 2;
/// Starts all tasks. The process then lives for as long as they do.
///
/// # Errors
/// When a flag's value cannot be used.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
    anyhow::ensure!(
        !args.claims || args.response == Mode::Cdi,
        "--claims needs --response=cdi: a ResourceClaim is given out by CDI devices alone"
    );
    let metrics = context.register(Metrics::register);
    let client = cluster::client(args.api.kubeconfig.as_deref())
        .await
        .context("cannot set up the API server's client")?;
    let host = args.host();
    let kubelet = PodResourcesClient::new(&host.pod_resources, &args.names.gpu_resource)
        .context("cannot use the kubelet's socket below --host-root")?;
    let events = NodeEvents::new(client.clone(), args.node());
    // From here on nothing can fail.
    let wiring = Wiring { args, host, context, metrics, client, events, end: Shutdown::new() };
    if wiring.args.idle_without_gpus {
        wiring.start_with_a_gpu(kubelet);
    } else {
        wiring.start(kubelet);
    }
    Ok(())
}

/// The slices of this plugin's own driver; `None` until they are known.
type OwnSlices = watch::Receiver<Option<Vec<DeviceSlice>>>;

/// What most tasks need.
struct Wiring {
    args: Args,
    host: HostPaths,
    context: Context,
    metrics: Metrics,
    client: cluster::Client,
    events: NodeEvents,
    /// Cancelled after the shutdown has begun, once the kubelet needs this plugin no more.
    end: Shutdown,
}

impl Wiring {
    /// Starts nothing else until the node has a GPU.
    fn start_with_a_gpu(self, kubelet: PodResourcesClient) {
        let search = GpuSearch {
            open: open_nvml(self.args.nvml_library.clone()),
            pci_dir: self.host.pci.clone(),
            file: GpusFile::new(self.host.state.clone()),
            pause: self.args.health_interval * POLLS_PER_LOOK,
            metrics: self.metrics.clone(),
        };
        let looked = self.context.health().gate("card-looked-for");
        let context = self.context.clone();
        let shutdown = context.shutdown();
        context.spawn("card-search", async move {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = search.found(|| looked.set_ready()) => {}
            }
            // Its conditions are declared before this one holds.
            self.start(kubelet);
            looked.set_ready();
            shutdown.cancelled().await;
            Ok(())
        });
    }

    fn start(self, kubelet: PodResourcesClient) {
        let pods = self.follow_pods();
        let checkpoint = CheckpointFile {
            directory: self.host.device_plugins.clone(),
            resource: self.args.names.gpu_resource.clone(),
        };
        let spec = spec_file(&self.args, &self.host);
        let unit = self.context.health().condition("unit");
        let prepare =
            prepare_gpus(sizing(&self.args), spec.clone(), checkpoint.clone(), pods.clone(), unit);
        let (index_sender, indexes) = watch::channel(BTreeSet::new());
        let settings = self.follow_settings();
        let (gpus, probe) = self.follow_gpus(prepare, indexes, settings.clone());
        let limits = self.follow_limits(&probe, &checkpoint, &pods, &gpus);
        let processes = self.follow_processes(probe.clone(), pods.clone());
        self.follow_unhealthy_map(gpus.clone(), index_sender);
        let records = Arc::new(SharedRecords::default());
        let (offered, own_slices) = self.follow_dra(&gpus, &pods, &kubelet, &records);
        let by_claims = self.follow_mode(settings.clone(), &records);
        let not_held = watch::Sender::new(None);
        let (failed, failed_contexts) = watch::channel(Arc::default());
        let (isolation, closed) = self.follow_nvidia(
            &gpus,
            offered,
            by_claims.clone(),
            not_held.subscribe(),
            failed_contexts,
            spec.clone(),
        );
        health::publish(self.context.health(), self.args.response, &gpus, &closed, &isolation);
        let lingering = self.find_lingering(&pods, &records);
        self.drain_clients(&pods, &records);
        let driver = Arc::new(Driver {
            client: self.client.clone(),
            node: self.args.node(),
            name: self.args.names.names().claims_driver(),
            gpus: gpus.clone(),
            closed: closed.clone(),
            isolation: isolation.clone(),
            records: records.clone(),
            lingering: lingering.clone(),
            pods: pods.clone(),
            kubelet: kubelet.clone(),
            files: ClaimFiles {
                folder: self.host.cdi.clone(),
                kind: self.args.names.names().claims_cdi_kind(),
                mps: self.args.mps_dir.clone(),
                writing: Mutex::default(),
            },
            checkpoint: checkpoint.clone(),
            recovered: watch::Sender::new(false),
            found: Mutex::default(),
            metrics: self.metrics.clone(),
        });
        if self.args.claims {
            self.serve_claims(driver, settings, own_slices);
        } else {
            self.spawn("claims", |shutdown| driver.end_all(shutdown));
        }
        let outside_mps = watch::Sender::default();
        let outside = outside_mps.subscribe();
        let contexts = self.args.context_probe_socket.clone().map(|socket| ContextWatch {
            socket,
            unit: MiB(self.args.unit_mib),
            gpus: gpus.clone(),
            closed: closed.clone(),
            support: isolation.support.clone(),
            pods: pods.clone(),
            records: records.clone(),
            probe,
            failed,
        });
        let audit = Audit {
            every: self.args.audit_interval,
            unit: MiB(self.args.unit_mib),
            gpus: gpus.clone(),
            pods: pods.clone(),
            records: records.clone(),
            checkpoint: checkpoint.clone(),
            processes,
            limits,
            not_held,
            outside_mps,
            events: self.events.clone(),
            metrics: self.metrics.clone(),
        };
        let api = Arc::new(ApiServer {
            client: self.client.clone(),
            names: self.args.names.names(),
            limit: READ_TIMEOUT,
        });
        let reachable = self.follow_reach(api.clone());
        let sources = Sources {
            gpus: gpus.clone(),
            closed: closed.clone(),
            pods: pods.clone(),
            api,
            kubelet,
            checkpoint: checkpoint.clone(),
            records: records.clone(),
            lingering: lingering.clone(),
        };
        let (phase, reported) = self.depart_in_order(&pods, &reachable);
        let admission = Arc::new(Admission::new(
            sources,
            responder(&self.args, isolation.clone(), spec),
            self.args.unclaimed_pods,
            self.metrics.clone(),
        ));
        let reporter = Reporter {
            by_cdi: self.args.response == Mode::Cdi,
            events: self.events.clone(),
            client: self.client.clone(),
            node: self.args.node(),
            names: self.args.names.names(),
            gpus: gpus.clone(),
            pods: pods.clone(),
            records,
            lingering,
            isolation,
            gpu_count: self.args.report_gpu_count,
            checkpoint,
            closed,
            outside_mps: outside,
            phase: phase.subscribe(),
            reported,
            metrics: self.metrics.clone(),
        };
        let plugin = Plugin {
            directory: self.host.device_plugins.clone(),
            resource: self.args.names.gpu_resource.clone(),
            admission,
            gpus,
            reachable,
            by_claims,
            phase,
            metrics: self.metrics.clone(),
        };
        let status = StatusWriter {
            client: self.client.clone(),
            node: self.args.node(),
            resource: self.args.names.gpu_resource.clone(),
            events: self.events.clone(),
        };
        self.serve_kubelet(plugin, reporter, status, audit, contexts, pods);
    }

    /// Starts a task that runs until [the end](Self::end).
    fn spawn<F>(&self, name: &'static str, task: impl FnOnce(Shutdown) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = task(self.end.clone());
        self.context.spawn(name, async {
            task.await;
            Ok(())
        });
    }

    /// Lets the other tasks run on after the shutdown until no pod is on its way to this node. Returns the phase of
    /// this plugin, and where the one is put that was reported.
    fn depart_in_order(
        &self,
        pods: &Arc<PodCache>,
        reachable: &watch::Receiver<bool>,
    ) -> (watch::Sender<Phase>, watch::Sender<Option<Phase>>) {
        let phase = watch::Sender::new(Phase::Starting);
        let (report, reported) = watch::channel(None);
        let departure = Departure {
            phase: phase.clone(),
            reported,
            pods: pods.clone(),
            reachable: reachable.clone(),
        };
        self.spawn("departure", |end| departure.run(self.context.shutdown(), end));
        (phase, report)
    }

    fn follow_pods(&self) -> Arc<PodCache> {
        let listed = self.context.health().gate("pods-listed");
        let cache = Arc::new(PodCache::default());
        let names = self.args.names.names();
        let events = cluster::watch_pods(
            self.client.clone(),
            Scope::Node(self.args.node()),
            WatchHealth::default(),
            move |pod, _| Some(NodePod::of(&pod, &names)),
        );
        let followed = cache.clone();
        self.spawn("pods", |shutdown| async move {
            let follow = async {
                tokio::join!(followed.follow(events), set_when_listed(&followed, &listed))
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                _ = follow => {}
            }
        });
        cache
    }

    fn follow_settings(&self) -> watch::Receiver<Option<NodeSettings>> {
        let (sender, settings) = watch::channel(None);
        let node = Scope::Node(self.args.node());
        let names = self.args.names.names();
        let health = WatchHealth::default();
        let events = cluster::watch_nodes(self.client.clone(), node, health, move |node| {
            Some(node_settings::of(&node, &names))
        });
        self.spawn("node-settings", |shutdown| node_settings::follow(events, sender, shutdown));
        settings
    }

    fn follow_mode(
        &self,
        settings: watch::Receiver<Option<NodeSettings>>,
        records: &Arc<SharedRecords>,
    ) -> watch::Receiver<Option<Arc<ByClaims>>> {
        let (sender, by_claims) = watch::channel(None);
        let watch = ModeWatch {
            serves_claims: self.args.claims,
            settings,
            records: records.clone(),
            by_claims: sender,
        };
        self.spawn("gpu-mode", |shutdown| watch.run(shutdown));
        by_claims
    }

    /// Serves ResourceClaims.
    fn serve_claims(
        &self,
        driver: Arc<Driver>,
        settings: watch::Receiver<Option<NodeSettings>>,
        slices: OwnSlices,
    ) {
        let health = self.context.health();
        let publisher = Publisher {
            client: self.client.clone(),
            node: self.args.node(),
            names: self.args.names.names(),
            gpus: driver.gpus.clone(),
            closed: driver.closed.clone(),
            support: driver.isolation.support.clone(),
            settings,
            records: driver.records.clone(),
            slices,
            condition: health.condition("claims-offered"),
        };
        let session = ClaimSession {
            folder: self.host.plugins_registry.clone(),
            service: DriverService {
                driver: driver.clone(),
                registered: health.condition("claims-registered"),
                end: self.end.clone(),
            },
        };
        self.context.before_scrape(&self.metrics, driver.records.clone(), set_claims);
        self.spawn("claims", |shutdown| driver.follow(shutdown));
        self.spawn("claims-offered", |shutdown| publisher.run(shutdown));
        self.spawn("claims-served", |shutdown| session.run(shutdown));
    }

    fn follow_gpus(
        &self,
        prepare: Prepare,
        unhealthy_indexes: watch::Receiver<BTreeSet<u32>>,
        settings: watch::Receiver<Option<NodeSettings>>,
    ) -> (watch::Receiver<Arc<Gpus>>, watch::Receiver<OpenNvml>) {
        let found = self.context.health().gate("cards-found");
        let (sender, receiver) = watch::channel(Arc::default());
        let (opened, probe) = watch::channel(None);
        let watch = GpuWatch {
            open: open_nvml(self.args.nvml_library.clone()),
            sizing: sizing(&self.args),
            every: self.args.health_interval,
            ignored_xids: self.args.ignored_xids.clone(),
            settings,
            unhealthy_indexes,
            prepare,
            file: GpusFile::new(self.host.state.clone()),
            events: Some(self.events.clone()),
            gpus: sender,
            probe: opened,
            metrics: self.metrics.clone(),
            reopen_pause: REOPEN_PAUSE,
            pci_dir: self.host.pci.clone(),
            without_size: BTreeSet::new(),
        };
        let run = watch.run(self.end.clone(), move |outcome| set(&found, outcome));
        self.context.spawn("cards", async move { run.await.map_err(anyhow::Error::from) });
        (receiver, probe)
    }

    fn follow_processes(
        &self,
        probe: watch::Receiver<OpenNvml>,
        pods: Arc<PodCache>,
    ) -> watch::Receiver<Arc<Snapshot>> {
        let (snapshots, snapshot) = watch::channel(Arc::default());
        let host = HostProcesses { proc: self.host.proc.clone() };
        let every = self.args.health_interval * POLLS_PER_LOOK_AT_PROCESSES;
        let watch = ProcessWatch { probe, host, every, snapshots };
        let gpu_use = GpuUse { node: self.args.node(), snapshot: snapshot.clone(), pods };
        self.context.before_scrape(&self.metrics, gpu_use, set_gpu_use);
        self.spawn("processes", |shutdown| watch.run(shutdown));
        snapshot
    }

    fn follow_limits(
        &self,
        probe: &watch::Receiver<OpenNvml>,
        checkpoint: &CheckpointFile,
        pods: &Arc<PodCache>,
        gpus: &watch::Receiver<Arc<Gpus>>,
    ) -> watch::Receiver<Arc<Vec<DriverLimit>>> {
        let (sender, limits) = watch::channel(Arc::default());
        let watch = LimitWatch {
            probe: probe.clone(),
            cgroups: self.host.cgroups.clone(),
            checkpoint: checkpoint.clone(),
            pods: pods.clone(),
            gpus: gpus.clone(),
            every: self.args.audit_interval,
            limits: sender,
        };
        self.spawn("driver-limits", |shutdown| watch.run(shutdown));
        limits
    }

    fn follow_reach(&self, api: Arc<dyn ReadPod>) -> watch::Receiver<bool> {
        let condition = self.context.health().gate("api-server-reached");
        let (sender, reachable) = watch::channel(true);
        let reach = ApiReach { api, pauses: Pauses::default(), reachable: sender };
        self.spawn("api-reach", |shutdown| {
            reach.run(shutdown, move |outcome| set(&condition, outcome))
        });
        reachable
    }

    fn follow_unhealthy_map(
        &self,
        gpus: watch::Receiver<Arc<Gpus>>,
        unhealthy_indexes: watch::Sender<BTreeSet<u32>>,
    ) {
        let Some(namespace) = self.args.unhealthy_gpus_namespace.clone() else { return };
        let node = self.args.node();
        let name = UnhealthyMap::name(&node);
        let client = self.client.clone();
        let events =
            cluster::watch_config_map(client.clone(), &namespace, &name, WatchHealth::default());
        let names = self.args.names.names();
        let map = UnhealthyMap { client, namespace, node, names, gpus, unhealthy_indexes };
        self.spawn("unhealthy-gpus", |shutdown| map.run(events, shutdown));
    }

    fn follow_dra(
        &self,
        gpus: &watch::Receiver<Arc<Gpus>>,
        pods: &Arc<PodCache>,
        kubelet: &PodResourcesClient,
        records: &Arc<SharedRecords>,
    ) -> (watch::Receiver<Option<Arc<OfferedGpus>>>, OwnSlices) {
        let (sender, offered) = watch::channel(None);
        let (own_slices, own) = watch::channel(None);
        let watch = DraWatch {
            client: self.client.clone(),
            node: self.args.node(),
            gpus: gpus.clone(),
            pods: pods.clone(),
            kubelet: kubelet.clone(),
            records: records.clone(),
            offered: sender,
            own_driver: self.args.names.names().claims_driver(),
            serves_own: self.args.claims,
            own_slices,
            events: self.events.clone(),
        };
        self.spawn("dra", |shutdown| watch.run(shutdown));
        (offered, own)
    }

    fn follow_nvidia(
        &self,
        gpus: &watch::Receiver<Arc<Gpus>>,
        offered: watch::Receiver<Option<Arc<OfferedGpus>>>,
        by_claims: watch::Receiver<Option<Arc<ByClaims>>>,
        not_held: watch::Receiver<Option<Missing>>,
        failed: watch::Receiver<Arc<FailedContexts>>,
        own: Option<Arc<SpecFile>>,
    ) -> (NodeIsolation, watch::Receiver<Arc<ClosedGpus>>) {
        let (sender, support) = watch::channel(None);
        let (close, closed) = watch::channel(Arc::default());
        let policy = self.args.isolation_policy();
        let watch = SpecWatch {
            location: CdiLocation {
                folders: self.args.nvidia_cdi_dirs.clone(),
                kind: crate::nvidia::KIND.to_owned(),
            },
            own,
            host: Host {
                by_cdi: self.args.response == Mode::Cdi,
                cgroups: self.host.cgroups.clone(),
                proc: self.host.proc.clone(),
                mps: self.args.mps_dir.clone(),
                daemon_user: rustix::process::geteuid().as_raw(),
            },
            not_held,
            policy,
            support: sender,
            closed: close,
            offered,
            by_claims,
            failed,
            gpus: gpus.clone(),
            events: self.events.clone(),
            metrics: self.metrics.clone(),
        };
        self.spawn("nvidia-cdi", |shutdown| watch.run(shutdown));
        (NodeIsolation { policy, support }, closed)
    }

    /// Loads what an earlier process granted before it returns.
    fn find_lingering(&self, pods: &Arc<PodCache>, records: &Arc<SharedRecords>) -> Arc<Lingering> {
        let metrics = &self.metrics;
        let lingering = Lingering {
            pods: pods.clone(),
            records: records.clone(),
            groups: HostGroups::new(self.host.cgroups.clone(), metrics.clone()),
            file: GrantsFile::new(self.host.state.clone(), metrics.clone()),
            metrics: metrics.clone(),
        };
        lingering.load();
        Arc::new(lingering)
    }

    /// Has the clients of MPS terminated before their processes are killed, where there is MPS.
    fn drain_clients(&self, pods: &Arc<PodCache>, records: &Arc<SharedRecords>) {
        let Some(mps) = &self.args.mps_dir else { return };
        let drain = Drain {
            pipe: DrainPipe::below(mps, rustix::process::geteuid().as_raw()),
            pods: pods.clone(),
            records: records.clone(),
            metrics: self.metrics.clone(),
        };
        self.spawn("mps-drain", |shutdown| drain.run(shutdown));
    }

    /// Registers and reports once [`startup::prepare`](crate::startup::prepare) is done: before, a report would show
    /// GPUs without their pods.
    fn serve_kubelet(
        &self,
        mut plugin: Plugin,
        reporter: Reporter,
        status: StatusWriter,
        audit: Audit,
        contexts: Option<ContextWatch>,
        pods: Arc<PodCache>,
    ) {
        let registered = self.context.health().gate("registered");
        self.spawn("kubelet", |shutdown| async move {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = prepare(&mut plugin, &reporter.lingering, &registered) => {}
            }
            // Pods that linger are reported before the kubelet can offer their units again.
            if reporter.lingering.update() {
                reporter.report_once().await;
            }
            let session = plugin.run(shutdown.clone(), move |outcome| set(&registered, outcome));
            let free = free::run(plugin.admission.clone(), pods, shutdown.clone());
            let limits = limits::run(plugin.admission.clone(), shutdown.clone());
            let events = audit.events.clone();
            let downgrades = downgrades::run(plugin.admission.clone(), events, shutdown.clone());
            let withheld = withheld::run(plugin.admission.clone(), status, shutdown.clone());
            let updates = reporter.lingering.clone().run(shutdown.clone());
            let reports = reporter.run(shutdown.clone());
            if let Some(contexts) = contexts {
                tokio::spawn(contexts.run(shutdown.clone()));
            }
            let audits = audit.run(shutdown);
            tokio::join!(session, free, limits, downgrades, withheld, updates, reports, audits);
        });
    }
}

fn set_claims(metrics: &Metrics, records: &Arc<SharedRecords>) {
    let records = records.lock();
    for (state, prepared) in [("prepared", true), ("ending", false)] {
        let count =
            records.resource_claims.iter().filter(|(_, claim)| claim.prepared == prepared).count();
        metrics.claims.with([state]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

async fn set_when_listed(pods: &PodCache, condition: &Condition) {
    pods.listed().await;
    condition.set_ready();
}

fn sizing(args: &Args) -> Sizing {
    Sizing {
        unit: MiB(args.unit_mib),
        reserve_percent: args.reserve_percent,
        unified: (args.unified_memory_mib > 0).then_some(MiB(args.unified_memory_mib)),
    }
}

fn open_nvml(library: PathBuf) -> Open {
    Arc::new(move || Ok(Arc::new(Library::open(&library)?) as Arc<dyn Probe>))
}

/// Our CDI specification; `None` unless `--response=cdi`.
fn spec_file(args: &Args, host: &HostPaths) -> Option<Arc<SpecFile>> {
    if args.response != Mode::Cdi {
        return None;
    }
    Some(Arc::new(SpecFile::new(&host.cdi, &args.names.names().cdi_kind(), args.mps_dir.clone())))
}

fn responder(args: &Args, isolation: NodeIsolation, limits: Option<Arc<SpecFile>>) -> Responder {
    Responder {
        isolation,
        limits,
        mode: args.response,
        own_kind: args.names.names().cdi_kind(),
        unit: MiB(args.unit_mib),
    }
}
