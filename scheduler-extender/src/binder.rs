//! Binding a pod: reserve a card, send one binding, and find out what became of it.
//!
//! Invariants: a binding once begun goes on whether or not anyone still waits for it; one pod and
//! node is bound by one task at a time, whom every further call joins; the answer is success only
//! where the API server shows the pod on that node; a reservation is given back only when the
//! binding it was made for surely failed.

mod doubt;
mod error;

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{BindOutcome, Binding, CallError, Client, PodFacts, bind, get_pod};
use placement::gpu::{Claim, GpuRequest};
use placement::names::Names;
use placement::units::{NodeName, PodUid};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::Clock;
use crate::metrics::Metrics;
use crate::view::{GpuPodId, View};

pub use error::BindError;

/// Bindings sent at once. kube-scheduler sends up to 478 (measured at 20 nodes), each answered in
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

/// What the API server shows of a pod after a binding whose answer does not tell.
enum Found {
    Pod(Box<PodFacts>),
    Nothing,
    NoAnswer(CallError),
}

impl Binder {
    /// A binder that knows nothing under way.
    #[must_use]
    pub fn new(
        client: Client,
        names: Arc<Names>,
        view: Arc<View>,
        metrics: Metrics,
        clock: Clock,
        limits: Limits,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            names,
            view,
            metrics,
            clock,
            limits,
            permits: Semaphore::new(AT_ONCE),
            attempts: Mutex::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Binds a pod, or joins whoever does it already. Answers within the limit; the binding itself
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

    /// Waits until no binding is under way. New ones may still be begun.
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
            binder.end(target, key, &outcome);
            // Nobody may be waiting any more.
            let _ = sender.send(Some(outcome));
        });
        receiver
    }

    fn end(self: &Arc<Self>, target: Target, key: Key, outcome: &Outcome) {
        let label = outcome.as_ref().map_or_else(BindError::label, |()| "bound");
        self.metrics.bind(label);
        log(&target, outcome);
        let mut attempts = self.attempts();
        attempts.running.remove(&key);
        if matches!(outcome, Err(BindError::InDoubt(_))) {
            let since = Instant::now();
            attempts.doubtful.insert(key, since);
            drop(attempts);
            self.tasks.spawn(doubt::settle(Arc::clone(self), target, since));
        }
    }

    async fn attempt(&self, target: &Target, deadline: Instant) -> Outcome {
        let Some(request) = self.request(target, deadline).await? else {
            return self.send(target, None, deadline).await;
        };
        if !self.view.is_complete() {
            return Err(BindError::NotReady);
        }
        let uid = &target.pod.uid;
        let held = self.view.cards.held_on(uid);
        let only_reserved_here =
            |node: &NodeName| *node == target.node && self.view.cards.is_reserved(uid, node);
        // Bound or in doubt already: the API server's word goes before a new reservation.
        if !held.iter().all(only_reserved_here)
            && let Some(outcome) = self.known_outcome(target, deadline).await
        {
            return outcome;
        }
        let (claim, choice) = self.view.cards.reserve(&target.pod, &request, &target.node)?;
        let annotations = claim.annotations(&self.names, &request, &choice, (self.clock)());
        self.send(target, Some((claim, annotations)), deadline).await
    }

    /// What the pod asks for: usually the watch has told already.
    async fn request(
        &self,
        target: &Target,
        deadline: Instant,
    ) -> Result<Option<GpuRequest>, BindError> {
        if let Some(request) = self.view.cards.request(&target.pod.uid) {
            return Ok(Some(request));
        }
        match self.find(target, deadline).await {
            Found::Pod(facts) if facts.uid == target.pod.uid => {
                let gpu = facts.gpu.map_err(|error| BindError::Refused(error.to_string()))?;
                Ok(gpu.map(|gpu| gpu.request))
            }
            Found::Pod(_) | Found::Nothing => Err(BindError::Gone),
            Found::NoAnswer(error) => Err(BindError::Refused(error.to_string())),
        }
    }

    /// How it ended, where the API server shows the pod bound; `None` where it is not bound. Then
    /// every reservation of it stays until the API server has taken one of them.
    async fn known_outcome(&self, target: &Target, deadline: Instant) -> Option<Outcome> {
        match self.find(target, deadline).await {
            Found::Pod(facts) if facts.uid != target.pod.uid => Some(Err(self.gone(target))),
            Found::Pod(facts) if facts.node.is_some() => Some(self.judge(target, &facts)),
            Found::Pod(_) => None,
            Found::Nothing => Some(Err(self.gone(target))),
            Found::NoAnswer(error) => Some(Err(BindError::Refused(error.to_string()))),
        }
    }

    async fn send(
        &self,
        target: &Target,
        claim: Option<(Claim, BTreeMap<String, String>)>,
        deadline: Instant,
    ) -> Outcome {
        let (claim, annotations) = claim.unzip();
        let binding = Binding {
            namespace: target.pod.namespace.clone(),
            name: target.pod.name.clone(),
            uid: target.pod.uid.clone(),
            node: target.node.clone(),
            annotations: annotations.unwrap_or_default(),
        };
        let outcome = self.post(&binding, deadline).await;
        self.judge_answer(target, claim, outcome, deadline).await
    }

    /// One binding, within three quarters of the time left, so that the pod can still be looked at.
    async fn post(&self, binding: &Binding, deadline: Instant) -> BindOutcome {
        // Never closed, so this waits until there is room or the caller is out of time.
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return BindOutcome::Refused("too many bindings under way".to_owned());
        };
        let left = deadline.saturating_duration_since(Instant::now());
        bind(&self.client, binding, left * 3 / 4).await
    }

    async fn judge_answer(
        &self,
        target: &Target,
        claim: Option<Claim>,
        answer: BindOutcome,
        deadline: Instant,
    ) -> Outcome {
        let (may_yet_land, why) = match answer {
            BindOutcome::Bound => return self.bound(target, claim),
            BindOutcome::NotFound => return Err(self.gone(target)),
            BindOutcome::Refused(why) => return self.refused(target, why),
            BindOutcome::Conflict(why) => (false, why),
            BindOutcome::Unknown(why) => (true, why),
        };
        match self.find(target, deadline).await {
            Found::Pod(facts) if facts.uid != target.pod.uid => Err(self.gone(target)),
            Found::Pod(facts) if facts.node.is_some() => self.judge(target, &facts),
            Found::Pod(_) if !may_yet_land => self.refused(target, why),
            Found::Pod(_) | Found::NoAnswer(_) => Err(BindError::InDoubt(why)),
            Found::Nothing => Err(self.gone(target)),
        }
    }

    /// Judges a pod that is bound somewhere, and keeps what the API server shows.
    fn judge(&self, target: &Target, facts: &PodFacts) -> Outcome {
        self.keep(facts);
        if let Some(node) = facts.node.as_ref().filter(|node| **node != target.node) {
            return Err(BindError::Elsewhere(node.clone()));
        }
        if let Ok(Some(gpu)) = &facts.gpu
            && !matches!(gpu.claim, Ok(Some(_)))
        {
            return Err(BindError::NoClaim);
        }
        self.record(target);
        Ok(())
    }

    fn keep(&self, facts: &PodFacts) {
        if let Ok(Some(gpu)) = &facts.gpu {
            self.view.cards.note_known(facts, gpu);
        }
    }

    fn bound(&self, target: &Target, claim: Option<Claim>) -> Outcome {
        if let Some(claim) = claim {
            self.view.cards.confirm(&target.pod.uid, &target.node, claim);
        }
        self.record(target);
        Ok(())
    }

    /// The node is hotter at once: the watch would tell some milliseconds later.
    fn record(&self, target: &Target) {
        let now = (self.clock)();
        self.view.load.record_binding(&target.pod.uid, &target.node, now);
    }

    fn gone(&self, target: &Target) -> BindError {
        self.view.cards.forget(&target.pod.uid);
        BindError::Gone
    }

    /// This binding surely failed. An earlier one of the same pod and node may still be in doubt.
    fn refused(&self, target: &Target, why: String) -> Outcome {
        if self.doubt(&target.key()).is_none() {
            self.view.cards.cancel(&target.pod.uid, &target.node);
        }
        Err(BindError::Refused(why))
    }

    async fn find(&self, target: &Target, deadline: Instant) -> Found {
        let left = deadline.saturating_duration_since(Instant::now());
        self.look(&target.pod, left).await
    }

    async fn look(&self, pod: &GpuPodId, limit: Duration) -> Found {
        match get_pod(&self.client, &pod.namespace, &pod.name, limit).await {
            Ok(Some(pod)) => Found::Pod(Box::new(pod.facts(&self.names))),
            Ok(None) => Found::Nothing,
            Err(error) => Found::NoAnswer(error),
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
