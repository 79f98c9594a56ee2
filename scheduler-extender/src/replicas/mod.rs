//! Several replicas of the extender. One at a time, the leader, assigns GPUs.
//!
//! # Which replica answers what
//!
//! All replicas have the same watches, all are ready, and each answers the verbs about load. The verbs about GPUs
//! (`/gpushare-scheduler/{filter,prioritize,preempt,bind}`) are answered by the leader: the ledger with its
//! reservations is in the memory of one process. The other replicas forward such a request to the leader ([`forward`]),
//! whose address is an annotation of the Lease, and return its answer. If they serve kube-scheduler over TLS, so do
//! they each other, each with its own certificate ([`leader_client`]). A forwarded request is not forwarded again: a
//! replica that receives one and does not lead returns an error, and the sender reads the Lease again.
//!
//! # Why no GPU is assigned twice
//!
//! The danger is a binding of an earlier leader that the API server carries out after a new leader has begun to choose
//! GPUs without it.
//!
//! 1. A leader begins no binding after two thirds of the Lease's duration, counted from before it sent its last renewal
//!    ([`cluster::Leadership`]). Other replicas wait for the whole duration, counted from when they saw that renewal.
//!    The check is directly before the POST, so it also covers a request that waited long, or came over a connection
//!    that kube-scheduler keeps open to an earlier leader.
//! 2. A binding's POST takes a third of the duration at most, at the client and, by the `timeout` of the request, at
//!    the API server. So when another replica can take the Lease, the POSTs of the previous leader have ended: two
//!    thirds plus one third is the whole duration.
//! 3. At its shutdown, a leader first waits for its bindings under way, and then releases the Lease. If the outcome of
//!    one is unknown, it does not release the Lease: the Lease expires, and 2 holds.
//! 4. A replica that has taken the Lease lists pods and nodes again, in the API server's newest state, and assigns
//!    GPUs once both lists are in its view. So its view has every binding that ended before it took the Lease. A pod
//!    of which only the claim is known counts on every GPU of its node until the kubelet's records place it
//!    ([`placement::gpu::NodeLedger`]).
//! 5. A replica that loses the Lease and takes it again does the same, unless no other replica has held it in between,
//!    which the term numbers show.
//!
//! The remaining cases: the process is stopped between the check and the send (SIGSTOP, a frozen machine); the one
//! thread that sends is blocked there for longer than the Lease has left (the process ends after [`daemon::HUNG`]); or
//! the network delays the POST. Such a binding may be carried out during the next leader's term and claim units that
//! are taken by then. That leader sees it in its watch, charges both pods, and assigns no more of the GPU. No memory
//! is assigned twice: the device plugin grants each id of a GPU to one container, and in Allocate rejects a pod whose
//! claimed GPU has too few ids left. That pod fails with `UnexpectedAdmissionError`, and its controller creates
//! another.

mod forward;
mod leader_client;
mod metrics;
mod other_replicas;
mod takeover;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::Leadership;
use tokio::sync::watch;
use tokio::time::Instant;

pub use forward::{FORWARDED, Forwarder};
pub(crate) use forward::{ForwardError, Forwarded};
pub use leader_client::{LeaderClient, SecureClients};
pub use metrics::ReplicaMetrics;
pub use other_replicas::OtherReplicas;
pub use takeover::prepare;

/// This replica's part in the leader election.
#[derive(Debug)]
pub struct Replicas {
    leadership: Leadership,
    /// This replica's name in the Lease.
    identity: String,
    /// The last term in which pods and nodes were listed after the Lease was taken.
    prepared: watch::Sender<Option<u64>>,
    /// Set at the shutdown: this replica begins no more bindings.
    resigned: AtomicBool,
    leaderless: Mutex<Option<Leaderless>>,
}

/// A period in which no leader has answered.
#[derive(Debug, Clone, Copy)]
struct Leaderless {
    since: Instant,
    /// The last request that got no answer.
    last: Instant,
}

/// After this time without a request, a [`Leaderless`] period is out of date.
const OUT_OF_DATE: Duration = Duration::from_secs(10);

/// How a replica handles a request about GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It answers the request.
    Leads,
    /// It forwards the request to this address.
    Follows(SocketAddr),
    /// No leader is known, for this reason; soon one of the replicas will lead.
    Waits(&'static str),
}

impl Replicas {
    /// A single replica, which always leads.
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

    /// Whether this replica assigns GPUs now.
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

    /// The timeout of a binding that begins now; `None` where this replica does not lead.
    #[must_use]
    pub fn longest_call(&self) -> Option<Duration> {
        self.leads().then(|| self.leadership.longest_call())
    }

    /// The name of the replica whose Lease has expired since it was last seen.
    #[must_use]
    pub fn lost_leader(&self) -> Option<String> {
        let holder = self.leadership.holder()?;
        holder.is_lost().then_some(holder.identity)
    }

    /// This replica, for people. `complete`: whether it has listed all nodes and pods.
    #[must_use]
    pub fn described(&self, complete: bool) -> api::state::Replica {
        let leads = self.leads();
        let holder = self.leadership.holder().filter(|holder| !holder.is_lost());
        let leader = holder.map(|holder| holder.identity);
        api::state::Replica {
            name: self.identity.clone(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            leads,
            leader: leader.filter(|leader| !leads && *leader != self.identity),
            complete,
        }
    }

    /// How to handle a request about GPUs.
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

    /// Begins no more bindings.
    pub fn resign(&self) {
        self.resigned.store(true, Ordering::Release);
    }

    /// How long no leader has answered.
    fn leaderless_for(&self) -> Duration {
        let noted = self.leaderless().filter(Leaderless::is_recent);
        noted.map(|leaderless| leaderless.since.elapsed()).unwrap_or_default()
    }

    /// Records whether a leader has answered a request.
    fn record_answer(&self, answered: bool) {
        let mut noted = self.leaderless();
        let now = Instant::now();
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
