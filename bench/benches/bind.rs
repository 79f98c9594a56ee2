//! What Bind costs beside the bare binding that a scheduler without the extender sends: both as a client sees them,
//! over one kept connection each, in turns, to the same API server.
//!
//! The API server is the stand-in, which writes no disk. So the difference is what counts; a ratio that means something
//! is measured by `make e2e` on a real one.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark is no library, prints its figures, and ends where something fails"
)]

use std::time::{Duration, Instant};

use clap::Parser;
use scheduler_extender::{Args as ExtenderArgs, app};
use serde_json::{Value, json};
use sim::{Sim, node, pod};

const GPU: &str = "aliyun.com/gpu-mem";
/// Pods of each node, which has 8 cards of 16 units.
const ON_A_NODE: usize = 100;

#[derive(Debug, Parser)]
#[command(about = "Latency of Bind beside that of a bare binding")]
struct Args {
    /// How many pods each binds.
    #[arg(long, default_value_t = 2_000)]
    pods: usize,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let [ours, bare] = runtime.block_on(measure(args.pods));
    println!("binding a pod, microseconds       p50      p99");
    for (name, times) in [("bare binding", &bare), ("Bind", &ours)] {
        println!("{name:<30} {:>8.0} {:>8.0}", micros(at(times, 50)), micros(at(times, 99)));
    }
    let added = micros(at(&ours, 50)) - micros(at(&bare, 50));
    println!("Bind adds {added:.0} microseconds at the median");
}

/// Sorted times of Bind and of the bare binding.
async fn measure(pods: usize) -> [Vec<Duration>; 2] {
    let sim = Sim::start().await.unwrap();
    (0..=2 * pods / ON_A_NODE).for_each(|number| drop(sim.put(gpu_node(number))));
    let files = tempfile::tempdir().unwrap();
    let kubeconfig = files.path().join("kubeconfig");
    let policy = files.path().join("policy");
    sim.write_kubeconfig(&kubeconfig).unwrap();
    std::fs::write(&policy, bench::POLICY).unwrap();
    let mut extender = ExtenderArgs::parse_from(["extender", "--listen-address", "127.0.0.1:0"]);
    extender.api.kubeconfig = Some(kubeconfig);
    extender.load.policy_file = policy;
    let context = daemon::Context::new(daemon::program!());
    let address = app::start(extender, &context).await.unwrap();
    while !context.health().is_ready() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let verb = format!("http://{address}/gpushare-scheduler/bind");
    let client = sim::http_client().unwrap();
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..pods {
        for (kind, times) in times.iter_mut().enumerate() {
            let pod = sim.put(pod(&format!("pod-{kind}-{number}")).asking(GPU, 1));
            let node = format!("n{}", 2 * number / ON_A_NODE);
            let (url, body) = match kind {
                0 => (verb.clone(), asked(&pod, &node)),
                _ => (binding_url(&sim, &pod), binding(&pod, &node)),
            };
            let began = Instant::now();
            let answer = client.post(url).body(body.to_string()).send().await.unwrap();
            let status = answer.status();
            let text = answer.text().await.unwrap();
            times.push(began.elapsed());
            assert!(status.is_success() && (kind == 1 || text == r#"{"Error":""}"#), "{text}");
        }
    }
    context.shutdown().cancel();
    times.each_mut().map(|times| {
        times.sort_unstable();
        std::mem::take(times)
    })
}

fn gpu_node(number: usize) -> Value {
    let cards: Vec<Value> = (0..8).map(|index| {
        json!({
            "uuid": format!("GPU-{number:06x}{index:02x}-0000-4000-8000-000000000000"), "index": index,
            "model": "NVIDIA A10", "memoryMiB": 16 << 10, "units": 16, "healthy": true, "pods": {},
        })
    }).collect();
    let node = node(&format!("n{number}")).with(GPU, 128);
    node.annotation("plimsoll.dev/gpu-cards", json!(cards).to_string()).into()
}

/// What kube-scheduler sends to the extender.
fn asked(pod: &Value, node: &str) -> Value {
    let meta = &pod["metadata"];
    json!({ "PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node })
}

fn binding_url(sim: &Sim, pod: &Value) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap();
    format!("{}/api/v1/namespaces/default/pods/{name}/binding", sim.url())
}

/// What kube-scheduler sends to the API server where no extender binds.
fn binding(pod: &Value, node: &str) -> Value {
    let meta = &pod["metadata"];
    json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": { "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"] },
        "target": { "kind": "Node", "name": node },
    })
}

fn at(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
