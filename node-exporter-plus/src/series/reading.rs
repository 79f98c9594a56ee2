//! What is measured, what is asked of it, and the answer.

use std::fmt;
use std::time::Duration;

use super::Moment;

/// Something measured on the node, as a gauge.
#[derive(Debug, Clone, Copy)]
pub struct Signal {
    /// The stem of its metrics' names, as in `cpu_usage`.
    pub name: &'static str,
    /// What it is, with its unit, for people.
    pub help: &'static str,
}

impl PartialEq for Signal {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// The length of a window, written as the field writes it: `5m`, `1h`, `1d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

impl Span {
    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// The span as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
        let seconds = self.0.as_secs();
        let fitting =
            units.iter().find(|(size, _)| seconds >= *size && seconds.is_multiple_of(*size));
        let (size, unit) = fitting.unwrap_or(&(1, "s"));
        write!(f, "{}{unit}", seconds / size)
    }
}

/// How the samples of a window become one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// The newest sample alone.
    Last,
    /// The mean of the samples.
    Mean,
    /// The highest mean over a shorter window, taken at each full minute.
    MaxOfMeans(Span),
}

/// A value to derive from a signal: an aggregate of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// How far back the value looks. [`Aggregate::Last`] looks at one sample, whatever this says.
    pub window: Span,
    /// What it makes of the samples there.
    pub aggregate: Aggregate,
}

/// The window of crane's moving average.
pub const FIVE_MINUTES: Span = Span::from_secs(300);

/// The rules of crane's recording rules, for every signal: `active`, `avg_5m`, `max_avg_1h`, `max_avg_1d`.
pub const RULES: [Rule; 4] = [
    Rule { window: Span::from_secs(0), aggregate: Aggregate::Last },
    Rule { window: FIVE_MINUTES, aggregate: Aggregate::Mean },
    Rule { window: Span::from_secs(3_600), aggregate: Aggregate::MaxOfMeans(FIVE_MINUTES) },
    Rule { window: Span::from_secs(86_400), aggregate: Aggregate::MaxOfMeans(FIVE_MINUTES) },
];

impl fmt::Display for Rule {
    /// The end of the metric's name, after the signal's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.aggregate {
            Aggregate::Last => f.write_str("active"),
            Aggregate::Mean => write!(f, "avg_{}", self.window),
            Aggregate::MaxOfMeans(FIVE_MINUTES) => write!(f, "max_avg_{}", self.window),
            Aggregate::MaxOfMeans(span) => write!(f, "max_avg_{span}_{}", self.window),
        }
    }
}

impl Rule {
    /// The window of the means that a maximum is taken of.
    pub(super) fn inner_window(&self) -> Option<Span> {
        match self.aggregate {
            Aggregate::MaxOfMeans(span) => Some(span),
            Aggregate::Last | Aggregate::Mean => None,
        }
    }

    /// What the value is, for people.
    #[must_use]
    pub fn explanation(&self) -> String {
        match self.aggregate {
            Aggregate::Last => "the newest sample".to_owned(),
            Aggregate::Mean => format!("mean of the last {}", self.window),
            Aggregate::MaxOfMeans(span) => {
                format!("highest {span} mean of the last {}", self.window)
            }
        }
    }
}

/// One value, with what it takes to judge it.
#[derive(Debug, Clone, Copy, PartialEq)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_as_crane_names_them() {
        let names = RULES.map(|rule| rule.to_string());
        assert_eq!(names, ["active", "avg_5m", "max_avg_1h", "max_avg_1d"]);
    }

    #[test]
    fn another_inner_window_gets_another_name() {
        let aggregate = Aggregate::MaxOfMeans(Span::from_secs(90));
        let rule = Rule { window: Span::from_secs(7_200), aggregate };
        assert_eq!(rule.to_string(), "max_avg_90s_2h");
    }
}
