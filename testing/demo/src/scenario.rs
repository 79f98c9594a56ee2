//! What happens, act by act.
//!
//! Each act says in a caption what to look at, does something to the cluster, and waits for its effect
//! in the API, never for a length of time alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use sim::{Fault, PODS};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::args::Sabotage;
use crate::checker::TOLD;
use crate::evidence::demand;
use crate::fleet::gpu_nodes;
use crate::loads::LIMIT;
use crate::pods::{
    asks_gpu, at_home, daemon, gpu, in_pool, is_running, name, plain, reason, with_init,
};
use crate::world::{World, exporter, plugin};

/// Pauses for people.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Between two pods of a stream, so that one can follow.
    step: Duration,
    /// To look at what an act has led to.
    pause: Duration,
}

impl Pace {
    /// One that can be followed.
    pub(crate) const CALM: Self =
        Self { step: Duration::from_millis(250), pause: Duration::from_millis(1500) };
    /// One for tests.
    pub(crate) const FAST: Self = Self { step: Duration::from_millis(20), pause: Duration::ZERO };
}

/// More than any card has, and less than a node.
const TOO_BIG: u64 = 20;
/// The pod that asks for it.
pub(crate) const BIG_POD: &str = "big-1";
/// Once all acts are played, between two pods: seldom enough that no node counts as hot by them alone.
const LEISURE: Duration = Duration::from_millis(2500);
/// From then on, the largest pod, in units of GPU memory, and how many pods of all sizes hold together. Each
/// finds a card, since 11 cards that have no 8 of 16 left hold 99: one that waits is one that is stuck.
const LARGEST: u64 = 8;
const HELD: u64 = 98;

/// The director.
pub(crate) struct Scenario {
    pub(crate) world: Arc<World>,
    pub(crate) caption: watch::Sender<String>,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) pace: Pace,
    /// The names of the pods made so far.
    pub(crate) made: Mutex<BTreeSet<String>>,
}

impl Scenario {
    /// All acts, once.
    pub(crate) async fn play(&self) -> anyhow::Result<()> {
        self.break_something();
        self.plain_pods().await?;
        self.daemon_set().await?;
        self.fragmented_cards().await?;
        self.sharing().await?;
        self.equal_pods_at_once().await?;
        self.a_node_turns_hot().await?;
        self.an_exporter_goes_silent().await?;
        self.too_big().await?;
        self.plugin_killed().await?;
        self.kubelet_restarted().await?;
        self.refill().await?;
        self.say("Everything has settled.");
        self.settled().await?;
        self.still_as_it_should_be().await
    }

    /// Pods come and go, for as long as every program runs.
    pub(crate) async fn go_on(&self) -> anyhow::Result<()> {
        self.say(&open_end(&self.world.kubeconfig()));
        for round in 0_usize.. {
            self.world.all_run()?;
            let size = 1 + (round as u64 * 5) % LARGEST;
            self.make_room(round, size);
            let name = format!("job-{round}");
            match round % 3 {
                0 => self.create(plain(&name)),
                _ => self.create(gpu(&name, &[size])),
            }
            match round % 16 {
                6 => self.world.loads.set_cpu("cpu-3", 0.9),
                14 => self.world.loads.set_cpu("cpu-3", 0.4),
                _ => {}
            }
            sleep(LEISURE).await;
        }
        Ok(())
    }

    /// Ends one pod where there are many, and as many as it takes for another of this size.
    fn make_room(&self, round: usize, size: u64) {
        // A prime step, so that old and young, large and small go.
        let end_one = |names: Vec<String>| {
            let name = names.get(round * 7 % names.len().max(1));
            name.map(|name| self.delete(name)).is_some()
        };
        if self.names(is_running).len() > 30 {
            end_one(self.names(is_running));
        }
        let held = || -> u64 {
            self.world.pods().iter().filter(|pod| name(pod) != BIG_POD).map(demand).sum()
        };
        while held() + size > HELD && end_one(self.names(|pod| is_running(pod) && asks_gpu(pod))) {}
    }

    fn break_something(&self) {
        if self.sabotage == Some(Sabotage::Card) {
            self.world.confuse_cards("gpu-1");
            self.world.confuse_cards("gpu-2");
        }
    }

    async fn plain_pods(&self) -> anyhow::Result<()> {
        self.say("Web pods. By requests alone, the overloaded cpu-2 looks best; it gets none.");
        self.stream((1..=8).map(|i| plain(&format!("web-{i}")))).await;
        self.settled().await
    }

    async fn daemon_set(&self) -> anyhow::Result<()> {
        self.say("A DaemonSet wants a pod on each GPU node: gpu-4 takes its own in spite of load.");
        let nodes = gpu_nodes().enumerate();
        self.stream(nodes.map(|(i, (_, plan))| daemon(&format!("agent-{}", i + 1), plan.name)))
            .await;
        self.settled().await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    async fn fragmented_cards(&self) -> anyhow::Result<()> {
        self.say("gpu-1 has 14 GiB left, 7 on each card: 10 GiB for one pod are elsewhere.");
        self.stream((1..=2).map(|i| at_home(&format!("hold-{i}"), 9, "gpu-1"))).await;
        self.settled().await?;
        self.stream((1..=2).map(|i| in_pool(&format!("split-{i}"), 10))).await;
        self.settled().await?;
        sleep(self.pace.pause).await;
        ["hold-1", "hold-2"].iter().for_each(|pod| self.delete(pod));
        Ok(())
    }

    async fn sharing(&self) -> anyhow::Result<()> {
        self.say("GPU memory is shared: all containers of a pod on one card, full cards first.");
        let sizes = [12, 4, 9, 6, 5];
        let pods =
            sizes.iter().enumerate().map(|(i, size)| gpu(&format!("train-{}", i + 1), &[*size]));
        let more = [gpu("duo-1", &[3, 2]), gpu("duo-2", &[4, 4]), with_init("init-1", 6, 4)];
        self.stream(pods.chain(more)).await;
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
        (1..=12).for_each(|i| self.create(gpu(&format!("infer-{i}"), &[2])));
        self.settled().await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    async fn a_node_turns_hot(&self) -> anyhow::Result<()> {
        self.say("cpu-4 turns hot by something that is no pod: new pods stay away from it.");
        self.world.loads.set_cpu("cpu-4", 0.95);
        if self.sabotage != Some(Sabotage::Hot) {
            let hot = |world: &World| world.measured_cpu("cpu-4").is_some_and(|cpu| cpu > LIMIT);
            self.world.until("cpu-4's load is known", hot).await?;
            // From then on the judge has no patience.
            sleep(TOLD).await;
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
        self.world.until("big-1 waits, and says for what", says_why).await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    async fn plugin_killed(&self) -> anyhow::Result<()> {
        self.say("gpu-5's device plugin is killed: running pods stay, new ones go elsewhere.");
        self.world.kill(&plugin("gpu-5")).await?;
        self.world.until("gpu-5 has nothing to give", |world| world.offers("gpu-5") == 0).await?;
        self.stream((1..=3).map(|i| gpu(&format!("late-{i}"), &[2]))).await;
        self.settled().await?;
        sleep(self.pace.pause).await;
        self.say("The plugin is back, and finds its pods in the kubelet's record.");
        self.world.start_plugin("gpu-5")?;
        self.world.until("gpu-5 gives again", |world| world.offers("gpu-5") > 0).await?;
        self.stream((4..=6).map(|i| gpu(&format!("late-{i}"), &[3]))).await;
        self.settled().await?;
        self.recorded("gpu-5").await
    }

    async fn kubelet_restarted(&self) -> anyhow::Result<()> {
        self.say("gpu-2's kubelet restarts: its pods run on, each keeps its card.");
        self.world.restart_kubelet("gpu-2").await?;
        self.stream((7..=9).map(|i| gpu(&format!("late-{i}"), &[2]))).await;
        self.settled().await?;
        self.recorded("gpu-2").await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    async fn refill(&self) -> anyhow::Result<()> {
        self.say("gpu-4 cools down and half of the GPU pods end: others take their place.");
        self.world.loads.set_cpu("gpu-4", 0.2);
        let done = self.names(|pod| is_running(pod) && asks_gpu(pod));
        done.iter().step_by(2).for_each(|pod| self.delete(pod));
        let cool = |world: &World| world.measured_cpu("gpu-4").is_some_and(|cpu| cpu < LIMIT);
        self.world.until("gpu-4's load is known", cool).await?;
        let sizes = [7, 3, 5, 2, 9, 4, 6, 3, 8, 2];
        let pods =
            sizes.iter().enumerate().map(|(i, size)| gpu(&format!("next-{}", i + 1), &[*size]));
        self.stream(pods).await;
        self.settled().await?;
        sleep(self.pace.pause).await;
        Ok(())
    }

    /// What was to last has lasted: the big pod waits with its reason, and of the silent node nothing was
    /// made up.
    async fn still_as_it_should_be(&self) -> anyhow::Result<()> {
        ensure!(says_why(&self.world), "{BIG_POD} no longer says why it waits");
        self.world
            .until("cpu-5's last reading grows old", |world| world.is_silent("cpu-5"))
            .await?;
        let told = self.world.measured_cpu("cpu-5");
        // It swings between 0.41 and 0.53.
        ensure!(
            told.is_some_and(|cpu| (0.35..0.6).contains(&cpu)),
            "cpu-5's exporter was killed at a load of about 0.47, and its node tells of {told:?}"
        );
        for (_, plan) in gpu_nodes() {
            self.recorded(plan.name).await?;
        }
        Ok(())
    }

    /// A second binder, which has its own idea of who is where: it puts as much again on a card.
    async fn bind_past_the_ledger(&self) -> anyhow::Result<()> {
        let pods = self.world.pods();
        let Some(victim) = pods.iter().find(|pod| name(pod) == "train-1") else { return Ok(()) };
        let mut rogue: Value = gpu("rogue-1", &[12]);
        rogue["metadata"]["annotations"] = victim["metadata"]["annotations"].clone();
        rogue["spec"]["nodeName"] = victim["spec"]["nodeName"].clone();
        self.create(rogue);
        self.settled().await
    }

    /// Waits until every pod runs, but for the one that cannot.
    async fn settled(&self) -> anyhow::Result<()> {
        let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
        let waits = |pod: &Value| !is_running(pod) && !failed(pod) && name(pod) != BIG_POD;
        let all = |world: &World| !world.pods().iter().any(waits);
        let settled = self.world.until("every pod that fits runs", all).await;
        settled.with_context(|| format!("not running: {}", self.names(waits).join(", ")))?;
        match self.names(failed) {
            // Where something is broken on purpose, what comes of it is for the judge to tell.
            refused if !refused.is_empty() && self.sabotage.is_none() => {
                bail!("refused by the kubelet: {}", refused.join(", "))
            }
            _ => Ok(()),
        }
    }

    /// Waits until a node's plugin has told of exactly the pods whose claims are on its cards.
    async fn recorded(&self, node: &str) -> anyhow::Result<()> {
        // Where a pod was put past the ledger, the kubelet's record differs by right.
        if self.sabotage == Some(Sabotage::Ledger) {
            return Ok(());
        }
        let what = format!("{node}'s plugin tells of the pods on its cards as they claim");
        self.world.until(&what, |world| world.is_recorded(node)).await
    }

    async fn stream(&self, pods: impl Iterator<Item = Value>) {
        for pod in pods {
            self.create(pod);
            sleep(self.pace.step).await;
        }
    }

    fn create(&self, pod: Value) {
        self.made().insert(name(&pod).to_owned());
        self.world.sim.put(pod);
    }

    // Each change is a single insertion.
    pub(crate) fn made(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The caption once all acts are played. Where it is too long for the screen, the path is not what is cut.
fn open_end(kubeconfig: &Path) -> String {
    format!("KUBECONFIG={} (pods come and go until Ctrl-C)", kubeconfig.display())
}

/// Whether the big pod says that it waits for a card, and not just for room.
fn says_why(world: &World) -> bool {
    let pods = world.pods();
    let big = pods.iter().find(|pod| name(pod) == BIG_POD);
    big.is_some_and(|pod| reason(pod).contains("GPU Memory in one device"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::LONGEST;
    use crate::screen::WIDTH;

    #[test]
    fn the_kubeconfig_is_whole_on_a_small_terminal() {
        let kubeconfig = Path::new(&"d".repeat(LONGEST)).join("kubeconfig");
        let shown: String = open_end(&kubeconfig).chars().take(usize::from(WIDTH)).collect();
        assert!(shown.contains(&format!("KUBECONFIG={} ", kubeconfig.display())), "{shown}");
    }
}
