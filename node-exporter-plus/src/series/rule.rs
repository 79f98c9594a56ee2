//! What is asked of a signal: an aggregate of a window. Both directions of its name in one file.

use std::fmt;
use std::str::FromStr;

use super::span::{Span, SpanError};

/// How the samples of a window become one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aggregate {
    /// The newest sample alone.
    Last,
    /// The mean of the samples.
    Mean,
    /// The highest sample.
    Max,
    /// The lowest sample.
    Min,
    /// The highest mean over a shorter window, taken at each full minute.
    MaxOfMeans(Span),
    /// The sample below which so many percent of all lie, from 1 to 99.
    Quantile(u8),
}

/// A value to derive from a signal: an aggregate of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// What it makes of the samples in the window.
    pub aggregate: Aggregate,
    /// How far back the value looks. [`Aggregate::Last`] looks at one sample, whatever this says.
    pub window: Span,
}

/// The window of crane's moving average.
pub const FIVE_MINUTES: Span = Span::minutes(5);

/// The newest sample.
pub const ACTIVE: Rule = Rule { window: Span::minutes(0), aggregate: Aggregate::Last };

/// Crane's recording rules, for every signal: `active`, `avg_5m`, `max_avg_1h`, `max_avg_1d`.
pub const CRANE: [Rule; 4] = [
    ACTIVE,
    Rule { window: FIVE_MINUTES, aggregate: Aggregate::Mean },
    Rule { window: Span::hours(1), aggregate: Aggregate::MaxOfMeans(FIVE_MINUTES) },
    Rule { window: Span::DAY, aggregate: Aggregate::MaxOfMeans(FIVE_MINUTES) },
];

impl fmt::Display for Rule {
    /// The end of the metric's name, after the signal's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = self.window;
        match self.aggregate {
            Aggregate::Last => f.write_str("active"),
            Aggregate::Mean => write!(f, "avg_{window}"),
            Aggregate::Max => write!(f, "max_{window}"),
            Aggregate::Min => write!(f, "min_{window}"),
            Aggregate::MaxOfMeans(FIVE_MINUTES) => write!(f, "max_avg_{window}"),
            Aggregate::MaxOfMeans(inner) => write!(f, "max_avg_{inner}_{window}"),
            Aggregate::Quantile(percent) => write!(f, "p{percent}_{window}"),
        }
    }
}

/// A text that names no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// No aggregate has this name.
    #[error(
        "{0:?} is no value: write active, or avg_, max_, min_, p50_, p90_, p95_, p99_, max_avg_ and a \
         window, as in avg_5m, p95_1d, max_avg_1h"
    )]
    Aggregate(String),
    /// The aggregate is known, its window is not one.
    #[error(transparent)]
    Window(#[from] SpanError),
    /// The moving window must fit into the outer one.
    #[error("{0}: the window of the mean is longer than the whole window")]
    Inner(Rule),
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "active" {
            return Ok(ACTIVE);
        }
        if let Some(windows) = text.strip_prefix("max_avg_") {
            return max_of_means(windows);
        }
        let (name, window) =
            text.split_once('_').ok_or_else(|| RuleError::Aggregate(text.to_owned()))?;
        let aggregate = aggregate(name).ok_or_else(|| RuleError::Aggregate(text.to_owned()))?;
        Ok(Self { window: window.parse()?, aggregate })
    }
}

fn aggregate(name: &str) -> Option<Aggregate> {
    match name {
        "avg" => Some(Aggregate::Mean),
        "max" => Some(Aggregate::Max),
        "min" => Some(Aggregate::Min),
        _ => percent(name.strip_prefix('p')?).map(Aggregate::Quantile),
    }
}

fn percent(digits: &str) -> Option<u8> {
    let percent = digits.parse().ok()?;
    let canonical = !digits.starts_with(['0', '+']);
    (canonical && (1..=99).contains(&percent)).then_some(percent)
}

fn max_of_means(windows: &str) -> Result<Rule, RuleError> {
    let (inner, window) = match windows.split_once('_') {
        Some((inner, window)) => (inner.parse()?, window.parse()?),
        None => (FIVE_MINUTES, windows.parse::<Span>()?),
    };
    let rule = Rule { window, aggregate: Aggregate::MaxOfMeans(inner) };
    if inner.duration() > window.duration() { Err(RuleError::Inner(rule)) } else { Ok(rule) }
}

impl Rule {
    /// Splits a metric's name, as in `cpu_usage_max_avg_1h`, into its signal's name and its rule.
    ///
    /// # Errors
    /// When it ends in no rule.
    pub fn split(metric: &str) -> Result<(&str, Self), RuleError> {
        let ends = metric.match_indices('_').map(|(at, _)| at);
        let mut error = RuleError::Aggregate(metric.to_owned());
        // The longest end that is a rule: `max_avg_1h` before `avg_1h`.
        for at in ends.filter(|at| *at > 0) {
            match metric[at + 1..].parse() {
                Ok(rule) => return Ok((&metric[..at], rule)),
                Err(RuleError::Aggregate(_)) => {}
                Err(closer) => error = closer,
            }
        }
        Err(error)
    }

    /// The window of the means that a maximum is taken of.
    pub(crate) fn inner_window(&self) -> Option<Span> {
        match self.aggregate {
            Aggregate::MaxOfMeans(span) => Some(span),
            _ => None,
        }
    }

    /// What the value is, for people.
    #[must_use]
    pub fn explanation(&self) -> String {
        let window = self.window;
        match self.aggregate {
            Aggregate::Last => "the newest sample".to_owned(),
            Aggregate::Mean => format!("mean of the last {window}"),
            Aggregate::Max => format!("highest of the last {window}"),
            Aggregate::Min => format!("lowest of the last {window}"),
            Aggregate::MaxOfMeans(inner) => format!("highest {inner} mean of the last {window}"),
            Aggregate::Quantile(percent) => format!("{percent}th percentile of the last {window}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_are_named_as_crane_names_them_and_read_back() {
        let names = CRANE.map(|rule| rule.to_string());
        assert_eq!(names, ["active", "avg_5m", "max_avg_1h", "max_avg_1d"]);
        assert_eq!(CRANE.map(|rule| rule.to_string().parse()), CRANE.map(Ok));
    }

    #[test]
    fn every_kind_of_rule_has_a_name_that_reads_back() {
        for name in ["max_1d", "min_30s", "p50_24h", "p99_1h", "max_avg_90s_2h", "avg_1d"] {
            assert_eq!(name.parse::<Rule>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn a_metric_is_a_signal_and_a_rule() {
        let split = |metric| {
            Rule::split(metric).map(|(signal, rule)| (signal.to_owned(), rule.to_string()))
        };
        let parts = |signal: &str, rule: &str| Ok((signal.to_owned(), rule.to_owned()));
        assert_eq!(split("cpu_usage_avg_5m"), parts("cpu_usage", "avg_5m"));
        assert_eq!(split("mem_usage_max_avg_1d"), parts("mem_usage", "max_avg_1d"));
        assert_eq!(split("load1_max_avg_10m_1h"), parts("load1", "max_avg_10m_1h"));
        assert_eq!(split("cpu_usage_active"), parts("cpu_usage", "active"));
        for metric in ["", "cpu_usage", "active", "_active", "avg_5m"] {
            assert!(split(metric).is_err(), "{metric}");
        }
    }

    #[test]
    fn errors_say_what_would_do() {
        let error = |text: &str| text.parse::<Rule>().unwrap_err().to_string();
        assert!(error("median_5m").contains("as in avg_5m"), "{}", error("median_5m"));
        assert!(error("p0_1h").contains("is no value"));
        assert!(error("avg_2d").contains("at most a day"));
        assert!(error("max_avg_2h_1h").contains("longer than the whole window"));
        let error = Rule::split("cpu_usage_avg_5x").unwrap_err().to_string();
        assert!(error.contains("\"5x\" is no window"), "{error}");
    }

    proptest! {
        #[test]
        fn whatever_parses_reads_back(text in "(max_avg_)?(avg|max|min|p[0-9]{1,3}|[0-9]{1,3}[smhd])_[0-9]{1,3}[smhd]") {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse(), Ok(rule));
            }
        }
    }
}
