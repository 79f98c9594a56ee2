//! A probe that says what a test tells it to.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Card, Error, Observer, Probe, Status, XidEvent};

/// A scripted [`Probe`]: cards, readings, lost cards and events are set by its owner, from any
/// thread.
#[derive(Debug, Default)]
pub struct Scripted {
    state: Mutex<State>,
    raised: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cards: Vec<Card>,
    readings: HashMap<String, Status>,
    lost: BTreeSet<String>,
    events: VecDeque<XidEvent>,
}

impl Scripted {
    /// A probe with these cards, each without any reading.
    pub fn new(cards: Vec<Card>) -> Self {
        let state = Mutex::new(State { cards, ..State::default() });
        Self { state, raised: Condvar::new() }
    }

    /// Sets what a card reads.
    pub fn set_status(&self, uuid: &str, status: Status) {
        self.state().readings.insert(uuid.to_owned(), status);
    }

    /// Makes a card unreachable, or reachable again.
    pub fn set_lost(&self, uuid: &str, lost: bool) {
        let mut state = self.state();
        if lost {
            state.lost.insert(uuid.to_owned())
        } else {
            state.lost.remove(uuid)
        };
    }

    /// Raises an event for whoever watches.
    pub fn raise(&self, event: XidEvent) {
        self.state().events.push_back(event);
        self.raised.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, tick: Duration) -> Option<XidEvent> {
        let state = self.state();
        let waited = self.raised.wait_timeout_while(state, tick, |state| state.events.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.events.pop_front()
    }
}

impl Probe for Scripted {
    fn cards(&self) -> Result<Vec<Card>, Error> {
        Ok(self.state().cards.clone())
    }

    fn status(&self, uuid: &str) -> Result<Status, Error> {
        let state = self.state();
        let known = state.cards.iter().any(|card| card.uuid == uuid);
        if !known || state.lost.contains(uuid) {
            return Err(Error::Lost { uuid: uuid.to_owned(), reason: "scripted".to_owned() });
        }
        Ok(state.readings.get(uuid).cloned().unwrap_or_default())
    }

    fn watch(&self, tick: Duration, observe: &mut Observer<'_>) -> Result<(), Error> {
        while let ControlFlow::Continue(()) = observe(self.next(tick)) {}
        Ok(())
    }
}
