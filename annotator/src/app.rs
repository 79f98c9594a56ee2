//! The wiring of the program: which tasks run, and what connects them.

use std::sync::Arc;

use cluster::{Client, Events, LabelSelector, NodeFacts, Scope, WatchHealth};
use daemon::Context;
use daemon::follow::Follower;
use placement::names::Names;
use settings::PolicyFile;
use tokio::sync::{Semaphore, watch};

use crate::Args;
use crate::clock::Clock;
use crate::controller::{Controller, Listed, Sources};
use crate::exporter::credentials;
use crate::exporter::poll::Poller;
use crate::exporter::transport::Transport;
use crate::fleet::{Settings, Status};
use crate::metrics::{Metrics, WatchMetrics};
use crate::pods::BoundPod;
use crate::policy_file;
use crate::write::JobRunner;

/// Runs the program until the shutdown.
///
/// # Errors
///
/// When a flag, the policy or the credentials are wrong.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
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
    let listed = Listed {
        nodes: context.readiness().condition("nodes-listed"),
        pods: context.readiness().condition("pods-listed"),
    };
    let (file, policy) = PolicyFile::open(&args.load.policy_file)?;
    let (policies, changes) = watch::channel(Arc::new(policy));
    let client = cluster::client(args.api.kubeconfig.as_deref()).await?;

    let stop = context.shutdown();
    let reading = policy_file::follow(file, policies, clock.clone(), metrics.clone(), stop);
    context.spawn("policy", reading);
    let settings = settings(&args);
    let sources = Sources {
        nodes: nodes(context, &client, &settings.names, args.node_selector.clone()),
        pods: pods(context, &client, &settings.names),
        policies: changes,
    };
    let poller = poller(&args, context, &clock, &metrics)?;
    let patches = Arc::new(Semaphore::new(settings.concurrency));
    let runner = JobRunner { poller, client, clock, settings, metrics, patches };
    let controller = Controller::new(runner, sources, listed);
    let status = controller.status();
    context.spawn("controller", controller.run(context.shutdown()));
    Ok(status)
}

/// A poller that uses TLS where a CA is given. The files are followed then.
fn poller(
    args: &Args,
    context: &Context,
    clock: &Clock,
    metrics: &Metrics,
) -> anyhow::Result<Poller> {
    let timeout = args.poll_timeout;
    let Some(files) = args.credential_files() else {
        let transport = watch::channel(Arc::new(Transport::plain()?)).1;
        return Ok(Poller::new(timeout, transport));
    };
    let (follower, transport) = Follower::open(files)?;
    let metrics = metrics.clone();
    let outcome = move |accepted| metrics.credentials_read(accepted);
    let following = credentials::follow(follower, clock.clone(), outcome, context.shutdown());
    context.spawn("credentials", following);
    Ok(Poller::new(timeout, transport))
}

fn settings(args: &Args) -> Settings {
    Settings {
        names: args.names.names(),
        codec: args.load.codec(),
        exporter_port: args.exporter_port,
        concurrency: usize::from(args.concurrency),
    }
}

fn nodes(
    context: &Context,
    client: &Client,
    names: &Names,
    selector: Option<LabelSelector>,
) -> Events<NodeFacts> {
    let (health, names) = (watch_health(context, "nodes"), Arc::new(names.clone()));
    let scope = selector.map_or(Scope::All, Scope::Labels);
    cluster::watch_nodes(client.clone(), scope, health, move |node| Some(node.facts(&names)))
}

fn pods(context: &Context, client: &Client, names: &Names) -> Events<BoundPod> {
    let (health, names) = (watch_health(context, "pods"), Arc::new(names.clone()));
    cluster::watch_pods(client.clone(), Scope::All, health, move |pod| {
        BoundPod::select(&pod, &names)
    })
}

fn watch_health(context: &Context, what: &'static str) -> WatchHealth {
    let health = WatchHealth::default();
    let metrics = WatchMetrics { what, health: health.clone() };
    context.register(|registry| metrics.register(registry));
    health
}
