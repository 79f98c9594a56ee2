//! What can go wrong between a client and an API server, on demand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::Failure;
use crate::kind::Kind;
use crate::request::{Request, Verb};
use crate::store::Store;

/// One thing that goes wrong with one request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// No answer, and nothing done, until [`Faults::release`]; then the request proceeds. A client
    /// that has gone by then has asked for nothing.
    Hang,
    /// Done, but the connection closes without an answer.
    DropReply,
    /// Nothing done; the connection closes without an answer.
    DropRequest,
    /// Nothing done; this is the answer.
    Answer(Failure),
    /// Done and answered, after this long.
    Delay(Duration),
}

/// A fault that waits for its requests.
#[derive(Debug, Clone)]
struct Planned {
    verb: Verb,
    kind: Kind,
    left: usize,
    fault: Fault,
}

struct Hanging(watch::Sender<usize>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The handle by which a test makes things go wrong. Clones share one state.
#[derive(Debug, Clone)]
pub struct Faults {
    planned: Arc<Mutex<Vec<Planned>>>,
    /// Counts the releases of hanging requests.
    released: watch::Sender<u64>,
    hanging: watch::Sender<usize>,
    /// Counts the cuts of all watches.
    cut: watch::Sender<u64>,
    store: Store,
}

impl Faults {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            planned: Arc::default(),
            released: watch::Sender::new(0),
            hanging: watch::Sender::new(0),
            cut: watch::Sender::new(0),
            store,
        }
    }

    /// The next `count` requests of this verb and kind suffer `fault`. Faults planned for the same
    /// requests strike in the order in which they were planned.
    pub fn next(&self, count: usize, verb: Verb, kind: Kind, fault: Fault) {
        let planned = Planned { verb, kind, left: count, fault };
        self.lock().push(planned);
    }

    /// The next `count` bindings suffer `fault`.
    pub fn next_bindings(&self, count: usize, fault: Fault) {
        self.next(count, Verb::Bind, crate::PODS, fault);
    }

    /// Faults planned but not yet met are off, and hanging requests proceed.
    pub fn release(&self) {
        self.lock().clear();
        self.released.send_modify(|count| *count += 1);
    }

    /// Breaks the connection of every open watch.
    pub fn disconnect_watches(&self) {
        self.cut.send_modify(|count| *count += 1);
    }

    /// Forgets the history, so that every watch, open or resumed from before, gets 410 Gone.
    pub fn expire_watches(&self) {
        self.store.compact();
    }

    /// The fault that `request` meets, if any.
    pub(crate) fn take(&self, request: &Request) -> Option<Fault> {
        let mut planned = self.lock();
        let meets = |plan: &&mut Planned| plan.left > 0 && request.is(plan.verb, plan.kind);
        let plan = planned.iter_mut().find(meets)?;
        plan.left -= 1;
        Some(plan.fault.clone())
    }

    /// How many requests hang now; one whose client gave up no longer does.
    #[must_use]
    pub fn hanging(&self) -> usize {
        *self.hanging.borrow()
    }

    pub(crate) fn hanging_changes(&self) -> watch::Receiver<usize> {
        self.hanging.subscribe()
    }

    /// Lets one request hang from now until the next release, or until it is dropped.
    pub(crate) fn hang(&self) -> impl Future<Output = ()> + use<> {
        let mut released = self.released.subscribe();
        self.hanging.send_modify(|count| *count += 1);
        let counted = Hanging(self.hanging.clone());
        async move {
            let _counted = counted;
            // The handle is shared with the server, so the sender outlives this.
            drop(released.changed().await);
        }
    }

    pub(crate) fn cuts(&self) -> watch::Receiver<u64> {
        self.cut.subscribe()
    }

    // Each change of the list leaves it whole.
    fn lock(&self) -> MutexGuard<'_, Vec<Planned>> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
