//! The annotator with everything around it: API server, exporters, policy file, clock.

use std::path::PathBuf;
use std::time::Duration;

use annotator::annotate::Progress;
use annotator::clock::{Clock, Hand};
use annotator::{Args, app};
use clap::Parser;
use daemon::Context;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sim::{Sim, node};
use tokio::sync::watch;

use crate::exporter::Exporter;

pub(crate) const START: &str = "2026-11-20T09:00:00Z";

pub(crate) const POLICY: &str = "\
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy:
  - {name: cpu_usage_avg_5m, period: 3m}
  - {name: mem_usage_avg_5m, period: 3m}
  - {name: cpu_usage_max_avg_1h, period: 15m}
  hotValue:
  - {timeRange: 5m, count: 2}
";

pub(crate) const CALM: &str =
    r#"{"cpu_usage_avg_5m": 63.012, "mem_usage_avg_5m": 7, "cpu_usage_max_avg_1h": 100}"#;

/// The world outlives the annotator, which can be stopped and started again.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) exporter: Exporter,
    folder: tempfile::TempDir,
    time: Timestamp,
}

/// A running annotator.
pub(crate) struct Running {
    pub(crate) context: Context,
    progress: watch::Receiver<Progress>,
    hand: Hand,
    clock: Clock,
}

impl World {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sim = Sim::start().await.unwrap();
        sim.write_kubeconfig(&folder.path().join("kubeconfig")).unwrap();
        std::fs::write(folder.path().join("policy.yaml"), POLICY).unwrap();
        let exporter = Exporter::start(CALM).await;
        Self { sim, exporter, folder, time: START.parse().unwrap() }
    }

    /// With one node, `a`.
    pub(crate) async fn with_node() -> Self {
        let world = Self::new().await;
        world.sim.put(node("a").address("127.0.0.1"));
        world
    }

    pub(crate) fn policy_file(&self) -> PathBuf {
        self.folder.path().join("policy.yaml")
    }

    /// Starts the annotator and waits until it has done what was to be done.
    pub(crate) async fn start(&self) -> Running {
        self.start_with(&[]).await
    }

    pub(crate) async fn start_with(&self, flags: &[&str]) -> Running {
        let running = self.launch(flags).await;
        running.idle(self.sim.list(sim::NODES).len()).await;
        running
    }

    /// Starts the annotator.
    pub(crate) async fn launch(&self, flags: &[&str]) -> Running {
        let (clock, hand) = Clock::by_hand(self.time);
        let context = Context::new(daemon::program!());
        let progress = app::start(self.args(flags), &context, clock.clone()).await.unwrap();
        Running { context, progress, hand, clock }
    }

    /// Why the annotator does not start.
    pub(crate) async fn refused(&self) -> String {
        let context = Context::new(daemon::program!());
        let refused = app::start(self.args(&[]), &context, Clock::machine()).await;
        format!("{:#}", refused.unwrap_err())
    }

    fn args(&self, flags: &[&str]) -> Args {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let given = [
            "annotator".to_owned(),
            format!("--kubeconfig={}", path("kubeconfig")),
            format!("--policy-file={}", path("policy.yaml")),
            format!("--exporter-port={}", self.exporter.port),
        ];
        let flags = given.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned()));
        Args::try_parse_from(flags).unwrap()
    }

    /// The next annotator starts when this one has ended.
    pub(crate) async fn stop(&mut self, running: Running) {
        self.time = running.clock.now();
        running.context.shutdown().cancel();
        daemon::supervise(&running.context, async { Ok(()) }, daemon::GRACE).await.unwrap();
    }

    pub(crate) fn annotations(&self, node: &str) -> Value {
        self.sim.node(node).unwrap()["metadata"]["annotations"].clone()
    }

    /// Waits until the annotation has this value.
    pub(crate) async fn annotated(&self, node: &str, key: &str, value: &str) {
        let has = |sim: &Sim| {
            let found = sim.node(node)?["metadata"]["annotations"][key] == value;
            found.then_some(())
        };
        let what = format!("{key}={value} on {node}");
        if let Err(never) = self.sim.until(&what, has).await {
            panic!("{never}; there is {}", self.annotations(node));
        }
    }

    pub(crate) fn patches(&self, node: &str) -> usize {
        self.sim.log().node_patches(node).len()
    }
}

impl Running {
    /// Waits until pods and so many nodes are known, and nothing is in flight or due.
    pub(crate) async fn idle(&self, nodes: usize) {
        self.reach(|progress, now| {
            progress.nodes == nodes
                && progress.pods_listed
                && progress.in_flight == 0
                && progress.next.is_none_or(|next| next > now)
        })
        .await;
    }

    /// Waits until so many changes of pods were taken in.
    pub(crate) async fn pods_changed(&self, changes: u64) {
        self.reach(|progress, _| progress.pod_changes >= changes).await;
    }

    /// Waits until so many changes of nodes were taken in.
    pub(crate) async fn nodes_changed(&self, changes: u64) {
        self.reach(|progress, _| progress.node_changes >= changes).await;
    }

    /// Whether something is to be done within so many seconds.
    pub(crate) fn due_within(&self, seconds: i64) -> bool {
        due_within(&self.progress.borrow(), self.clock.now(), seconds)
    }

    /// Waits until something is to be done within so many seconds.
    pub(crate) async fn becomes_due_within(&self, seconds: i64) {
        self.reach(|progress, now| due_within(progress, now, seconds)).await;
    }

    /// Waits until so many exporters are silent.
    pub(crate) async fn silent(&self, nodes: usize) {
        self.reach(|progress, _| progress.silent == nodes).await;
    }

    async fn reach(&self, there: impl Fn(&Progress, Timestamp) -> bool) {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(|progress| there(progress, self.clock.now()));
        // Long enough for any machine; only a failing test gets there.
        let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
        let found = self.progress.borrow().clone();
        assert!(reached.is_ok_and(|reached| reached.is_ok()), "stuck at {found:?}");
    }

    /// Moves the time on and waits until all that is due by then is done.
    pub(crate) async fn pass(&self, seconds: i64) {
        self.hand.advance(SignedDuration::from_secs(seconds));
        let nodes = self.progress.borrow().nodes;
        self.idle(nodes).await;
    }

    /// Moves the time on, a minute at a time.
    pub(crate) async fn pass_minutes(&self, minutes: usize) {
        for _ in 0..minutes {
            self.pass(60).await;
        }
    }

    /// Moves the time on, without waiting.
    pub(crate) fn advance(&self, seconds: i64) {
        self.hand.advance(SignedDuration::from_secs(seconds));
    }

    pub(crate) fn metrics(&self) -> String {
        self.context.metrics().unwrap()
    }

    /// Waits until the metrics have this line.
    pub(crate) async fn counted(&self, line: &str) {
        let there = async {
            while !self.metrics().lines().any(|found| found == line) {
                tokio::task::yield_now().await;
            }
        };
        let counted = tokio::time::timeout(Duration::from_secs(30), there).await;
        assert!(counted.is_ok(), "{line} is not in\n{}", self.metrics());
    }
}

fn due_within(progress: &Progress, now: Timestamp, seconds: i64) -> bool {
    let soon = now + SignedDuration::from_secs(seconds);
    progress.next.is_some_and(|next| next <= soon)
}
