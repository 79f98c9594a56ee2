//! The annotator with everything around it: API server, exporters, policy file, clock.

use std::path::PathBuf;
use std::time::Duration;

use annotator::clock::{Clock, ManualTime};
use annotator::fleet::Status;
use annotator::{Args, app};
use clap::Parser;
use daemon::{Causes, Context};
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

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Everything that outlives the annotator, which can be stopped and started again.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) exporter: Exporter,
    pub(crate) folder: tempfile::TempDir,
    /// How long a load must be over its limit before the taint is set, where it is not as shipped.
    pub(crate) taint_after: Option<Duration>,
    /// How many exporters are asked at the same time, where it is not as shipped.
    pub(crate) concurrency: Option<u16>,
    /// How long an exporter may take to answer: unless a test says otherwise, no answer is too late on a machine that
    /// is busy with something else.
    pub(crate) poll_timeout: Duration,
    /// How often exporters are asked what each pod uses: unless a test says otherwise, never.
    pub(crate) pod_use_period: Duration,
    time: Timestamp,
}

/// A running annotator.
pub(crate) struct Running {
    pub(crate) context: Context,
    status: watch::Receiver<Status>,
    time: ManualTime,
    clock: Clock,
}

impl World {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sim = Sim::start().await.unwrap();
        sim.write_kubeconfig(&folder.path().join("kubeconfig")).unwrap();
        std::fs::write(folder.path().join("policy.yaml"), POLICY).unwrap();
        let exporter = Exporter::start(CALM).await;
        Self {
            sim,
            exporter,
            folder,
            taint_after: None,
            concurrency: None,
            poll_timeout: Duration::from_secs(60),
            pod_use_period: Duration::ZERO,
            time: START.parse().unwrap(),
        }
    }

    /// A world with one node, `a`.
    pub(crate) async fn with_node() -> Self {
        let world = Self::new().await;
        world.sim.put(node("a").address("127.0.0.1"));
        world
    }

    pub(crate) fn policy_file(&self) -> PathBuf {
        self.folder.path().join("policy.yaml")
    }

    /// Sets the time at which the next annotator starts.
    pub(crate) fn set_time(&mut self, time: Timestamp) {
        self.time = time;
    }

    /// Starts the annotator and waits until no job is in flight or due.
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
        let (clock, time) = Clock::manual(self.time);
        let context = Context::new(daemon::program!());
        let status = app::start(self.args(flags), &context, clock.clone()).await.unwrap();
        Running { context, status, time, clock }
    }

    /// The error with which the annotator refuses to start.
    pub(crate) async fn refused(&self) -> String {
        self.refused_with(self.args(&[])).await
    }

    /// The same with these arguments, as one line.
    pub(crate) async fn refused_with(&self, args: Args) -> String {
        let context = Context::new(daemon::program!());
        let error = app::start(args, &context, Clock::machine()).await.unwrap_err();
        let causes = Causes(error.as_ref());
        assert!(causes.are_named_once(), "{causes}");
        assert!(
            context.tasks().running().is_empty(),
            "a task was started before the files were read"
        );
        causes.to_string()
    }

    pub(crate) fn args(&self, flags: &[&str]) -> Args {
        let given = [
            "annotator".to_owned(),
            format!("--kubeconfig={}", self.folder.path().join("kubeconfig").display()),
            format!("--policy-file={}", self.policy_file().display()),
            format!("--exporter-port={}", self.exporter.port),
        ];
        // Unless a test says otherwise, each poll writes whatever moved.
        let usual = ["--burst-interval=0s", "--dead-band=0", "--listen-address=127.0.0.1:0"];
        let given = given.into_iter().chain(usual.map(str::to_owned));
        let given = given.filter(|flag| !flags.iter().any(|other| same_flag(flag, other)));
        let flags = given.chain(flags.iter().map(|flag| (*flag).to_owned()));
        let mut args = Args::try_parse_from(flags).unwrap();
        args.taints.taint_after = self.taint_after.unwrap_or(args.taints.taint_after);
        args.concurrency = self.concurrency.unwrap_or(args.concurrency);
        args.exporters.poll_timeout = self.poll_timeout;
        args.exporters.pod_use_period = self.pod_use_period;
        args
    }

    /// Stops the annotator. The clock of the next one starts where this one's ended.
    pub(crate) async fn stop(&mut self, running: Running) {
        self.time = running.clock.now();
        running.context.shutdown().cancel();
        daemon::supervise(&running.context, async { Ok(()) }, daemon::GRACE).await.unwrap();
    }

    pub(crate) fn annotations(&self, node: &str) -> Value {
        self.sim.node(node).unwrap()["metadata"]["annotations"].clone()
    }

    /// The text of the annotation, once it is there.
    pub(crate) async fn annotation(&self, node: &str, key: &str) -> String {
        let what = format!("{key} on {node}");
        let wait = self.sim.until(&what, |sim| {
            Some(sim.node(node)?["metadata"]["annotations"][key].as_str()?.to_owned())
        });
        wait.await.unwrap()
    }

    /// Waits until the annotation has this value.
    pub(crate) async fn annotated(&self, node: &str, key: &str, value: &str) {
        let what = format!("{key}={value} on {node}");
        let wait = self.sim.until(&what, |sim| {
            let is_there = sim.node(node)?["metadata"]["annotations"][key] == value;
            is_there.then_some(())
        });
        if let Err(never) = wait.await {
            panic!("{never}; there is {}", self.annotations(node));
        }
    }

    pub(crate) fn patches(&self, node: &str) -> usize {
        self.sim.log().node_patches(node).len()
    }
}

impl Running {
    /// Waits until the pods were listed, `nodes` nodes are known, and no job is in flight or due.
    pub(crate) async fn idle(&self, nodes: usize) {
        self.reach(|status, now| {
            status.nodes == nodes
                && status.pods_listed
                && status.in_flight == 0
                && status.next.is_none_or(|next| next > now)
        })
        .await;
    }

    /// Waits until `changes` changes of pods were taken over.
    pub(crate) async fn pods_changed(&self, changes: u64) {
        self.reach(|status, _| status.pod_changes >= changes).await;
    }

    /// Waits until `changes` changes of nodes were taken over.
    pub(crate) async fn nodes_changed(&self, changes: u64) {
        self.reach(|status, _| status.node_changes >= changes).await;
    }

    /// Whether a job is due within `seconds`.
    pub(crate) fn due_within(&self, seconds: i64) -> bool {
        due_within(&self.status.borrow(), self.clock.now(), seconds)
    }

    /// Waits until a job is due within `seconds`.
    pub(crate) async fn becomes_due_within(&self, seconds: i64) {
        self.reach(|status, now| due_within(status, now, seconds)).await;
    }

    /// Waits until `nodes` exporters are silent.
    pub(crate) async fn silent(&self, nodes: usize) {
        self.reach(|status, _| status.silent == nodes).await;
    }

    async fn reach(&self, there: impl Fn(&Status, Timestamp) -> bool) {
        let mut status = self.status.clone();
        let reached = status.wait_for(|status| there(status, self.clock.now()));
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        let found = self.status.borrow().clone();
        assert!(reached.is_ok_and(|reached| reached.is_ok()), "stuck at {found:?}");
    }

    /// The annotator's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Moves the time on and waits until all jobs that are due by then are done.
    pub(crate) async fn pass(&self, seconds: i64) {
        self.time.advance(SignedDuration::from_secs(seconds));
        let nodes = self.status.borrow().nodes;
        self.idle(nodes).await;
    }

    /// Moves the time on in steps of one minute.
    pub(crate) async fn pass_minutes(&self, minutes: usize) {
        for _ in 0..minutes {
            self.pass(60).await;
        }
    }

    /// Moves the time on without waiting.
    pub(crate) fn advance(&self, seconds: i64) {
        self.time.advance(SignedDuration::from_secs(seconds));
    }

    /// The page of metrics, as `curl` gets it.
    pub(crate) fn metrics(&self) -> String {
        self.context.metrics().unwrap()
    }

    /// Waits until the metrics contain this line.
    pub(crate) async fn counted(&self, line: &str) {
        let there = async {
            while !self.metrics().lines().any(|found| found == line) {
                tokio::task::yield_now().await;
            }
        };
        let counted = tokio::time::timeout(PATIENCE, there).await;
        assert!(counted.is_ok(), "{line} is not in\n{}", self.metrics());
    }
}

fn same_flag(a: &str, b: &str) -> bool {
    a.split('=').next() == b.split('=').next()
}

fn due_within(status: &Status, now: Timestamp, seconds: i64) -> bool {
    let soon = now + SignedDuration::from_secs(seconds);
    status.next.is_some_and(|next| next <= soon)
}
