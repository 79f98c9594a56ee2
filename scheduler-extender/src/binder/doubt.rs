//! Settling what no watch event will: bindings whose outcome is unknown, and pods that a list has left out.
//!
//! Invariant: the reservation stays until the pod is seen bound, is gone, or is still unbound when
//! nothing sent can be on its way any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attempt::Found;
use super::{Binder, Target};
use crate::view::GpuPodId;

/// Between the first two readings of a pod.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// Between two readings of a pod, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// For one reading.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Reads the pod until the binding's outcome is known, or a later doubt about the same binding takes over.
pub(super) async fn settle(binder: Arc<Binder>, target: Target, since: Instant) {
    let key = target.key();
    let mut pause = Pause(SHORTEST_PAUSE);
    while binder.doubt(&key) == Some(since) && !is_settled(&binder, &target, since).await {
        pause.wait().await;
    }
    binder.end_doubt(&key, since);
    binder.view.tell_requests(&target.node);
    binder.look_up_if_doubtful(&target.pod);
}

async fn is_settled(binder: &Binder, target: &Target, since: Instant) -> bool {
    let uid = &target.pod.uid;
    if !binder.view.cards.is_reserved(uid, &target.node) {
        // The watch, or another attempt, has settled it.
        return true;
    }
    match binder.read(&target.pod, READ_LIMIT).await {
        Found::NoAnswer(_) => false,
        Found::Pod(facts) if facts.uid == *uid && facts.node.is_none() => {
            has_expired(binder, target, since)
        }
        Found::Pod(facts) if facts.uid == *uid => {
            binder.take_over(&facts);
            true
        }
        Found::Pod(_) | Found::Nothing => {
            binder.view.cards.depart(uid, (binder.clock)());
            true
        }
    }
}

/// Gives the reservation back once no request that was sent can still be carried out.
fn has_expired(binder: &Binder, target: &Target, since: Instant) -> bool {
    if since.elapsed() <= binder.limits.flight {
        return false;
    }
    let attempts = binder.attempts();
    // Held while giving back: an attempt that begins now finds the reservation either whole or gone.
    if attempts.running.contains_key(&target.key()) {
        return false;
    }
    binder.view.cards.cancel(&target.pod.uid, &target.node);
    true
}

/// Reads pods that may have ended without an event, until the API server has answered for each.
pub(super) async fn look_up(binder: Arc<Binder>, pods: Vec<GpuPodId>) {
    for pod in pods {
        let mut pause = Pause(SHORTEST_PAUSE);
        while !is_looked_up(&binder, &pod).await {
            pause.wait().await;
        }
    }
}

/// The pause before the next reading of a pod. Each is twice as long as the one before.
struct Pause(Duration);

impl Pause {
    async fn wait(&mut self) {
        sleep(self.0).await;
        self.0 = LONGEST_PAUSE.min(self.0 * 2);
    }
}

async fn is_looked_up(binder: &Binder, pod: &GpuPodId) -> bool {
    binder.view.cards.begin_look_up(&pod.uid);
    match binder.read(pod, READ_LIMIT).await {
        Found::NoAnswer(_) => return false,
        Found::Pod(facts) if facts.uid == pod.uid => binder.take_over(&facts),
        Found::Pod(_) | Found::Nothing => binder.view.cards.depart(&pod.uid, (binder.clock)()),
    }
    true
}
