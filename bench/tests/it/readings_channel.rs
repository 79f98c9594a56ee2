//! The real annotator and the real extender, over HTTP: what the one polls the other decides by, without a write.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use annotator::clock::{Clock, ManualTime};
use annotator::fleet::Status;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use clap::Parser;
use daemon::Context;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sim::{KeptAddress, Sim, node};
use tokio::sync::watch;

const POLICY: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{name: cpu_busy_avg_5m, period: 1m, maxAge: 8m, limit: 0.8}]
";

/// The longest pause between two polls of a node: a period, and the tenth of one that a poll may come before its tick.
const PERIOD: SignedDuration = SignedDuration::from_secs(66);

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the exporters of all nodes answer, in percent.
type Busy = Arc<Mutex<f64>>;

struct World {
    sim: Sim,
    busy: Busy,
    exporter_port: u16,
    annotator_address: KeptAddress,
    folder: tempfile::TempDir,
}

struct Annotator {
    context: Context,
    status: watch::Receiver<Status>,
    time: ManualTime,
    clock: Clock,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sim = Sim::start().await.unwrap();
        sim.write_kubeconfig(&folder.path().join("kubeconfig")).unwrap();
        std::fs::write(folder.path().join("policy.yaml"), POLICY).unwrap();
        let busy = Busy::default();
        let answer = async |State(busy): State<Busy>| {
            json!({ "cpu_busy_avg_5m": *busy.lock().unwrap() }).to_string()
        };
        let router = Router::new().route("/statistics", get(answer)).with_state(Arc::clone(&busy));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exporter_port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let annotator_address = KeptAddress::new().unwrap();
        Self { sim, busy, exporter_port, annotator_address, folder }
    }

    fn file(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", Path::join(self.folder.path(), name).display())
    }

    /// Starts an annotator, whose clock stands at `time`, and waits until it has done what is due by then.
    async fn annotator(&self, time: Timestamp) -> Annotator {
        let flags = [
            "annotator".to_owned(),
            self.file("kubeconfig", "kubeconfig"),
            self.file("policy-file", "policy.yaml"),
            format!("--exporter-port={}", self.exporter_port),
            format!("--listen-address={}", self.annotator_address.address()),
            "--dead-band=0.9".to_owned(),
            "--burst-interval=0s".to_owned(),
        ];
        let mut args = annotator::Args::try_parse_from(flags).unwrap();
        args.exporters.poll_timeout = Duration::from_secs(60);
        args.exporters.pod_use_period = Duration::ZERO;
        let (clock, time) = Clock::manual(time);
        let context = Context::new(daemon::program!());
        let status = annotator::app::start(args, &context, clock.clone()).await.unwrap();
        let running = Annotator { context, status, time, clock };
        running.reach().await;
        running
    }

    /// Starts an extender. Returns where it tells its state.
    async fn extender(&self) -> (Context, String) {
        let url = format!("--learned-use-url=http://{}", self.annotator_address.address());
        let flags = [
            "scheduler-extender".to_owned(),
            self.file("kubeconfig", "kubeconfig"),
            self.file("policy-file", "policy.yaml"),
            "--listen-address=127.0.0.1:0".to_owned(),
            url,
        ];
        let args = scheduler_extender::Args::try_parse_from(flags).unwrap();
        let context = Context::new(daemon::program!());
        let address = scheduler_extender::app::start(args, &context).await.unwrap();
        (context, format!("http://{address}/v1/state"))
    }

    fn annotation(&self) -> String {
        let node = self.sim.node("a").unwrap();
        node["metadata"]["annotations"]["cpu_busy_avg_5m"].as_str().unwrap_or_default().to_owned()
    }
}

impl Annotator {
    /// Waits until it knows the node, and nothing is due or under way.
    async fn reach(&self) {
        let mut status = self.status.clone();
        let reached = status.wait_for(|status| {
            let is_due = status.next.is_some_and(|next| next <= self.clock.now());
            status.nodes == 1 && status.pods_listed && status.in_flight == 0 && !is_due
        });
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        assert!(reached.is_ok_and(|reached| reached.is_ok()), "{:?}", self.status.borrow());
    }

    async fn end(self) {
        self.context.shutdown().cancel();
        daemon::supervise(&self.context, async { Ok(()) }, daemon::GRACE).await.unwrap();
    }
}

/// Waits until the extender goes by this load of the node, in thousandths.
async fn until_load_is(url: &str, load: u32) {
    let client = sim::http_client().unwrap();
    let waiting = async {
        loop {
            let answer = client.get(url).send().await.unwrap().text().await.unwrap();
            let state: Value = serde_json::from_str(&answer).unwrap();
            if state["nodes"]["readings"][0][0] == load {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "never {load}");
}

#[tokio::test]
async fn what_is_polled_counts_without_a_write_and_goes_on_after_a_takeover() {
    let world = World::new().await;
    world.sim.put(node("a").address("127.0.0.1").created_at("2026-11-20T09:00:00Z"));
    *world.busy.lock().unwrap() = 30.0;
    // The annotator's clock is one that the test moves, the extender's the machine's.
    let now = Timestamp::now();
    let annotator = world.annotator(now - PERIOD * 3).await;
    assert!(world.annotation().starts_with("0.30000,"));
    *world.busy.lock().unwrap() = 79.0;
    annotator.time.advance(PERIOD);
    annotator.reach().await;
    assert!(world.annotation().starts_with("0.30000,"), "{}", world.annotation());
    let (extender, state) = world.extender().await;
    until_load_is(&state, 790).await;
    // Another replica takes over, and has polled the node.
    annotator.end().await;
    *world.busy.lock().unwrap() = 20.0;
    let successor = world.annotator(now - PERIOD).await;
    successor.time.advance(PERIOD);
    successor.reach().await;
    assert!(world.annotation().starts_with("0.30000,"), "{}", world.annotation());
    until_load_is(&state, 200).await;
    extender.shutdown().cancel();
    successor.end().await;
}
