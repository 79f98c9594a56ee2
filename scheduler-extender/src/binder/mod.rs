//! Binds a pod: reserves a GPU, sends one binding, and finds its outcome.
//!
//! Invariants:
//! - A binding continues after its caller has timed out.
//! - One task at a time binds a pod to a node. Further calls for the same pod and node join it.
//! - The answer is success only if the API server shows the pod on that node.
//! - No binding is sent while another replica may assign GPUs ([`crate::replicas`]).
//! - A reservation is released only when its binding certainly failed.
//! - The pods of a gang are bound together ([`crate::gangs`]).
//!
//! [`machine`] decides; here its actions are carried out. Each step is one change of the view, under the lock of the
//! bindings.

mod error;
mod machine;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{
    BindOutcome, Binding, CallError, Client, Pod, bind, claim_annotations, get_pod,
    get_pod_and_text, no_claim,
};
use placement::gpu::{GpuRequest, Reservation};
use placement::names::Names;
use placement::units::NodeName;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;

use self::machine::{Action, Attempt, Bindings, Event, Found, Known, apply_look_up};
use crate::Clock;
use crate::gangs::Gangs;
use crate::metrics::Metrics;
use crate::replicas::Replicas;
use crate::view::{GpuPodId, View};

pub use error::BindError;
pub(crate) use error::HELD_BY_DELETED;

/// Concurrent bindings. kube-scheduler sends up to 478 Bind requests at once (measured at 20 nodes), each answered in
/// about 1.4 ms; more connections make them slower.
const MAX_CONCURRENT: usize = 64;

/// The pause between the first two reads of a pod in doubt. It doubles each time.
const MIN_PAUSE: Duration = Duration::from_millis(250);

/// The longest pause between two reads of a pod in doubt.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The timeout of a read that no caller waits for.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

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

/// How a binding ended.
pub type BindResult = Result<(), BindError>;

/// The channel of an attempt's outcome.
type Outcome = watch::Receiver<Option<BindResult>>;

/// What a [`Binder`] is made of.
pub struct BinderParams {
    /// The API server's client.
    pub client: Client,
    /// Resource names and annotation keys.
    pub names: Arc<Names>,
    /// The GPUs.
    pub view: Arc<View>,
    /// Counts bindings.
    pub metrics: Metrics,
    /// The clock of claims and of recorded bindings.
    pub clock: Clock,
    /// The time limits.
    pub limits: BindLimits,
    /// Whether this replica leads.
    pub replicas: Arc<Replicas>,
    /// The pods that are bound together.
    pub gangs: Arc<Gangs>,
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
    gangs: Arc<Gangs>,
    permits: Semaphore,
    bindings: Mutex<Bindings<Outcome>>,
    tasks: TaskTracker,
}

impl Binder {
    /// The API server's client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A binder without attempts under way.
    #[must_use]
    pub fn new(params: BinderParams) -> Arc<Self> {
        let BinderParams { client, names, view, metrics, clock, limits, replicas, gangs } = params;
        Arc::new(Self {
            client,
            names,
            view,
            metrics,
            clock,
            limits,
            replicas,
            gangs,
            permits: Semaphore::new(MAX_CONCURRENT),
            bindings: Mutex::default(),
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
        if pods.is_empty() {
            return;
        }
        let binder = Arc::clone(self);
        self.tasks.spawn(async move {
            for pod in pods {
                let mut pause = MIN_PAUSE;
                while !binder.is_looked_up(&pod).await {
                    pause = pass(pause).await;
                }
            }
        });
    }

    async fn is_looked_up(&self, pod: &GpuPodId) -> bool {
        self.view.change(|index| index.begin_look_up(&pod.uid));
        let found = self.read(pod, READ_TIMEOUT).await;
        self.view.change(|index| apply_look_up(pod, found, index, (self.clock)()))
    }

    /// Waits until no binding and no look-up is under way. New ones can still begin.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn join_or_start(self: &Arc<Self>, target: Target, deadline: Instant) -> Outcome {
        let mut bindings = self.bindings();
        if let Some(running) = bindings.running(&target) {
            self.metrics.count_bind("joined");
            return running.clone();
        }
        let (callers, outcome) = watch::channel(None);
        let attempt = Attempt::begin(target, outcome.clone(), &mut bindings);
        drop(bindings);
        self.tasks.spawn(Arc::clone(self).run(attempt, deadline, callers));
        outcome
    }

    /// Carries out what the attempt asks for, until it and the doubt about it have ended.
    async fn run(
        self: Arc<Self>,
        mut attempt: Attempt,
        deadline: Instant,
        callers: watch::Sender<Option<BindResult>>,
    ) {
        let target = attempt.target.clone();
        let (mut finished, mut pause) = (None, MIN_PAUSE);
        let mut event = Event::Begun;
        loop {
            event = match self.step(&mut attempt, event) {
                Action::Read => {
                    let limit = if finished.is_none() { left(deadline) } else { READ_TIMEOUT };
                    Event::Found(self.read(&target.pod, limit).await)
                }
                Action::Send { version, reserved } => {
                    let binding = self.binding(&target, version, reserved.as_deref());
                    self.send(&binding, deadline).await.map_or_else(Event::NotSent, Event::Answered)
                }
                Action::Finish(outcome) => {
                    finished = Some(Instant::now());
                    self.tell(&target, outcome, &callers).await;
                    self.woken(finished)
                }
                Action::Wait => {
                    pause = pass(pause).await;
                    self.woken(finished)
                }
                Action::LookUp => return self.look_up(vec![target.pod]),
                Action::End => return,
            };
        }
    }

    fn step(&self, attempt: &mut Attempt, event: Event) -> Action {
        let mut bindings = self.bindings();
        let (leads, is_complete) = (self.replicas.leads(), self.view.is_complete());
        let beyond_units = self.view.beyond_units_of(&attempt.target.pod.namespace);
        let (rule, now) = (self.view.choice_rule(), (self.clock)());
        self.view.change(|index| {
            let bindings = &mut *bindings;
            let mut known = Known { index, bindings, now, is_complete, leads, rule, beyond_units };
            attempt.step(event, &mut known)
        })
    }

    /// The request's time begins anew with the end of its attempt: nothing is sent later.
    fn woken(&self, finished: Option<Instant>) -> Event {
        let is_over = finished.is_some_and(|at| at.elapsed() > self.limits.request_lifetime);
        Event::Woken { is_over }
    }

    async fn read(&self, pod: &GpuPodId, limit: Duration) -> Found {
        match get_pod(&self.client, &pod.namespace, &pod.name, limit).await {
            Ok(Some(found)) => Found::of(found.facts(&self.names), pod),
            Ok(None) => Found::Gone,
            Err(error) => Found::Failed(error),
        }
    }

    fn binding(
        &self,
        target: &Target,
        version: Option<String>,
        reserved: Option<&(GpuRequest, Reservation)>,
    ) -> Binding {
        let Target { pod: GpuPodId { uid, namespace, name }, node } = target.clone();
        let annotations = match reserved {
            Some((request, reservation)) => {
                claim_annotations(&self.names, request, reservation, (self.clock)())
            }
            None => no_claim(&self.names),
        };
        Binding { namespace, name, uid, version, node, annotations }
    }

    /// Sends one binding, once the pods of its group have reservations, within three quarters of the time left; the
    /// rest is for reading the pod.
    ///
    /// # Errors
    ///
    /// Where nothing was sent: a pod of the group cannot be bound, or this replica no longer leads.
    async fn send(&self, binding: &Binding, deadline: Instant) -> Result<BindOutcome, BindError> {
        let is_in_group = self.view.renew_places_of(&binding.uid, (self.clock)());
        self.gangs.wait(&binding.uid, is_in_group).await.map_err(BindError::Group)?;
        // Never closed, so this waits until there is room or the caller is out of time.
        let Ok(Ok(_permit)) = timeout_at(deadline, self.permits.acquire()).await else {
            return Ok(BindOutcome::Refused("too many bindings under way".to_owned()));
        };
        let limit = left(deadline) * 3 / 4;
        // This check must directly precede the call.
        let longest = self.replicas.longest_call().ok_or(BindError::NotLeading)?;
        Ok(bind(&self.client, binding, longest.min(limit)).await)
    }

    async fn tell(
        &self,
        target: &Target,
        outcome: BindResult,
        callers: &watch::Sender<Option<BindResult>>,
    ) {
        let label = outcome.as_ref().map_or_else(BindError::label, |()| "bound");
        self.metrics.count_bind(label);
        if let Err(error) = &outcome {
            self.gangs.fail(&target.pod, error);
        }
        // Every receiver may be gone: the callers have timed out.
        let _ = callers.send(Some(outcome.clone()));
        // So that the caller continues before the log is written.
        tokio::task::yield_now().await;
        log_outcome(target, &outcome);
    }

    // A panic in a step leaves its attempt running: further calls join it and are told that it is lost.
    fn bindings(&self) -> MutexGuard<'_, Bindings<Outcome>> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Waits, and returns the next pause.
async fn pass(pause: Duration) -> Duration {
    sleep(pause).await;
    MAX_PAUSE.min(pause * 2)
}

fn log_outcome(target: &Target, outcome: &BindResult) {
    let Target { pod: GpuPodId { namespace, name: pod, uid }, node } = target;
    match outcome {
        Ok(()) => tracing::info!(%uid, namespace, pod, %node, "bound"),
        Err(error) => tracing::warn!(%uid, namespace, pod, %node, %error, "not bound"),
    }
}
