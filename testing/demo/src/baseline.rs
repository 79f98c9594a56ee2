//! What kube-scheduler does by itself: a second cluster inside this process has the same nodes and gets the same pods,
//! and its scheduler has no extenders. Each of its choices counts for its next one, as requests and GPU memory do.
//!
//! No pod runs there, and its scheduler knows no GPUs. Whether a pod would have had a GPU is computed here, in
//! kube-scheduler's favour: each pod takes the fullest GPU that has room, and one that finds none takes nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sim::scheduler::{Decision, Scheduler, SchedulerConfig};
use sim::{PODS, Sim};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::model::loads::Loads;
use crate::model::nodes::{self, GPU_UNITS};
use crate::model::objects::{annotated_load, is_daemon, name, peak_units, text, uid};

/// The node that each pod would be on, by the pod's UID; `None` where no node takes it.
pub(crate) type Choices = BTreeMap<String, Option<Choice>>;

/// A node, as it was when it was chosen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub(crate) node: String,
    /// Its CPU load, as a fraction.
    pub(crate) cpu: Option<f64>,
    /// Why the pod should not be there.
    pub(crate) problem: Option<Problem>,
}

/// Why a pod should not be on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    CpuOverloaded,
    MemoryOverloaded,
    NoGpu,
}

/// The second cluster. Dropping it ends it.
pub(crate) struct Baseline {
    sim: Sim,
    _scheduler: Scheduler,
    loads: Loads,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    choices: Choices,
    gpus: Gpus,
}

impl Baseline {
    /// Starts it without nodes and pods. The receiver yields what its scheduler decides, for [`Self::decided`].
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) async fn start(loads: Loads) -> io::Result<(Self, UnboundedReceiver<Decision>)> {
        let sim = Sim::start().await?;
        let (scheduler, decisions) = Scheduler::start(&sim, SchedulerConfig::default())?;
        Ok((Self { sim, _scheduler: scheduler, loads, state: Mutex::default() }, decisions))
    }

    /// Copies a node that was created or changed.
    pub(crate) fn node_applied(&self, node: &Value) {
        self.sim.put(node.clone());
    }

    /// Copies a pod that was created. Later changes come from the other cluster's scheduler and kubelets, and are
    /// left out. A pod that was created on a node is nothing to choose for.
    pub(crate) fn pod_applied(&self, pod: &Value) {
        if self.pod(uid(pod)).is_none() {
            if !text(&pod["spec"]["nodeName"]).is_empty() {
                self.state().choices.insert(uid(pod).to_owned(), None);
            }
            self.sim.put(pod.clone());
        }
    }

    /// Deletes a pod.
    pub(crate) fn pod_deleted(&self, pod: &Value) {
        self.sim.delete(PODS, text(&pod["metadata"]["namespace"]), name(pod));
        self.state().gpus.release(uid(pod));
    }

    /// Takes note of what its scheduler has decided.
    pub(crate) fn decided(&self, decision: &Decision) {
        let Some(pod) = self.pod(&decision.uid) else { return };
        let choice = decision.outcome.as_ref().ok().map(|node| self.choice(&pod, node));
        self.state().choices.insert(decision.uid.clone(), choice);
    }

    /// Every choice so far.
    pub(crate) fn choices(&self) -> Choices {
        self.state().choices.clone()
    }

    fn choice(&self, pod: &Value, node: &str) -> Choice {
        let (cpu, memory) = self.load(node);
        let over = self.loads.policy().limits().exceeded_by(cpu, memory);
        let has_gpu = self.state().gpus.take(uid(pod), node, peak_units(pod));
        let problem = if is_daemon(pod) {
            // A DaemonSet's pod has no other node.
            None
        } else if over.cpu {
            Some(Problem::CpuOverloaded)
        } else if over.memory {
            Some(Problem::MemoryOverloaded)
        } else if has_gpu {
            None
        } else {
            Some(Problem::NoGpu)
        };
        Choice { node: node.to_owned(), cpu, problem }
    }

    /// CPU and memory load of a node: the truth, or for the node that is this machine its annotations.
    fn load(&self, node: &str) -> (Option<f64>, Option<f64>) {
        let object = self.sim.node(node).unwrap_or_default();
        match self.loads.now(node) {
            Some(load) => (Some(load.cpu), Some(load.memory)),
            None => annotated_load(&object),
        }
    }

    fn pod(&self, wanted: &str) -> Option<Value> {
        self.sim.list(PODS).into_iter().find(|pod| uid(pod) == wanted)
    }

    // A panic cannot leave a change half done: each is a single insertion or removal.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Node, GPU and units of each pod, by UID.
#[derive(Debug, Default)]
struct Gpus(BTreeMap<String, (String, usize, u64)>);

impl Gpus {
    /// Puts a pod on the fullest GPU that has room. Returns whether there was one.
    fn take(&mut self, uid: &str, node: &str, units: u64) -> bool {
        let gpus = nodes::find(node).map_or(0, |(_, plan)| plan.gpus);
        let free = (0..gpus).map(|gpu| (GPU_UNITS.saturating_sub(self.used(node, gpu)), gpu));
        let fullest = free.filter(|(free, _)| *free >= units).min().map(|(_, gpu)| gpu);
        if let Some(gpu) = fullest {
            self.0.insert(uid.to_owned(), (node.to_owned(), gpu, units));
        }
        fullest.is_some() || units == 0
    }

    fn used(&self, node: &str, gpu: usize) -> u64 {
        let here = self.0.values().filter(|(on, index, _)| on == node && *index == gpu);
        here.map(|(.., units)| units).sum()
    }

    fn release(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}
