//! A server's places, and who gives up theirs for a client that finds none.
//!
//! Invariants: a place is asked back only while all are taken and a client waits; who is asked has waited longest for
//! a request's head, or for its client to read, and goes only while it waits: never between a head and the last byte of
//! its answer, unless its client has left that unread. Where none waits, the first answer that is made is
//! its connection's last, so that requests sent ahead of their answers keep no place either.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::Shutdown;

/// A request is being answered.
const ANSWERING: u64 = 0;
/// Its answer is made and not all written.
const WRITING: u64 = 1;
/// From here on numbers tell whose wait, for a head or for its client to read, began first.
const WAITING: u64 = 2;

/// All places of a server.
pub(super) struct Places {
    limit: usize,
    shutdown: Shutdown,
    taken: Mutex<Vec<Arc<Place>>>,
    /// The number of the next wait.
    next_wait: AtomicU64,
    /// Whether a client waits for a place.
    wanted: AtomicBool,
    /// Told when a place is free; and while one is wanted, when one is worth asking for.
    changed: Notify,
}

impl Places {
    /// `limit` of them, all free. All are asked back when `shutdown` is cancelled.
    pub(super) fn new(limit: usize, shutdown: Shutdown) -> Arc<Self> {
        Arc::new(Self {
            limit,
            shutdown,
            taken: Mutex::default(),
            next_wait: AtomicU64::new(WAITING),
            wanted: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    /// A place for one connection, once there is one. For one caller at a time.
    pub(super) async fn take(self: &Arc<Self>) -> Taken {
        loop {
            if let Some(taken) = self.take_free() {
                self.wanted.store(false, SeqCst);
                return taken;
            }
            // Before the look: a wait that begins after the look sees it, and tells.
            self.wanted.store(true, SeqCst);
            if let Some(place) = self.longest_wait() {
                place.asked_back.cancel();
            }
            self.changed.notified().await;
        }
    }

    fn take_free(self: &Arc<Self>) -> Option<Taken> {
        let mut taken = self.lock();
        if taken.len() >= self.limit {
            return None;
        }
        let place = Arc::new(Place {
            state: AtomicU64::new(self.next_wait.fetch_add(1, SeqCst)),
            asked_back: self.shutdown.child_token(),
            places: self.clone(),
        });
        taken.push(place.clone());
        Some(Taken(place))
    }

    /// That of the connection that has waited longest. One that was asked and has not heard it yet is found
    /// again, so that no second one goes for the same client.
    fn longest_wait(&self) -> Option<Arc<Place>> {
        let taken = self.lock();
        let waits = taken.iter().filter(|place| place.waits());
        waits.min_by_key(|place| place.state.load(SeqCst)).cloned()
    }

    fn free(&self, place: &Arc<Place>) {
        self.lock().retain(|taken| !Arc::ptr_eq(taken, place));
        self.changed.notify_one();
    }

    // A thread that panicked while it held this lock left a whole list behind.
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a connection tells of itself, and is told.
pub(super) struct Place {
    /// [`ANSWERING`], [`WRITING`], or the number of its wait. Only its connection writes it.
    state: AtomicU64,
    asked_back: Shutdown,
    places: Arc<Places>,
}

impl Place {
    /// A head has come.
    pub(super) fn answering(&self) {
        self.state.store(ANSWERING, SeqCst);
    }

    /// The answer is made, and whole: the connection takes it over before it writes. Whether it is the last one, since
    /// a client waits for a place and nobody was found who waits for a head.
    pub(super) fn answered(&self) -> bool {
        self.state.store(WRITING, SeqCst);
        self.places.wanted.load(SeqCst) && self.places.wanted.swap(false, SeqCst)
    }

    /// All that was to be written is.
    pub(super) fn written(&self) {
        if self.state.load(SeqCst) == WRITING {
            self.wait();
        }
    }

    /// The client has left its answer unread for so long that it may go for another.
    pub(super) fn unread(&self) {
        self.wait();
    }

    fn wait(&self) {
        self.state.store(self.places.next_wait.fetch_add(1, SeqCst), SeqCst);
        // Also where none is wanted: the one who wants it may count on an answer that is then left unread.
        self.places.changed.notify_one();
    }

    /// Whether the connection waits, for a head or for its client to read.
    pub(super) fn waits(&self) -> bool {
        self.state.load(SeqCst) >= WAITING
    }

    /// Cancelled when the connection is to end: its place is asked back, or the server stops.
    pub(super) fn asked_back(&self) -> &Shutdown {
        &self.asked_back
    }

    /// Cancelled when the server stops.
    pub(super) fn shutdown(&self) -> &Shutdown {
        &self.places.shutdown
    }
}

/// A place, free again when this is dropped.
pub(super) struct Taken(Arc<Place>);

impl Taken {
    pub(super) fn place(&self) -> &Arc<Place> {
        &self.0
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.places.free(&self.0);
    }
}
