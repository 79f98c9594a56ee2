//! Starts the program's tasks and connects them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use cluster::{
    Client, Elector, EventWriter, Events, LeaseSettings, NodeFacts, Pod, Scope, WatchCause,
    WatchedResourceClaim,
};
use daemon::follow::{EVERY, FileError, Follower};
use daemon::http::Transport;
use daemon::metrics::FileChanges;
use daemon::tls::{Identity, Peers};
use daemon::{Context, OwnThread, Shutdown, Threads};
use futures::FutureExt as _;
use jiff::Timestamp;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use settings::{PolicyFile, replica_identity};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::annotator_client::Reads as _;
use crate::args::BIND_TIMEOUT;
use crate::back_off_events::write_back_offs;
use crate::binder::{BindLimits, Binder, BinderParams};
use crate::decisions::{DecisionLog, NominatedPods, RatingCache, WaitingPods};
use crate::gangs::Gangs;
use crate::gpu_evictions::{EvictionLimits, EvictionModes, Evictor, GpuEvictions};
use crate::host_names::HostNames;
use crate::http_client::SetupError;
use crate::metrics::Metrics;
use crate::outside_mps::OutsideMps;
use crate::over_limits::{OverLimits, write_events};
use crate::policy_events::{PolicyEvents, RefusedPolicy};
use crate::replicas::{Forwarder, LeaderClient, OtherReplicas, Replicas, SecureClients, prepare};
use crate::report::StateReport;
use crate::shadow::{Shadow, ShadowFile, ShadowMetrics};
use crate::view::{
    View, WatchState, WatchedPod, follow_nodes, follow_pods, follow_resource_claims, select_pod,
    tick,
};
use crate::{Args, Clock, Decider, Extender, health, http, learned_use, readings_channel};

/// The reporting component of events.
const EVENT_COMPONENT: &str = "plimsoll-scheduler-extender";

/// How long bindings under way may still take when the process ends.
const LAST_BINDS: Duration = Duration::from_secs(5);

/// How long one of several replicas still accepts connections after the shutdown began: until every node has removed
/// its address from the Service.
const DRAIN_DELAY: Duration = Duration::from_secs(3);

/// The time after which requests that are still under way are cut off; below [`daemon::GRACE`].
const CUT_OFF: Duration = Duration::from_secs(9);

/// The period in which the measure of fragmentation follows the free room.
const REPRICE_EVERY: Duration = Duration::from_millis(500);
/// After so many of these it is recomputed if necessary.
const MEASURE_AFTER: u32 = 10;

/// The period in which a replica reads the Lease that another holds.
const LEASE_READ_PERIOD: Duration = Duration::from_millis(300);

/// The whole program, once its flags are read.
pub fn main(args: Args) -> ExitCode {
    let settings = args.daemon.settings();
    // One core is left to the thread that answers kube-scheduler.
    let threads = Threads::PerOtherCore;
    daemon::run_on(threads, daemon::program!(), settings, |context| run(args, context))
}

/// Runs the program until the shutdown.
///
/// # Errors
///
/// Where a flag, the policy or the credentials are wrong, or the address is taken.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
    start(args, &context).await.map(drop)
}

/// Starts the program's tasks, and returns the address of `--listen-address`.
///
/// # Errors
///
/// As [`run`].
pub async fn start(args: Args, context: &Context) -> anyhow::Result<SocketAddr> {
    let clock: Clock = Arc::new(Timestamp::now);
    let names = Arc::new(args.names.names());
    let metrics = context.register(Metrics::register);
    let (file, policy) = Follower::open(PolicyFile::new(&args.load.policy_file))?;
    let policy = LoadPolicy::clone(&policy.borrow());
    log_warnings(&policy);
    let view = Arc::new(view(&args, policy, context));
    context.before_scrape(&metrics, Arc::clone(&view), Metrics::set_view);
    let identity = args.identity();
    let leader_client = leader_client(identity.as_ref(), context)?;
    let transport = transport(identity, &metrics, context)?;
    let client = cluster::client(args.api.kubeconfig.as_deref()).await?;
    // kube-scheduler's requests and Bind's client run on a thread of their own; watches, reports and the TLS handshakes
    // of all clients on the main runtime.
    let verbs = OwnThread::start("verbs").context("cannot start a thread")?;
    let listener = daemon::http::bind(args.listen_address, "--listen-address").await?;
    let kubeconfig = args.api.kubeconfig.clone();
    let bind_client =
        verbs.run(async move { cluster::client(kubeconfig.as_deref()).await }).await?;
    let address = listener.local_addr().context("--listen-address")?;
    let inspect = match args.inspect_address {
        Some(address) => Some(daemon::http::bind(address, "--inspect-address").await?),
        None => None,
    };

    let (faults, policy_faults) = watch::channel(None);
    let on_change = set_policy(Arc::clone(&view), faults);
    context.follow("policy", file, pause_before_read, on_change);
    let (elector, replicas) = election(&args, &client, address);
    context.before_scrape(&metrics, Arc::clone(&replicas), Metrics::set_replicas);
    health::publish(context, &metrics.calls, &metrics.tls, &view, &replicas);
    let gangs = Arc::<Gangs>::default();
    let binder = Binder::new(BinderParams {
        client: bind_client,
        names: Arc::clone(&names),
        view: Arc::clone(&view),
        metrics: metrics.clone(),
        clock: Arc::clone(&clock),
        limits: BindLimits::answering_within(BIND_TIMEOUT),
        replicas: Arc::clone(&replicas),
        gangs: Arc::clone(&gangs),
    });
    let forwarder = Forwarder::new(
        Arc::clone(&replicas),
        leader_client,
        metrics.replicas.clone(),
        http::limits().body,
    );
    let others = others(&args, &client, address)?;
    let decisions = Arc::<DecisionLog>::default();
    context.before_scrape(&metrics, Arc::clone(&decisions), Metrics::set_decisions);
    let over_limits = OverLimits::default();
    let events = EventWriter::new(client.clone(), EVENT_COMPONENT);
    let writing = write_events(over_limits.clone(), events.clone(), context.shutdown());
    context.spawn("events", writing);
    let policy_events = args.policy_config_map.clone().map(|map| PolicyEvents {
        map,
        writer: events.clone(),
        replicas: Arc::clone(&replicas),
    });
    if let Some(events) = policy_events.clone() {
        let writing =
            events.write_faults(RefusedPolicy::InForce, policy_faults.clone(), context.shutdown());
        context.spawn("policy-events", writing);
    }
    let back_offs = write_back_offs(Arc::clone(&view), events.clone(), context.shutdown());
    context.spawn("back-off-events", back_offs);
    spawn_annotator_readers(&args, context, &view, &metrics, &clock)?;
    let shadow = match args.shadow_policy_file.as_deref() {
        Some(file) => {
            let (faults, shadow_faults) = watch::channel(None);
            if let Some(events) = policy_events {
                let writing =
                    events.write_faults(RefusedPolicy::Shadow, shadow_faults, context.shutdown());
                context.spawn("shadow-policy-events", writing);
            }
            Some(shadow(file, &view, metrics.shadow.clone(), faults, context)?)
        }
        None => None,
    };
    if args.evict_outside_mps {
        let outside_mps = OutsideMps {
            view: Arc::clone(&view),
            client: client.clone(),
            replicas: Arc::clone(&replicas),
            events: events.clone(),
        };
        context.spawn("outside-mps", outside_mps.run(context.shutdown()));
    }
    let modes = EvictionModes { evict: args.evict_for_gpus, moves: args.move_for_gpus };
    let evictor = Evictor {
        view: Arc::clone(&view),
        client: client.clone(),
        names: Arc::clone(&names),
        replicas: Arc::clone(&replicas),
        events,
        metrics: metrics.clone(),
        limits: EvictionLimits { after: args.evict_after, a_minute: args.evictions_per_minute },
        modes,
    };
    let gpu_evictions = (modes.evict || modes.moves).then(|| spawn_evictor(evictor, context));
    let decider = Decider {
        view,
        names,
        decisions,
        waiting: WaitingPods::default(),
        nominated: NominatedPods::default(),
        gangs,
        ratings: RatingCache::default(),
        over_limits,
        gpu_evictions,
        shadow,
        metrics,
        clock,
    };
    spawn_watches(&args, context, &decider, client, &binder);
    // The thread lives until these bindings have ended, also after its server has stopped.
    let binds = finish_binds(Arc::clone(&binder), verbs.clone(), context.shutdown());
    context.spawn("binds", binds);
    let ended = Shutdown::new();
    let drain_delay = if elector.is_some() { DRAIN_DELAY } else { Duration::ZERO };
    if let Some(elector) = elector {
        let preparing = prepare(
            Arc::clone(&replicas),
            Arc::clone(&decider.view),
            decider.metrics.replicas.clone(),
            context.shutdown(),
        );
        context.spawn("takeover", preparing);
        let resigned = resigned(Arc::clone(&replicas), Arc::clone(&binder), context.shutdown());
        let following = elector.run_then_follow(resigned, ended.clone().cancelled_owned());
        context.spawn("lease", following.map(Ok));
    }
    let extender = Extender {
        decider,
        binder,
        forwarder,
        replicas,
        state: StateReport::default(),
        host_names: HostNames::new(&args.replica_server_name, &args.inspect_host_names),
        policy_fault: policy_faults.clone(),
        others,
        ending: context.shutdown(),
    };
    let http::Routers { all, read_only } = http::routers(&Arc::new(extender), &Handle::current());
    let guard = ended.drop_guard();
    context.spawn("verbs-thread", verbs.clone().watch(context.shutdown()));
    let serving = serve_verbs(verbs, transport, listener, all, context.shutdown(), drain_delay);
    context.spawn("verbs", serving.inspect(|_| drop(guard)));
    if let Some(listener) = inspect {
        let serving =
            daemon::http::serve(listener, read_only, http::inspect_limits(), context.shutdown());
        context.spawn("inspect", serving);
    }
    tracing::info!(%address, "answering kube-scheduler");
    Ok(address)
}

/// Starts the evictor. Returns the queue of reports to it.
fn spawn_evictor(evictor: Evictor, context: &Context) -> GpuEvictions {
    let reports = GpuEvictions::new();
    context.spawn("card-evictions", evictor.run(reports.clone(), context.shutdown()));
    reports
}

/// The pause between two reads of a followed file.
fn pause_before_read() -> Sleep {
    sleep(EVERY)
}

/// The leader election: without a Lease this replica always leads.
fn election(args: &Args, client: &Client, address: SocketAddr) -> (Option<Elector>, Arc<Replicas>) {
    let (Some(name), Some(ip)) = (args.lease_name.clone(), args.advertise_address) else {
        return (None, Arc::new(Replicas::alone()));
    };
    let identity = replica_identity("scheduler-extender");
    let settings = LeaseSettings {
        read_period: LEASE_READ_PERIOD,
        address: Some(SocketAddr::new(ip, address.port())),
        ..LeaseSettings::new(name, identity.clone(), args.lease_duration)
    };
    let (elector, leadership) = Elector::new(client, settings);
    (Some(elector), Arc::new(Replicas::new(leadership, identity)))
}

/// The client of the other replicas, with `--replicas-service`.
fn others(
    args: &Args,
    client: &Client,
    address: SocketAddr,
) -> Result<Option<OtherReplicas>, SetupError> {
    let (Some(service), Some(ip)) = (args.replicas_service.clone(), args.advertise_address) else {
        return Ok(None);
    };
    let mut own = vec![SocketAddr::new(ip, address.port())];
    own.extend(args.inspect_address.map(|at| SocketAddr::new(ip, at.port())));
    OtherReplicas::new(client.clone(), service, own).map(Some)
}

/// At the shutdown, stops new bindings. Returns whether all bindings have ended in time, so that the next leader need
/// not wait.
async fn resigned(replicas: Arc<Replicas>, binder: Arc<Binder>, shutdown: Shutdown) -> bool {
    shutdown.cancelled().await;
    replicas.resign();
    tokio::time::timeout(LAST_BINDS, binder.drain()).await.is_ok()
}

/// Serves until `drain_delay` after the shutdown began, then lets the requests in flight end.
async fn serve_verbs(
    thread: OwnThread,
    transport: Transport,
    listener: TcpListener,
    router: axum::Router,
    shutdown: Shutdown,
    drain_delay: Duration,
) -> anyhow::Result<()> {
    let close = Shutdown::new();
    let (limits, until) = (http::limits(), close.clone());
    let serving = daemon::http::serve_on(thread, transport, listener, router, limits, until);
    let ending = async {
        shutdown.cancelled().await;
        sleep(drain_delay).await;
        close.cancel();
        sleep(CUT_OFF - drain_delay).await;
    };
    tokio::select! {
        served = serving => served,
        () = ending => {
            tracing::warn!("requests are cut off: they still ran {CUT_OFF:?} after the shutdown began");
            Ok(())
        }
    }
}

/// TLS with client certificates, or plain HTTP without `--tls-cert-file`.
fn transport(
    identity: Option<Identity>,
    metrics: &Metrics,
    context: &Context,
) -> anyhow::Result<Transport> {
    let Some(identity) = identity else {
        tracing::warn!(
            "no --tls-cert-file: any client that reaches --listen-address can have waiting GPU pods bound"
        );
        return Ok(Transport::Plain);
    };
    if identity.client_names.is_empty() {
        tracing::warn!("no --client-names: every certificate of --client-ca-file can bind");
    }
    let (follower, current) = Follower::open(identity)?;
    context.follow("certificate", follower, pause_before_read, |_| ());
    Ok(Transport::Tls(metrics.tls.acceptor(current, context)))
}

/// The client of the leader, with this replica's certificate if there is one.
fn leader_client(identity: Option<&Identity>, context: &Context) -> anyhow::Result<LeaderClient> {
    let Some(peers) = identity.and_then(Peers::of) else { return Ok(LeaderClient::plain()?) };
    let (follower, current) = Follower::open(SecureClients(peers))?;
    // The server's follower reads the same files, and counts the results.
    let following = follower.follow(pause_before_read, |_| (), context.shutdown());
    context.spawn("leader-client", following);
    Ok(LeaderClient::secure(current))
}

/// Starts the readers of readings and of learned use, with `--learned-use-url`.
fn spawn_annotator_readers(
    args: &Args,
    context: &Context,
    view: &Arc<View>,
    metrics: &Metrics,
    clock: &Clock,
) -> anyhow::Result<()> {
    if let Some(url) = &args.learned_use_url {
        let uses = learned_use::UseReader::new(url).context("--learned-use-url")?;
        let following = uses.follow(Arc::clone(view), Arc::clone(clock), context.shutdown());
        context.spawn("learned-use", following);
        let readings = readings_channel::ReadingsReader::new(url, metrics.clone())
            .context("--learned-use-url")?;
        let following = readings.follow(Arc::clone(view), Arc::clone(clock), context.shutdown());
        context.spawn("readings", following);
    }
    Ok(())
}

fn view(args: &Args, policy: LoadPolicy, context: &Context) -> View {
    let nodes = WatchState::new(context.health().gate("nodes-listed"));
    let pods = WatchState::new(context.health().gate("pods-listed"));
    let view = View::new(policy, args.crane_hot_value, nodes, pods);
    if args.claims {
        view.with_claims(WatchState::new(context.health().gate("resourceclaims-listed")))
    } else {
        view
    }
}

/// What the watches are started with, and started again.
struct Watches {
    client: Client,
    names: Arc<Names>,
    view: Arc<View>,
    decisions: Arc<DecisionLog>,
    clock: Clock,
    codec: ReadingCodec,
}

impl Watches {
    fn nodes(&self) -> Events<NodeFacts> {
        let names = Arc::clone(&self.names);
        let codec = self.codec.clone();
        let health = self.view.nodes.health.clone();
        cluster::watch_nodes(self.client.clone(), Scope::All, health, move |node| {
            // What is used of it is parsed already.
            Some(NodeFacts { share: None, ..node.facts(&names, &codec) })
        })
    }

    fn claims(&self) -> Events<WatchedResourceClaim> {
        let health = self.view.claims.as_ref().map(|claims| claims.health.clone());
        let (driver, class) = (self.names.claims_driver(), self.names.claims_class());
        let client = self.client.clone();
        cluster::watch_resource_claims(client, &driver, &class, health.unwrap_or_default())
    }

    fn pods(self: &Arc<Self>) -> Events<WatchedPod> {
        let watches = Arc::clone(self);
        let health = self.view.pods.health.clone();
        cluster::watch_pods(self.client.clone(), Scope::All, health, move |pod, cause| {
            watches.receive_pod(&pod, cause)
        })
    }

    /// Counts what a pod requests and declares, and notes its node. Returns what else the view keeps of it.
    fn receive_pod(&self, pod: &Pod, cause: WatchCause) -> Option<WatchedPod> {
        let now = (self.clock)();
        self.view.count_requests(pod, &self.names, cause, now);
        match pod.node() {
            Some(node) => self.decisions.set_node(&pod.uid(), node),
            None if cause == WatchCause::Gone => {
                self.decisions.set_gone(&pod.uid());
                self.view.change(|index| index.not_in_flight(&pod.uid()));
            }
            None => {}
        }
        select_pod(&self.view, &self.names, pod, now)
    }
}

/// Starts the watches that update the view. The watch of pods also updates the decision log.
fn spawn_watches(
    args: &Args,
    context: &Context,
    decider: &Decider,
    client: Client,
    binder: &Arc<Binder>,
) {
    let Decider { view, names, decisions, clock, .. } = decider;
    let watches = Arc::new(Watches {
        client,
        names: Arc::clone(names),
        view: Arc::clone(view),
        decisions: Arc::clone(decisions),
        clock: Arc::clone(clock),
        codec: args.load.codec(),
    });
    let of_nodes = Arc::clone(&watches);
    let following = follow_nodes(
        Arc::clone(view),
        move || of_nodes.nodes(),
        Arc::clone(clock),
        context.shutdown(),
    );
    context.spawn("nodes", following);
    if args.claims {
        let of_claims = Arc::clone(&watches);
        let following = follow_resource_claims(
            Arc::clone(view),
            move || of_claims.claims(),
            Arc::clone(clock),
            context.shutdown(),
        );
        context.spawn("resourceclaims", following);
    }

    let keeping = keep_measured(Arc::clone(view), Arc::clone(clock), context.shutdown());
    context.spawn("gpu-measure", keeping);
    let binder = Arc::clone(binder);
    let following = follow_pods(
        Arc::clone(view),
        move || watches.pods(),
        move |pods| binder.look_up(pods),
        Arc::clone(clock),
        context.shutdown(),
    );
    context.spawn("pods", following);
    let ticking = tick(Arc::clone(view), Arc::clone(clock), context.shutdown());
    context.spawn("ticks", ticking);
}

/// Keeps the measure of fragmentation, and expires measurements of unmanaged memory, until the shutdown.
async fn keep_measured(view: Arc<View>, clock: Clock, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut ticks = 0_u32;
    while shutdown.run_until_cancelled(sleep(REPRICE_EVERY)).await.is_some() {
        ticks = ticks.wrapping_add(1);
        let is_due = ticks.is_multiple_of(MEASURE_AFTER);
        let (view, now) = (Arc::clone(&view), clock());
        tokio::task::spawn_blocking(move || {
            if is_due {
                view.renew_measure();
                view.change(|index| index.count_unmanaged(now));
            } else {
                view.reprice();
            }
        })
        .await?;
    }
    Ok(())
}

/// Starts the comparison with the shadow policy of a file, also if that is missing or faulty.
fn shadow(
    file: &Path,
    view: &Arc<View>,
    metrics: ShadowMetrics,
    faults: watch::Sender<Option<String>>,
    context: &Context,
) -> anyhow::Result<Arc<Shadow>> {
    let shadow = Shadow::new(metrics);
    let (file, policy) = Follower::open(ShadowFile::new(file))?;
    let changes = context.file_changes("shadow-policy");
    let set_policy = set_shadow_policy(Arc::clone(&shadow), Arc::clone(view), changes, faults);
    set_policy(Ok(Arc::clone(&policy.borrow())));
    context.spawn("shadow-policy", file.follow(pause_before_read, set_policy, context.shutdown()));
    context.spawn("shadow", Arc::clone(&shadow).follow(context.shutdown()));
    Ok(shadow)
}

/// Applies each change of the shadow policy's file.
fn set_shadow_policy(
    shadow: Arc<Shadow>,
    view: Arc<View>,
    changes: FileChanges,
    faults: watch::Sender<Option<String>>,
) -> impl Fn(Result<Arc<Result<LoadPolicy, FileError>>, &FileError>) + Send + 'static {
    move |change| {
        let read = match change {
            Ok(policy) => Result::clone(&policy),
            Err(error) => Err(error.clone()),
        };
        let good = read.is_ok();
        match read {
            Ok(policy) => {
                faults.send_replace(None);
                for warning in policy.warnings_of_any_source() {
                    tracing::warn!(%warning, "shadow policy");
                }
                let resolved = view.change(|index| {
                    index.set_shadow_estimates(policy.estimates);
                    index.resolve(policy)
                });
                shadow.set_policy(resolved);
            }
            Err(error) => {
                tracing::error!("{error}; the shadow policy before, if any, stays in force");
                faults.send_replace(Some(error.to_string()));
            }
        }
        changes.count(good);
    }
}

/// Applies each change of the policy file.
fn set_policy(
    view: Arc<View>,
    faults: watch::Sender<Option<String>>,
) -> impl Fn(Result<Arc<LoadPolicy>, &FileError>) + Send + 'static {
    move |change| match change {
        Ok(policy) => {
            faults.send_replace(None);
            log_warnings(&policy);
            view.change(|index| index.set_policy(LoadPolicy::clone(&policy)));
        }
        Err(error) => drop(faults.send_replace(Some(error.to_string()))),
    }
}

/// At the shutdown, waits for bindings under way: one that is cut off would be in doubt for the next process.
async fn finish_binds(
    binder: Arc<Binder>,
    thread: OwnThread,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    shutdown.cancelled().await;
    // The next process finds the outcome of the others in its first list.
    let _ = tokio::time::timeout(LAST_BINDS, binder.drain()).await;
    drop(thread);
    Ok(())
}

/// Logs the policy's warnings, without those that depend on the source of readings: only the annotator's flags have
/// that. A metric without readings shows in the metric `nodes_without_fresh_reading`.
fn log_warnings(policy: &LoadPolicy) {
    for warning in policy.warnings_of_any_source() {
        tracing::warn!(%warning, "policy");
    }
}
