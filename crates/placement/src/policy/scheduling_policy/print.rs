//! A policy as YAML of our kind, with all its fields.

use std::fmt::Write;

use jiff::SignedDuration;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};

use super::super::{
    BeyondUnitsName, BeyondUnitsRule, DemandRules, GpuRules, LoadPolicy, NamespaceRule, NodePool,
    Overload, Scoring, Unknown, WhenAllOverloaded,
};
use super::{API_VERSION, KIND};
use crate::estimate::EstimateRules;
use crate::policy::{Limit, Weight};
use crate::units::MetricName;

/// Durations as policies write them: `1h30m`.
const DURATION: SpanPrinter =
    SpanPrinter::new().designator(Designator::Compact).spacing(Spacing::None);

pub(in crate::policy) fn to_yaml(policy: &LoadPolicy) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(policy, &mut out);
    out
}

fn write(policy: &LoadPolicy, out: &mut String) -> std::fmt::Result {
    writeln!(out, "apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata:\n  name: default\nspec:")?;
    list(out, "  metrics", &metrics(policy), |out, name| metric(out, policy, name))?;
    scoring(out, &policy.scoring)?;
    limits(out, &policy.overload)?;
    estimates(out, policy.estimates.as_ref())?;
    demand(out, &policy.demand)?;
    list(out, "  hotValue", &policy.hot, |out, rule| {
        writeln!(out, "  - timeRange: {}\n    count: {}", duration(rule.range), rule.count)
    })?;
    list(out, "  nodePools", &policy.pools, |out, each| pool(out, policy, each))?;
    list(out, "  namespaces", &policy.namespaces, namespaces)?;
    let GpuRules { placement, unmanaged_memory, beyond_units: rules } = &policy.gpu;
    writeln!(out, "  gpu:\n    placement: {placement}")?;
    writeln!(out, "    unmanagedMemory: {}", unmanaged_memory.name())?;
    list(out, "    beyondUnits", rules, beyond_units)
}

fn beyond_units(out: &mut String, rule: &BeyondUnitsRule) -> std::fmt::Result {
    let namespaces: Vec<String> = rule.namespaces.iter().map(|name| scalar(name)).collect();
    let is_allowed = |name: &BeyondUnitsName| name.is_in(rule.allowed);
    let allowed: Vec<&str> =
        BeyondUnitsName::ALL.into_iter().filter(is_allowed).map(BeyondUnitsName::name).collect();
    writeln!(out, "    - namespaces: [{}]", namespaces.join(", "))?;
    writeln!(out, "      allow: [{}]", allowed.join(", "))
}

/// Entries below `key:`, or `key: []`.
fn list<T>(
    out: &mut String,
    key: &str,
    items: &[T],
    each: impl Fn(&mut String, &T) -> std::fmt::Result,
) -> std::fmt::Result {
    if items.is_empty() {
        return writeln!(out, "{key}: []");
    }
    writeln!(out, "{key}:")?;
    items.iter().try_for_each(|item| each(out, item))
}

/// Every metric once: first those that are fetched.
fn metrics(policy: &LoadPolicy) -> Vec<&MetricName> {
    let mut names: Vec<&MetricName> = Vec::new();
    for name in policy.sync.iter().map(|rule| &rule.metric).chain(policy.metrics()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn metric(out: &mut String, policy: &LoadPolicy, name: &MetricName) -> std::fmt::Result {
    writeln!(out, "  - name: {}", scalar(name.as_str()))?;
    let sync = policy.sync.iter().find(|rule| rule.metric == *name);
    let period = sync.map_or_else(|| "never".to_owned(), |rule| duration(rule.period));
    writeln!(out, "    period: {period}")?;
    let here = Rules::of(&policy.limits, &policy.weights, name);
    let in_pool = |pool: &NodePool| Rules::of(&pool.limits, &pool.weights, name).max_age;
    let max_age = here.max_age.or_else(|| policy.pools.iter().find_map(in_pool));
    if let Some(age) = max_age.or_else(|| policy.max_age(name)) {
        writeln!(out, "    maxAge: {}", duration(age))?;
    }
    if let Some(limit) = here.limit {
        writeln!(out, "    limit: {}", number(limit))?;
    }
    if here.weight > 0.0 {
        writeln!(out, "    weight: {}", number(here.weight))?;
    }
    here.unknown.map_or(Ok(()), |unknown| write_unknown(out, "    ", unknown))
}

/// What happens with a stale reading, and without one.
type WhenUnknown = (Unknown, Unknown);

/// One metric's limit and weight, of all nodes or of a pool.
struct Rules {
    limit: Option<f64>,
    /// 0: no weight.
    weight: f64,
    max_age: Option<SignedDuration>,
    /// `None` if there is neither limit nor weight.
    unknown: Option<WhenUnknown>,
}

impl Rules {
    fn of(limits: &[Limit], weights: &[Weight], name: &MetricName) -> Self {
        let (mut limit, mut weight, mut max_age) = (None, 0.0, None);
        // Of a crane policy's limit and weight the stricter value: for a limit, `ignore` and `penalise` are the same.
        let (mut stale, mut missing): (Option<Unknown>, Option<Unknown>) = (None, None);
        for rule in limits.iter().filter(|rule| rule.metric == *name) {
            limit = Some(rule.max.min(limit.unwrap_or(f64::INFINITY)));
            max_age = max_age.or(rule.max_age);
            stale = stale.max(Some(rule.when_stale));
            missing = missing.max(Some(rule.when_missing));
        }
        for rule in weights.iter().filter(|rule| rule.metric == *name && rule.weight > 0.0) {
            weight += rule.weight;
            max_age = max_age.or(rule.max_age);
            stale = stale.max(Some(rule.when_stale));
            missing = missing.max(Some(rule.when_missing));
        }
        Self { limit, weight, max_age, unknown: stale.zip(missing) }
    }
}

fn write_unknown(
    out: &mut String,
    indent: &str,
    (stale, missing): WhenUnknown,
) -> std::fmt::Result {
    writeln!(out, "{indent}whenStale: {}\n{indent}whenMissing: {}", stale.name(), missing.name())
}

fn scoring(out: &mut String, scoring: &Scoring) -> std::fmt::Result {
    writeln!(out, "  scoring:\n    model: {}", scoring.model.name())?;
    writeln!(out, "    direction: {}", scoring.direction.name())?;
    writeln!(out, "    scale: {}", scoring.scale.highest())
}

fn limits(out: &mut String, overload: &Overload) -> std::fmt::Result {
    match overload.when_all {
        WhenAllOverloaded::PassLeastLoaded => writeln!(out, "  limits:\n    mode: soft")?,
        WhenAllOverloaded::Wait { max_wait } => {
            let wait = max_wait.map_or_else(|| "never".to_owned(), duration);
            writeln!(out, "  limits:\n    mode: hard\n    maxWait: {wait}")?;
        }
    }
    list(out, "    exemptPriorityClasses", &overload.exempt_priority_classes, |out, class| {
        writeln!(out, "    - {}", scalar(class))
    })
}

fn estimates(out: &mut String, rules: Option<&EstimateRules>) -> std::fmt::Result {
    let Some(rules) = rules else { return writeln!(out, "  estimates:\n    enabled: false") };
    writeln!(out, "  estimates:\n    enabled: true\n    learned: {}", rules.learned)
}

fn demand(out: &mut String, rules: &DemandRules) -> std::fmt::Result {
    if !rules.are_on() {
        return writeln!(out, "  demand: {{}}");
    }
    writeln!(out, "  demand:")?;
    for (demand, rule) in rules.all() {
        let limit = rule.limit.map_or_else(|| "none".to_owned(), number);
        writeln!(out, "    {}:\n      limit: {limit}", demand.name())?;
        writeln!(out, "      weight: {}", number(rule.weight))?;
        if let Some(measured) = &rule.measured {
            writeln!(out, "      measured: {}", scalar(measured.metric.as_str()))?;
        }
    }
    Ok(())
}

fn pool(out: &mut String, policy: &LoadPolicy, pool: &NodePool) -> std::fmt::Result {
    let name = scalar(&pool.name);
    let selector = scalar(pool.selector.as_str());
    writeln!(out, "  - name: {name}\n    selector: {selector}")?;
    let names = metrics(policy);
    let changed: Vec<&MetricName> = names
        .iter()
        .filter(|name| {
            let (common, here) = rules_in(policy, pool, name);
            common.limit != here.limit
                || common.weight != here.weight
                || here.unknown.is_some_and(|unknown| {
                    common.unknown.unwrap_or_else(|| parsed_as(name)) != unknown
                })
        })
        .copied()
        .collect();
    list(out, "    metrics", &changed, |out, name| {
        let (common, here) = rules_in(policy, pool, name);
        writeln!(out, "    - name: {}", scalar(name.as_str()))?;
        match here.limit {
            Some(limit) => writeln!(out, "      limit: {}", number(limit))?,
            None if common.limit.is_some() => writeln!(out, "      limit: none")?,
            None => {}
        }
        if here.weight > 0.0 || common.weight > 0.0 {
            writeln!(out, "      weight: {}", number(here.weight))?;
        }
        here.unknown.map_or(Ok(()), |unknown| write_unknown(out, "      ", unknown))
    })
}

/// The defaults of `whenStale` and `whenMissing`.
fn parsed_as(name: &MetricName) -> WhenUnknown {
    (Unknown::Penalise, Unknown::default_of_missing(name))
}

fn rules_in(policy: &LoadPolicy, pool: &NodePool, name: &MetricName) -> (Rules, Rules) {
    let common = Rules::of(&policy.limits, &policy.weights, name);
    (common, Rules::of(&pool.limits, &pool.weights, name))
}

fn namespaces(out: &mut String, rule: &NamespaceRule) -> std::fmt::Result {
    let names: Vec<String> = rule.namespaces.iter().map(|name| scalar(name)).collect();
    writeln!(out, "  - names: [{}]", names.join(", "))?;
    writeln!(out, "    nodeSelector: {}", scalar(rule.nodes.as_str()))
}

fn duration(duration: SignedDuration) -> String {
    DURATION.duration_to_string(&duration)
}

/// The shortest text that is read as the same number.
fn number(number: f64) -> String {
    if number == 0.0 || (1e-6..1e15).contains(&number) {
        return number.to_string();
    }
    format!("{number:?}")
}

/// A text, in quotes if YAML would read it as something else.
fn scalar(text: &str) -> String {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let word = ["true", "false", "yes", "no", "on", "off", "null", "none", "never", "y", "n"];
    let is_word = word.iter().any(|word| text.eq_ignore_ascii_case(word));
    if begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=".contains(c)) && !is_word
    {
        text.to_owned()
    } else {
        quoted(text)
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            _ => quoted.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    quoted + "\""
}
