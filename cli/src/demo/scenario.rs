//! What happens, act by act.
//!
//! Each act says in a caption what to look at, does something to the cluster, and waits for its effect
//! in the API, never for a length of time alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sim::{Fault, NODES, PODS};
use tokio::sync::watch;
use tokio::time::sleep;

use super::fleet::GPU_MEM;
use super::loads::LIMIT;
use super::world::{World, exporter, plugin, units};
use crate::args::Sabotage;

/// Pauses for people.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Between two pods of a stream, so that one can follow.
    step: Duration,
    /// To look at what an act has led to.
    pause: Duration,
}

impl Pace {
    /// One that can be followed.
    pub(super) const CALM: Self =
        Self { step: Duration::from_millis(250), pause: Duration::from_millis(1500) };
    /// One for tests.
    pub(super) const FAST: Self = Self { step: Duration::from_millis(20), pause: Duration::ZERO };
}

/// More than any card has, and less than a node.
const TOO_BIG: u64 = 20;
/// The pod that asks for it.
pub(super) const BIG_POD: &str = "big-1";

/// The director.
pub(super) struct Scenario {
    pub(super) world: Arc<World>,
    pub(super) caption: watch::Sender<String>,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) pace: Pace,
}

impl Scenario {
    /// All acts, once.
    pub(super) async fn play(&self) -> anyhow::Result<()> {
        self.break_something();
        self.plain_pods().await?;
        self.sharing().await?;
        self.equal_pods_at_once().await?;
        self.a_node_turns_hot().await?;
        self.an_exporter_goes_silent().await?;
        self.too_big().await?;
        self.plugin_killed().await?;
        self.refill().await?;
        self.say("Everything has settled.");
        self.settled().await
    }

    /// Pods come and go, for ever.
    pub(super) async fn go_on(&self) -> anyhow::Result<()> {
        self.say("Pods come and go. Ctrl-C ends it.");
        for round in 0_usize.. {
            let live: Vec<String> = self.names(is_running);
            // A prime step, so that old and young, large and small go.
            if live.len() > 30 {
                self.delete(&live[round * 7 % live.len()]);
            }
            let name = format!("job-{round}");
            match round % 3 {
                0 => self.create(plain(&name)),
                _ => self.create(gpu(&name, &[1 + (round as u64 * 5) % 11])),
            }
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    fn break_something(&self) {
        if self.sabotage == Some(Sabotage::Card) {
            self.world.confuse_cards("gpu-1");
            self.world.confuse_cards("gpu-2");
        }
    }

    async fn plain_pods(&self) -> anyhow::Result<()> {
        self.say("Web pods. By requests alone, the overloaded cpu-2 and gpu-4 look best.");
        self.stream((1..=8).map(|i| plain(&format!("web-{i}")))).await;
        self.settled().await
    }

    async fn sharing(&self) -> anyhow::Result<()> {
        self.say("GPU memory is shared: each pod on one card, cards filled before new ones.");
        let sizes = [12, 4, 9, 6, 11, 10, 5, 8];
        let pods =
            sizes.iter().enumerate().map(|(i, size)| gpu(&format!("train-{}", i + 1), &[*size]));
        self.stream(pods.chain([gpu("duo-1", &[3, 2]), with_init("init-1", 6, 4)])).await;
        self.settled().await?;
        if self.sabotage == Some(Sabotage::Ledger) {
            self.bind_past_the_ledger().await?;
        }
        sleep(self.pace.pause).await;
        Ok(())
    }

    async fn equal_pods_at_once(&self) -> anyhow::Result<()> {
        self.say("Twelve equal pods at once, their bindings held up so that they land shuffled.");
        for i in 0..12_u64 {
            let late = Duration::from_millis(i * 271 % 400);
            self.world.sim.faults().next_bindings(1, Fault::Delay(late));
        }
        (1..=12).for_each(|i| self.create(gpu(&format!("infer-{i}"), &[3])));
        self.settled().await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    async fn a_node_turns_hot(&self) -> anyhow::Result<()> {
        self.say("cpu-4 turns hot by something that is no pod: new pods stay away from it.");
        self.world.loads.set_cpu("cpu-4", 0.95);
        if self.sabotage != Some(Sabotage::Hot) {
            let hot = |world: &World| measured_cpu(world, "cpu-4").is_some_and(|cpu| cpu > LIMIT);
            self.world.until("cpu-4's load is known", hot).await?;
        }
        self.stream((9..=13).map(|i| plain(&format!("web-{i}")))).await;
        self.settled().await
    }

    async fn an_exporter_goes_silent(&self) -> anyhow::Result<()> {
        self.say("cpu-5's exporter is killed: its last reading counts, until it is too old.");
        self.world.kill(&exporter("cpu-5")).await?;
        self.stream((14..=16).map(|i| plain(&format!("web-{i}")))).await;
        self.settled().await
    }

    async fn too_big(&self) -> anyhow::Result<()> {
        self.say("20 GiB fit on nodes, but on no single card: the pod waits, and says why.");
        self.create(gpu(BIG_POD, &[TOO_BIG]));
        let told = |world: &World| {
            world.pods().iter().any(|pod| name(pod) == BIG_POD && !reason(pod).is_empty())
        };
        self.world.until("the pod that fits nowhere says why", told).await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    async fn plugin_killed(&self) -> anyhow::Result<()> {
        self.say("gpu-5's device plugin is killed: running pods stay, new ones go elsewhere.");
        self.world.kill(&plugin("gpu-5")).await?;
        self.world.until("gpu-5 has nothing to give", |world| offers(world, "gpu-5") == 0).await?;
        self.stream((1..=3).map(|i| gpu(&format!("late-{i}"), &[2]))).await;
        self.settled().await?;
        self.say("The plugin is back, and finds its pods in the kubelet's record.");
        self.world.start_plugin("gpu-5")?;
        self.world.until("gpu-5 gives again", |world| offers(world, "gpu-5") > 0).await?;
        self.stream((4..=6).map(|i| gpu(&format!("late-{i}"), &[3]))).await;
        self.settled().await
    }

    async fn refill(&self) -> anyhow::Result<()> {
        self.say("Half of the GPU pods end, and others take their place.");
        let done = self.names(|pod| is_running(pod) && asks_gpu(pod));
        done.iter().step_by(2).for_each(|pod| self.delete(pod));
        let sizes = [7, 3, 5, 2, 9, 4, 6, 3, 8, 2];
        let pods =
            sizes.iter().enumerate().map(|(i, size)| gpu(&format!("next-{}", i + 1), &[*size]));
        self.stream(pods).await;
        self.settled().await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    /// A second binder, which has its own idea of who is where: it puts as much again on a card.
    async fn bind_past_the_ledger(&self) -> anyhow::Result<()> {
        let pods = self.world.pods();
        let Some(victim) = pods.iter().find(|pod| name(pod) == "train-1") else { return Ok(()) };
        let mut rogue: Value = gpu("rogue-1", &[12]);
        rogue["metadata"]["annotations"] = victim["metadata"]["annotations"].clone();
        rogue["spec"]["nodeName"] = victim["spec"]["nodeName"].clone();
        self.world.sim.put(rogue);
        self.settled().await
    }

    /// Waits until every pod runs or has ended, but for the one that cannot.
    async fn settled(&self) -> anyhow::Result<()> {
        self.world
            .until("every pod that fits runs", |world| {
                world.pods().iter().all(|pod| {
                    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
                    name(pod) == BIG_POD || matches!(phase, "Running" | "Failed")
                })
            })
            .await
    }

    async fn stream(&self, pods: impl Iterator<Item = Value>) {
        for pod in pods {
            self.create(pod);
            sleep(self.pace.step).await;
        }
    }

    fn create(&self, pod: Value) {
        self.world.sim.put(pod);
    }

    fn delete(&self, pod: &str) {
        self.world.sim.delete(PODS, "default", pod);
    }

    fn say(&self, caption: &str) {
        self.caption.send_replace(caption.to_owned());
    }

    fn names(&self, which: impl Fn(&Value) -> bool) -> Vec<String> {
        let pods = self.world.pods();
        let names: BTreeSet<&str> = pods.iter().filter(|pod| which(pod)).map(name).collect();
        names.into_iter().map(str::to_owned).collect()
    }
}

/// The reason that a pod waits for, in kube-scheduler's words.
pub(super) fn reason(pod: &Value) -> &str {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut messages = conditions.filter_map(|condition| condition["message"].as_str());
    messages.next().unwrap_or_default()
}

/// What a node's annotation says of its processors.
pub(super) fn measured_cpu(world: &World, node: &str) -> Option<f64> {
    let node = world.sim.get(NODES, "", node)?;
    let text = node["metadata"]["annotations"]["cpu_usage_active"].as_str()?.to_owned();
    text.split(',').next()?.parse().ok()
}

fn offers(world: &World, node: &str) -> u64 {
    world.sim.node(node).as_ref().map_or(0, units)
}

fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

/// Whether a pod asks for GPU memory.
pub(super) fn asks_gpu(pod: &Value) -> bool {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers.into_iter().any(|container| container["resources"]["limits"][GPU_MEM].is_string())
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// A pod without a GPU.
fn plain(name: &str) -> Value {
    let mut pod: Value = sim::pod(name).into();
    pod["spec"]["containers"] = json!([{
        "name": "main", "image": "web",
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
    }]);
    pod
}

/// A pod whose containers ask for so much GPU memory each. Its author tries to see every card.
fn gpu(name: &str, sizes: &[u64]) -> Value {
    let mut pod: Value = sim::pod(name).into();
    let containers =
        sizes.iter().enumerate().map(|(i, size)| container(&format!("main-{i}"), *size));
    pod["spec"]["containers"] = containers.collect();
    pod
}

/// One with an init container, whose devices the kubelet hands on to the other.
fn with_init(name: &str, init: u64, app: u64) -> Value {
    let mut pod = gpu(name, &[app]);
    pod["spec"]["initContainers"] = json!([container("prepare", init)]);
    pod
}

fn container(name: &str, size: u64) -> Value {
    let gpu = size.to_string();
    json!({
        "name": name, "image": "train",
        "resources": {
            "limits": {GPU_MEM: gpu},
            "requests": {"cpu": "500m", "memory": "1Gi", GPU_MEM: gpu},
        },
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    })
}
