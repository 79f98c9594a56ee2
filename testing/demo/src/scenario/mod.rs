//! What happens: the [`steps`] once, then pods that come and go.
//!
//! Each step says in a caption what to look at, changes something, and waits for the effect in the API, never for a
//! length of time alone.

mod steps;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use sim::PODS;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::args::Sabotage;
use crate::cluster::{Cluster, ExtenderProbe};
use crate::model::objects::{asks_gpu, is_running, name, peak_units, waiting_reason};
use crate::model::pods::{gpu, plain};
use crate::observer::Observer;

/// Pauses for people to follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Between two pods of a stream.
    step: Duration,
    /// At the end of a step.
    pause: Duration,
}

impl Pace {
    /// For people.
    pub(crate) const CALM: Self =
        Self { step: Duration::from_millis(250), pause: Duration::from_millis(1500) };
    /// For tests.
    pub(crate) const FAST: Self = Self { step: Duration::from_millis(20), pause: Duration::ZERO };
}

/// A pod that asks for [`BIG_SIZE`] and must wait.
pub(crate) const BIG_POD: &str = "big-1";
/// Units of GPU memory: more than any GPU has, less than a node.
const BIG_SIZE: u64 = 20;
/// After the steps, the time between two pods.
const IDLE_STEP: Duration = Duration::from_millis(2500);
/// After the steps, the largest pod in units of GPU memory.
const LARGEST: u64 = 8;
/// After the steps, the units that all pods hold together at most. 11 GPUs without 8 free of 16 hold at least 99, so
/// that each pod finds a GPU: one that waits shows an error.
const HELD: u64 = 98;

/// Runs the steps.
pub(crate) struct Scenario {
    cluster: Arc<Cluster>,
    observer: Arc<Observer>,
    caption: watch::Sender<String>,
    sabotage: Option<Sabotage>,
    pace: Pace,
    /// The names of the pods created so far.
    created: Mutex<BTreeSet<String>>,
}

impl Scenario {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        observer: Arc<Observer>,
        caption: watch::Sender<String>,
        sabotage: Option<Sabotage>,
        pace: Pace,
    ) -> Self {
        Self { cluster, observer, caption, sabotage, pace, created: Mutex::default() }
    }

    pub(crate) fn is_sabotaged(&self) -> bool {
        self.sabotage.is_some()
    }

    /// Waits until the extender knows every node. From then on the checker allows no pod on those that it rejects.
    ///
    /// # Errors
    /// When that does not come about.
    pub(crate) async fn start(&self) -> anyhow::Result<()> {
        self.cluster.wait_until("every node is annotated", Cluster::is_annotated).await?;
        let probe = ExtenderProbe::new(&self.cluster)?;
        probe.knows_every_node().await?;
        for node in probe.rejected_by_load().await? {
            self.observer.checker().extender_rejects(&node);
        }
        Ok(())
    }

    /// Pods come and go for as long as every program runs.
    ///
    /// # Errors
    /// When a program has ended.
    pub(crate) async fn go_on(&self) -> anyhow::Result<()> {
        self.say(&endless_caption(&self.cluster.kubeconfig()));
        for round in 0_usize.. {
            self.cluster.check_programs()?;
            let size = 1 + (round as u64 * 5) % LARGEST;
            self.make_room(round, size);
            let name = format!("job-{round}");
            match round % 3 {
                0 => self.create(plain(&name)),
                _ => self.create(gpu(&name, &[size])),
            }
            match round % 16 {
                6 => self.cluster.loads.set_cpu("cpu-3", 0.97),
                14 => self.cluster.loads.set_cpu("cpu-3", 0.4),
                _ => {}
            }
            sleep(IDLE_STEP).await;
        }
        Ok(())
    }

    /// Deletes one pod where more than 30 run, then GPU pods until another one of this size fits.
    fn make_room(&self, round: usize, size: u64) {
        let running = self.names(is_running);
        if running.len() > 30 {
            self.delete_one(round, &running);
        }
        while self.held_units() + size > HELD {
            if !self.delete_one(round, &self.names(|pod| is_running(pod) && asks_gpu(pod))) {
                break;
            }
        }
    }

    /// Deletes one of these pods. Whether there was one.
    fn delete_one(&self, round: usize, names: &[String]) -> bool {
        // Steps of a prime number reach old and young, large and small pods.
        let Some(name) = names.get(round * 7 % names.len().max(1)) else { return false };
        self.delete(name);
        true
    }

    /// The units of GPU memory that pods hold, without the pod that never fits.
    fn held_units(&self) -> u64 {
        self.cluster.pods().iter().filter(|pod| name(pod) != BIG_POD).map(peak_units).sum()
    }

    /// Waits until every pod runs, except the one that cannot.
    async fn all_run(&self) -> anyhow::Result<()> {
        let none_waits = self
            .cluster
            .wait_until("every pod that fits runs", |cluster| !cluster.pods().iter().any(waits));
        let result = none_waits.await;
        result.with_context(|| format!("not running: {}", self.names(waits).join(", ")))?;
        match self.names(has_failed) {
            // The checker counts what comes of a sabotage.
            refused if !refused.is_empty() && self.sabotage.is_none() => {
                bail!("refused by the kubelet: {}", refused.join(", "))
            }
            _ => Ok(()),
        }
    }

    /// Waits until a node's device plugin reports exactly the pods whose claims are on the node's GPUs.
    async fn records_match_claims(&self, node: &str) -> anyhow::Result<()> {
        // A pod that was bound past the ledger holds other devices than it claims.
        if self.sabotage == Some(Sabotage::Ledger) {
            return Ok(());
        }
        let what = format!("{node}'s plugin reports the pods that claim its GPUs");
        self.cluster.wait_until(&what, |cluster| cluster.records_match_claims(node)).await
    }

    /// Creates pods one after another.
    async fn stream(&self, pods: impl Iterator<Item = Value>) {
        for pod in pods {
            self.create(pod);
            sleep(self.pace.step).await;
        }
    }

    fn create(&self, pod: Value) {
        self.created().insert(name(&pod).to_owned());
        self.cluster.sim.put(pod);
    }

    // A panic cannot leave a change half done: each is a single insertion.
    pub(crate) fn created(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delete(&self, pod: &str) {
        self.cluster.sim.delete(PODS, "default", pod);
    }

    fn say(&self, caption: &str) {
        self.caption.send_replace(caption.to_owned());
    }

    async fn pause(&self) {
        sleep(self.pace.pause).await;
    }

    /// The names of the selected pods.
    fn names(&self, selected: impl Fn(&Value) -> bool) -> Vec<String> {
        let pods = self.cluster.pods();
        let names: BTreeSet<&str> = pods.iter().filter(|pod| selected(pod)).map(name).collect();
        names.into_iter().map(str::to_owned).collect()
    }
}

fn has_failed(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed"
}

/// Whether a pod that fits on some node does not run yet.
fn waits(pod: &Value) -> bool {
    !is_running(pod) && !has_failed(pod) && name(pod) != BIG_POD
}

/// The caption after the steps.
fn endless_caption(kubeconfig: &Path) -> String {
    format!("KUBECONFIG={} (pods come and go until Ctrl-C)", kubeconfig.display())
}

/// Whether the big pod waits for a GPU, and not just for room.
fn big_pod_waits_for_a_gpu(cluster: &Cluster) -> bool {
    why_big_pod_waits(cluster).contains("GPU Memory in one device")
}

/// What the big pod says it waits for; empty where it says nothing.
fn why_big_pod_waits(cluster: &Cluster) -> String {
    let pods = cluster.pods();
    let big = pods.iter().find(|pod| name(pod) == BIG_POD);
    big.map(|pod| waiting_reason(pod).to_owned()).unwrap_or_default()
}
