//! Gangs of GPU pods through a real kube-scheduler, while there is not room for all: how many are bound by half, and
//! whether a GPU ever has more than its units. `lab/gangs.sh` starts etcd, the API server and kube-scheduler, and says
//! what else is needed.
//!
//! There are always more gangs than fit. A gang whose pods are all bound ends some seconds later.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::{Client, Method};
use rustls::crypto::ring;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const PODS: &str = "/api/v1/namespaces/default/pods";
const GROUPS: &str = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups";
const DURATION: &str = "plimsoll_extender_request_duration_seconds";
const RACK: &str = "lab.example/rack";
const UNITS: &str = "aliyun.com/gpu-mem";
/// Of a node, and the units of each.
const GPUS: u64 = 4;
const GPU_UNITS: u64 = 16;
/// Gangs that are there at a time ask for so many times the units.
const ASKED: f64 = 2.5;
/// How long a gang runs, as parts of what is asked for.
const RUNS: std::ops::Range<f64> = 0.5..1.5;
/// A gang that is bound by half for longer has been left so.
const BINDS_WITHIN: Duration = Duration::from_secs(1);
/// Requests at once.
const AT_ONCE: usize = 16;

/// Has gangs placed, and prints what became of them.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Where the API server is.
    #[arg(long, value_name = "URL")]
    api: String,

    /// A token of an administrator.
    #[arg(long, value_name = "TOKEN")]
    token: String,

    /// Where the extender's metrics are.
    #[arg(long, value_name = "URL")]
    metrics: String,

    /// A folder for logs.
    #[arg(long, value_name = "FOLDER")]
    work: PathBuf,

    /// How many gangs.
    #[arg(long, default_value_t = 1000)]
    gangs: usize,

    /// How many nodes of 4 GPUs.
    #[arg(long, default_value_t = 20)]
    nodes: usize,

    /// How many racks there are, if a gang is to be in one of them: kube-scheduler tries it in each.
    #[arg(long)]
    racks: Option<usize>,

    /// How many pods a gang has [default: 2 to 8].
    #[arg(long)]
    pods: Option<usize>,

    /// What a pod asks for: one of these, for all pods of its gang.
    #[arg(long, value_name = "UNITS", value_delimiter = ',', default_value = "2,3,4,5,8,11,16")]
    shares: Vec<u64>,

    /// How long a gang runs once all its pods are bound, on average.
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS")]
    runs: f64,

    /// Decides the sizes of gangs, the shares of their pods, how long they run, and the kills.
    #[arg(long, default_value_t = 42)]
    seed: u64,

    /// Kill the extender about so often, and start it again; 0 for never.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    kill_every: f64,

    /// The extender with its flags.
    #[arg(last = true, required = true)]
    extender: Vec<String>,
}

/// A gang.
#[derive(Debug)]
struct Gang {
    pods: usize,
    units: u64,
    /// Since when some of its pods are bound, and not all.
    half_since: Option<Instant>,
    was_left: bool,
    ends_at: Option<Instant>,
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    ended: usize,
    kills: usize,
    left_by_half: usize,
    longest: Duration,
    overbooked: usize,
    /// How much of the units was given out, in percent, at each look.
    given_out: Vec<f64>,
    /// Those of the extender since its last start.
    calls: Calls,
}

/// Calls that an extender has answered.
#[derive(Debug, Default)]
struct Calls {
    /// The time within which 99% of the Binds were answered.
    binds_within: Option<Duration>,
    /// The number of Filters and Prioritizes, and the time for all of them.
    decisions: f64,
    took: Duration,
}

struct Cluster {
    client: Client,
    url: String,
    token: String,
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the result is what it is for")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // There is one already where this was called before.
    let _ = ring::default_provider().install_default();
    let client = Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build()?;
    let cluster = Cluster { client, url: args.api.clone(), token: args.token.clone() };
    let nodes: Vec<Value> = (0..args.nodes).map(|at| node(at, args.racks)).collect();
    cluster.create_all("/api/v1/nodes", &nodes).await?;
    let (seen, left) = run(&args, &cluster).await?;
    let mut given_out = seen.given_out.clone();
    given_out.sort_by(f64::total_cmp);
    let median = given_out.get(given_out.len() / 2).copied().unwrap_or_default();
    let Calls { binds_within, decisions, took } = seen.calls;
    let binds_within = binds_within.unwrap_or_default();
    println!(
        "{} gangs, {} kills: {} bound by half for more than {BINDS_WITHIN:?} (the longest for {:.1?}), {left} at the \
         end; {} GPUs with too much; median {median:.0}% of the units given out; 99% of the last Binds within {binds_within:?}; \
         {decisions} Filters and Prioritizes took {took:.1?}",
        seen.ended, seen.kills, seen.left_by_half, seen.longest, seen.overbooked
    );
    Ok(())
}

/// Returns what was seen, and how many gangs are bound by half at the end.
async fn run(args: &Args, cluster: &Cluster) -> anyhow::Result<(Seen, usize)> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(args.seed);
    let mut kills = Xoshiro256PlusPlus::seed_from_u64(args.seed);
    let capacity = args.nodes as u64 * GPUS * GPU_UNITS;
    let mut extender = start(args)?;
    let (mut gangs, mut seen, mut made) = (BTreeMap::new(), Seen::default(), 0);
    let mut next_kill = Instant::now() + Duration::from_secs(5);
    let mut last_end = Instant::now();
    while seen.ended < args.gangs {
        if args.kill_every > 0.0 && Instant::now() > next_kill {
            extender.kill().await?;
            extender = start(args)?;
            seen.kills += 1;
            let pause = args.kill_every * kills.random_range(0.5..1.5);
            next_kill = Instant::now() + Duration::from_secs_f64(pause);
        }
        let asked = |gangs: &BTreeMap<String, Gang>| gangs.values().map(|it| it.units).sum::<u64>();
        while made < args.gangs && (asked(&gangs) as f64) < ASKED * capacity as f64 {
            let name = format!("gang-{made:05}");
            gangs.insert(name.clone(), cluster.make(&name, args, &mut random).await?);
            made += 1;
        }
        let runs = || Duration::from_secs_f64(args.runs * random.random_range(RUNS));
        let ended = look(cluster, &mut gangs, capacity, &mut seen, runs).await?;
        for name in &ended {
            if let Some(gang) = gangs.remove(name) {
                cluster.end(name, gang.pods).await?;
                last_end = Instant::now();
                seen.ended += 1;
                if seen.ended.is_multiple_of(100) {
                    eprintln!("{} gangs, {} kills", seen.ended, seen.kills);
                }
            }
        }
        ensure!(last_end.elapsed() < Duration::from_secs(120), "no gang is bound: {gangs:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let metrics = cluster.client.get(&args.metrics).send().await?.text().await?;
    seen.calls = calls(&metrics);
    extender.kill().await?;
    Ok((seen, gangs.values().filter(|gang| gang.half_since.is_some()).count()))
}

fn start(args: &Args) -> anyhow::Result<Child> {
    let log = File::options().append(true).create(true).open(args.work.join("extender.log"))?;
    let (program, flags) = args.extender.split_first().context("no extender")?;
    let mut command = Command::new(program);
    command.args(flags).stdin(Stdio::null()).stderr(log).kill_on_drop(true);
    command.spawn().with_context(|| format!("{program}: cannot start"))
}

/// Looks at all pods. `runs` says how long the next gang runs. Returns the gangs whose time is over.
async fn look(
    cluster: &Cluster,
    gangs: &mut BTreeMap<String, Gang>,
    capacity: u64,
    seen: &mut Seen,
    mut runs: impl FnMut() -> Duration,
) -> anyhow::Result<Vec<String>> {
    let now = Instant::now();
    let pods = cluster.ask(Method::GET, PODS, None).await?;
    let (mut bound, mut held) = (BTreeMap::<&str, usize>::new(), BTreeMap::<_, u64>::new());
    for pod in pods["items"].as_array().context("no list")? {
        let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
        let group = pod.pointer("/spec/schedulingGroup/podGroupName").and_then(Value::as_str);
        *bound.entry(group.context("no group")?).or_default() += 1;
        let gpu = pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"].as_str();
        let units = pod["spec"]["containers"][0]["resources"]["limits"][UNITS].as_str();
        let units: u64 = units.context("no units")?.parse()?;
        *held.entry((node, gpu.context("a bound pod without a GPU")?)).or_default() += units;
    }
    seen.overbooked += held.values().filter(|units| **units > GPU_UNITS).count();
    seen.given_out.push(held.values().sum::<u64>() as f64 / capacity as f64 * 100.0);
    let mut ended = Vec::new();
    for (name, gang) in gangs {
        let bound = bound.get(&**name).copied().unwrap_or_default();
        if bound == gang.pods {
            let ends_at = *gang.ends_at.get_or_insert_with(|| now + runs());
            gang.half_since = None;
            ended.extend((ends_at <= now).then(|| name.clone()));
        } else if bound > 0 {
            let half = now - *gang.half_since.get_or_insert(now);
            seen.longest = seen.longest.max(half);
            if half > BINDS_WITHIN && !std::mem::replace(&mut gang.was_left, true) {
                seen.left_by_half += 1;
            }
        }
    }
    Ok(ended)
}

/// The smallest bound of the histogram of Binds below which 99% of them are.
fn binds_within(metrics: &str) -> Option<Duration> {
    let mut buckets = Vec::new();
    for line in metrics.lines() {
        if line.starts_with(&format!("{DURATION}_bucket"))
            && line.contains("gpushare-scheduler/bind")
        {
            let bound = line.split("le=\"").nth(1)?.split('"').next()?;
            buckets.push((bound.to_owned(), line.rsplit(' ').next()?.parse::<f64>().ok()?));
        }
    }
    let all = buckets.last()?.1;
    let (bound, _) = buckets.into_iter().find(|(_, binds)| *binds >= 0.99 * all)?;
    Duration::try_from_secs_f64(bound.parse().ok()?).ok()
}

/// By the extender's metrics.
fn calls(metrics: &str) -> Calls {
    let total = |of: &str| {
        let mut sum = 0.0;
        for line in metrics.lines().filter(|line| line.starts_with(&format!("{DURATION}_{of}{{"))) {
            let decides = line.contains("/filter") || line.contains("/prioritize");
            let value = line.rsplit(' ').next().filter(|_| decides);
            sum += value.and_then(|value| value.parse::<f64>().ok()).unwrap_or_default();
        }
        sum
    };
    let took = Duration::try_from_secs_f64(total("sum")).unwrap_or_default();
    Calls { binds_within: binds_within(metrics), decisions: total("count"), took }
}

/// A node of four GPUs that does nothing, in one of so many racks.
fn node(at: usize, racks: Option<usize>) -> Value {
    let name = format!("node-{at}");
    let gpu = |index: u64| {
        json!({
            "uuid": format!("GPU-{at:08x}-0000-0000-0000-{index:012x}"), "index": index, "model": "T4",
            "memoryMiB": GPU_UNITS * 1024, "units": GPU_UNITS, "healthy": true, "pods": {},
        })
    };
    let gpus: Vec<Value> = (0..GPUS).map(gpu).collect();
    let nothing = Ratio::new(0.0).map(|nothing| Reading::new(nothing, Timestamp::now()));
    let reading = nothing.map(|reading| ReadingCodec::default().encode(&reading));
    let mut labels = json!({ "kubernetes.io/hostname": name });
    if let Some(racks) = racks {
        labels[RACK] = json!((at % racks.max(1)).to_string());
    }
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "250", UNITS: (GPUS * GPU_UNITS).to_string()});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {
            "plimsoll.dev/gpu-cards": json!(gpus).to_string(), "cpu_shared_busy_avg_5m": reading,
            "mem_usage_avg_5m": reading,
        }},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

impl Cluster {
    /// Creates a gang of equal pods.
    async fn make(
        &self,
        name: &str,
        args: &Args,
        random: &mut Xoshiro256PlusPlus,
    ) -> anyhow::Result<Gang> {
        let pods = random.random_range(2..=8);
        let pods = args.pods.unwrap_or(pods);
        ensure!(!args.shares.is_empty(), "no shares");
        let units = args.shares[random.random_range(0..args.shares.len())];
        let mut group = json!({
            "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": pods}}},
        });
        if args.racks.is_some() {
            group["spec"]["schedulingConstraints"] = json!({"topology": [{"key": RACK}]});
        }
        self.ask(Method::POST, GROUPS, Some(&group)).await?;
        let limits = json!({"cpu": "100m", UNITS: units.to_string()});
        let pod = |number: usize| {
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("{name}-{number}")},
                "spec": {"schedulingGroup": {"podGroupName": name}, "containers": [
                    {"name": "main", "image": "none", "resources": {"limits": limits}},
                ]},
            })
        };
        let objects: Vec<Value> = (0..pods).map(pod).collect();
        self.create_all(PODS, &objects).await?;
        let units = units * pods as u64;
        Ok(Gang { pods, units, half_since: None, was_left: false, ends_at: None })
    }

    /// Ends a gang, as if its containers had ended.
    async fn end(&self, name: &str, pods: usize) -> anyhow::Result<()> {
        let at_once = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        let ended = json!({"status": {"phase": "Succeeded"}});
        for number in 0..pods {
            let pod = format!("{PODS}/{name}-{number}");
            self.ask(Method::PATCH, &format!("{pod}/status"), Some(&ended)).await?;
            self.ask(Method::DELETE, &pod, Some(&at_once)).await?;
        }
        self.ask(Method::DELETE, &format!("{GROUPS}/{name}"), None).await?;
        Ok(())
    }

    async fn create_all(&self, path: &str, objects: &[Value]) -> anyhow::Result<()> {
        let created = stream::iter(objects).map(|it| self.ask(Method::POST, path, Some(it)));
        created.buffered(AT_ONCE).try_for_each(async |_| Ok(())).await
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.url);
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = self.client.request(method, &url).bearer_auth(&self.token);
        let request = request.header("Content-Type", kind);
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = request.body(body).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{url}: {status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }
}
