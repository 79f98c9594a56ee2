//! What the verbs work with.

use std::sync::Arc;

use jiff::Timestamp;
use placement::names::Names;

use crate::binder::Binder;
use crate::metrics::Metrics;
use crate::view::View;

/// Returns the time now; tests give one that stands still.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What Filter, Prioritize, Preempt and explain need: they answer from memory alone.
pub struct Decider {
    /// Nodes and cards as last seen.
    pub view: Arc<View>,
    /// The names on the wire.
    pub names: Arc<Names>,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The time at which readings are fresh or stale.
    pub clock: Clock,
}

impl Decider {
    /// The time now, by the clock.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

/// What all verbs need.
pub struct Extender {
    /// For the verbs that answer from memory.
    pub decider: Decider,
    /// For Bind, which asks the API server.
    pub binder: Arc<Binder>,
}
