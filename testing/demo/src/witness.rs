//! Looks on while the demo runs: feeds the judge, and makes the pictures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sim::kubelet::ProcessEvent;
use sim::scheduler::Decision;
use sim::{NODES, PODS, Seen};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::alone::Alone;
use crate::checker::Checker;
use crate::screen::Picture;
use crate::story::{Decisions, Letters, scene};
use crate::world::{Wires, World};

/// What is learned while the demo runs.
pub(crate) struct Notes {
    checker: Mutex<Checker>,
    decisions: Mutex<Decisions>,
    letters: Mutex<Letters>,
    /// kube-scheduler by itself.
    pub(crate) alone: Alone,
}

impl Notes {
    pub(crate) fn new(world: &World, alone: Alone) -> Self {
        let checker = Mutex::new(Checker::new(world.loads.clone()));
        Self { checker, decisions: Mutex::new(BTreeMap::new()), letters: Mutex::default(), alone }
    }

    pub(crate) fn checker(&self) -> MutexGuard<'_, Checker> {
        self.checker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decisions(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows everything that the notes are made of; `alone` is what [`Notes::alone`] decides.
pub(crate) fn look_on(
    world: &Arc<World>,
    notes: &Arc<Notes>,
    wires: Wires,
    alone: UnboundedReceiver<Decision>,
) -> Vec<JoinHandle<()>> {
    let loads = world.loads.clone();
    vec![
        // A disk that is full shows as loads that stand still.
        tokio::spawn(async { drop(loads.advance_forever().await) }),
        tokio::spawn(follow_pods(world.clone(), notes.clone())),
        tokio::spawn(follow_nodes(world.clone(), notes.clone())),
        tokio::spawn(follow_processes(world.clone(), notes.clone(), wires.processes)),
        tokio::spawn(follow_decisions(notes.clone(), wires.decisions)),
        tokio::spawn(follow_alone(notes.clone(), alone)),
    ]
}

async fn follow_pods(world: Arc<World>, notes: Arc<Notes>) {
    let mut pods = world.sim.follow(PODS);
    loop {
        for seen in pods.next().await {
            match seen {
                Seen::Applied(pod) => {
                    notes.checker().pod_applied(&pod, Instant::now());
                    notes.alone.pod_applied(&pod);
                }
                Seen::Gone(pod) => {
                    notes.checker().pod_gone(&pod);
                    notes.alone.pod_gone(&pod);
                }
            }
        }
    }
}

async fn follow_nodes(world: Arc<World>, notes: Arc<Notes>) {
    let mut nodes = world.sim.follow(NODES);
    loop {
        for seen in nodes.next().await {
            if let Seen::Applied(node) = seen {
                notes.checker().node_applied(&node, Instant::now());
                notes.alone.node_applied(&node);
            }
        }
    }
}

async fn follow_processes(
    world: Arc<World>,
    notes: Arc<Notes>,
    mut events: UnboundedReceiver<ProcessEvent>,
) {
    while let Some(event) = events.recv().await {
        let pod = match &event {
            ProcessEvent::Started(process) => world.sim.pod("default", &process.pod),
            ProcessEvent::Ended { .. } => None,
        };
        notes.checker().process(&event, pod.as_ref());
    }
}

async fn follow_decisions(notes: Arc<Notes>, mut decisions: UnboundedReceiver<Decision>) {
    while let Some(decision) = decisions.recv().await {
        notes.checker().decided(&decision);
        notes.decisions().insert(decision.uid.clone(), decision);
    }
}

async fn follow_alone(notes: Arc<Notes>, mut decisions: UnboundedReceiver<Decision>) {
    while let Some(decision) = decisions.recv().await {
        notes.alone.decided(&decision);
    }
}

/// What is to be seen now.
pub(crate) fn picture(
    world: &World,
    notes: &Notes,
    captions: &watch::Receiver<String>,
    start: Instant,
) -> Picture {
    let (decisions, choices) = (notes.decisions(), notes.alone.choices());
    let mut letters = notes.letters.lock().unwrap_or_else(PoisonError::into_inner);
    let now = jiff::Timestamp::now();
    Picture {
        seconds: start.elapsed().as_secs(),
        caption: captions.borrow().clone(),
        scene: scene(
            &world.sim.list(NODES),
            &world.pods(),
            (&decisions, &choices),
            &mut letters,
            now,
        ),
        tally: notes.checker().tally(),
    }
}
