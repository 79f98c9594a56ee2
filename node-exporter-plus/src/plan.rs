//! Which values are kept of which signals: the defaults, and what a YAML file adds.
//!
//! ```yaml
//! metrics:                       # what a scheduling policy names, one by one
//! - name: cpu_usage_max_avg_1h
//!   period: 15m                  # accepted; values here are as new as the newest sample
//! rules:                         # the same, for many signals at once
//! - signals: [cpu_usage, "psi_*"]
//!   values: [avg_5m, max_1h, min_1d, max_avg_10m_1d, p95_1d]
//! ```
//!
//! Always there: crane's four values of `cpu_usage` and `mem_usage`, and the newest sample of every signal.
//! Invariant: every rule of a plan fits the sample interval that it was made for.

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::series::{ACTIVE, CRANE, Interval, Rule, Signal, Span};

/// The signals that crane's rules are for.
const CRANES: [&str; 2] = ["cpu_usage", "mem_usage"];

/// The rules of every signal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    wanted: Vec<(String, Rule)>,
}

/// What is wrong in a file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}: {problem}")]
pub struct PlanError {
    /// Counted from 1; 0 when not known.
    pub line: u64,
    /// As in `rules[0].values[2]`.
    pub field: String,
    /// What is wrong, and what would do.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    metrics: Vec<Metric>,
    #[serde(default)]
    rules: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metric {
    name: Spanned<String>,
    #[serde(default)]
    period: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    signals: Vec<Spanned<String>>,
    values: Vec<Spanned<String>>,
}

impl Plan {
    /// Reads the YAML.
    ///
    /// # Errors
    /// The first thing that is wrong in it.
    pub fn parse(text: &str, interval: Interval) -> Result<Self, PlanError> {
        // An empty file, or one of comments alone, asks for nothing more.
        let document: Option<Document> = serde_saphyr::from_str(text).map_err(|e| syntax(&e))?;
        let Some(document) = document else { return Ok(Self::default()) };
        let mut plan = Self::default();
        for (index, metric) in document.metrics.iter().enumerate() {
            plan.wanted.push(one(metric, &format!("metrics[{index}]"), interval)?);
        }
        for (index, group) in document.rules.iter().enumerate() {
            plan.wanted.extend(many(group, &format!("rules[{index}]"), interval)?);
        }
        Ok(plan)
    }

    /// The rules of a signal, each once.
    #[must_use]
    pub fn rules(&self, signal: &Signal) -> Vec<Rule> {
        let crane = CRANES.contains(&signal.name());
        let mut rules = if crane { CRANE.to_vec() } else { vec![ACTIVE] };
        for (pattern, rule) in &self.wanted {
            let meant = signal.names().iter().any(|name| matches(pattern, name));
            if meant && !rules.contains(rule) {
                rules.push(*rule);
            }
        }
        rules
    }
}

fn one(metric: &Metric, path: &str, interval: Interval) -> Result<(String, Rule), PlanError> {
    let (name, period) = (&metric.name, metric.period.as_ref());
    let field = format!("{path}.name");
    let whole = Rule::split(&name.value);
    // `cpu_usage_avg` with the period 5m is another way to say `cpu_usage_avg_5m`.
    let windowed = |period: &Spanned<String>| format!("{}_{}", name.value, period.value);
    let joined = period.map(windowed).filter(|_| whole.is_err());
    let split = joined.as_deref().map_or(whole.clone(), |joined| Rule::split(joined).or(whole));
    let (signal, rule) = split.map_err(|error| fault(name, &field, error.to_string()))?;
    if let Some(period) = period {
        let checked = daemon::duration(&period.value).map(drop);
        let checked =
            checked.or_else(|error| period.value.parse::<Span>().map(drop).map_err(|_| error));
        checked.map_err(|error| fault(period, &format!("{path}.period"), error.to_string()))?;
    }
    fits(rule, interval).map_err(|problem| fault(name, &field, problem))?;
    Ok((signal.to_owned(), rule))
}

fn many(group: &Group, path: &str, interval: Interval) -> Result<Vec<(String, Rule)>, PlanError> {
    let mut wanted = Vec::new();
    for (index, value) in group.values.iter().enumerate() {
        let problem = |problem| fault(value, &format!("{path}.values[{index}]"), problem);
        let rule: Rule = value.value.parse().map_err(|error| problem(format!("{error}")))?;
        fits(rule, interval).map_err(problem)?;
        wanted.extend(group.signals.iter().map(|signal| (signal.value.clone(), rule)));
    }
    Ok(wanted)
}

fn fits(rule: Rule, interval: Interval) -> Result<(), String> {
    let windows = [Some(rule.window), rule.inner_window()];
    let misfit = windows.into_iter().flatten().find(|window| !interval.divides(window.duration()));
    misfit.map_or(Ok(()), |window| {
        Err(format!(
            "the window {window} is no multiple of the sample interval {:?}",
            interval.duration()
        ))
    })
}

fn fault<T>(at: &Spanned<T>, field: &str, problem: String) -> PlanError {
    PlanError { line: at.referenced.line(), field: field.to_owned(), problem }
}

fn syntax(error: &serde_saphyr::Error) -> PlanError {
    let line = error.location().map_or(0, |at| at.line());
    PlanError { line, field: "YAML".to_owned(), problem: error.to_string() }
}

/// Whether `name` is `pattern`, in which `*` stands for any letters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    let starts = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    starts.into_iter().any(|at| matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Kind;
    use proptest::prelude::*;

    static CPU: Kind = Kind { name: "cpu_usage", help: "", label: None };
    static DISK: Kind = Kind { name: "disk_device_usage", help: "", label: Some("device") };

    fn ten_seconds() -> Interval {
        "10s".parse().unwrap()
    }

    fn names(plan: &Plan, signal: &Signal) -> Vec<String> {
        plan.rules(signal).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_a_file_cpu_has_cranes_values_and_others_their_newest() {
        let plan = Plan::default();
        let crane = ["active", "avg_5m", "max_avg_1h", "max_avg_1d"];
        assert_eq!(names(&plan, &Signal::of_node(&CPU)), crane);
        assert_eq!(names(&plan, &Signal::of(&DISK, "sda")), ["active"]);
        assert_eq!(Plan::parse("# nothing\n", ten_seconds()), Ok(plan));
    }

    #[test]
    fn the_list_of_a_scheduling_policy_is_understood() {
        let text = "metrics:\n- name: cpu_usage_avg_5m\n  period: 3m\n- name: disk_sda_usage_p95_1h\n  \
                    period: 15m\n- {name: disk_sda_usage_min, period: 1d}\n";
        let plan = Plan::parse(text, ten_seconds()).unwrap();
        assert_eq!(names(&plan, &Signal::of_node(&CPU)).len(), 4);
        assert_eq!(names(&plan, &Signal::of(&DISK, "sda")), ["active", "p95_1h", "min_1d"]);
    }

    #[test]
    fn a_rule_is_for_all_signals_that_it_matches() {
        let text =
            "rules:\n- signals: [cpu_*, disk_device_usage]\n  values: [p99_1d, max_avg_10m_1d]\n";
        let plan = Plan::parse(text, ten_seconds()).unwrap();
        assert_eq!(names(&plan, &Signal::of_node(&CPU))[4..], ["p99_1d", "max_avg_10m_1d"]);
        assert_eq!(names(&plan, &Signal::of(&DISK, "sdb"))[1..], ["p99_1d", "max_avg_10m_1d"]);
    }

    #[test]
    fn errors_name_line_field_and_what_would_do() {
        let error = |text: &str| Plan::parse(text, ten_seconds()).unwrap_err().to_string();
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

    #[test]
    fn stars_match_any_letters() {
        for pattern in ["*", "cpu*", "*usage", "c*_*e", "cpu_usage", "cpu_usage*"] {
            assert!(matches(pattern, "cpu_usage"), "{pattern}");
        }
        for pattern in ["", "cpu", "*x*", "usage*"] {
            assert!(!matches(pattern, "cpu_usage"), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = Plan::parse(&text, ten_seconds());
        }
    }
}
