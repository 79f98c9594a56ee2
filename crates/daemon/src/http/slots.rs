//! A server's connection slots, and which connection makes room when all are taken.
//!
//! Invariants: a connection is asked to end only while all slots are taken and a client waits for one. The first to go
//! is the one that has been idle longest: waiting for a request's head, or with an answer that its client has not read
//! for [`Limits::patience`]. No connection goes between a request's head and the last byte of its answer, unless the
//! client leaves that unread. Where none is idle, every connection closes after the answer that it is at, so that
//! requests sent ahead of their answers keep no slot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Limits;

/// All slots of a server.
pub(super) struct Slots {
    limit: usize,
    patience: Duration,
    taken: Mutex<Vec<Arc<Slot>>>,
    /// A slot is free, or a connection's phase has changed.
    changed: Notify,
}

impl Slots {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let Limits { connections: limit, patience, .. } = *limits;
        Arc::new(Self { limit, patience, taken: Mutex::default(), changed: Notify::new() })
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
        if taken.len() >= self.limit {
            return None;
        }
        let slot = Arc::new(Slot {
            state: Mutex::new((Phase::Waiting, Instant::now())),
            asked: Notify::new(),
            slots: self.clone(),
        });
        taken.push(slot.clone());
        Some(Guard(slot))
    }

    /// Signals the connection that has been idle longest to end, or all connections if none is idle. Returns when the
    /// next one becomes idle because its answer stays unread.
    fn make_room(&self) -> Option<Instant> {
        let taken = self.taken();
        let idle = taken.iter().filter_map(|slot| Some((slot.idle_from()?, slot)));
        let longest = idle.min_by_key(|(from, _)| *from);
        match longest {
            Some((from, slot)) if from <= Instant::now() => {
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
    /// Waits for a request's head, or for its TLS handshake.
    Waiting,
    /// Has received a request's head; the handler makes the answer.
    Answering,
    /// Writes the answer; the kernel has not accepted all of it.
    Writing,
}

/// One connection's slot.
pub(super) struct Slot {
    /// The phase, and when it began. Only the connection writes it.
    state: Mutex<(Phase, Instant)>,
    /// Signals the connection to make room. The signal may be outdated when it is received.
    asked: Notify,
    slots: Arc<Slots>,
}

impl Slot {
    /// Sets the connection's phase.
    pub(super) fn begin(&self, phase: Phase) {
        *self.state() = (phase, Instant::now());
        if phase != Phase::Answering {
            self.slots.changed.notify_one();
        }
    }

    /// The kernel has accepted the whole answer, if one was being written.
    pub(super) fn flushed(&self) {
        let (phase, _) = *self.state();
        if phase == Phase::Writing {
            self.begin(Phase::Waiting);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state().0 == Phase::Waiting
    }

    /// Whether the connection may end now to make room.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_from().is_some_and(|from| from <= Instant::now())
    }

    /// From when on the connection counts as idle, unless its phase changes.
    fn idle_from(&self) -> Option<Instant> {
        match *self.state() {
            (Phase::Waiting, since) => Some(since),
            (Phase::Answering, _) => None,
            (Phase::Writing, since) => Some(since + self.slots.patience),
        }
    }

    /// Returns when the connection is signalled to make room, once for each signal.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, (Phase, Instant)> {
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
