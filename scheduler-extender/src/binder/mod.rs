//! Binding a pod: reserve a card, send one binding, and find out what became of it.
//!
//! Invariants: a binding once begun goes on whether or not a caller still waits for it; one pod and
//! node is bound by one task at a time, which every further call joins; the answer is success only
//! where the API server shows the pod on that node; nothing is sent where another replica may give out cards
//! ([`crate::replicas`]); a reservation is given back only when the
//! binding it was made for surely failed.

mod attempt;
mod doubt;
mod error;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{CallError, Client, Pod, get_pod};
use placement::names::Names;
use placement::units::{NodeName, PodUid};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::Clock;
use crate::metrics::Metrics;
use crate::replicas::Replicas;
use crate::view::{GpuPodId, View};

pub use error::BindError;

/// Bindings sent at once. kube-scheduler asks for up to 478 (measured at 20 nodes), each answered in
/// about 1.4 ms; more connections than this make them slower, not faster.
const AT_ONCE: usize = 64;

/// Which pod goes where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The pod.
    pub pod: GpuPodId,
    /// The node.
    pub node: NodeName,
}

/// How long things take at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From a call to its answer.
    pub answer: Duration,
    /// After which nothing that was sent can still be carried out.
    pub flight: Duration,
}

impl Limits {
    /// With the flight that an API server allows: it gives up on a request after 60 s
    /// (`--request-timeout`).
    #[must_use]
    pub fn answering_within(answer: Duration) -> Self {
        Self { answer, flight: Duration::from_secs(65) }
    }
}

impl Target {
    fn key(&self) -> Key {
        (self.pod.uid.clone(), self.node.clone())
    }
}

/// How a binding ended.
pub type Outcome = Result<(), BindError>;

type Key = (PodUid, NodeName);

/// Binds pods.
pub struct Binder {
    client: Client,
    names: Arc<Names>,
    view: Arc<View>,
    metrics: Metrics,
    clock: Clock,
    limits: Limits,
    replicas: Arc<Replicas>,
    permits: Semaphore,
    attempts: Mutex<Attempts>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Attempts {
    /// Under way, with a channel that will carry the outcome.
    running: HashMap<Key, watch::Receiver<Option<Outcome>>>,
    /// Ended without certainty, and when the last of them did.
    doubtful: HashMap<Key, Instant>,
}

impl Binder {
    /// The API server's client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A binder that knows nothing under way.
    #[must_use]
    pub fn new(
        client: Client,
        names: Arc<Names>,
        view: Arc<View>,
        metrics: Metrics,
        clock: Clock,
        limits: Limits,
        replicas: Arc<Replicas>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            names,
            view,
            metrics,
            clock,
            limits,
            replicas,
            permits: Semaphore::new(AT_ONCE),
            attempts: Mutex::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Binds a pod, or waits for the attempt that is under way. Answers within the limit; the attempt
    /// goes on where that is too short.
    ///
    /// # Errors
    ///
    /// Why the pod is not bound, or not known to be.
    pub async fn bind(self: &Arc<Self>, target: Target) -> Outcome {
        let deadline = Instant::now() + self.limits.answer;
        let mut outcome = self.join_or_start(target, deadline);
        let ended = timeout_at(deadline, outcome.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Err(BindError::Lost)),
            Ok(Err(_)) => Err(BindError::Lost),
            Err(_) => Err(BindError::Slow(self.limits.answer)),
        }
    }

    /// Reads a pod by its name; `None` where there is none of that name.
    ///
    /// # Errors
    ///
    /// Where the API server refuses or does not answer within `limit`.
    pub async fn find_pod(
        &self,
        namespace: &str,
        name: &str,
        limit: Duration,
    ) -> Result<Option<Pod>, CallError> {
        get_pod(&self.client, namespace, name, limit).await
    }

    /// Has the API server show what became of pods that a list of all pods has left out, and takes that over. Tries
    /// until it answers.
    pub fn look_up(self: &Arc<Self>, pods: Vec<GpuPodId>) {
        if !pods.is_empty() {
            self.tasks.spawn(doubt::look_up(Arc::clone(self), pods));
        }
    }

    /// For the end of a binding, in whatever way: a list may have left the pod out meanwhile.
    fn look_up_if_doubtful(self: &Arc<Self>, pod: &GpuPodId) {
        if self.view.cards.is_doubtful(&pod.uid) {
            self.look_up(vec![pod.clone()]);
        }
    }

    /// Waits until no binding and no look-up is under way. New ones may still be begun.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn join_or_start(
        self: &Arc<Self>,
        target: Target,
        deadline: Instant,
    ) -> watch::Receiver<Option<Outcome>> {
        let key = target.key();
        let mut attempts = self.attempts();
        if let Some(running) = attempts.running.get(&key) {
            self.metrics.bind("joined");
            return running.clone();
        }
        let (sender, receiver) = watch::channel(None);
        attempts.running.insert(key.clone(), receiver.clone());
        drop(attempts);
        let binder = Arc::clone(self);
        self.tasks.spawn(async move {
            let outcome = binder.attempt(&target, deadline).await;
            binder.end(&target, key, &outcome);
            // Every receiver may be gone: the callers have timed out.
            let _ = sender.send(Some(outcome.clone()));
            // The caller need not wait for the log.
            tokio::task::yield_now().await;
            log(&target, &outcome);
        });
        receiver
    }

    fn end(self: &Arc<Self>, target: &Target, key: Key, outcome: &Outcome) {
        let label = outcome.as_ref().map_or_else(BindError::label, |()| "bound");
        self.metrics.bind(label);
        // The reservation has become a binding or is given back, or stays until its doubt ends.
        self.view.tell_requests(&target.node);
        self.look_up_if_doubtful(&target.pod);
        let mut attempts = self.attempts();
        attempts.running.remove(&key);
        if matches!(outcome, Err(BindError::InDoubt(_))) {
            let since = Instant::now();
            attempts.doubtful.insert(key, since);
            drop(attempts);
            self.tasks.spawn(doubt::settle(Arc::clone(self), target.clone(), since));
        }
    }

    /// Since when the binding has been in doubt.
    fn doubt(&self, key: &Key) -> Option<Instant> {
        self.attempts().doubtful.get(key).copied()
    }

    fn end_doubt(&self, key: &Key, since: Instant) {
        let mut attempts = self.attempts();
        if attempts.doubtful.get(key) == Some(&since) {
            attempts.doubtful.remove(key);
        }
    }

    // Each change of these maps is one insert or remove.
    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(target: &Target, outcome: &Outcome) {
    let (namespace, pod, node) = (&target.pod.namespace, &target.pod.name, &target.node);
    match outcome {
        Ok(()) => tracing::info!(namespace, pod, %node, "bound"),
        Err(error) => tracing::warn!(namespace, pod, %node, %error, "not bound"),
    }
}
