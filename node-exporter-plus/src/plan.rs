//! Which values are kept of which signals: the defaults, and what a YAML file adds.
//!
//! ```yaml
//! metrics:                       # what a scheduling policy names, one by one
//! - name: cpu_usage_max_avg_1h
//!   period: 15m                  # accepted; values here are as new as the newest sample
//! rules:                         # the same, for many signals at once
//! - signals: [cpu_usage, "psi_*"]
//!   values: [avg_5m, max_1h, min_1d, max_avg_10m_1d, p95_1d]
//! memoryLimit: 24Mi              # the container's, if it is not the shipped one
//! ```
//!
//! Always there: crane's four values of `cpu_usage` and `mem_usage`, and the newest sample of every signal.
//! Invariant: every rule of a plan fits the sample interval that it was made for, and there are at most
//! [`MOST_VALUES`] different ones.

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::collectors::KINDS;
use crate::series::{ACTIVE, CRANE, Interval, Kind, Rule, Signal, Span};

/// The signals that crane's rules are for.
const CRANES: [&str; 2] = ["cpu_usage", "mem_usage"];
/// How many different values a file can ask for: 99 percentiles of 99 windows of one signal took 18 MiB.
const MOST_VALUES: usize = 100;
/// The shipped manifest's memory limit, and the highest that can be named, in MiB.
const MEMORY_LIMITS: (usize, usize) = (12, 4_096);

/// The rules of every signal.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    wanted: Vec<Wanted>,
    memory_limit: usize,
}

/// What one entry of the file asks for.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    signals: Vec<String>,
    rules: Vec<Rule>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { wanted: Vec::new(), memory_limit: MEMORY_LIMITS.0 << 20 }
    }
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
    #[serde(default, rename = "memoryLimit")]
    memory_limit: Option<Spanned<String>>,
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
    /// Reads the YAML. A signal that no node can have is told in the log: it hurts nobody, and is a typing error.
    ///
    /// # Errors
    /// The first thing that is wrong in it.
    pub fn parse(text: &str, interval: Interval) -> Result<Self, PlanError> {
        // An empty file, or one of comments alone, asks for nothing more.
        let document: Option<Document> = serde_saphyr::from_str(text).map_err(|e| syntax(&e))?;
        let Some(document) = document else { return Ok(Self::default()) };
        let mut plan = Self::default();
        let mut known = Vec::new();
        for (index, metric) in document.metrics.iter().enumerate() {
            plan.wanted.push(one(metric, &format!("metrics[{index}]"), interval, &mut known)?);
        }
        for (index, group) in document.rules.iter().enumerate() {
            plan.wanted.push(many(group, &format!("rules[{index}]"), interval, &mut known)?);
        }
        if let Some(limit) = document.memory_limit {
            plan.memory_limit = memory_limit(&limit)?;
        }
        Ok(plan)
    }

    /// The rules of a signal, each once.
    #[must_use]
    pub fn rules(&self, signal: &Signal) -> Vec<Rule> {
        let crane = CRANES.contains(&signal.name());
        let mut rules = if crane { CRANE.to_vec() } else { vec![ACTIVE] };
        let meant = |wanted: &&Wanted| wanted.signals.iter().any(|name| is_of(name, signal));
        for rule in self.wanted.iter().filter(meant).flat_map(|wanted| &wanted.rules) {
            if !rules.contains(rule) {
                rules.push(*rule);
            }
        }
        rules
    }

    /// The names and patterns that none of `signals` has.
    pub(crate) fn unmet(&self, signals: &[&Signal]) -> Vec<&str> {
        let names = self.wanted.iter().flat_map(|wanted| &wanted.signals).map(String::as_str);
        let unmet = |name: &&str| !signals.iter().any(|signal| is_of(name, signal));
        names.filter(unmet).collect()
    }

    /// The bytes that the process may take in all.
    #[must_use]
    pub fn memory_limit(&self) -> usize {
        self.memory_limit
    }
}

fn is_of(name: &str, signal: &Signal) -> bool {
    signal.names().iter().any(|known| matches(name, known))
}

fn one(
    metric: &Metric,
    path: &str,
    interval: Interval,
    known: &mut Vec<Rule>,
) -> Result<Wanted, PlanError> {
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
    fits(rule, interval, known).map_err(|problem| fault(name, &field, problem))?;
    tell_if_unknown(signal, name, &field);
    Ok(Wanted { signals: vec![signal.to_owned()], rules: vec![rule] })
}

fn many(
    group: &Group,
    path: &str,
    interval: Interval,
    known: &mut Vec<Rule>,
) -> Result<Wanted, PlanError> {
    let mut rules = Vec::new();
    for (index, value) in group.values.iter().enumerate() {
        let problem = |problem| fault(value, &format!("{path}.values[{index}]"), problem);
        let rule: Rule = value.value.parse().map_err(|error| problem(format!("{error}")))?;
        fits(rule, interval, known).map_err(problem)?;
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    for (index, signal) in group.signals.iter().enumerate() {
        tell_if_unknown(&signal.value, signal, &format!("{path}.signals[{index}]"));
    }
    let signals = group.signals.iter().map(|signal| signal.value.clone()).collect();
    Ok(Wanted { signals, rules })
}

fn tell_if_unknown(signal: &str, at: &Spanned<String>, field: &str) {
    if !KINDS.iter().any(|kind| can_be_of(signal, kind)) {
        let line = at.referenced.line();
        tracing::warn!(line, field, signal, "there is no such signal, on whatever node");
    }
}

fn memory_limit(text: &Spanned<String>) -> Result<usize, PlanError> {
    let (least, most) = MEMORY_LIMITS;
    let digits = text.value.strip_suffix("Mi").filter(|digits| !digits.starts_with('+'));
    let limit = digits.and_then(|digits| digits.parse().ok());
    let limit = limit.filter(|limit| (least..=most).contains(limit));
    let wrong = || {
        let given = &text.value;
        let problem = format!(
            "{given:?} is no memory limit: give that of the container, from {least}Mi to {most}Mi"
        );
        fault(text, "memoryLimit", problem)
    };
    limit.map(|limit| limit << 20).ok_or_else(wrong)
}

/// Whether one more rule can be asked for; `known` are those that have been.
fn fits(rule: Rule, interval: Interval, known: &mut Vec<Rule>) -> Result<(), String> {
    if !known.contains(&rule) {
        known.push(rule);
    }
    if known.len() > MOST_VALUES {
        return Err(format!(
            "{rule} is one value too many: a file can ask for {MOST_VALUES} different ones"
        ));
    }
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

/// Whether `name` is `pattern`, in which `*` stands for any letters. A star that took too few is all there is to go
/// back to, the last one: the time is at most the product of both lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut read) = (0, 0);
    let mut star = None;
    while read < name.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, read));
        } else if pattern.get(at) == name.get(read) {
            (at, read) = (at + 1, read + 1);
        } else if let Some((after, taken)) = star {
            (at, read) = (after, taken + 1);
            star = Some((at, read));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

/// Whether some signal of this kind can match, whatever devices a node has.
fn can_be_of(pattern: &str, kind: &Kind) -> bool {
    let ends = kind.label.and_then(|label| kind.name.split_once(&format!("_{label}_")));
    matches(pattern, kind.name)
        || ends.is_some_and(|(start, end)| can_be_between(pattern, start, end))
}

/// Whether some name of `start`, a device's word and `end` can match.
fn can_be_between(pattern: &str, start: &str, end: &str) -> bool {
    let legal = pattern.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '*');
    let (start, end) = (format!("{start}_"), format!("_{end}"));
    let Some((before, rest)) = pattern.split_once('*') else {
        let word = pattern.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
        return legal && word.is_some_and(|word| !word.is_empty());
    };
    let after = rest.rsplit('*').next().unwrap_or(rest);
    // What stands between stars can always be a part of the device's word, which can be anything.
    let starts = before.starts_with(&start) || start.starts_with(before);
    legal && starts && (after.ends_with(&end) || end.ends_with(after))
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

    #[test]
    fn many_stars_cost_no_more_than_the_product_of_both_lengths() {
        let name = "a".repeat(200);
        assert!(!matches(&format!("{}x", "*".repeat(20)), &name));
        assert!(!matches(&format!("{}x", "*a".repeat(30)), &name));
        assert!(matches(&"*a".repeat(30), &name));
    }

    #[test]
    fn a_name_that_no_node_can_have_is_known_as_such() {
        let possible = |pattern: &str| KINDS.iter().any(|kind| can_be_of(pattern, kind));
        for pattern in [
            "*",
            "cpu_usage",
            "cpu_*",
            "psi_*_some",
            "disk_usage",
            "disk_device_usage",
            "disk_sda_usage",
            "disk_sd*",
            "*_sda_*",
            "*0_usage",
            "fs_var_lib_usage",
            "gpu_0_*",
            "network_*_bytes",
            "d*k_nvme*e",
        ] {
            assert!(possible(pattern), "{pattern}");
        }
        for pattern in [
            "",
            "cpu_usge",
            "dsk_usage",
            "dsk_*",
            "*_usge",
            "disk__usage",
            "disk_s-a_usage",
            "disk_ä*",
            "load2",
            "gpu_0_speed",
            "/var/lib",
        ] {
            assert!(!possible(pattern), "{pattern}");
        }
    }

    #[test]
    fn names_that_no_signal_has_are_listed() {
        let text = "metrics: [{name: cpu_usage_avg_5m}]\nrules: [{signals: [disk_*, fs_*], values: [avg_5m]}]";
        let plan = Plan::parse(text, ten_seconds()).unwrap();
        let signals = [Signal::of_node(&CPU), Signal::of(&DISK, "sda")];
        assert_eq!(plan.unmet(&[&signals[0], &signals[1]]), ["fs_*"]);
        assert_eq!(plan.unmet(&[&signals[0]]), ["disk_*", "fs_*"]);
    }

    #[test]
    fn a_hundred_values_can_be_asked_for_and_no_more() {
        let file = |count: u32| {
            let values: Vec<String> =
                (1..=count).map(|minutes| format!("avg_{minutes}m")).collect();
            format!(
                "rules:\n- signals: ['*', cpu_usage]\n  values: [{0}]\n- {{signals: [load1], values: [{0}]}}",
                values.join(", ")
            )
        };
        let plan = Plan::parse(&file(100), ten_seconds()).unwrap();
        assert_eq!(plan.rules(&Signal::of(&DISK, "sda")).len(), 101);
        let error = Plan::parse(&file(101), ten_seconds()).unwrap_err().to_string();
        let told = "line 3: rules[0].values[100]: avg_101m is one value too many: a file can ask for 100 different ones";
        assert_eq!(error, told);
    }

    #[test]
    fn the_memory_limit_is_the_shipped_one_or_the_one_that_is_named() {
        let limit = |text: &str| Plan::parse(text, ten_seconds()).map(|plan| plan.memory_limit());
        assert_eq!(limit("rules: []"), Ok(12 << 20));
        assert_eq!(limit("memoryLimit: 24Mi"), Ok(24 << 20));
        for wrong in ["24", "24MiB", "11Mi", "4097Mi", "-1Mi", "+24Mi", "Mi"] {
            let error = limit(&format!("\nmemoryLimit: '{wrong}'")).unwrap_err().to_string();
            assert!(
                error.starts_with("line 2: memoryLimit: ")
                    && error.ends_with("from 12Mi to 4096Mi"),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn stars_match_what_trying_every_length_matches(pattern in "[ab*]{0,12}", name in "[ab]{0,12}") {
            fn naive(pattern: &str, name: &str) -> bool {
                let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
                name.strip_prefix(start)
                    .is_some_and(|name| (0..=name.len()).any(|at| naive(rest, &name[at..])))
            }
            prop_assert_eq!(matches(&pattern, &name), naive(&pattern, &name));
        }

        #[test]
        fn a_pattern_that_matches_some_disk_is_possible(pattern in "[dsik_a*ug]{0,16}", word in "[a-z0-9_]{1,5}") {
            let name = format!("disk_{word}_usage");
            let pattern = if matches(&pattern, &name) { pattern } else { name.replace(&word, "*") };
            prop_assert!(!matches(&pattern, &name) || can_be_of(&pattern, &DISK));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,200}") {
            let _ = Plan::parse(&text, ten_seconds());
        }
    }
}
