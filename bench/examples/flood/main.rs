//! What clients that only begin TLS handshakes do to kube-scheduler's calls of Filter.
//!
//! The extender is the real program, as a process of its own. This process holds the stand-in of the API server, and
//! asks over TLS with kube-scheduler's certificate: over a kept connection, and every tenth time over a new one. The
//! flooding clients are processes too, each with an address of its own, as pods have. Invariant: both parts of a round
//! ask for the same, one after the other.

#![allow(clippy::print_stdout, reason = "a load generator is no library, and prints its figures")]

mod client;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use jiff::Timestamp;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use rustls::ClientConfig;
use serde_json::{Value, json};
use sim::Sim;
use support::authority::Authority;
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// The name in the extender's certificate, and in that of the client.
const NAME: &str = "scheduler-extender.plimsoll.svc";

const METRIC: &str = "cpu_usage_avg_5m";

const POLICY: &str = "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy:
  - {name: cpu_usage_avg_5m, period: 3m}
  predicate:
  - {name: cpu_usage_avg_5m, maxLimitPecent: 0.65}
  priority:
  - {name: cpu_usage_avg_5m, weight: 1}
";

/// The pause between two calls. kube-scheduler places some hundred pods a second.
const PAUSE: Duration = Duration::from_millis(10);

/// kube-scheduler's time-out of the load entry.
const TIMEOUT: Duration = Duration::from_millis(500);

/// For the extender to have read the cluster.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures Filter with and without flooding clients.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,

    /// The extender's program.
    #[arg(long, default_value = "target/release/scheduler-extender", value_name = "FILE")]
    extender: PathBuf,

    /// How many nodes there are.
    #[arg(long, default_value_t = 1000, value_name = "NODES")]
    nodes: usize,

    /// How many clients flood the extender.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=200), value_name = "CLIENTS")]
    clients: u8,

    /// How often it is measured without and with them.
    #[arg(long, default_value_t = 3, value_name = "ROUNDS")]
    rounds: u32,

    /// How long each time.
    #[arg(long, default_value = "10s", value_parser = daemon::positive_duration, value_name = "DURATION")]
    time: Duration,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A flooding client.
    #[command(hide = true)]
    Client { from: IpAddr, server: SocketAddr },
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match args.role {
        Some(Role::Client { from, server }) => runtime.block_on(client::flood(from, server, NAME)),
        None => runtime.block_on(measure(&args)),
    }
}

/// What was measured without, or with the flooding clients.
#[derive(Default)]
struct Calls {
    /// Over a kept connection, in milliseconds.
    kept: Vec<f64>,
    /// Over a new one.
    new: Vec<f64>,
    failed: usize,
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let sim = Sim::start().await?;
    let names: Vec<String> = (0..args.nodes).map(|number| format!("node-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        sim.put(node(name, number)?);
    }
    let authority = Authority::new();
    let signed = authority.sign(NAME);
    let extender = Extender::start(&args.extender, &sim, &folder, &authority).await?;
    let asker = Asker::new(extender.address, authority.client_with(&signed).config(), &names)?;
    let (mut quiet, mut flooded) = (Calls::default(), Calls::default());
    let mut cut_off = 0.0;
    for _ in 0..args.rounds {
        asker.ask(args.time, &mut quiet).await;
        let clients = (0..args.clients).map(|number| spawn_client(number, extender.address));
        let clients: Vec<Child> = clients.collect::<anyhow::Result<_>>()?;
        let before = extender.cut_off().await?;
        asker.ask(args.time, &mut flooded).await;
        cut_off += extender.cut_off().await? - before;
        drop(clients);
    }
    let count = args.clients;
    println!(
        "| Filter of {} nodes | p50 | p99 | over a new connection: p50 | p99 | failed |",
        args.nodes
    );
    println!("|---|---|---|---|---|---|");
    println!("| alone | {} |", quiet.row());
    println!("| beside {count} flooding clients | {} |", flooded.row());
    let a_second = cut_off / (f64::from(args.rounds) * args.time.as_secs_f64());
    println!("\nConnections of theirs that ended without a handshake: {a_second:.0} a second");
    Ok(())
}

impl Calls {
    fn row(&self) -> String {
        let failed =
            format!("{} of {}", self.failed, self.failed + self.kept.len() + self.new.len());
        let times = [(&self.kept, 0.5), (&self.kept, 0.99), (&self.new, 0.5), (&self.new, 0.99)];
        let times = times.map(|(times, part)| match quantile(times, part) {
            Some(time) => format!("{time:.2} ms"),
            None => "-".to_owned(),
        });
        format!("{} | {failed}", times.join(" | "))
    }
}

/// The value below which this part of them is.
fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * part).ceil() as usize).copied()
}

fn node(name: &str, number: usize) -> anyhow::Result<Value> {
    let value = Ratio::new((number % 60) as f64 / 100.0).context("no ratio")?;
    let reading = ReadingCodec::default().encode(&Reading::new(value, Timestamp::now()));
    Ok(sim::node(name).annotation(METRIC, reading).into())
}

fn spawn_client(number: u8, server: SocketAddr) -> anyhow::Result<Child> {
    let from = Ipv4Addr::new(127, 0, 1, number + 1);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("client").arg(from.to_string()).arg(server.to_string());
    Ok(command.stdin(Stdio::null()).kill_on_drop(true).spawn()?)
}

/// A client with kube-scheduler's certificate.
struct Asker {
    kept: reqwest::Client,
    new: reqwest::Client,
    url: String,
    body: String,
}

impl Asker {
    fn new(address: SocketAddr, tls: &ClientConfig, names: &[String]) -> anyhow::Result<Self> {
        let client = || {
            let client =
                reqwest::Client::builder().no_proxy().timeout(TIMEOUT).resolve(NAME, address);
            client.tls_backend_preconfigured(tls.clone())
        };
        let pod = json!({"metadata": {"name": "web-0", "namespace": "shop", "uid": "web-0"},
            "spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": "100m"}}}]}});
        Ok(Self {
            kept: client().build()?,
            new: client().pool_max_idle_per_host(0).build()?,
            url: format!("https://{NAME}:{}/load-aware/filter", address.port()),
            body: json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string(),
        })
    }

    async fn ask(&self, time: Duration, calls: &mut Calls) {
        let end = Instant::now() + time;
        for number in 0_u64.. {
            let is_new = number % 10 == 9;
            let client = if is_new { &self.new } else { &self.kept };
            let start = Instant::now();
            let times = if is_new { &mut calls.new } else { &mut calls.kept };
            match self.call(client).await {
                Ok(()) => times.push(start.elapsed().as_secs_f64() * 1e3),
                Err(_) => calls.failed += 1,
            }
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn call(&self, client: &reqwest::Client) -> anyhow::Result<()> {
        let answer = client.post(&self.url).body(self.body.clone()).send().await?;
        let answer = answer.error_for_status()?.text().await?;
        ensure!(answer.contains("node-1"), "{answer}");
        Ok(())
    }
}

/// A running extender. Dropping it ends it.
struct Extender {
    address: SocketAddr,
    admin: SocketAddr,
    _process: Child,
}

impl Extender {
    async fn start(
        program: &Path,
        sim: &Sim,
        folder: &TempDir,
        authority: &Authority,
    ) -> anyhow::Result<Self> {
        let file = |name: &str| folder.path().join(name);
        sim.write_kubeconfig(&file("kubeconfig"))?;
        fs::write(file("policy.yaml"), POLICY)?;
        fs::write(file("ca.crt"), authority.pem())?;
        for (name, text) in authority.sign(NAME).files() {
            fs::write(file(name), text)?;
        }
        let (address, admin) = (free()?, free()?);
        let mut command = Command::new(program);
        let files = [
            ("kubeconfig", "kubeconfig"),
            ("policy-file", "policy.yaml"),
            ("client-ca-file", "ca.crt"),
            ("tls-cert-file", "tls.crt"),
            ("tls-key-file", "tls.key"),
        ];
        for (flag, name) in files {
            command.arg(format!("--{flag}={}", file(name).display()));
        }
        command.arg(format!("--listen-address={address}")).arg(format!("--admin-address={admin}"));
        let process =
            command.arg("--log-level=error").stdin(Stdio::null()).kill_on_drop(true).spawn();
        let process = process.with_context(|| format!("{}: cannot start", program.display()))?;
        let ready = format!("http://{admin}/readyz");
        let client = sim::http_client()?;
        let start = Instant::now();
        while !client.get(&ready).send().await.is_ok_and(|answer| answer.status().is_success()) {
            ensure!(start.elapsed() < PATIENCE, "the extender is not ready after {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Self { address, admin, _process: process })
    }

    /// How many connections have ended before their handshake was done.
    async fn cut_off(&self) -> anyhow::Result<f64> {
        const METRIC: &str = "plimsoll_tls_handshake_failures_total ";
        let page = sim::http_client()?.get(format!("http://{}/metrics", self.admin)).send().await?;
        let page = page.error_for_status()?.text().await?;
        let value = page.lines().find_map(|line| line.strip_prefix(METRIC));
        Ok(value.with_context(|| format!("no metric {METRIC}"))?.trim().parse()?)
    }
}

/// A port that nothing listens on.
fn free() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
