//! Aggregates of windows and their names, `avg_5m`, in both directions.

use std::fmt;
use std::str::FromStr;

use super::window::{Window, WindowError};

/// How the samples of a window become one value. All values are in the signal's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    /// The newest sample.
    Newest,
    /// The mean of the samples.
    Mean,
    /// The population standard deviation of the samples.
    Deviation,
    /// The highest sample.
    Max,
    /// The lowest sample.
    Min,
    /// The highest of the means over this shorter window, one at each full minute since the boot.
    MaxOfMeans(Window),
    /// The sample below which so many percent of all lie, 1 to 99, interpolated.
    Quantile(u8),
}

/// A function of the samples in a window: `avg_5m`, `max_avg_1h`, `p95_1d`. With a signal's name before it, it is a
/// metric: `cpu_usage_avg_5m`.
///
/// # Examples
/// ```
/// use node_exporter_plus::series::{Aggregate, Function, Window};
///
/// let aggregate: Aggregate = "p95_1d".parse()?;
/// assert_eq!(aggregate, Aggregate { function: Function::Quantile(95), window: Window::DAY });
/// assert_eq!(aggregate.to_string(), "p95_1d");
/// assert_eq!(Aggregate::split("disk_sda_usage_p95_1d")?, ("disk_sda_usage", aggregate));
/// # Ok::<(), node_exporter_plus::series::AggregateError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Aggregate {
    /// What becomes of the samples in the window.
    pub function: Function,
    /// The window. [`Function::Newest`] uses one sample, whatever the window is.
    pub window: Window,
}

/// The window of crane's means.
pub const FIVE_MINUTES: Window = Window::minutes(5);

/// `active`: the newest sample.
pub const ACTIVE: Aggregate = Aggregate { window: Window::minutes(0), function: Function::Newest };

/// The window of the deviation and the mean that are always kept.
const FIFTEEN_MINUTES: Window = Window::minutes(15);

/// The mean and deviation that a score of a node's risk is made of: `avg_15m`, `stddev_15m`.
pub const VARIATION: [Aggregate; 2] = [
    Aggregate { window: FIFTEEN_MINUTES, function: Function::Mean },
    Aggregate { window: FIFTEEN_MINUTES, function: Function::Deviation },
];

/// What crane's recording rules compute: `active`, `avg_5m`, `max_avg_1h`, `max_avg_1d`.
pub const CRANE: [Aggregate; 4] = [
    ACTIVE,
    Aggregate { window: FIVE_MINUTES, function: Function::Mean },
    Aggregate { window: Window::hours(1), function: Function::MaxOfMeans(FIVE_MINUTES) },
    Aggregate { window: Window::DAY, function: Function::MaxOfMeans(FIVE_MINUTES) },
];

impl fmt::Display for Aggregate {
    /// The end of a metric's name, after the signal's and `_`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = self.window;
        match self.function {
            Function::Newest => f.write_str("active"),
            Function::Mean => write!(f, "avg_{window}"),
            Function::Deviation => write!(f, "stddev_{window}"),
            Function::Max => write!(f, "max_{window}"),
            Function::Min => write!(f, "min_{window}"),
            Function::MaxOfMeans(FIVE_MINUTES) => write!(f, "max_avg_{window}"),
            Function::MaxOfMeans(inner) => write!(f, "max_avg_{inner}_{window}"),
            Function::Quantile(percent) => write!(f, "p{percent}_{window}"),
        }
    }
}

/// Why a text names no aggregate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AggregateError {
    /// No function has this name.
    #[error(
        "{0:?} is no value: write active, or avg_, stddev_, max_, min_, p50_, p90_, p95_, p99_, \
         max_avg_ and a window, as in avg_5m, p95_1d, max_avg_1h"
    )]
    Unknown(String),
    /// The function is valid, but its window is not.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The window of the means is longer than the outer one.
    #[error("{0}: the window of the mean is longer than the whole window")]
    Inner(Aggregate),
}

impl FromStr for Aggregate {
    type Err = AggregateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "active" {
            return Ok(ACTIVE);
        }
        if let Some(windows) = text.strip_prefix("max_avg_") {
            return max_of_means(windows);
        }
        let (name, window) =
            text.split_once('_').ok_or_else(|| AggregateError::Unknown(text.to_owned()))?;
        let function = function(name).ok_or_else(|| AggregateError::Unknown(text.to_owned()))?;
        Ok(Self { window: window.parse()?, function })
    }
}

fn function(name: &str) -> Option<Function> {
    match name {
        "avg" => Some(Function::Mean),
        "stddev" => Some(Function::Deviation),
        "max" => Some(Function::Max),
        "min" => Some(Function::Min),
        _ => percent(name.strip_prefix('p')?).map(Function::Quantile),
    }
}

fn percent(digits: &str) -> Option<u8> {
    let percent = digits.parse().ok()?;
    let canonical = !digits.starts_with(['0', '+']);
    (canonical && (1..=99).contains(&percent)).then_some(percent)
}

fn max_of_means(windows: &str) -> Result<Aggregate, AggregateError> {
    let (inner, window) = match windows.split_once('_') {
        Some((inner, window)) => (inner.parse()?, window.parse()?),
        None => (FIVE_MINUTES, windows.parse::<Window>()?),
    };
    let aggregate = Aggregate { window, function: Function::MaxOfMeans(inner) };
    if inner.duration() > window.duration() {
        Err(AggregateError::Inner(aggregate))
    } else {
        Ok(aggregate)
    }
}

impl Aggregate {
    /// Splits a metric's name, such as `cpu_usage_max_avg_1h`, into its signal's name and its aggregate.
    ///
    /// # Errors
    /// When it does not end in an aggregate.
    pub fn split(metric: &str) -> Result<(&str, Self), AggregateError> {
        let mut error = AggregateError::Unknown(metric.to_owned());
        // The longest end that is an aggregate: `max_avg_1h` before `avg_1h`.
        for (at, _) in metric.match_indices('_').filter(|(at, _)| *at > 0) {
            match metric[at + 1..].parse() {
                Ok(aggregate) => return Ok((&metric[..at], aggregate)),
                Err(AggregateError::Unknown(_)) => {}
                Err(closer) => error = closer,
            }
        }
        Err(error)
    }

    /// The window of the means that a maximum of means is taken of.
    pub(crate) fn inner_window(&self) -> Option<Window> {
        match self.function {
            Function::MaxOfMeans(span) => Some(span),
            _ => None,
        }
    }

    /// What the value is, in words, for the help text of a metric.
    #[must_use]
    pub fn description(&self) -> String {
        let window = self.window;
        match self.function {
            Function::Newest => "the newest sample".to_owned(),
            Function::Mean => format!("mean of the last {window}"),
            Function::Deviation => format!("standard deviation of the last {window}"),
            Function::Max => format!("highest of the last {window}"),
            Function::Min => format!("lowest of the last {window}"),
            Function::MaxOfMeans(inner) => format!("highest {inner} mean of the last {window}"),
            Function::Quantile(percent) => format!("{percent}th percentile of the last {window}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cranes_aggregates_have_cranes_names_and_read_back() {
        let names = CRANE.map(|aggregate| aggregate.to_string());
        assert_eq!(names, ["active", "avg_5m", "max_avg_1h", "max_avg_1d"]);
        assert_eq!(CRANE.map(|aggregate| aggregate.to_string().parse()), CRANE.map(Ok));
    }

    #[test]
    fn every_function_has_a_name_that_reads_back() {
        for name in
            ["stddev_15m", "max_1d", "min_30s", "p50_24h", "p99_1h", "max_avg_90s_2h", "avg_1d"]
        {
            assert_eq!(name.parse::<Aggregate>().unwrap().to_string(), name);
        }
    }

    fn split(metric: &str) -> Result<(String, String), AggregateError> {
        Aggregate::split(metric)
            .map(|(signal, aggregate)| (signal.to_owned(), aggregate.to_string()))
    }

    fn parts(signal: &str, aggregate: &str) -> Result<(String, String), AggregateError> {
        Ok((signal.to_owned(), aggregate.to_owned()))
    }

    #[test]
    fn a_metric_is_a_signal_and_an_aggregate() {
        assert_eq!(split("cpu_usage_avg_5m"), parts("cpu_usage", "avg_5m"));
        assert_eq!(split("mem_usage_max_avg_1d"), parts("mem_usage", "max_avg_1d"));
        assert_eq!(split("load1_max_avg_10m_1h"), parts("load1", "max_avg_10m_1h"));
        assert_eq!(split("cpu_usage_active"), parts("cpu_usage", "active"));
        for metric in ["", "cpu_usage", "active", "_active", "avg_5m"] {
            assert!(split(metric).is_err(), "{metric}");
        }
    }

    fn error(text: &str) -> String {
        text.parse::<Aggregate>().unwrap_err().to_string()
    }

    #[test]
    fn errors_say_what_would_do() {
        assert!(error("median_5m").contains("as in avg_5m"), "{}", error("median_5m"));
        assert!(error("p0_1h").contains("is no value"));
        assert!(error("avg_2d").contains("at most a day"));
        assert!(error("max_avg_2h_1h").contains("longer than the whole window"));
        let error = Aggregate::split("cpu_usage_avg_5x").unwrap_err().to_string();
        assert!(error.contains("\"5x\" is no window"), "{error}");
    }

    proptest! {
        #[test]
        fn every_name_that_parses_reads_back(text in "(max_avg_)?(avg|stddev|max|min|p[0-9]{1,3}|[0-9]{1,3}[smhd])_[0-9]{1,3}[smhd]") {
            if let Ok(aggregate) = text.parse::<Aggregate>() {
                prop_assert_eq!(aggregate.to_string().parse(), Ok(aggregate));
            }
        }
    }
}
