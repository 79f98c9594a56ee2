//! Follows the cluster while the demo runs: feeds checker and baseline, and takes snapshots for the view.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;
use sim::kubelet::ProcessEvent;
use sim::scheduler::{Decision, Verdict};
use sim::{NODES, ObjectEvent, PODS};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::baseline::Baseline;
use crate::checker::Checker;
use crate::cluster::{Cluster, EventStreams, Explainer};
use crate::model::objects::{list, uid};
use crate::view::{Decided, Decisions, Rejections, Snapshot, SnapshotInputs};

/// What was learned since the start.
pub(crate) struct Observer {
    checker: Mutex<Checker>,
    decisions: Mutex<Decisions>,
    pub(crate) baseline: Baseline,
}

impl Observer {
    pub(crate) fn new(cluster: &Cluster, baseline: Baseline) -> Self {
        let checker = Mutex::new(Checker::new(cluster.loads.clone()));
        Self { checker, decisions: Mutex::new(BTreeMap::new()), baseline }
    }

    // Checker and decisions stay usable after a panic: a finding is added last.
    pub(crate) fn checker(&self) -> MutexGuard<'_, Checker> {
        self.checker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decisions(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the checker has seen everything that has happened to the present pods, and both schedulers' decisions
    /// about them are known.
    pub(crate) fn is_up_to_date(&self, cluster: &Cluster) -> bool {
        let pods = cluster.pods();
        let checker = self.checker();
        let choices = self.baseline.choices();
        let decisions = self.decisions();
        pods.iter().all(|pod| {
            checker.has_seen(pod)
                && choices.contains_key(uid(pod))
                && (!was_scheduled(pod) || decisions.contains_key(uid(pod)))
        })
    }

    /// What is to be shown now.
    pub(crate) fn snapshot(
        &self,
        cluster: &Cluster,
        captions: &watch::Receiver<String>,
        start: Instant,
    ) -> Snapshot {
        let decisions = self.decisions();
        let choices = self.baseline.choices();
        let now = jiff::Timestamp::now();
        let nodes = cluster.sim.list(NODES);
        let pods = cluster.pods();
        let inputs = SnapshotInputs {
            nodes: &nodes,
            pods: &pods,
            decisions: &decisions,
            choices: &choices,
            policy: cluster.loads.policy(),
            now,
        };
        let mut snapshot = Snapshot::new(&inputs);
        snapshot.seconds = start.elapsed().as_secs();
        snapshot.caption.clone_from(&captions.borrow());
        snapshot.counts = self.checker().counts();
        snapshot.page = cluster.page();
        snapshot
    }
}

/// Starts the tasks that feed `observer`, and the one that advances the nodes' loads. `baseline` yields what the
/// baseline's scheduler decides.
pub(crate) fn spawn(
    cluster: &Arc<Cluster>,
    observer: &Arc<Observer>,
    events: EventStreams,
    baseline: UnboundedReceiver<Decision>,
) -> Vec<JoinHandle<()>> {
    let loads = cluster.loads.clone();
    vec![
        // When the disk is full, the loads stand still, and the log shows it.
        tokio::spawn(async { drop(loads.advance_forever().await) }),
        tokio::spawn(follow_objects(cluster.clone(), observer.clone())),
        tokio::spawn(follow_processes(cluster.clone(), observer.clone(), events.processes)),
        tokio::spawn(follow_decisions(cluster.clone(), observer.clone(), events.decisions)),
        tokio::spawn(follow_baseline(observer.clone(), baseline)),
    ]
}

/// One task for nodes and pods: a pod's change is checked after all changes of nodes that came before it.
async fn follow_objects(cluster: Arc<Cluster>, observer: Arc<Observer>) {
    let mut nodes = cluster.sim.follow(NODES);
    let mut pods = cluster.sim.follow(PODS);
    loop {
        tokio::select! {
            events = nodes.next() => events.iter().for_each(|event| observer.node_event(event)),
            events = pods.next() => {
                nodes.pending().iter().for_each(|event| observer.node_event(event));
                events.iter().for_each(|event| observer.pod_event(event));
            }
        }
    }
}

/// Whether the scheduler has tried to place the pod. The sabotage `ledger` binds one without it.
fn was_scheduled(pod: &Value) -> bool {
    list(&pod["status"]["conditions"]).any(|condition| condition["type"] == "PodScheduled")
}

impl Observer {
    fn node_event(&self, event: &ObjectEvent) {
        if let ObjectEvent::Applied(node) = event {
            self.checker().node_applied(node, Instant::now());
            self.baseline.node_applied(node);
        }
    }

    fn pod_event(&self, event: &ObjectEvent) {
        match event {
            ObjectEvent::Applied(pod) => {
                self.checker().pod_applied(pod, Instant::now());
                self.baseline.pod_applied(pod);
            }
            ObjectEvent::Deleted(pod) => {
                self.checker().pod_deleted(pod);
                self.baseline.pod_deleted(pod);
            }
        }
    }
}

async fn follow_processes(
    cluster: Arc<Cluster>,
    observer: Arc<Observer>,
    mut events: UnboundedReceiver<ProcessEvent>,
) {
    while let Some(event) = events.recv().await {
        let pod = match &event {
            ProcessEvent::Started(process) => cluster.sim.pod("default", &process.pod),
            ProcessEvent::Ended { .. } => None,
        };
        observer.checker().process(&event, pod.as_ref());
    }
}

/// Asks the extender at once why it has rejected nodes. Its answer is of a moment later than the decision; a node that
/// it no longer rejects by then is counted without a cause.
async fn follow_decisions(
    cluster: Arc<Cluster>,
    observer: Arc<Observer>,
    mut decisions: UnboundedReceiver<Decision>,
) {
    // Without a client no rejection has a cause, and the log shows that.
    let explainer = Explainer::new(&cluster).ok();
    while let Some(decision) = decisions.recv().await {
        observer.checker().decided(&decision);
        let nodes = rejected_nodes(&decision);
        let explanation = match (&explainer, cluster.sim.pod("default", &decision.pod)) {
            (Some(explainer), Some(pod)) if !nodes.is_empty() => {
                explainer.explain(&pod, &nodes).await.ok()
            }
            _ => None,
        };
        let rejections = Rejections::new(nodes.len(), explanation.as_ref());
        let uid = decision.uid.clone();
        observer.decisions().insert(uid, Decided { decision, rejections });
    }
}

/// The nodes that an extender has rejected.
fn rejected_nodes(decision: &Decision) -> Vec<&str> {
    let candidates = decision
        .candidates
        .iter()
        .filter(|candidate| matches!(candidate.verdict, Verdict::Rejected { .. }));
    candidates.map(|candidate| candidate.node.as_str()).collect()
}

async fn follow_baseline(observer: Arc<Observer>, mut decisions: UnboundedReceiver<Decision>) {
    while let Some(decision) = decisions.recv().await {
        observer.baseline.decided(&decision);
    }
}
