//! Binds a pod: reserves a card, sends one binding, and finds its outcome.
//!
//! Invariants:
//! - A binding continues after its caller has timed out.
//! - One task at a time binds a pod to a node. Further calls for the same pod and node join it.
//! - The answer is success only if the API server shows the pod on that node.
//! - No binding is sent while another replica may assign cards ([`crate::replicas`]).
//! - A reservation is released only when its binding certainly failed.

mod attempt;
mod doubt;
mod error;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{CallError, Client, Pod, get_pod_and_text};
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
pub(crate) use error::HELD_BY_DELETED;

/// Concurrent bindings. kube-scheduler sends up to 478 Bind requests at once (measured at 20 nodes), each answered in
/// about 1.4 ms; more connections make them slower.
const MAX_CONCURRENT: usize = 64;

/// A pod and the node to bind it to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The pod.
    pub pod: GpuPodId,
    /// The node.
    pub node: NodeName,
}

/// Time limits of Bind.
#[derive(Debug, Clone, Copy)]
pub struct BindLimits {
    /// The timeout of a call of [`Binder::bind`].
    pub answer: Duration,
    /// The time after which the API server can no longer carry out a request that was sent.
    pub request_lifetime: Duration,
}

impl BindLimits {
    /// With the request lifetime of an API server, which ends a request after 60 s
    /// (`--request-timeout`).
    #[must_use]
    pub fn answering_within(answer: Duration) -> Self {
        Self { answer, request_lifetime: Duration::from_secs(65) }
    }
}

impl Target {
    fn key(&self) -> AttemptKey {
        (self.pod.uid.clone(), self.node.clone())
    }
}

/// How a binding ended.
pub type BindResult = Result<(), BindError>;

type AttemptKey = (PodUid, NodeName);

/// What a [`Binder`] is made of.
pub struct BinderParams {
    /// The API server's client.
    pub client: Client,
    /// Resource names and annotation keys.
    pub names: Arc<Names>,
    /// The cards.
    pub view: Arc<View>,
    /// Counts bindings.
    pub metrics: Metrics,
    /// The clock of claims and of recorded bindings.
    pub clock: Clock,
    /// The time limits.
    pub limits: BindLimits,
    /// Whether this replica leads.
    pub replicas: Arc<Replicas>,
}

/// Binds pods.
pub struct Binder {
    client: Client,
    names: Arc<Names>,
    view: Arc<View>,
    metrics: Metrics,
    clock: Clock,
    limits: BindLimits,
    replicas: Arc<Replicas>,
    permits: Semaphore,
    attempts: Mutex<Attempts>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Attempts {
    /// Attempts under way, with the channel of the outcome.
    running: HashMap<AttemptKey, watch::Receiver<Option<BindResult>>>,
    /// Attempts that ended in doubt, with the time at which the last of them ended.
    doubtful: HashMap<AttemptKey, Instant>,
}

impl Binder {
    /// The API server's client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A binder without attempts under way.
    #[must_use]
    pub fn new(params: BinderParams) -> Arc<Self> {
        let BinderParams { client, names, view, metrics, clock, limits, replicas } = params;
        Arc::new(Self {
            client,
            names,
            view,
            metrics,
            clock,
            limits,
            replicas,
            permits: Semaphore::new(MAX_CONCURRENT),
            attempts: Mutex::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Binds a pod, or joins the attempt that is under way. Returns within [`BindLimits::answer`]; the attempt
    /// continues after that.
    ///
    /// # Errors
    ///
    /// Why the pod is not bound, or not known to be.
    pub async fn bind(self: &Arc<Self>, target: Target) -> BindResult {
        let deadline = Instant::now() + self.limits.answer;
        let mut outcome = self.join_or_start(target, deadline);
        let ended = timeout_at(deadline, outcome.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Err(BindError::Lost)),
            Ok(Err(_)) => Err(BindError::Lost),
            Err(_) => Err(BindError::Slow(self.limits.answer)),
        }
    }

    /// Reads a pod by its name; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Where the API server refuses or does not answer within `limit`.
    pub async fn find_pod(
        &self,
        namespace: &str,
        name: &str,
        limit: Duration,
    ) -> Result<Option<(Pod, Vec<u8>)>, CallError> {
        get_pod_and_text(&self.client, namespace, name, limit).await
    }

    /// Reads pods that a list of all pods did not have from the API server, and applies the result to the ledgers.
    /// Retries until the API server answers.
    pub fn look_up(self: &Arc<Self>, pods: Vec<GpuPodId>) {
        if !pods.is_empty() {
            self.tasks.spawn(doubt::look_up(Arc::clone(self), pods));
        }
    }

    /// Looks up a pod after its binding has ended, if a list did not have it meanwhile.
    fn look_up_if_doubtful(self: &Arc<Self>, pod: &GpuPodId) {
        if self.view.ask(|index| index.is_doubtful(&pod.uid)) {
            self.look_up(vec![pod.clone()]);
        }
    }

    /// Waits until no binding and no look-up is under way. New ones can still begin.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn join_or_start(
        self: &Arc<Self>,
        target: Target,
        deadline: Instant,
    ) -> watch::Receiver<Option<BindResult>> {
        let key = target.key();
        let mut attempts = self.attempts();
        if let Some(running) = attempts.running.get(&key) {
            self.metrics.count_bind("joined");
            return running.clone();
        }
        let (sender, receiver) = watch::channel(None);
        attempts.running.insert(key.clone(), receiver.clone());
        drop(attempts);
        let binder = Arc::clone(self);
        self.tasks.spawn(async move {
            let outcome = binder.attempt(&target, deadline).await;
            binder.end_attempt(&target, key, &outcome);
            // Every receiver may be gone: the callers have timed out.
            let _ = sender.send(Some(outcome.clone()));
            // So that the caller continues before the log is written.
            tokio::task::yield_now().await;
            log_outcome(&target, &outcome);
        });
        receiver
    }

    fn end_attempt(self: &Arc<Self>, target: &Target, key: AttemptKey, outcome: &BindResult) {
        let label = outcome.as_ref().map_or_else(BindError::label, |()| "bound");
        self.metrics.count_bind(label);
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

    /// Since when the binding has been in doubt; `None` where it is not.
    fn in_doubt_since(&self, key: &AttemptKey) -> Option<Instant> {
        self.attempts().doubtful.get(key).copied()
    }

    fn end_doubt(&self, key: &AttemptKey, since: Instant) {
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

fn log_outcome(target: &Target, outcome: &BindResult) {
    let Target { pod: GpuPodId { namespace, name: pod, uid }, node } = target;
    match outcome {
        Ok(()) => tracing::info!(%uid, namespace, pod, %node, "bound"),
        Err(error) => tracing::warn!(%uid, namespace, pod, %node, %error, "not bound"),
    }
}
