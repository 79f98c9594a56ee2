//! Which pod is next, and which wait for what.
//!
//! As in kube-scheduler: a rejected pod waits until something happens that may help it, and is then
//! tried again at once when nothing else is to be done (SchedulerPopFromBackoffQ), else after its
//! backoff; a pod whose attempt failed with an error sits out its whole backoff.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// After the first failure; doubles.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// At most.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// Namespace and name.
pub(super) type Key = (String, String);

/// Why a pod waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// By node totals it fits nowhere: only a change of those helps.
    ForRoom,
    /// An extender turned it away: any change of a node may help, its annotations included.
    ForAnything,
    /// Something failed: time helps.
    AfterError,
}

#[derive(Debug)]
struct Waiting {
    why: Waits,
    not_before: Instant,
    /// Whether something has happened that may help.
    roused: bool,
}

#[derive(Debug, Default)]
struct State {
    active: VecDeque<Key>,
    waiting: HashMap<Key, Waiting>,
    /// Handed out, and neither failed nor removed since: being scheduled, or assumed and being bound.
    in_flight: HashSet<Key>,
    attempts: HashMap<Key, u32>,
    /// Counts what has happened that may help a pod that fits nowhere, and one that was turned away.
    room_changes: u64,
    changes: u64,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    news: Notify,
}

/// What had happened when an attempt began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    room_changes: u64,
    changes: u64,
}

impl Queue {
    /// A pod is to be scheduled.
    pub(super) fn add(&self, key: Key) {
        let mut state = self.lock();
        if !state.knows(&key) {
            state.active.push_back(key);
            self.news.notify_one();
        }
    }

    /// A pod is not to be scheduled any more.
    pub(super) fn remove(&self, key: &Key) {
        let mut state = self.lock();
        state.active.retain(|other| other != key);
        state.waiting.remove(key);
        state.in_flight.remove(key);
        state.attempts.remove(key);
    }

    /// A node has changed, or a pod has gone; `room` where that bears on node totals.
    pub(super) fn nodes_changed(&self, room: bool) {
        let mut state = self.lock();
        state.changes += 1;
        state.room_changes += u64::from(room);
        for waiting in state.waiting.values_mut() {
            waiting.roused |= match waiting.why {
                Waits::ForRoom => room,
                Waits::ForAnything => true,
                Waits::AfterError => false,
            };
        }
        self.news.notify_one();
    }

    /// An attempt has failed.
    pub(super) fn failed(&self, key: Key, why: Waits, seen: Seen) {
        let mut state = self.lock();
        if !state.in_flight.remove(&key) {
            // Removed meanwhile.
            return;
        }
        let attempts = state.attempts.entry(key.clone()).or_default();
        let backoff = FIRST_BACKOFF * 2_u32.saturating_pow((*attempts).min(4));
        *attempts += 1;
        // What happened during the attempt counts.
        let roused = match why {
            Waits::ForRoom => state.room_changes > seen.room_changes,
            Waits::ForAnything => state.changes > seen.changes,
            Waits::AfterError => true,
        };
        let not_before = Instant::now() + backoff.min(LONGEST_BACKOFF);
        state.waiting.insert(key, Waiting { why, not_before, roused });
        self.news.notify_one();
    }

    /// The next pod to try, once there is one.
    pub(super) async fn next(&self) -> (Key, Seen) {
        loop {
            let until = match self.pop() {
                Ok(found) => return found,
                Err(until) => until,
            };
            tokio::select! {
                () = self.news.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// A pod, or until when there is none unless there is news.
    fn pop(&self) -> Result<(Key, Seen), Instant> {
        let mut state = self.lock();
        let now = Instant::now();
        let key = state.active.pop_front().or_else(|| state.pop_waiting(now));
        let seen = Seen { room_changes: state.room_changes, changes: state.changes };
        state.in_flight.extend(key.clone());
        key.map(|key| (key, seen)).ok_or_else(|| state.wakes(now))
    }

    // Each change leaves the state whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn knows(&self, key: &Key) -> bool {
        self.waiting.contains_key(key) || self.in_flight.contains(key) || self.active.contains(key)
    }

    fn pop_waiting(&mut self, now: Instant) -> Option<Key> {
        let due = |waiting: &Waiting| {
            waiting.roused && (waiting.why != Waits::AfterError || waiting.not_before <= now)
        };
        let ready = self.waiting.iter().filter(|(_, waiting)| due(waiting));
        let (key, _) = ready.min_by_key(|(_, waiting)| waiting.not_before)?;
        let key = key.clone();
        self.waiting.remove(&key);
        Some(key)
    }

    fn wakes(&self, now: Instant) -> Instant {
        let roused = self.waiting.values().filter(|waiting| waiting.roused);
        roused.map(|waiting| waiting.not_before).min().unwrap_or(now + LONGEST_BACKOFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("default".to_owned(), name.to_owned())
    }

    async fn failed(why: Waits) -> Queue {
        let queue = Queue::default();
        queue.add(key("a"));
        let (popped, seen) = queue.next().await;
        queue.failed(popped, why, seen);
        queue
    }

    #[tokio::test]
    async fn a_pod_that_fits_nowhere_waits_for_room_and_not_for_annotations() {
        let queue = failed(Waits::ForRoom).await;
        queue.nodes_changed(false);
        assert!(queue.pop().is_err());
        queue.nodes_changed(true);
        assert_eq!(queue.pop().unwrap().0, key("a"));
    }

    #[tokio::test]
    async fn a_pod_that_was_turned_away_is_tried_again_at_any_change() {
        let queue = failed(Waits::ForAnything).await;
        assert!(queue.pop().is_err());
        queue.nodes_changed(false);
        assert_eq!(queue.pop().unwrap().0, key("a"));
    }

    #[tokio::test]
    async fn what_happens_during_an_attempt_counts() {
        let queue = Queue::default();
        queue.add(key("a"));
        let (popped, seen) = queue.next().await;
        queue.nodes_changed(false);
        queue.failed(popped, Waits::ForAnything, seen);
        assert_eq!(queue.pop().unwrap().0, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_error_backoff_doubles_from_one_second_to_ten() {
        let queue = failed(Waits::AfterError).await;
        for seconds in [1, 2, 4, 8, 10, 10] {
            let start = Instant::now();
            let (popped, seen) = queue.next().await;
            assert_eq!(start.elapsed().as_secs(), seconds);
            queue.failed(popped, Waits::AfterError, seen);
        }
    }
}
