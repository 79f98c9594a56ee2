//! What goes wrong between a client and the API server, on demand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::request::{Request, Verb};
use crate::objects::failure::Failure;
use crate::objects::kind::{Kind, PODS};
use crate::objects::store::Store;

/// One thing that goes wrong with one request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The request waits until [`Faults::release`], and is carried out then. If its client has closed the connection
    /// meanwhile, it is never carried out.
    Hang,
    /// The request is carried out, and the connection closes without an answer.
    DropReply,
    /// The request is not carried out, and the connection closes without an answer.
    DropRequest,
    /// The request is not carried out; this is the answer.
    Answer(Failure),
    /// The request is carried out and answered after this time.
    Delay(Duration),
}

/// A fault for the next requests of one verb and kind.
#[derive(Debug, Clone)]
struct Planned {
    verb: Verb,
    kind: Kind,
    /// The subresource; `None` for any request of this verb and kind.
    subresource: Option<&'static str>,
    /// Requests that it will still meet.
    left: usize,
    fault: Fault,
}

/// Counts one hanging request until it is dropped.
struct HangingRequest(watch::Sender<usize>);

impl Drop for HangingRequest {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Plans faults. Clones share one state.
#[derive(Debug, Clone)]
pub struct Faults {
    planned: Arc<Mutex<Vec<Planned>>>,
    /// Counts the releases of hanging requests.
    released: watch::Sender<u64>,
    /// Number of hanging requests.
    hanging: watch::Sender<usize>,
    /// Counts the calls of `disconnect_watches`.
    disconnects: watch::Sender<u64>,
    store: Store,
}

impl Faults {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            planned: Arc::default(),
            released: watch::Sender::new(0),
            hanging: watch::Sender::new(0),
            disconnects: watch::Sender::new(0),
            store,
        }
    }

    /// The next `count` requests of this verb and kind meet `fault`. Faults for the same requests take turns in the
    /// order in which they were planned.
    pub fn next(&self, count: usize, verb: Verb, kind: Kind, fault: Fault) {
        let planned = Planned { verb, kind, subresource: None, left: count, fault };
        self.lock().push(planned);
    }

    /// The next `count` patches of the status of objects of this kind meet `fault`.
    pub fn next_status_patches(&self, count: usize, kind: Kind, fault: Fault) {
        let verb = Verb::Patch;
        let subresource = Some("status");
        self.lock().push(Planned { verb, kind, subresource, left: count, fault });
    }

    /// The next `count` bindings meet `fault`.
    pub fn next_bindings(&self, count: usize, fault: Fault) {
        self.next(count, Verb::Bind, PODS, fault);
    }

    /// Removes the planned faults, and lets hanging requests proceed.
    pub fn release(&self) {
        self.lock().clear();
        self.released.send_modify(|count| *count += 1);
    }

    /// Breaks the connection of every open watch.
    pub fn disconnect_watches(&self) {
        self.disconnects.send_modify(|count| *count += 1);
    }

    /// Forgets the history: every open watch, and every one that resumes from before, gets 410 Gone.
    pub fn expire_watches(&self) {
        self.store.compact();
    }

    /// The fault that a request meets, if any.
    pub(super) fn take(&self, request: &Request) -> Option<Fault> {
        let mut planned = self.lock();
        let plan = planned.iter_mut().find(|fault| {
            let is_part = fault.subresource.is_none_or(|part| request.subresource == part);
            fault.left > 0 && is_part && request.is(fault.verb, fault.kind)
        })?;
        plan.left -= 1;
        Some(plan.fault.clone())
    }

    /// Number of hanging requests. One whose client has closed the connection no longer counts.
    #[must_use]
    pub fn hanging(&self) -> usize {
        *self.hanging.borrow()
    }

    pub(crate) fn hanging_changes(&self) -> watch::Receiver<usize> {
        self.hanging.subscribe()
    }

    /// Counts a request as hanging until the next release, or until the future is dropped.
    pub(super) fn hang(&self) -> impl Future<Output = ()> + use<> {
        let mut released = self.released.subscribe();
        self.hanging.send_modify(|count| *count += 1);
        let counted = HangingRequest(self.hanging.clone());
        async move {
            let _counted = counted;
            // It cannot fail: the server holds the sender.
            drop(released.changed().await);
        }
    }

    pub(super) fn disconnects(&self) -> watch::Receiver<u64> {
        self.disconnects.subscribe()
    }

    // A panic cannot leave a change half done: each is a single step.
    fn lock(&self) -> MutexGuard<'_, Vec<Planned>> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
