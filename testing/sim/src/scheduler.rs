//! A driver that speaks kube-scheduler's side of the extender protocol, as v1.36 does.
//!
//! One pod at a time: taints, affinity and fit by node totals, each extender's Filter on what is left,
//! Prioritize, choice, assume; then Bind on its own, so that the next pod's Filter as a rule comes before
//! the last pod's Bind has ended. Invariants: a pod is in exactly one place (active, waiting, or being
//! bound), and an assumed pod counts on its node until its binding is seen or has failed.
//!
//! Left out, since nothing here needs it: preemption, affinity to pods, preferred affinity, volumes,
//! nominated nodes.

mod binding;
mod cache;
mod config;
mod cycle;
mod eligible;
mod event;
mod extender;
mod fit;
mod queue;
mod reason;

use std::io;
use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;

pub use config::{ConfigError, Extender, Profile, SchedulerConfig};
pub use cycle::{Candidate, Decision, Verdict};

use crate::Sim;
use crate::follow::{Follow, News};
use crate::kind::{NODES, PODS};
use cycle::Core;

/// A running scheduler. Dropping it ends it, bindings under way included.
#[derive(Debug)]
pub struct Scheduler {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Scheduler {
    /// Starts one over the objects of `sim`. What it decides, it tells the receiver.
    ///
    /// # Errors
    /// When no HTTP client can be had.
    pub fn start(
        sim: &Sim,
        config: SchedulerConfig,
    ) -> io::Result<(Self, UnboundedReceiver<Decision>)> {
        let (decisions, received) = mpsc::unbounded_channel();
        let core = Arc::new(Core::new(sim.api.clone(), config, decisions)?);
        let tasks = vec![
            tokio::spawn(follow_pods(core.clone())),
            tokio::spawn(follow_nodes(core.clone())),
            tokio::spawn(core.schedule_forever()),
        ];
        Ok((Self { tasks }, received))
    }
}

async fn follow_pods(core: Arc<Core>) {
    let mut follow = Follow::new(&core.api.store, PODS);
    loop {
        match follow.next().await {
            News::All(pods) => pods.iter().for_each(|pod| core.pod_applied(None, pod)),
            News::Changes(changes) => {
                for change in changes {
                    match &change.after {
                        Some(pod) => core.pod_applied(change.before.as_deref(), pod),
                        None => core.pod_gone(&change.last),
                    }
                }
            }
        }
    }
}

async fn follow_nodes(core: Arc<Core>) {
    let mut follow = Follow::new(&core.api.store, NODES);
    loop {
        match follow.next().await {
            News::All(_) => core.queue.nodes_changed(true),
            News::Changes(changes) => {
                for change in changes {
                    core.queue.nodes_changed(changes_room(&change));
                }
            }
        }
    }
}

/// Whether a change of a node bears on what fits there; an annotation alone does not.
fn changes_room(change: &crate::store::Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    before["spec"] != after["spec"]
        || before["metadata"]["labels"] != after["metadata"]["labels"]
        || before["status"]["allocatable"] != after["status"]["allocatable"]
        || before["status"]["conditions"] != after["status"]["conditions"]
}
