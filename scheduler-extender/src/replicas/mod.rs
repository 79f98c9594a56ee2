//! Several replicas of the extender, of which one at a time gives out cards.
//!
//! # Who answers what
//!
//! All replicas keep the same watches, all are ready, and each answers the verbs that are about load. The verbs that are about
//! cards (`/gpushare-scheduler/{filter,prioritize,preempt,bind}`) are answered by the replica that leads: the ledger with its
//! reservations is the memory of one process. The others pass such a request on to the leader ([`forward`]), whose address is an
//! annotation of the Lease, and pass its answer back: over TLS, each with its own certificate, where they answer
//! kube-scheduler so ([`leader_client`]). A request that was passed on is not passed on again: a replica that gets
//! one and does not lead refuses it, and the one that passed it on looks at the Lease again.
//!
//! # Why no card is given out twice
//!
//! The danger is a binding of an earlier leader that lands after a new one has begun to choose cards without knowing of it.
//!
//! 1. A leader begins no binding after two thirds of the Lease's duration, counted from before it sent its last renewal
//!    ([`cluster::Leadership`]). Others wait for the whole duration, counted from when they saw that renewal. The check is made
//!    right before the POST is handed to the client, so a request that waited for long, or came over a connection that kube-scheduler keeps open
//!    to an earlier leader, is checked like any other.
//! 2. A binding's POST takes a third of the duration at most, at the client and, by the `timeout` of the request, at the API
//!    server. So when another replica can take the Lease, the POSTs of the leader before it have ended: two thirds and one third
//!    are the whole.
//! 3. A leader that ends in order first waits for its bindings under way, and then releases the Lease. Where the fate of one is
//!    not known, it releases nothing: the Lease ends by itself, and 2 holds.
//! 4. A replica that has taken the Lease lists pods and nodes anew, with the API server's newest state, and gives out cards once
//!    both lists are in its view. So it knows every binding that ended before it took the Lease. What it knows by claims alone
//!    counts on every card of its node until the kubelet's records place it ([`placement::gpu::NodeLedger`]).
//! 5. A replica that loses the Lease and takes it again does the same, unless no other has held it in between: the numbers of
//!    terms tell.
//!
//! What is left: a process that is stopped (SIGSTOP, a frozen machine) between the check and the send, the one thread that sends,
//! where it is blocked there for longer than the Lease has left (it is given up after [`daemon::HUNG`]), or a POST that the network
//! holds back. Such a binding may land in the time of the next leader and claim units that are taken by then. That leader sees it at
//! once by its watch, charges both, and gives out no more of the card. No memory is given out twice: the device plugin grants
//! the ids of one card, each to one container, and refuses in Allocate a pod whose claimed card has too few ids left. That pod
//! fails with `UnexpectedAdmissionError`, and its controller makes another.

mod forward;
mod leader_client;
mod others;
mod takeover;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::Leadership;
use tokio::sync::watch;
use tokio::time::Instant;

pub use forward::{FORWARDED, Forwarder};
pub(crate) use forward::{ForwardError, Passed};
pub use leader_client::{LeaderClient, SecureClients};
pub use others::Others;
pub use takeover::prepare;

/// This replica among the others.
#[derive(Debug)]
pub struct Replicas {
    leadership: Leadership,
    /// This replica's name in the Lease.
    identity: String,
    /// The term for which the view holds what the API server had after the Lease was taken.
    prepared: watch::Sender<Option<u64>>,
    /// It begins nothing any more: the process ends.
    resigned: AtomicBool,
    leaderless: Mutex<Option<Leaderless>>,
}

/// A time in which no leader has answered.
#[derive(Debug, Clone, Copy)]
struct Leaderless {
    since: Instant,
    /// The last request that got no answer.
    last: Instant,
}

/// After so long without a request, what was noted of the leader is out of date.
const OUT_OF_DATE: Duration = Duration::from_secs(10);

/// What a replica does with a request about cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It answers.
    Leads,
    /// It passes the request on to this address.
    Follows(SocketAddr),
    /// Neither, for this reason; soon one of the replicas will lead.
    Waits(&'static str),
}

impl Replicas {
    /// The only replica: it always leads.
    #[must_use]
    pub fn alone() -> Self {
        let only = Self::new(Leadership::without_lease(), String::new());
        only.prepared.send_replace(Some(0));
        only
    }

    /// One of several. `identity` is its name in the Lease.
    #[must_use]
    pub fn new(leadership: Leadership, identity: String) -> Self {
        Self {
            leadership,
            identity,
            prepared: watch::Sender::new(None),
            resigned: AtomicBool::new(false),
            leaderless: Mutex::default(),
        }
    }

    /// Whether this replica gives out cards now.
    #[must_use]
    pub fn leads(&self) -> bool {
        let term = self.leadership.term();
        term.is_some() && *self.prepared.borrow() == term && !self.resigned.load(Ordering::Acquire)
    }

    /// How often the Lease could be neither read nor renewed, since the start.
    #[must_use]
    pub fn lease_failures(&self) -> u64 {
        self.leadership.failures()
    }

    /// How long a binding may take that begins now; `None` where this replica does not lead.
    #[must_use]
    pub fn longest_call(&self) -> Option<Duration> {
        self.leads().then(|| self.leadership.longest_call())
    }

    /// What to do with a request about cards.
    #[must_use]
    pub fn role(&self) -> Role {
        if self.leads() {
            return Role::Leads;
        }
        match self.leadership.holder() {
            None => Role::Waits("no replica holds the Lease"),
            Some(holder) if holder.identity != self.identity => match holder.address {
                Some(address) => Role::Follows(address),
                None => Role::Waits("the replica that holds the Lease tells no address"),
            },
            Some(_) if self.resigned.load(Ordering::Acquire) => {
                Role::Waits("the replica that led is ending")
            }
            Some(_) if self.leadership.is_held() => {
                Role::Waits("the new leader is still reading the cluster")
            }
            Some(_) => Role::Waits("the leader cannot renew the Lease"),
        }
    }

    /// Begins nothing from now on.
    pub fn resign(&self) {
        self.resigned.store(true, Ordering::Release);
    }

    /// For how long no leader has answered.
    fn leaderless_for(&self) -> Duration {
        let noted = self.leaderless().filter(Leaderless::is_recent);
        noted.map(|leaderless| leaderless.since.elapsed()).unwrap_or_default()
    }

    /// A leader has answered, or none has.
    fn note_answer(&self, answered: bool) {
        let (mut noted, now) = (self.leaderless(), Instant::now());
        let before = noted.filter(Leaderless::is_recent);
        let since = before.map_or(now, |leaderless| leaderless.since);
        *noted = (!answered).then_some(Leaderless { since, last: now });
    }

    // Each change is one assignment.
    fn leaderless(&self) -> MutexGuard<'_, Option<Leaderless>> {
        self.leaderless.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leaderless {
    fn is_recent(&self) -> bool {
        self.last.elapsed() < OUT_OF_DATE
    }
}
