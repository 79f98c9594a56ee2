//! A Lease that one of several replicas holds: who holds it may write. The rules are those of client-go's leader election.
//!
//! Invariant: a holder stops before another can begin. It counts two thirds of the lease from before its last renewal was
//! sent; others count the whole lease from when they saw that renewal. So no two machines' clocks are compared, and what was
//! sent last has a third of the lease to arrive. A process that is stopped (SIGSTOP) sees on waking that its time is over, and
//! begins no write. Of a machine that is suspended that is not true: its clock stands still, as that of client-go does.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::{CallError, within};

/// How often a step starts anew in a row because another wrote or deleted the Lease in between.
const MAX_CONFLICTS: usize = 3;

/// Until when this process may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Term {
    /// There is no lease: it is the only one.
    Endless,
    Until(Instant),
    /// Another holds the lease, or none does.
    Over,
}

/// Whether this process may write; clones share it.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<Term>);

impl Leadership {
    /// Of a process that needs no lease.
    #[must_use]
    pub fn without_lease() -> Self {
        Self(watch::channel(Term::Endless).1)
    }

    /// How long a call that writes may take that begins now; `None` where none may begin.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        match *self.0.borrow() {
            Term::Endless => Some(Duration::MAX),
            Term::Until(end) => Some(end.saturating_duration_since(Instant::now())),
            Term::Over => None,
        }
        .filter(|left| !left.is_zero())
    }

    /// Whether a write may begin now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.remaining().is_some()
    }

    /// Returns once [`is_held`](Self::is_held) is no longer `held`.
    pub async fn until_not(&mut self, held: bool) {
        while self.is_held() == held {
            let term = *self.0.borrow_and_update();
            tokio::select! {
                changed = self.0.changed() => if changed.is_err() {
                    // Nothing renews it any more.
                    end_of(term).await;
                },
                () = end_of(term) => {}
            }
        }
    }
}

/// Returns at the end of a term, never where that is over or endless.
async fn end_of(term: Term) {
    match term {
        Term::Until(end) if end > Instant::now() => tokio::time::sleep_until(end).await,
        _ => std::future::pending().await,
    }
}

/// The Lease and who wants it.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// The Lease's name, in the namespace of the pod or of the kubeconfig's context.
    pub name: String,
    /// Names this process and no other, one that ran in the same pod before included.
    pub identity: String,
    /// For how long others wait for a renewal. Whole seconds, at least one.
    pub duration: Duration,
}

/// Takes the Lease and renews it.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    candidate: Candidate,
    term: watch::Sender<Term>,
    failing: bool,
}

impl Elector {
    /// One that holds nothing yet, and what it will hold.
    #[must_use]
    pub fn new(client: &Client, settings: LeaseSettings) -> (Self, Leadership) {
        let (term, receiver) = watch::channel(Term::Over);
        let LeaseSettings { name, identity, duration } = settings;
        let leases = Api::default_namespaced(client.clone());
        let candidate = Candidate::new(identity, duration);
        (Self { leases, name, candidate, term, failing: false }, Leadership(receiver))
    }

    /// Takes the Lease whenever it is free and renews it, until `end`. Then releases it, so that the next one need not wait.
    pub async fn run(mut self, end: impl Future<Output = ()>) {
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                () = self.step() => {}
            }
        }
        self.release().await;
    }

    /// Reads or renews once, and waits for the next time.
    async fn step(&mut self) {
        let outcome = self.try_step().await;
        self.publish();
        self.log(&outcome);
        let pause = match outcome {
            Ok(()) => self.candidate.period(),
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
        let before = *self.term.borrow();
        let term = self.candidate.until.map_or(Term::Over, Term::Until);
        self.term.send_replace(term);
        let (name, holder) = (self.name.as_str(), self.candidate.holder());
        match (before, term) {
            (Term::Over, Term::Until(_)) => tracing::info!(lease = name, "this replica leads"),
            (Term::Until(_), Term::Over) => {
                tracing::warn!(lease = name, holder, "this replica leads no more");
            }
            _ => {}
        }
    }

    /// One line where calls begin to fail, and one where they succeed again.
    fn log(&mut self, outcome: &Result<(), CallError>) {
        let lease = self.name.as_str();
        match (outcome, self.failing) {
            (Err(error), false) => {
                tracing::warn!(lease, %error, "the Lease can be neither read nor renewed");
            }
            (Ok(()), true) => tracing::info!(lease, "the Lease is read or renewed again"),
            _ => {}
        }
        self.failing = outcome.is_err();
    }

    /// Gives the Lease to the next one. Where that fails, it ends by itself.
    async fn release(&mut self) {
        self.term.send_replace(Term::Over);
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

/// The next call.
#[derive(Debug, Clone, PartialEq)]
enum Call {
    Read,
    Create(Lease),
    Replace(Lease),
    /// Another holds it.
    Nothing,
}

/// What one process knows of the Lease. Without I/O: times are parameters.
#[derive(Debug)]
struct Candidate {
    identity: String,
    duration: Duration,
    /// As last read or written, and when this version of it was seen first.
    seen: Option<(Lease, Instant)>,
    /// Whether a write may build on `seen`.
    current: bool,
    /// Until when this process may write.
    until: Option<Instant>,
}

impl Candidate {
    fn new(identity: String, duration: Duration) -> Self {
        Self { identity, duration, seen: None, current: false, until: None }
    }

    /// Between two renewals, or between two looks; also the most that a call may take.
    fn period(&self) -> Duration {
        self.duration / 5
    }

    /// Who holds it, as last seen; empty where none does.
    fn holder(&self) -> &str {
        let spec = self.seen.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
    }

    fn is_mine(&self) -> bool {
        self.holder() == self.identity
    }

    fn is_free(&self, now: Instant) -> bool {
        let Some((lease, since)) = &self.seen else { return true };
        let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let promised = promised.and_then(|seconds| u64::try_from(seconds).ok());
        let lasts = promised.map_or(self.duration, Duration::from_secs);
        self.holder().is_empty() || now.saturating_duration_since(*since) >= lasts
    }

    /// What to do next. `time` goes into the Lease for people to read; nothing is decided by it.
    fn next(&self, now: Instant, time: Timestamp) -> Call {
        match &self.seen {
            _ if !self.current => Call::Read,
            None => Call::Create(self.renewed(&Lease::default(), time)),
            Some((lease, _)) if self.is_mine() || self.is_free(now) => {
                Call::Replace(self.renewed(lease, time))
            }
            Some(_) => Call::Nothing,
        }
    }

    /// The Lease was read.
    fn read(&mut self, lease: Option<Lease>, now: Instant) {
        self.set_seen(lease, now);
        if !self.is_mine() {
            self.until = None;
        }
    }

    /// A write succeeded that was sent at `sent`.
    fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.set_seen(Some(lease), now);
        self.until = Some(sent + self.duration * 2 / 3);
    }

    /// A Lease of the same version keeps its time: it was not renewed.
    fn set_seen(&mut self, lease: Option<Lease>, now: Instant) {
        let before = self.seen.take();
        self.seen = lease.map(|lease| match before {
            Some((old, since))
                if old.metadata.resource_version == lease.metadata.resource_version =>
            {
                (lease, since)
            }
            _ => (lease, now),
        });
        self.current = true;
    }

    /// What was seen may be out of date: another wrote, or it is not known whether a write was carried out.
    fn unsure(&mut self) {
        self.current = false;
    }

    /// Some time has passed. Only the holder knows that nothing has changed.
    fn refresh(&mut self) {
        self.current &= self.is_mine();
    }

    /// `lease` held by this process from now on.
    fn renewed(&self, lease: &Lease, time: Timestamp) -> Lease {
        let spec = lease.spec.clone().unwrap_or_default();
        let before = spec.holder_identity.as_deref().unwrap_or_default();
        let taken = before != self.identity;
        let changes = spec.lease_transitions.unwrap_or_default();
        let first = lease.metadata.resource_version.is_none();
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            acquire_time: if taken { Some(MicroTime(time)) } else { spec.acquire_time },
            renew_time: Some(MicroTime(time)),
            lease_transitions: Some(changes.saturating_add(i32::from(taken && !first))),
            ..spec
        };
        Lease { metadata: lease.metadata.clone(), spec: Some(spec) }
    }

    /// The Lease that nobody holds; `None` where this process does not hold it.
    fn released(&self, time: Timestamp) -> Option<Lease> {
        let (lease, _) = self.seen.as_ref().filter(|_| self.is_mine())?;
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(time)),
            ..lease.spec.clone()?
        };
        Some(Lease { metadata: lease.metadata.clone(), spec: Some(spec) })
    }
}

#[cfg(test)]
mod tests;
