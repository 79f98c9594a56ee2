//! The wiring of the program: its tasks and the channels between them.

use std::sync::Arc;
use std::time::Duration;

use cluster::{
    Client, Elector, EventWriter, Events, Leadership, LeaseSettings, NodeFacts, Scope, WatchHealth,
};
use daemon::follow::{Current, EVERY, Follower, Source};
use daemon::{Context, Shutdown};
use jiff::SignedDuration;
use placement::names::Names;
use reqwest::Url;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use settings::{PolicyFile, replica_identity};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::Args;
use crate::clock::Clock;
use crate::controller::{Controller, ListedConditions, Sources};
use crate::exporter::credentials::CredentialFiles;
use crate::exporter::discovery;
use crate::exporter::poll::Poller;
use crate::exporter::transport::{Reach, Transport};
use crate::fleet::{Settings, Status};
use crate::health::{self, ReadingSource};
use crate::metrics::{Metrics, set_watch};
use crate::node_events::{NodeEvents, write_events};
use crate::pod_use::leaders_list::{LeadersList, ListReader};
use crate::pod_use::{Observer, SharedLearner, serve};
use crate::pods::BoundPod;
use crate::readings_channel::{self, SharedReadings};
use crate::runner::JobRunner;
use crate::source::metrics_server::MetricsServer;
use crate::source::prometheus::{Prometheus, Setup};
use crate::source::{ClusterSource, SourceInputs, Table, Tables, poll_source};

/// The reporting component of events.
const EVENT_COMPONENT: &str = "plimsoll-annotator";

/// The hint in the log if no exporter provides a metric.
const EXPORTERS_HINT: &str = "is the name right, and does the exporters' --config.file ask for it? A maximum of means \
                              comes once half of its inner window was sampled";

/// The hint in the log if a source in place of exporters has a metric for no node.
const SOURCE_HINT: &str = "with Prometheus, does the query give series, and does their --prometheus-node-label hold \
                           the node's name or InternalIP? The default queries give a node's maxima five minutes after \
                           its first sample";

/// Runs the program until the shutdown.
///
/// # Errors
///
/// When a flag, the policy, a file of queries or the credentials are wrong.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
    allow_more_files();
    start(args, &context, Clock::machine()).await.map(drop)
}

/// Starts the program's tasks with the given clock. Returns the fleet's status, which tests wait for.
///
/// # Errors
///
/// As [`run`].
pub async fn start(
    args: Args,
    context: &Context,
    clock: Clock,
) -> anyhow::Result<watch::Receiver<Status>> {
    let metrics = context.register(Metrics::register);
    let listed = ListedConditions {
        nodes: context.health().gate("nodes-listed"),
        pods: context.health().gate("pods-listed"),
    };
    // All files and settings are checked before the first task starts.
    let (policy_file, policies) = Follower::open(PolicyFile::new(&args.load.policy_file))?;
    let (credentials, transport) = transport(&args)?;
    let (client, server) = cluster::client_and_place(args.api.kubeconfig.as_deref()).await?;
    let identity = replica_identity("annotator");
    let (elector, leadership) = election(&args, &client, identity.clone());
    context.before_scrape(&metrics, leadership.clone(), Metrics::set_lease);
    let inputs =
        SourceInputs { policies: policies.clone(), clock: clock.clone(), metrics: metrics.clone() };
    let source = source(&args, context, &client, inputs)?;
    let (observer, readings) = start_port(&args, context, &metrics, &clock, &leadership).await?;

    follow(context, "policy", policy_file, clock.clone());
    if let Some(files) = credentials {
        follow(context, "credentials", files, clock.clone());
    }
    let settings = settings(&args);
    let (node_events, queue) = NodeEvents::new();
    let events = EventWriter::new(client.clone(), EVENT_COMPONENT);
    context.spawn("events", write_events(queue, events, context.shutdown()));
    let missing_hint = if source.is_some() { SOURCE_HINT } else { EXPORTERS_HINT };
    let sources = Sources {
        nodes: nodes(context, &metrics, &client, &settings, &args),
        selector: args.node_selector.clone().unwrap_or_default(),
        pods: pods(context, &metrics, &client, settings.names.clone()),
        policies,
        observer,
        readings,
        node_events,
        polls_exporters: args.polls_exporters(),
        missing_hint,
    };
    let reading_source = ReadingSource { is_exporters: args.polls_exporters(), missing_hint };
    let (of_health, lease) = (metrics.clone(), leadership.clone());
    let (table, ready) = source.unzip();
    let poller = Poller::new(
        args.exporters.poll_timeout,
        Reach::in_cluster(server),
        transport,
        metrics.connections(),
    );
    context.spawn("connections", close_idle(poller.clone(), context.shutdown()));
    let patches = Arc::new(Semaphore::new(settings.concurrency));
    let runner = JobRunner { poller, table, client, leadership, clock, settings, metrics, patches };
    let controller = Controller::new(runner, sources, args.taints.taint(), args.node_bands, listed);
    let status = controller.status();
    health::publish(context, &of_health, &lease, identity, &status, reading_source);
    spawn_controller(context, controller, ready, elector);
    Ok(status)
}

/// The election of the replica that may write. Without a Lease this process always may.
fn election(args: &Args, client: &Client, identity: String) -> (Option<Elector>, Leadership) {
    let Some(name) = args.lease.lease_name.clone() else {
        return (None, Leadership::without_lease());
    };
    let settings = LeaseSettings::new(name, identity, args.lease.lease_duration);
    let (elector, leadership) = Elector::new(client, settings);
    (Some(elector), leadership)
}

/// Starts the controller once a source in place of exporters is `ready`. The Lease is released only after the
/// controller has ended.
fn spawn_controller(
    context: &Context,
    controller: Controller,
    ready: Option<oneshot::Receiver<()>>,
    elector: Option<Elector>,
) {
    let shutdown = context.shutdown();
    let ended = Shutdown::new();
    let guard = ended.clone().drop_guard();
    context.spawn("controller", async move {
        let _ended = guard;
        // Polls before the source's first round would find no readings, and the next polls come a period later.
        shutdown.run_until_cancelled(async { Some(ready?.await) }).await;
        controller.run(shutdown).await
    });
    if let Some(elector) = elector {
        context.spawn("lease", async move {
            elector.run(ended.cancelled_owned()).await;
            Ok(())
        });
    }
}

/// Starts the port that extenders and the other replica ask. Returns what fills its answers: the observer of pods' use,
/// `None` if exporters are not polled for it, and the last readings.
async fn start_port(
    args: &Args,
    context: &Context,
    metrics: &Metrics,
    clock: &Clock,
    leadership: &Leadership,
) -> anyhow::Result<(Option<Observer>, SharedReadings)> {
    let listener = daemon::http::bind(args.listen_address, "--listen-address").await?;
    let learner = SharedLearner::default();
    let list = LeadersList::default();
    let readings = SharedReadings::default();
    let learned = (Arc::clone(&learner), Arc::clone(&list));
    context.before_scrape(metrics, learned, Metrics::set_learner);
    let learns = args.polls_exporters() && !args.exporters.pod_use_period.is_zero();
    if let Some(address) = args.replicas_address.clone().filter(|_| learns) {
        let reader =
            ListReader::new(address, leadership.clone(), Arc::clone(&list), clock.clone())?;
        context.spawn("leaders-list", reader.follow(context.shutdown()));
    }
    let shared = (Arc::clone(&learner), Arc::clone(&list));
    let router = serve::router(shared, leadership.clone(), clock.clone()).merge(
        readings_channel::serve::router(readings.clone(), leadership.clone(), clock.clone()),
    );
    let serving = daemon::http::serve(listener, router, serve::limits(), context.shutdown());
    context.spawn("workloads", serving);
    Ok((learns.then(|| Observer::new(learner, list)), readings))
}

/// A source in place of exporters: its table, and a signal after its first round.
type StartedSource = (Current<Table>, oneshot::Receiver<()>);

/// Starts the source in place of exporters, if one is configured.
fn source(
    args: &Args,
    context: &Context,
    client: &Client,
    inputs: SourceInputs,
) -> anyhow::Result<Option<StartedSource>> {
    let (tables, table) = Tables::new();
    let clock = inputs.clock.clone();
    let ready = if args.metrics_server {
        let source = MetricsServer::new(client.clone(), inputs, tables);
        start_source(context, "metrics-server", source, clock)
    } else if let Some(url) = args.prometheus.prometheus_url()? {
        let setup = prometheus_setup(args, context, url, &inputs)?;
        let source = Prometheus::new(setup, inputs, tables);
        start_source(context, "prometheus", source, clock)
    } else {
        return Ok(None);
    };
    Ok(Some((table, ready)))
}

/// The settings of the queries to Prometheus. Starts to follow their files.
fn prometheus_setup(
    args: &Args,
    context: &Context,
    url: Url,
    inputs: &SourceInputs,
) -> anyhow::Result<Setup> {
    let clock = &inputs.clock;
    let (query_file, queries) = Follower::open(args.prometheus.queries_file())?;
    let (access_files, access) = Follower::open(args.prometheus.prometheus_access())?;
    follow(context, "prometheus-queries", query_file, clock.clone());
    follow(context, "prometheus-credentials", access_files, clock.clone());
    let label = args.prometheus.prometheus_node_label.clone();
    Ok(Setup { url, label, access, queries })
}

/// Polls `source` until the shutdown. The returned receiver gets a message after the first round.
fn start_source(
    context: &Context,
    name: &'static str,
    source: impl ClusterSource + 'static,
    clock: Clock,
) -> oneshot::Receiver<()> {
    let (sender, ready) = oneshot::channel();
    let shutdown = context.shutdown();
    context.spawn(name, async move {
        shutdown.run_until_cancelled(poll_source(source, clock, sender)).await;
        Ok(())
    });
    ready
}

/// The transport to exporters: TLS if a CA is given, with the files to follow; otherwise plain HTTP.
fn transport(
    args: &Args,
) -> anyhow::Result<(Option<Follower<CredentialFiles>>, Current<Transport>)> {
    let Some(files) = args.exporters.credential_files() else {
        return Ok((None, watch::channel(Arc::new(Transport::Plain)).1));
    };
    let (follower, transport) = Follower::open(files)?;
    Ok((Some(follower), transport))
}

/// Raises the soft limit of open files to the hard limit, since each kept connection is an open file. The soft limit of
/// some systems is 1,024.
fn allow_more_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::info!(%error, "the limit of open files stays: fewer connections are kept");
    }
}

/// Closes connections that are idle for too long, until the shutdown.
async fn close_idle(poller: Poller, shutdown: Shutdown) -> anyhow::Result<()> {
    shutdown.run_until_cancelled(poller.close_idle_connections()).await;
    Ok(())
}

/// Follows files by the given clock.
fn follow<S>(context: &Context, name: &'static str, files: Follower<S>, clock: Clock)
where
    S: Source + Send + 'static,
    S::Value: Send + Sync + 'static,
{
    context.follow(name, files, move || wait_for(clock.clone(), EVERY), |_| ());
}

async fn wait_for(clock: Clock, span: Duration) {
    clock.wait(clock.now().checked_add(span).ok()).await;
}

fn settings(args: &Args) -> Settings {
    let polls_pods = args.polls_exporters();
    Settings {
        names: args.names.names(),
        codec: args.load.codec(),
        exporter_port: args.exporters.exporter_port,
        concurrency: usize::from(args.concurrency),
        pod_use_period: if polls_pods { unless_zero(args.exporters.pod_use_period) } else { None },
        dead_band: args.writes.dead_band,
        burst_interval: unless_zero(args.writes.burst_interval),
        taint_margin: args.taints.taint().map(|taint| taint.rules.margin),
    }
}

fn unless_zero(duration: Duration) -> Option<SignedDuration> {
    SignedDuration::try_from(duration).ok().filter(SignedDuration::is_positive)
}

fn nodes(
    context: &Context,
    metrics: &Metrics,
    client: &Client,
    settings: &Settings,
    args: &Args,
) -> Events<NodeFacts> {
    let names = settings.names.clone();
    let codec = settings.codec.clone();
    let health = watch_health(context, metrics, "nodes");
    // All nodes: those that are not selected may carry a taint that is to be cleared.
    let nodes = cluster::watch_nodes(client.clone(), Scope::All, health, move |node| {
        Some(node.facts(&names, &codec))
    });
    let Some(service) = args.exporters.exporter_service.clone() else { return nodes };
    let health = watch_health(context, metrics, "endpointslices");
    discovery::by_service(nodes, cluster::watch_service(client.clone(), service, health))
}

fn pods(context: &Context, metrics: &Metrics, client: &Client, names: Names) -> Events<BoundPod> {
    let health = watch_health(context, metrics, "pods");
    cluster::watch_pods(client.clone(), Scope::All, health, move |pod, _| {
        BoundPod::select(&pod, &names)
    })
}

/// The counters of a further watch, which are shown as those of `resource`.
fn watch_health(context: &Context, metrics: &Metrics, resource: &'static str) -> WatchHealth {
    let health = WatchHealth::default();
    context.before_scrape(&metrics.watches.of(resource), health.clone(), set_watch);
    health
}
