//! What the verbs work with.

use std::sync::Arc;

use jiff::Timestamp;
use placement::names::Names;

use crate::binder::Binder;
use crate::metrics::Metrics;
use crate::view::View;

/// Tells the time; tests hold it still.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Answers Filter and Prioritize, from memory alone.
pub struct Judge {
    /// Nodes and cards as last seen.
    pub view: Arc<View>,
    /// The names on the wire.
    pub names: Arc<Names>,
    /// Counts.
    pub metrics: Metrics,
    /// Tells the time.
    pub clock: Clock,
}

impl Judge {
    /// The time now.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

/// Answers every verb.
pub struct Extender {
    /// Filter and Prioritize.
    pub judge: Judge,
    /// Bind.
    pub binder: Arc<Binder>,
}
