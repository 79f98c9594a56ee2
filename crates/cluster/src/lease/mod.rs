//! A Lease that one of several replicas holds: who holds it may write. The rules are those of client-go's leader election.
//!
//! Invariant: a holder stops before another can begin. It counts two thirds of the lease from before its last renewal was
//! sent; others count the whole lease from when they saw that renewal. So no two machines' clocks are compared, and what was
//! sent last has a third of the lease to arrive. A process that is stopped (SIGSTOP) sees on waking that its time is over, and
//! begins no write. Of a machine that is suspended that is not true: its clock stands still, as that of client-go does.
//!
//! A term is the time from taking the Lease to losing it to another. Terms of one process have numbers, which rise. A holder that
//! could not renew in time and then can, without another having written the Lease, goes on with the same term.

mod candidate;
mod leadership;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::{CallError, within};
use candidate::{Call, Candidate};
use leadership::{State, Term};

pub use leadership::{Holder, Leadership};

/// How often a step is retried in a row because another wrote or deleted the Lease in between.
const MAX_CONFLICTS: usize = 3;

/// Between two lines about calls that go on failing.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The Lease and who wants it.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// The Lease's name, in the namespace of the pod or of the kubeconfig's context.
    pub name: String,
    /// Names this process and no other, one that ran in the same pod before included.
    pub identity: String,
    /// For how long others wait for a renewal. Whole seconds, at least one.
    pub duration: Duration,
    /// Between two looks at a Lease that another holds.
    pub look: Duration,
    /// Where this process answers other replicas; written into the Lease while this process holds it.
    pub address: Option<SocketAddr>,
}

impl LeaseSettings {
    /// Looks as often as the holder renews: five times in the Lease's duration. No address.
    #[must_use]
    pub fn new(name: String, identity: String, duration: Duration) -> Self {
        Self { name, identity, duration, look: duration / 5, address: None }
    }
}

/// Takes the Lease and renews it.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    candidate: Candidate,
    state: watch::Sender<State>,
    look: Duration,
    failures: u64,
    failing: Option<Failing>,
}

/// Calls that fail one after another.
#[derive(Debug, Clone, Copy)]
struct Failing {
    since: Instant,
    /// When it was last logged that this is longer than the Lease lasts.
    told: Option<Instant>,
}

impl Elector {
    /// One that holds nothing yet, and what it will hold.
    #[must_use]
    pub fn new(client: &Client, settings: LeaseSettings) -> (Self, Leadership) {
        let (state, receiver) =
            watch::channel(State { term: Term::Over, number: 0, failures: 0, holder: None });
        let LeaseSettings { name, identity, duration, look, address } = settings;
        let leases = Api::default_namespaced(client.clone());
        let candidate = Candidate::new(identity, duration).at(address);
        let leadership = Leadership { state: receiver, duration };
        (Self { leases, name, candidate, state, look, failures: 0, failing: None }, leadership)
    }

    /// Takes the Lease whenever it is free and renews it, until `end`. Then releases it, so that the next one need not wait.
    pub async fn run(mut self, end: impl Future<Output = ()>) {
        self.repeat_until(end).await;
        self.release().await;
    }

    /// As [`run`](Self::run) until `resigned`, which says whether the Lease may be released: nothing that was begun under it
    /// goes on. Otherwise it ends by itself. Then shows who holds the Lease, without taking it, until `end`.
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

    /// Reads or renews once, and waits for the next time.
    async fn step(&mut self) {
        let outcome = self.try_step().await;
        self.failures += u64::from(outcome.is_err());
        self.publish();
        self.log(&outcome);
        let pause = match outcome {
            Ok(()) if self.candidate.is_mine() => self.candidate.period(),
            Ok(()) => self.look,
            Err(_) => self.candidate.period() / 3,
        };
        tokio::time::sleep(pause).await;
        self.candidate.refresh();
    }

    async fn try_step(&mut self) -> Result<(), CallError> {
        let limit = self.candidate.period();
        let mut conflicts = 0;
        loop {
            let sent = Instant::now();
            let outcome = match self.candidate.next(sent, Timestamp::now()) {
                Call::Nothing => return Ok(()),
                Call::Read => {
                    let read = within(limit, self.leases.get_opt(&self.name)).await?;
                    self.candidate.read(read, Instant::now());
                    continue;
                }
                Call::Create(mut lease) => {
                    lease.metadata.name = Some(self.name.clone());
                    within(limit, self.leases.create(&PostParams::default(), &lease)).await
                }
                Call::Replace(lease) => self.replace(&lease).await,
            };
            match outcome {
                Ok(lease) => {
                    self.candidate.wrote(lease, sent, Instant::now());
                    return Ok(());
                }
                Err(CallError::Conflict(_)) if conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    self.candidate.unsure();
                }
                Err(CallError::NotFound(_)) if conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    self.candidate.read(None, Instant::now());
                }
                Err(error) => {
                    self.candidate.unsure();
                    return Err(error);
                }
            }
        }
    }

    fn publish(&self) {
        let before = self.state.borrow().term;
        let term = self.candidate.until.map_or(Term::Over, Term::Until);
        let (number, holder) = (self.candidate.terms, self.candidate.known_holder());
        let failures = self.failures;
        self.state.send_replace(State { term, number, failures, holder });
        let (name, holder) = (self.name.as_str(), self.candidate.holder());
        match (before, term) {
            (Term::Over, Term::Until(_)) => tracing::info!(lease = name, "this replica leads"),
            (Term::Until(_), Term::Over) => {
                tracing::warn!(lease = name, holder, "this replica leads no more");
            }
            _ => {}
        }
    }

    /// One line where calls begin to fail, one a minute once that is longer than the Lease lasts, and one where they succeed
    /// again.
    fn log(&mut self, outcome: &Result<(), CallError>) {
        let (lease, now) = (self.name.as_str(), Instant::now());
        let call_limit = self.candidate.period();
        self.failing = match (outcome, self.failing) {
            (Err(error), None) => {
                tracing::warn!(lease, %error, ?call_limit, "the Lease can be neither read nor renewed");
                Some(Failing { since: now, told: None })
            }
            (Err(error), Some(failing)) if failing.is_worth_a_line(call_limit * 5, now) => {
                let failing_for = now.duration_since(failing.since);
                tracing::error!(
                    lease, %error, ?call_limit, ?failing_for,
                    "no call about the Lease has succeeded for longer than it lasts; where no replica's does, none leads: \
                     is the API server slow or unreachable?"
                );
                Some(Failing { told: Some(now), ..failing })
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

    /// Gives the Lease to the next one. Where that fails, it ends by itself.
    async fn release(&mut self) {
        self.state.send_modify(|state| state.term = Term::Over);
        let mut outcome = self.try_release().await;
        if matches!(outcome, Err(CallError::Conflict(_))) {
            // A renewal was under way when the end came.
            let read = within(self.candidate.period(), self.leases.get_opt(&self.name)).await;
            outcome = match read {
                Ok(lease) => {
                    self.candidate.read(lease, Instant::now());
                    self.try_release().await
                }
                Err(error) => Err(error),
            };
        }
        match outcome {
            Ok(true) => tracing::info!(lease = self.name, "released the Lease"),
            Ok(false) => {}
            Err(error) => tracing::warn!(lease = self.name, %error, "the Lease ends by itself"),
        }
    }

    /// Whether there was something to release.
    async fn try_release(&self) -> Result<bool, CallError> {
        let Some(lease) = self.candidate.released(Timestamp::now()) else { return Ok(false) };
        self.replace(&lease).await.map(|_| true)
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, CallError> {
        let params = PostParams::default();
        within(self.candidate.period(), self.leases.replace(&self.name, &params, lease)).await
    }
}

impl Failing {
    /// Whether it has lasted for longer than the Lease does, and was not logged recently.
    fn is_worth_a_line(&self, lease: Duration, now: Instant) -> bool {
        let told = self.told.is_some_and(|at| now.duration_since(at) < LOG_EVERY);
        now.duration_since(self.since) >= lease && !told
    }
}

#[cfg(test)]
mod tests;
