//! `plimsoll policy check`: a load policy as the programs read it.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use api::policy_check::{Fault, HotRule, Metric, PolicyCheck};
use placement::policy::{LoadPolicy, PolicyError};
use placement::units::MetricName;

use crate::args::Check;
use crate::format::{duration, percent};
use crate::table::{self, NONE};

/// Checks the policy and writes what it amounts to.
///
/// # Errors
///
/// Where the file cannot be read. A faulty policy is an answer with exit status 1.
pub(crate) fn check(flags: &Check, output: &mut dyn Write) -> Result<ExitCode> {
    let text = read(&flags.file)?;
    let parsed = LoadPolicy::from_yaml(&text);
    let report = parsed.as_ref().map_or_else(refused, accepted);
    if flags.json {
        writeln!(output, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        write_text(&report, &flags.file, output)?;
    }
    let warned = flags.warnings_as_errors && !report.warnings.is_empty();
    Ok(ExitCode::from(u8::from(!report.valid || warned)))
}

fn read(file: &Path) -> Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("stdin")?;
        return Ok(text);
    }
    fs::read_to_string(file).with_context(|| file.display().to_string())
}

fn refused(error: &PolicyError) -> PolicyCheck {
    let PolicyError { line, field, problem } = error.clone();
    PolicyCheck { error: Some(Fault { line, field, problem }), ..PolicyCheck::default() }
}

fn accepted(policy: &LoadPolicy) -> PolicyCheck {
    let hot = policy.hot.iter();
    PolicyCheck {
        valid: true,
        error: None,
        metrics: names(policy).into_iter().map(|name| metric(policy, name)).collect(),
        hot_value: hot
            .map(|rule| HotRule { time_range_seconds: rule.range.as_secs_f64(), count: rule.count })
            .collect(),
        warnings: policy.warnings().iter().map(ToString::to_string).collect(),
    }
}

/// Every metric that the policy names, once each: those that are fetched first.
fn names(policy: &LoadPolicy) -> Vec<&MetricName> {
    let mut names = Vec::new();
    let fetched = policy.sync.iter().map(|rule| &rule.metric);
    for name in fetched.chain(policy.metrics()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn metric(policy: &LoadPolicy, name: &MetricName) -> Metric {
    let sync = policy.sync.iter().find(|rule| rule.metric == *name);
    let limits = policy.limits.iter().filter(|limit| limit.metric == *name);
    let weights = policy.weights.iter().filter(|weight| weight.metric == *name);
    let max_ages = limits.clone().map(|limit| limit.max_age);
    let max_age = max_ages.chain(weights.clone().map(|weight| weight.max_age)).flatten().next();
    let total: f64 = policy.weights.iter().map(|weight| weight.weight).sum();
    let weight = weights.map(|weight| weight.weight).reduce(|sum, weight| sum + weight);
    Metric {
        name: name.to_string(),
        period_seconds: sync.map(|rule| rule.period.as_secs_f64()),
        max_age_seconds: max_age.map(|age| age.as_secs_f64()),
        limit: limits.map(|limit| limit.max).reduce(f64::min),
        weight,
        score_share: weight.filter(|_| total > 0.0).map(|weight| weight / total),
    }
}

fn write_text(report: &PolicyCheck, file: &Path, output: &mut dyn Write) -> Result<()> {
    if let Some(fault) = &report.error {
        let Fault { line, field, problem } = fault;
        output.flush()?;
        writeln!(io::stderr(), "error: {}: line {line}: {field}: {problem}", file.display())?;
        return Ok(());
    }
    let rows: Vec<_> = report.metrics.iter().map(row).collect();
    let heading = ["METRIC", "PERIOD", "MAX AGE", "LIMIT", "WEIGHT", "SCORE SHARE"];
    table::write(output, heading, &rows)?;
    if !report.hot_value.is_empty() {
        let rows: Vec<_> = report.hot_value.iter().map(hot_row).collect();
        writeln!(output)?;
        table::write(output, ["WITHIN", "BINDINGS THAT COST 10 POINTS"], &rows)?;
    }
    output.flush()?;
    for warning in &report.warnings {
        writeln!(io::stderr(), "Warning: {warning}")?;
    }
    Ok(())
}

fn row(metric: &Metric) -> [String; 6] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
    [
        metric.name.clone(),
        or_none(metric.period_seconds.map(duration)),
        or_none(metric.max_age_seconds.map(duration)),
        or_none(metric.limit.map(|limit| limit.to_string())),
        or_none(metric.weight.map(|weight| weight.to_string())),
        or_none(metric.score_share.map(percent)),
    ]
}

fn hot_row(rule: &HotRule) -> [String; 2] {
    [duration(rule.time_range_seconds), rule.count.to_string()]
}
