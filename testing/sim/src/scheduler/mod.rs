//! A stand-in for kube-scheduler v1.36, as far as extenders can tell.
//!
//! One pod at a time: taints, affinity and free resources, then each extender's Filter on the nodes that are left,
//! Prioritize, and the choice. The chosen node is assumed, and the binding runs beside the next pods' cycles: so the
//! next Filter as a rule comes before the last Bind has ended. Where no node is left, preemption looks for pods to
//! evict.
//!
//! Invariants: a pod is in exactly one place (active, waiting, or being bound), and an assumed pod counts on its node
//! until its binding is seen or has failed.
//!
//! Left out: affinity to pods, preferred affinity, volumes, and room that is kept for nominated pods.

mod binding;
mod cache;
mod config;
mod core;
mod cycle;
mod decision;
mod extender;
mod filters;
mod pod;
mod preemption;
mod queue;
mod report;

use std::io;
use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;

pub use config::{ConfigError, Extender, ManagedResource, Profile, SchedulerConfig};
pub use decision::{Candidate, Decision, Verdict};

use self::core::Core;
use crate::Sim;
use crate::objects::follow::{Follower, Update};
use crate::objects::kind::{NODES, PODS};
use crate::objects::store::Change;

/// A running scheduler. Dropping it ends it, together with the bindings that are under way.
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
    /// Starts one on the objects of `sim`. The receiver gets every decision.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
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
    let mut pods = Follower::new(&core.api.store, PODS);
    loop {
        match pods.next().await {
            Update::All(pods) => pods.iter().for_each(|pod| core.pod_applied(None, pod)),
            Update::Changes(changes) => {
                for change in changes {
                    match &change.after {
                        Some(pod) => core.pod_applied(change.before.as_deref(), pod),
                        None => core.pod_deleted(&change.last),
                    }
                }
            }
        }
    }
}

async fn follow_nodes(core: Arc<Core>) {
    let mut nodes = Follower::new(&core.api.store, NODES);
    loop {
        match nodes.next().await {
            Update::All(_) => core.queue.nodes_changed(true),
            Update::Changes(changes) => {
                changes.iter().for_each(|change| core.queue.nodes_changed(may_make_room(change)));
            }
        }
    }
}

/// Whether a node's change bears on kube-scheduler's own filters. An annotation alone does not.
fn may_make_room(change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    before["spec"] != after["spec"]
        || before["metadata"]["labels"] != after["metadata"]["labels"]
        || before["status"]["allocatable"] != after["status"]["allocatable"]
        || before["status"]["conditions"] != after["status"]["conditions"]
}
