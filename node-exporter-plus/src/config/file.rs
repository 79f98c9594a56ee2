//! The YAML of `--config.file`; docs/readings.md describes it.

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{Config, MAX_AGGREGATES, MEMORY_LIMITS, Pattern, Rule};
use crate::collectors::KINDS;
use crate::series::{Aggregate, Interval, Window};

/// An error in a file, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}: {problem}")]
pub struct ConfigError {
    /// The line, counted from 1; 0 if unknown.
    pub line: u64,
    /// As in `rules[0].values[2]`.
    pub field: String,
    /// What is wrong, and what to write instead.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    metrics: Vec<MetricEntry>,
    #[serde(default)]
    rules: Vec<RuleEntry>,
    #[serde(default, rename = "memoryLimit")]
    memory_limit: Option<Spanned<String>>,
}

/// One metric, in the form of a scheduling policy's `syncPolicy`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricEntry {
    name: Spanned<String>,
    /// Checked, and without effect, since values are as new as the newest sample; but if `name` ends in a function
    /// (`cpu_usage_avg`), it is the window.
    #[serde(default)]
    period: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    signals: Vec<Spanned<String>>,
    values: Vec<Spanned<String>>,
}

pub(super) fn parse(text: &str, interval: Interval) -> Result<Config, ConfigError> {
    // An empty file, or one with only comments, is no document.
    let document: Option<Document> = serde_saphyr::from_str(text).map_err(|e| syntax(&e))?;
    let Some(document) = document else { return Ok(Config::default()) };
    let mut reader = Reader { interval, seen: Vec::new() };
    let mut config = Config::default();
    for (index, metric) in document.metrics.iter().enumerate() {
        config.rules.push(reader.metric(metric, &format!("metrics[{index}]"))?);
    }
    for (index, rule) in document.rules.iter().enumerate() {
        config.rules.push(reader.rule(rule, &format!("rules[{index}]"))?);
    }
    if let Some(limit) = document.memory_limit {
        config.memory_limit = memory_limit(&limit)?;
    }
    Ok(config)
}

/// Checks the entries of a file.
struct Reader {
    interval: Interval,
    /// The different aggregates so far.
    seen: Vec<Aggregate>,
}

impl Reader {
    fn metric(&mut self, metric: &MetricEntry, path: &str) -> Result<Rule, ConfigError> {
        let name = &metric.name;
        let period = metric.period.as_ref();
        let field = format!("{path}.name");
        let whole = Aggregate::split(&name.value);
        // `cpu_usage_avg` with the period 5m is another spelling of `cpu_usage_avg_5m`.
        let joined = period.map(|period| format!("{}_{}", name.value, period.value));
        let split = match &joined {
            Some(joined) if whole.is_err() => Aggregate::split(joined).or(whole),
            _ => whole,
        };
        let (signal, aggregate) = split.map_err(|error| at(name, &field, error.to_string()))?;
        if let Some(period) = period {
            check_period(period, &format!("{path}.period"))?;
        }
        self.check(aggregate).map_err(|problem| at(name, &field, problem))?;
        let signals = vec![pattern(signal, name, &field)];
        Ok(Rule { signals, aggregates: vec![aggregate] })
    }

    fn rule(&mut self, rule: &RuleEntry, path: &str) -> Result<Rule, ConfigError> {
        let mut aggregates = Vec::new();
        for (index, value) in rule.values.iter().enumerate() {
            let aggregate = self
                .aggregate(&value.value)
                .map_err(|problem| at(value, &format!("{path}.values[{index}]"), problem))?;
            if !aggregates.contains(&aggregate) {
                aggregates.push(aggregate);
            }
        }
        let mut signals = Vec::new();
        for (index, text) in rule.signals.iter().enumerate() {
            signals.push(pattern(&text.value, text, &format!("{path}.signals[{index}]")));
        }
        Ok(Rule { signals, aggregates })
    }

    fn aggregate(&mut self, text: &str) -> Result<Aggregate, String> {
        let aggregate: Aggregate = text.parse().map_err(|error| format!("{error}"))?;
        self.check(aggregate)?;
        Ok(aggregate)
    }

    /// Checks an aggregate, and that the file has room for it.
    fn check(&mut self, aggregate: Aggregate) -> Result<(), String> {
        if !self.seen.contains(&aggregate) {
            self.seen.push(aggregate);
        }
        if self.seen.len() > MAX_AGGREGATES {
            return Err(format!(
                "{aggregate} is one value too many: a file can ask for {MAX_AGGREGATES} different ones"
            ));
        }
        let windows = [Some(aggregate.window), aggregate.inner_window()];
        for window in windows.into_iter().flatten() {
            if !self.interval.divides(window.duration()) {
                return Err(format!(
                    "the window {window} is no multiple of the sample interval {:?}",
                    self.interval.duration()
                ));
            }
        }
        Ok(())
    }
}

/// A period is a duration, or a window: `1d` is none of the former.
fn check_period(period: &Spanned<String>, field: &str) -> Result<(), ConfigError> {
    match daemon::duration(&period.value) {
        Err(error) if period.value.parse::<Window>().is_err() => {
            Err(at(period, field, error.to_string()))
        }
        _ => Ok(()),
    }
}

/// The pattern; one that no signal of any node can match is logged, since it is a typing error.
fn pattern(text: &str, at: &Spanned<String>, field: &str) -> Pattern {
    let pattern = Pattern::new(text);
    if !KINDS.iter().any(|kind| pattern.can_match(kind)) {
        let line = at.referenced.line();
        tracing::warn!(line, field, signal = text, "no node has such a signal");
    }
    pattern
}

/// In bytes.
fn memory_limit(text: &Spanned<String>) -> Result<usize, ConfigError> {
    let (least, most) = MEMORY_LIMITS;
    let digits = text.value.strip_suffix("Mi").filter(|digits| !digits.starts_with('+'));
    let limit: Option<usize> = digits.and_then(|digits| digits.parse().ok());
    limit.filter(|limit| (least..=most).contains(limit)).map(|limit| limit << 20).ok_or_else(|| {
        let given = &text.value;
        let problem = format!(
            "{given:?} is no memory limit: give 12Mi less than the container's, from {least}Mi to {most}Mi"
        );
        at(text, "memoryLimit", problem)
    })
}

fn at<T>(place: &Spanned<T>, field: &str, problem: String) -> ConfigError {
    ConfigError { line: place.referenced.line(), field: field.to_owned(), problem }
}

fn syntax(error: &serde_saphyr::Error) -> ConfigError {
    let line = error.location().map_or(0, |at| at.line());
    ConfigError { line, field: "YAML".to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::disk;
    use crate::series::Signal;
    use proptest::prelude::*;

    fn parse_at_10s(text: &str) -> Result<Config, ConfigError> {
        parse(text, "10s".parse().unwrap())
    }

    fn error(text: &str) -> String {
        parse_at_10s(text).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_line_field_and_what_to_write() {
        let wrong = error("rules:\n- signals: [cpu_usage]\n  values:\n  - avg_5m\n  - median_5m\n");
        assert!(
            wrong.starts_with("line 5: rules[0].values[1]: \"median_5m\" is no value: "),
            "{wrong}"
        );
        let wrong = error("metrics:\n- name: cpu_usage\n  period: 1m\n");
        assert!(wrong.starts_with("line 2: metrics[0].name: "), "{wrong}");
        let wrong = error("metrics:\n- name: cpu_usage_avg_5m\n  period: often\n");
        assert!(
            wrong.starts_with("line 3: metrics[0].period: \"often\" is no duration"),
            "{wrong}"
        );
        let wrong = error("rules:\n- {signals: [a], values: [avg_15s]}\n");
        assert!(
            wrong.ends_with("the window 15s is no multiple of the sample interval 10s"),
            "{wrong}"
        );
        assert!(error("rule: []\n").contains("line 1"), "{}", error("rule: []\n"));
    }

    fn file_of(count: u32) -> String {
        let values: Vec<String> = (1..=count).map(|minutes| format!("avg_{minutes}m")).collect();
        format!(
            "rules:\n- signals: ['*', cpu_usage]\n  values: [{0}]\n- {{signals: [load1], values: [{0}]}}",
            values.join(", ")
        )
    }

    #[test]
    fn a_hundred_aggregates_can_be_asked_for_and_no_more() {
        let config = parse_at_10s(&file_of(100)).unwrap();
        let disk = Signal::of_device(&disk::DEVICE_USAGE, "sda");
        assert_eq!(config.aggregates(&disk).len(), 101);
        let error = parse_at_10s(&file_of(101)).unwrap_err().to_string();
        let expected = "line 3: rules[0].values[100]: avg_101m is one value too many: a file can ask for 100 different ones";
        assert_eq!(error, expected);
    }

    fn memory_limit_of(text: &str) -> Result<usize, ConfigError> {
        parse_at_10s(text).map(|config| config.memory_limit())
    }

    #[test]
    fn the_memory_limit_is_the_shipped_one_or_the_one_that_is_named() {
        assert_eq!(memory_limit_of("rules: []"), Ok(12 << 20));
        assert_eq!(memory_limit_of("memoryLimit: 24Mi"), Ok(24 << 20));
        for wrong in ["24", "24MiB", "11Mi", "4097Mi", "-1Mi", "+24Mi", "Mi"] {
            let error =
                memory_limit_of(&format!("\nmemoryLimit: '{wrong}'")).unwrap_err().to_string();
            assert!(
                error.starts_with("line 2: memoryLimit: ")
                    && error.ends_with("from 12Mi to 4096Mi"),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = parse_at_10s(&text);
        }
    }
}
