//! Reads pods whose state no watch event may show: bindings in doubt, and pods that a list did not have.
//!
//! Invariant: the reservation stays until the pod is bound, is deleted, or is still unbound when
//! no request for it can be carried out any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attempt::PodLookup;
use super::{Binder, Target};
use crate::view::GpuPodId;

/// The pause between the first two reads of a pod.
const MIN_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause between two reads of a pod.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The timeout of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the pod until the binding's outcome is known, or a later attempt of the same binding has ended in doubt.
pub(super) async fn settle(binder: Arc<Binder>, target: Target, since: Instant) {
    let key = target.key();
    let mut pause = Pause(MIN_PAUSE);
    while binder.in_doubt_since(&key) == Some(since) && !is_settled(&binder, &target, since).await {
        pause.wait().await;
    }
    binder.end_doubt(&key, since);
    binder.look_up_if_doubtful(&target.pod);
}

async fn is_settled(binder: &Binder, target: &Target, since: Instant) -> bool {
    let uid = &target.pod.uid;
    if !binder.view.ask(|index| index.is_reserved(uid, &target.node)) {
        // The watch, or another attempt, has settled it.
        return true;
    }
    match binder.read(&target.pod, READ_TIMEOUT).await {
        PodLookup::Failed(_) => false,
        PodLookup::Pod(facts) if facts.uid == *uid && facts.node.is_none() => {
            has_expired(binder, target, since)
        }
        PodLookup::Pod(facts) if facts.uid == *uid => {
            binder.take_over(&facts);
            true
        }
        PodLookup::Pod(_) | PodLookup::NotFound => {
            binder.view.change(|index| index.depart(uid, (binder.clock)()));
            true
        }
    }
}

/// Releases the reservation once the API server can no longer carry out a request that was sent.
fn has_expired(binder: &Binder, target: &Target, since: Instant) -> bool {
    if since.elapsed() <= binder.limits.request_lifetime {
        return false;
    }
    let attempts = binder.attempts();
    // `attempts` stays locked during the release, so that a new attempt finds the reservation complete or released.
    if attempts.running.contains_key(&target.key()) {
        return false;
    }
    binder.view.change(|index| index.cancel(&target.pod.uid, &target.node));
    true
}

/// Reads pods that may have ended without a watch event, until the API server has answered for each.
pub(super) async fn look_up(binder: Arc<Binder>, pods: Vec<GpuPodId>) {
    for pod in pods {
        let mut pause = Pause(MIN_PAUSE);
        while !is_looked_up(&binder, &pod).await {
            pause.wait().await;
        }
    }
}

/// The pause before the next read of a pod. It doubles each time.
struct Pause(Duration);

impl Pause {
    async fn wait(&mut self) {
        sleep(self.0).await;
        self.0 = MAX_PAUSE.min(self.0 * 2);
    }
}

async fn is_looked_up(binder: &Binder, pod: &GpuPodId) -> bool {
    binder.view.change(|index| index.begin_look_up(&pod.uid));
    match binder.read(pod, READ_TIMEOUT).await {
        PodLookup::Failed(_) => return false,
        PodLookup::Pod(facts) if facts.uid == pod.uid => binder.take_over(&facts),
        PodLookup::Pod(_) | PodLookup::NotFound => {
            binder.view.change(|index| index.depart(&pod.uid, (binder.clock)()))
        }
    }
    true
}
