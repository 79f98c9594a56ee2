//! All wiring.

use std::sync::Arc;

use cluster::{Client, Events, NodeFacts, Scope, WatchHealth};
use daemon::Context;
use daemon::follow::Follower;
use placement::names::Names;
use settings::PolicyFile;
use tokio::sync::watch;

use crate::Args;
use crate::annotate::{Annotator, Listed, Progress, Sources};
use crate::channel::Channel;
use crate::clock::Clock;
use crate::credentials;
use crate::fleet::Settings;
use crate::metrics::{Metrics, WatchMetrics};
use crate::pods::BoundPod;
use crate::policy_file;
use crate::poll::Poller;
use crate::sync::Tools;

/// Runs the program until the shutdown.
///
/// # Errors
///
/// Where a flag, the policy or the credentials are wrong.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
    start(args, &context, Clock::machine()).await.map(drop)
}

/// Starts the program's tasks by the given clock, and tells how they fare.
///
/// # Errors
///
/// As [`run`].
pub async fn start(
    args: Args,
    context: &Context,
    clock: Clock,
) -> anyhow::Result<watch::Receiver<Progress>> {
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
        nodes: nodes(context, &client, &settings.names),
        pods: pods(context, &client, &settings.names),
        policies: changes,
    };
    let poller = poller(&args, context, &clock, &metrics)?;
    let tools = Tools { poller, client, clock, settings, metrics };
    let annotator = Annotator::new(tools, usize::from(args.concurrency), sources, listed);
    let progress = annotator.progress();
    context.spawn("annotate", annotator.run(context.shutdown()));
    Ok(progress)
}

/// Asks over TLS where a CA is given, and then follows the files.
fn poller(
    args: &Args,
    context: &Context,
    clock: &Clock,
    metrics: &Metrics,
) -> anyhow::Result<Poller> {
    let timeout = args.poll_timeout;
    let Some(sources) = args.exporter_tls() else {
        let channel = watch::channel(Arc::new(Channel::plain()?)).1;
        return Ok(Poller::new(timeout, channel));
    };
    let (follower, channel) = Follower::open(sources)?;
    let following =
        credentials::follow(follower, clock.clone(), metrics.clone(), context.shutdown());
    context.spawn("credentials", following);
    Ok(Poller::new(timeout, channel))
}

fn settings(args: &Args) -> Settings {
    Settings {
        names: args.names.names(),
        codec: args.load.codec(),
        exporter_port: args.exporter_port,
    }
}

fn nodes(context: &Context, client: &Client, names: &Names) -> Events<NodeFacts> {
    let (health, names) = (watch_health(context, "nodes"), Arc::new(names.clone()));
    cluster::watch_nodes(client.clone(), Scope::All, health, move |node| Some(node.facts(&names)))
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
