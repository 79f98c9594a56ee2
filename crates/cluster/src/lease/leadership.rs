//! The state of the Lease for the rest of the process: whether it may write, for how long, and which replica holds the
//! Lease.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Until when this process may begin writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseTerm {
    /// There is no Lease: this is the only replica.
    Endless,
    Until(Instant),
    /// Another replica holds the Lease, or none does.
    Over,
}

/// The holder of the Lease when it was last read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its [`LeaseSettings::identity`](super::LeaseSettings::identity).
    pub identity: String,
    /// The address at which other replicas reach it; `None` if the Lease has none, or none that can be read.
    pub address: Option<SocketAddr>,
    /// When another replica may take the Lease, unless it is renewed.
    pub(super) free_at: Instant,
}

impl Holder {
    /// Whether the Lease has expired: this process has not seen it renewed for as long as it lasts.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        Instant::now() >= self.free_at
    }
}

/// The state of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeaseState {
    pub(super) term: LeaseTerm,
    /// The number of this process's terms so far.
    pub(super) number: u64,
    /// Reads and writes of the Lease that failed, since the start.
    pub(super) failures: u64,
    pub(super) holder: Option<Holder>,
}

/// Whether this process may write; clones share it.
#[derive(Debug, Clone)]
pub struct Leadership {
    pub(super) state: watch::Receiver<LeaseState>,
    /// The Lease's duration.
    pub(super) duration: Duration,
}

impl Leadership {
    /// The leadership of a process that needs no Lease.
    #[must_use]
    pub fn without_lease() -> Self {
        let state = LeaseState { term: LeaseTerm::Endless, number: 0, failures: 0, holder: None };
        Self { state: watch::channel(state).1, duration: Duration::MAX }
    }

    /// How long a write that begins now may take; `None` if none may begin.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        match self.state.borrow().term {
            LeaseTerm::Endless => Some(Duration::MAX),
            LeaseTerm::Until(end) => Some(end.saturating_duration_since(Instant::now())),
            LeaseTerm::Over => None,
        }
        .filter(|left| !left.is_zero())
    }

    /// The most that a call may take that begins while the Lease is held, so that it ends before another replica can
    /// take the Lease: a third of its duration.
    #[must_use]
    pub fn longest_call(&self) -> Duration {
        self.duration / 3
    }

    /// The number of the current term; `None` if no write may begin, always 0 without a Lease.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.remaining().map(|_| self.state.borrow().number)
    }

    /// The holder of the Lease when it was last seen, which may be this process, and [lost](Holder::is_lost) since;
    /// `None` if it was free or is not known.
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        self.state.borrow().holder.clone()
    }

    /// How often the Lease could be neither read nor renewed, since the start.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.state.borrow().failures
    }

    /// Returns once [`term`](Self::term) is no longer `term`.
    pub async fn until_term_is_not(&mut self, term: Option<u64>) {
        while self.term() == term {
            self.change_or_end().await;
        }
    }

    /// Whether a write may begin now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.remaining().is_some()
    }

    /// Returns once [`is_held`](Self::is_held) is no longer `held`.
    pub async fn until_not(&mut self, held: bool) {
        while self.is_held() == held {
            self.change_or_end().await;
        }
    }

    /// Returns once the state changes, or the term ends because it was not renewed.
    async fn change_or_end(&mut self) {
        let term = self.state.borrow_and_update().term;
        tokio::select! {
            changed = self.state.changed() => if changed.is_err() {
                // The elector has ended, so the term is not renewed any more.
                end_of(term).await;
            },
            () = end_of(term) => {}
        }
    }
}

/// Returns at the end of a term; never if it is over or endless.
async fn end_of(term: LeaseTerm) {
    match term {
        LeaseTerm::Until(end) if end > Instant::now() => tokio::time::sleep_until(end).await,
        _ => std::future::pending().await,
    }
}
