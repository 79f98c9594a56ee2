//! A Lease that one of several replicas holds. Only the holder may write. The rules are those of client-go's leader
//! election.
//!
//! Invariant: a holder stops writing before another replica can take the Lease. The holder may begin writes for two
//! thirds of the Lease's duration, from before its last renewal was sent. Other replicas wait for the whole duration
//! from when they saw that renewal. So clocks of different machines are never compared, and the last write has a third
//! of the duration to arrive. A process that was stopped (SIGSTOP) finds when it continues that its time is over, and
//! begins no write. This does not hold for a suspended machine: its clock stands still, as with client-go.
//!
//! What others write counts as little as it can: a Lease that an edit or a restored backup has changed is not taken
//! before the whole duration is over, whichever replica it names, and ends the term of the holder that finds another
//! renewal in it than its own. Only what looks as its holder's own release is taken at once.
//!
//! A term is the time from taking the Lease to losing it to another replica. The terms of a process have increasing
//! numbers. A holder that renews too late, but before another replica has written the Lease, continues the same term.

mod candidate;
mod leadership;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{GetParams, ObjectMeta, PostParams, Request};
use kube::core::request;
use kube::{Client, Resource as _};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answer::{Built, object};
use crate::call::{CallError, within};
use crate::object::Object;
use candidate::{Call, Candidate};
use leadership::{LeaseState, LeaseTerm};

pub use leadership::{Holder, Leadership};

/// How often a step is retried in a row because another replica wrote or deleted the Lease in between.
const MAX_CONFLICTS: usize = 3;

/// The time between two log lines while calls keep failing.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Which Lease, and for which replica.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// The Lease's name, in the namespace of the pod or of the kubeconfig's context.
    pub name: String,
    /// The identity of this process. No other process has it, not even an earlier one in the same pod.
    pub identity: String,
    /// How long other replicas wait for a renewal. Whole seconds, at least one.
    pub duration: Duration,
    /// The time between two reads of a Lease that another replica holds.
    pub read_period: Duration,
    /// The address at which other replicas reach this process; written into the Lease while this process holds it.
    pub address: Option<SocketAddr>,
}

impl LeaseSettings {
    /// Reads as often as the holder renews: five times in the Lease's duration. Without an address.
    #[must_use]
    pub fn new(name: String, identity: String, duration: Duration) -> Self {
        Self { name, identity, duration, read_period: duration / 5, address: None }
    }
}

/// Takes the Lease and renews it.
pub struct Elector {
    client: Client,
    /// The Leases of the own namespace.
    leases: Request,
    name: String,
    candidate: Candidate,
    state: watch::Sender<LeaseState>,
    read_period: Duration,
    failures: u64,
    failing: Option<Failing>,
}

/// A series of failed calls.
#[derive(Debug, Clone, Copy)]
struct Failing {
    since: Instant,
    /// When it was last logged that the series is longer than the Lease's duration.
    logged_at: Option<Instant>,
}

impl Elector {
    /// An elector that does not hold the Lease yet, and the leadership that shows whether it does.
    #[must_use]
    pub fn new(client: &Client, settings: LeaseSettings) -> (Self, Leadership) {
        let (state, receiver) = watch::channel(LeaseState {
            term: LeaseTerm::Over,
            number: 0,
            failures: 0,
            holder: None,
        });
        let LeaseSettings { name, identity, duration, read_period, address } = settings;
        let leases = Request::new(Lease::url_path(&(), Some(client.default_namespace())));
        let candidate = Candidate::new(identity, duration).with_address(address);
        let leadership = Leadership { state: receiver, duration };
        (
            Self {
                client: client.clone(),
                leases,
                name,
                candidate,
                state,
                read_period,
                failures: 0,
                failing: None,
            },
            leadership,
        )
    }

    /// Takes the Lease whenever it is free and renews it, until `end`. Then releases it, so that the next holder need
    /// not wait.
    pub async fn run(mut self, end: impl Future<Output = ()>) {
        self.repeat_until(end).await;
        self.release().await;
    }

    /// As [`run`](Self::run) until `resigned`, which returns whether the Lease may be released, because no write is
    /// under way. If not, the Lease expires. Then reads the Lease's holder, without taking the Lease, until `end`.
    pub async fn run_then_follow(
        mut self,
        resigned: impl Future<Output = bool>,
        end: impl Future<Output = ()>,
    ) {
        if self.repeat_until(resigned).await {
            self.release().await;
        }
        self.candidate.resign();
        self.publish();
        self.repeat_until(end).await;
    }

    async fn repeat_until<T>(&mut self, end: impl Future<Output = T>) -> T {
        tokio::pin!(end);
        loop {
            tokio::select! {
                ended = &mut end => return ended,
                () = self.step() => {}
            }
        }
    }

    /// Reads, takes or renews the Lease once, and waits until the next step.
    async fn step(&mut self) {
        let outcome = self.try_step().await;
        self.failures += u64::from(outcome.is_err());
        self.publish();
        self.log(&outcome);
        let pause = match outcome {
            Ok(()) if self.candidate.is_held_here() => self.candidate.period(),
            Ok(()) => self.read_period,
            Err(_) => self.candidate.period() / 3,
        };
        tokio::time::sleep(pause).await;
        self.candidate.refresh();
    }

    async fn try_step(&mut self) -> Result<(), CallError> {
        let mut conflicts = 0;
        loop {
            let sent = Instant::now();
            let outcome = match self.candidate.next_call(sent, Timestamp::now()) {
                Call::Nothing => return Ok(()),
                Call::Read => {
                    let read = self.read().await?;
                    self.candidate.set_read(read, Instant::now());
                    continue;
                }
                Call::Create(mut lease) => {
                    lease.metadata.name = Some(self.name.clone());
                    self.create(&lease).await
                }
                Call::Replace(lease) => self.replace(&lease).await,
            };
            match outcome {
                Ok(lease) => {
                    self.candidate.set_written(lease, sent, Instant::now());
                    return Ok(());
                }
                Err(CallError::Conflict(_)) if conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    self.candidate.invalidate();
                }
                Err(CallError::NotFound(_)) if conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    self.candidate.set_read(None, Instant::now());
                }
                Err(error) => {
                    self.candidate.invalidate();
                    return Err(error);
                }
            }
        }
    }

    fn publish(&self) {
        let before = self.state.borrow().term;
        let term = self.candidate.writes_until.map_or(LeaseTerm::Over, LeaseTerm::Until);
        let number = self.candidate.terms;
        let holder = self.candidate.known_holder();
        let failures = self.failures;
        self.state.send_replace(LeaseState { term, number, failures, holder });
        let name = self.name.as_str();
        let holder = self.candidate.holder();
        match (before, term) {
            (LeaseTerm::Over, LeaseTerm::Until(_)) => {
                tracing::info!(lease = name, "this replica leads")
            }
            (LeaseTerm::Until(_), LeaseTerm::Over) => {
                tracing::warn!(lease = name, holder, "this replica no longer leads");
            }
            _ => {}
        }
    }

    /// Logs a line when calls begin to fail, one a minute once they have failed for longer than the Lease's duration,
    /// and one when they succeed again.
    fn log(&mut self, outcome: &Result<(), CallError>) {
        let lease = self.name.as_str();
        let now = Instant::now();
        let call_limit = self.candidate.period();
        self.failing = match (outcome, self.failing) {
            (Err(error), None) => {
                tracing::warn!(lease, %error, ?call_limit, "the Lease can be neither read nor renewed");
                Some(Failing { since: now, logged_at: None })
            }
            (Err(error), Some(failing)) if failing.is_worth_a_line(call_limit * 5, now) => {
                let failing_for = now.duration_since(failing.since);
                tracing::error!(
                    lease, %error, ?call_limit, ?failing_for,
                    "no call about the Lease has succeeded for longer than it lasts; where no replica's does, none leads: \
                     is the API server slow or unreachable?"
                );
                Some(Failing { logged_at: Some(now), ..failing })
            }
            (Err(_), failing) => failing,
            (Ok(()), failing) => {
                if failing.is_some() {
                    tracing::info!(lease, "the Lease is read or renewed again");
                }
                None
            }
        };
    }

    /// Releases the Lease. If that fails, it expires.
    async fn release(&mut self) {
        self.state.send_modify(|state| state.term = LeaseTerm::Over);
        let mut outcome = self.try_release().await;
        if matches!(outcome, Err(CallError::Conflict(_))) {
            // A renewal was under way when the end came.
            let read = self.read().await;
            outcome = match read {
                Ok(lease) => {
                    self.candidate.set_read(lease, Instant::now());
                    self.try_release().await
                }
                Err(error) => Err(error),
            };
        }
        match outcome {
            Ok(true) => tracing::info!(lease = self.name, "released the Lease"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(lease = self.name, %error, "the Lease was not released: it expires")
            }
        }
    }

    /// Returns whether this process held the Lease.
    async fn try_release(&self) -> Result<bool, CallError> {
        let Some(lease) = self.candidate.released(Timestamp::now()) else { return Ok(false) };
        self.replace(&lease).await.map(|_| true)
    }

    async fn read(&self) -> Result<Option<Lease>, CallError> {
        match self.call(self.leases.get(&self.name, &GetParams::default())).await {
            Ok(lease) => Ok(Some(lease)),
            Err(CallError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, CallError> {
        let create = |body| self.leases.create(&PostParams::default(), body);
        self.call(body(lease).and_then(create)).await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, CallError> {
        let replace = |body| self.leases.replace(&self.name, &PostParams::default(), body);
        self.call(body(lease).and_then(replace)).await
    }

    async fn call(&self, request: Built) -> Result<Lease, CallError> {
        within(self.candidate.period(), object(&self.client, request)).await
    }
}

fn body(lease: &Lease) -> Result<Vec<u8>, request::Error> {
    serde_json::to_vec(lease).map_err(request::Error::SerializeBody)
}

/// Of a Lease that others wrote, what cannot be read does not count: the next renewal writes it anew.
impl Object for Lease {
    const KIND: &'static str = "Lease";

    fn about(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn set_lost(&mut self, _lost: Vec<String>) {}
}

impl Failing {
    /// Whether it is longer than the Lease's duration and was not logged recently.
    fn is_worth_a_line(&self, lease: Duration, now: Instant) -> bool {
        let logged_recently = self.logged_at.is_some_and(|at| now.duration_since(at) < LOG_EVERY);
        now.duration_since(self.since) >= lease && !logged_recently
    }
}

#[cfg(test)]
mod tests;
