//! A server's connection slots, and which connection makes room when all are taken.
//!
//! Invariants: a connection is asked to end only while all slots are taken and a client waits for one. The first to go
//! is the one that has been idle longest: waiting for a request's head, or with an answer that its client has not read
//! for [`Limits::patience`]. One whose client has shown a certificate goes only while every idle one has. No connection
//! goes between a request's head and the last byte of its answer, unless the client leaves that unread. Where none is
//! idle, every connection closes after the answer that it is at, so that requests sent ahead of their answers keep no
//! slot. Of TLS handshakes at most [`Limits::handshakes`] are under way: for a further one, the longest ends.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Limits;

/// All slots of a server.
pub(super) struct Slots {
    limit: usize,
    handshakes: usize,
    patience: Duration,
    /// The phase in which connections begin.
    first: Phase,
    taken: Mutex<Vec<Arc<Slot>>>,
    /// A slot is free, or a connection's phase has changed.
    changed: Notify,
}

impl Slots {
    /// `first` is the phase in which connections begin.
    pub(super) fn new(limits: &Limits, first: Phase) -> Arc<Self> {
        let Limits { connections: limit, handshakes, patience, .. } = *limits;
        let (taken, changed) = (Mutex::default(), Notify::new());
        Arc::new(Self { limit, handshakes, patience, first, taken, changed })
    }

    /// Waits for a slot for one connection. For one caller at a time.
    pub(super) async fn take(self: &Arc<Self>) -> Guard {
        loop {
            if let Some(guard) = self.take_free() {
                return guard;
            }
            let next = self.make_room();
            // An event after that check has left its permit.
            let changed = self.changed.notified();
            match next {
                Some(at) => drop(tokio::time::timeout_at(at, changed).await),
                None => changed.await,
            }
        }
    }

    fn take_free(self: &Arc<Self>) -> Option<Guard> {
        let mut taken = self.taken();
        if taken.len() >= self.limit || self.are_handshakes_full(&taken) {
            return None;
        }
        let state =
            ConnectionState { phase: self.first, since: Instant::now(), has_certificate: false };
        let slots = Arc::clone(self);
        let slot = Arc::new(Slot { state: Mutex::new(state), asked: Notify::new(), slots });
        taken.push(slot.clone());
        Some(Guard(slot))
    }

    /// Whether no further connection may begin with a handshake.
    fn are_handshakes_full(&self, taken: &[Arc<Slot>]) -> bool {
        self.first == Phase::Handshake
            && taken.iter().filter(|slot| slot.is_handshake()).count() >= self.handshakes
    }

    /// Signals the connection that makes room to end, or all connections if none is idle. Returns when the next one
    /// becomes idle because its answer stays unread.
    fn make_room(&self) -> Option<Instant> {
        let taken = self.taken();
        let must_be_handshake = self.are_handshakes_full(&taken);
        let now = Instant::now();
        let first = taken
            .iter()
            .filter(|slot| !must_be_handshake || slot.is_handshake())
            .filter_map(|slot| Some((slot.idle_from()?, slot)))
            // Connections that are not idle yet come last, then those with a certificate, then the shortest idle.
            .min_by_key(|(from, slot)| (*from > now, slot.has_certificate(), *from));
        match first {
            Some((from, slot)) if from <= now => {
                slot.asked.notify_one();
                None
            }
            other => {
                taken.iter().for_each(|slot| slot.asked.notify_one());
                other.map(|(from, _)| from)
            }
        }
    }

    fn free(&self, slot: &Arc<Slot>) {
        self.taken().retain(|taken| !Arc::ptr_eq(taken, slot));
        self.changed.notify_one();
    }

    // A panic cannot leave a partial change: each is one push or one retain.
    fn taken(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The current phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The TLS handshake is not done.
    Handshake,
    /// Waits for a request's head.
    Waiting,
    /// Has received a request's head; the handler makes the answer.
    Answering,
    /// Writes the answer; the kernel has not accepted all of it.
    Writing,
}

/// What is known of a connection. Only the connection writes it.
#[derive(Debug, Clone, Copy)]
struct ConnectionState {
    phase: Phase,
    /// When the phase began.
    since: Instant,
    /// The client has shown a certificate that is admitted.
    has_certificate: bool,
}

/// One connection's slot.
pub(super) struct Slot {
    state: Mutex<ConnectionState>,
    /// Signals the connection to make room. The signal may be outdated when it is received.
    asked: Notify,
    slots: Arc<Slots>,
}

impl Slot {
    /// Sets the connection's phase.
    pub(super) fn begin(&self, phase: Phase) {
        let state = *self.state();
        self.set(ConnectionState { phase, since: Instant::now(), ..state });
    }

    /// The handshake is done. A signal to make room that came before is void.
    pub(super) async fn opened(&self, has_certificate: bool) {
        {
            // Under this lock signals are sent: none that is sent later is for the handshake.
            let _taken = self.slots.taken();
            let (phase, since) = (Phase::Waiting, Instant::now());
            self.set(ConnectionState { phase, since, has_certificate });
        }
        let mut signal = pin!(self.asked.notified());
        poll_fn(|context| Poll::Ready(signal.as_mut().poll(context).is_ready())).await;
    }

    /// The kernel has accepted the whole answer, if one was being written.
    pub(super) fn flushed(&self) {
        let phase = self.state().phase;
        if phase == Phase::Writing {
            self.begin(Phase::Waiting);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state().phase == Phase::Waiting
    }

    /// Whether the connection may end now to make room.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_from().is_some_and(|from| from <= Instant::now())
    }

    fn is_handshake(&self) -> bool {
        self.state().phase == Phase::Handshake
    }

    fn has_certificate(&self) -> bool {
        self.state().has_certificate
    }

    /// From when on the connection counts as idle, unless its phase changes.
    fn idle_from(&self) -> Option<Instant> {
        let ConnectionState { phase, since, .. } = *self.state();
        match phase {
            Phase::Handshake | Phase::Waiting => Some(since),
            Phase::Answering => None,
            Phase::Writing => Some(since + self.slots.patience),
        }
    }

    /// Returns when the connection is signalled to make room, once for each signal.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    fn set(&self, state: ConnectionState) {
        *self.state() = state;
        if state.phase != Phase::Answering {
            self.slots.changed.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A taken slot; dropped, it is free again.
pub(super) struct Guard(Arc<Slot>);

impl Guard {
    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.slots.free(&self.0);
    }
}
