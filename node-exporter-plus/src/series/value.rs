//! The value of an aggregate, alone and as a reading of the node.

use super::{Aggregate, Moment, Signal};

/// What an aggregate of one series is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AggregateValue {
    /// In the signal's unit; finite.
    pub value: f64,
    /// The part of the window that holds samples, 0 to 1. A window that reaches back before the boot counts whole.
    pub coverage: f32,
    /// The time of the newest sample in the window.
    pub time: Moment,
}

/// The same with its name: one metric of the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// What was measured.
    pub signal: Signal,
    /// How the samples became a value.
    pub aggregate: Aggregate,
    /// In the signal's unit; finite.
    pub value: f64,
    /// The part of the window that holds samples, 0 to 1.
    pub coverage: f32,
    /// The time of the newest sample in the window.
    pub time: Moment,
}
