//! Which aggregates are kept of which signals: the defaults, and what `--config.file` adds.
//!
//! Always kept are crane's four aggregates of CPU and memory in use with their mean and deviation of 15 minutes, and
//! the newest sample of every signal.
//!
//! Invariant: every window of a configuration is a multiple of the sample interval that it was read for, and it has at
//! most [`MAX_AGGREGATES`] different aggregates.

mod file;
mod pattern;

use crate::series::{ACTIVE, Aggregate, CRANE, Interval, Signal, VARIATION};

pub use file::ConfigError;
use pattern::Pattern;

/// The signals with windows in every configuration.
const ALWAYS: [&str; 5] =
    ["cpu_usage", "cpu_busy", "cpu_shared_busy", "cpu_foreground_busy", "mem_usage"];
/// The largest number of different aggregates of a file. 99 percentiles of 99 windows of one signal took 18 MiB.
const MAX_AGGREGATES: usize = 100;
/// The smallest memory limit, which is the default, and the largest one, in MiB. The shipped container has 12 MiB more
/// than the default.
const MEMORY_LIMITS: (usize, usize) = (12, 4_096);

/// What to keep, by signal.
///
/// # Examples
/// ```
/// use node_exporter_plus::collectors::{disk, pressure};
/// use node_exporter_plus::config::Config;
/// use node_exporter_plus::series::Signal;
///
/// let config = Config::parse(
///     r#"
/// metrics:                       # one by one, as a scheduling policy names them
/// - name: disk_sda_usage_max_avg_1h
/// rules:                         # or for many signals at once
/// - signals: [disk_device_usage, "psi_*"]
///   values: [avg_5m, p95_1d]
/// memoryLimit: 24Mi              # 12Mi less than the container's, if that is not the shipped one
/// "#,
///     "10s".parse()?,
/// )?;
/// let names = |signal| {
///     config.aggregates(&signal).iter().map(ToString::to_string).collect::<Vec<_>>()
/// };
/// let disk = Signal::of_device(&disk::DEVICE_USAGE, "sda");
/// assert_eq!(names(disk), ["active", "max_avg_1h", "avg_5m", "p95_1d"]);
/// assert_eq!(names(Signal::of_node(&pressure::IO_SOME)), ["active", "avg_5m", "p95_1d"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    rules: Vec<Rule>,
    /// In bytes.
    memory_limit: usize,
}

/// Aggregates to keep of all signals that match.
#[derive(Debug, Clone, PartialEq)]
struct Rule {
    signals: Vec<Pattern>,
    aggregates: Vec<Aggregate>,
}

impl Default for Config {
    fn default() -> Self {
        Self { rules: Vec::new(), memory_limit: MEMORY_LIMITS.0 << 20 }
    }
}

impl Config {
    /// Reads YAML. A pattern that no signal of any node can match is logged with its line, and is no error.
    ///
    /// # Errors
    /// The first error in the text.
    pub fn parse(text: &str, interval: Interval) -> Result<Self, ConfigError> {
        file::parse(text, interval)
    }

    /// The aggregates of a signal, each once.
    #[must_use]
    pub fn aggregates(&self, signal: &Signal) -> Vec<Aggregate> {
        let always = ALWAYS.contains(&signal.name());
        let mut aggregates = if always { [&CRANE[..], &VARIATION].concat() } else { vec![ACTIVE] };
        for aggregate in self
            .rules
            .iter()
            .filter(|rule| rule.signals.iter().any(|pattern| pattern.matches(signal)))
            .flat_map(|rule| &rule.aggregates)
        {
            if !aggregates.contains(aggregate) {
                aggregates.push(*aggregate);
            }
        }
        aggregates
    }

    /// The patterns that none of `signals` matches.
    pub(crate) fn unmatched(&self, signals: &[&Signal]) -> Vec<String> {
        self.rules
            .iter()
            .flat_map(|rule| &rule.signals)
            .filter(|pattern| !signals.iter().any(|signal| pattern.matches(signal)))
            .map(ToString::to_string)
            .collect()
    }

    /// The memory that the process may take, in bytes: less than the container's limit.
    #[must_use]
    pub fn memory_limit(&self) -> usize {
        self.memory_limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Kind;

    static CPU: Kind = Kind { name: "cpu_usage", help: "", label: None };
    static DISK: Kind = Kind { name: "disk_device_usage", help: "", label: Some("device") };

    fn ten_seconds() -> Interval {
        "10s".parse().unwrap()
    }

    fn names(config: &Config, signal: &Signal) -> Vec<String> {
        config.aggregates(signal).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_a_file_cpu_has_cranes_aggregates() {
        let config = Config::default();
        let always = ["active", "avg_5m", "max_avg_1h", "max_avg_1d", "avg_15m", "stddev_15m"];
        assert_eq!(names(&config, &Signal::of_node(&CPU)), always);
        assert_eq!(names(&config, &Signal::of_device(&DISK, "sda")), ["active"]);
        assert_eq!(Config::parse("# nothing\n", ten_seconds()), Ok(config));
    }

    #[test]
    fn the_metrics_of_a_scheduling_policy_are_read() {
        let text = "metrics:\n- name: cpu_usage_avg_5m\n  period: 3m\n- name: disk_sda_usage_p95_1h\n  \
                    period: 15m\n- {name: disk_sda_usage_min, period: 1d}\n";
        let config = Config::parse(text, ten_seconds()).unwrap();
        assert_eq!(names(&config, &Signal::of_node(&CPU)).len(), 6);
        let disk = Signal::of_device(&DISK, "sda");
        assert_eq!(names(&config, &disk), ["active", "p95_1h", "min_1d"]);
    }

    #[test]
    fn a_rule_is_for_all_signals_that_it_matches() {
        let text =
            "rules:\n- signals: [cpu_*, disk_device_usage]\n  values: [p99_1d, max_avg_10m_1d]\n";
        let config = Config::parse(text, ten_seconds()).unwrap();
        assert_eq!(names(&config, &Signal::of_node(&CPU))[6..], ["p99_1d", "max_avg_10m_1d"]);
        let disk = Signal::of_device(&DISK, "sdb");
        assert_eq!(names(&config, &disk)[1..], ["p99_1d", "max_avg_10m_1d"]);
    }

    #[test]
    fn patterns_that_no_signal_matches_are_listed() {
        let text = "metrics: [{name: cpu_usage_avg_5m}]\nrules: [{signals: [disk_*, fs_*], values: [avg_5m]}]";
        let config = Config::parse(text, ten_seconds()).unwrap();
        let signals = [Signal::of_node(&CPU), Signal::of_device(&DISK, "sda")];
        assert_eq!(config.unmatched(&[&signals[0], &signals[1]]), ["fs_*"]);
        assert_eq!(config.unmatched(&[&signals[0]]), ["disk_*", "fs_*"]);
    }
}
