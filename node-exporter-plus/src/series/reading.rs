//! The answer to a rule about a signal.

use super::{Moment, Rule, Signal};

/// One value, with what it takes to judge it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// What was measured.
    pub signal: Signal,
    /// What was asked: the window and the aggregate.
    pub rule: Rule,
    /// The answer, in the signal's unit.
    pub value: f64,
    /// How much of the window holds samples, from 0 to 1.
    pub coverage: f32,
    /// The newest sample in it.
    pub time: Moment,
}
