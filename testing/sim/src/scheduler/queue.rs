//! Which pod is next, and what the others wait for.
//!
//! As in kube-scheduler: a rejected pod waits for an event that may help it. Then it is tried again at once if no other
//! pod is active (SchedulerPopFromBackoffQ), otherwise after its backoff. A pod whose attempt ended with an error waits
//! for its whole backoff.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::pod::Key;

/// Backoff after the first failure. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// Longest backoff.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// What a pod waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitingFor {
    /// kube-scheduler's own filters reject every node: an event that bears on these.
    Room,
    /// An extender has rejected a node: any change of a node, its annotations included, or of the pod.
    AnyChange,
    /// The attempt ended with an error: the end of the backoff.
    Backoff,
}

#[derive(Debug)]
struct Waiting {
    what: WaitingFor,
    backoff_until: Instant,
    /// Whether that has happened.
    ready: bool,
}

#[derive(Debug, Default)]
struct QueueState {
    active: VecDeque<Key>,
    waiting: HashMap<Key, Waiting>,
    /// Pods whose attempt is under way: being scheduled, or assumed and being bound.
    in_flight: HashSet<Key>,
    /// Failed attempts of a pod.
    failures: HashMap<Key, u32>,
    /// Number of events that end [`WaitingFor::Room`].
    room_changes: u64,
    /// Number of events that end [`WaitingFor::AnyChange`].
    changes: u64,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Notify,
}

/// The number of events of each kind when an attempt began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    room_changes: u64,
    changes: u64,
}

impl Queue {
    /// Adds a pod, unless it is there.
    pub(super) fn add(&self, key: Key) {
        let mut state = self.lock();
        if !state.contains(&key) {
            state.active.push_back(key);
            self.changed.notify_one();
        }
    }

    /// Takes note of a change of a pod, and adds it unless it is there. The scheduler's own write of the pod's
    /// condition is such a change: so a message that differs with each attempt has a pod that an extender rejects tried
    /// again for ever.
    pub(super) fn updated(&self, key: Key) {
        if let Some(waiting) = self.lock().waiting.get_mut(&key) {
            waiting.ready |= waiting.what == WaitingFor::AnyChange;
            self.changed.notify_one();
            return;
        }
        self.add(key);
    }

    /// Removes a pod.
    pub(super) fn remove(&self, key: &Key) {
        let mut state = self.lock();
        state.active.retain(|other| other != key);
        state.waiting.remove(key);
        state.in_flight.remove(key);
        state.failures.remove(key);
    }

    /// Takes note of a change of a node or the end of a pod. `room` tells whether it bears on kube-scheduler's own
    /// filters.
    pub(super) fn nodes_changed(&self, room: bool) {
        let mut state = self.lock();
        state.changes += 1;
        state.room_changes += u64::from(room);
        for waiting in state.waiting.values_mut() {
            waiting.ready |= match waiting.what {
                WaitingFor::Room => room,
                WaitingFor::AnyChange => true,
                WaitingFor::Backoff => false,
            };
        }
        self.changed.notify_one();
    }

    /// Ends a failed attempt. Events since its beginning count.
    pub(super) fn failed(&self, key: Key, what: WaitingFor, attempt: Attempt) {
        let mut state = self.lock();
        if !state.in_flight.remove(&key) {
            // The pod was removed during the attempt.
            return;
        }
        let failures = state.failures.entry(key.clone()).or_default();
        let backoff = FIRST_BACKOFF * 2_u32.saturating_pow((*failures).min(4));
        *failures += 1;
        let ready = match what {
            WaitingFor::Room => state.room_changes > attempt.room_changes,
            WaitingFor::AnyChange => state.changes > attempt.changes,
            WaitingFor::Backoff => true,
        };
        let backoff_until = Instant::now() + backoff.min(LONGEST_BACKOFF);
        state.waiting.insert(key, Waiting { what, backoff_until, ready });
        self.changed.notify_one();
    }

    /// Waits for the next pod to try.
    pub(super) async fn next(&self) -> (Key, Attempt) {
        loop {
            let until = match self.pop() {
                Ok(next) => return next,
                Err(until) => until,
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// The next pod, or the time until which there is none without a further event.
    fn pop(&self) -> Result<(Key, Attempt), Instant> {
        let mut state = self.lock();
        let now = Instant::now();
        let key = state.active.pop_front().or_else(|| state.pop_waiting(now));
        let attempt = Attempt { room_changes: state.room_changes, changes: state.changes };
        state.in_flight.extend(key.clone());
        key.map(|key| (key, attempt)).ok_or_else(|| state.next_backoff_end(now))
    }

    // A panic cannot leave a change half done: nothing below these locks panics.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn contains(&self, key: &Key) -> bool {
        self.waiting.contains_key(key) || self.in_flight.contains(key) || self.active.contains(key)
    }

    fn pop_waiting(&mut self, now: Instant) -> Option<Key> {
        let due = self.waiting.iter().filter(|(_, waiting)| {
            waiting.ready && (waiting.what != WaitingFor::Backoff || waiting.backoff_until <= now)
        });
        let (key, _) = due.min_by_key(|(_, waiting)| waiting.backoff_until)?;
        let key = key.clone();
        self.waiting.remove(&key);
        Some(key)
    }

    fn next_backoff_end(&self, now: Instant) -> Instant {
        let ready = self.waiting.values().filter(|waiting| waiting.ready);
        ready.map(|waiting| waiting.backoff_until).min().unwrap_or(now + LONGEST_BACKOFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("default".to_owned(), name.to_owned())
    }

    /// A queue whose only pod has failed once.
    async fn failed(what: WaitingFor) -> Queue {
        let queue = Queue::default();
        queue.add(key("a"));
        let (popped, attempt) = queue.next().await;
        queue.failed(popped, what, attempt);
        queue
    }

    #[tokio::test]
    async fn a_pod_without_room_waits_for_room_and_for_no_annotation() {
        let queue = failed(WaitingFor::Room).await;
        queue.nodes_changed(false);
        queue.updated(key("a"));
        assert!(queue.pop().is_err());
        queue.nodes_changed(true);
        assert_eq!(queue.pop().unwrap().0, key("a"));
    }

    #[tokio::test]
    async fn a_pod_that_an_extender_rejects_is_tried_again_at_any_change_of_a_node() {
        let queue = failed(WaitingFor::AnyChange).await;
        assert!(queue.pop().is_err());
        queue.nodes_changed(false);
        assert_eq!(queue.pop().unwrap().0, key("a"));
    }

    #[tokio::test]
    async fn a_pod_that_an_extender_rejects_is_tried_again_when_it_changes_itself() {
        let queue = failed(WaitingFor::AnyChange).await;
        queue.updated(key("a"));
        assert_eq!(queue.pop().unwrap().0, key("a"));
    }

    #[tokio::test]
    async fn events_during_an_attempt_count() {
        let queue = Queue::default();
        queue.add(key("a"));
        let (popped, attempt) = queue.next().await;
        queue.nodes_changed(false);
        queue.failed(popped, WaitingFor::AnyChange, attempt);
        assert_eq!(queue.pop().unwrap().0, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_error_backoff_doubles_from_one_second_to_ten() {
        let queue = failed(WaitingFor::Backoff).await;
        for seconds in [1, 2, 4, 8, 10, 10] {
            let start = Instant::now();
            let (popped, attempt) = queue.next().await;
            assert_eq!(start.elapsed().as_secs(), seconds);
            queue.failed(popped, WaitingFor::Backoff, attempt);
        }
    }
}
