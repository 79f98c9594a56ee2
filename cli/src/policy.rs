//! `plimsoll policy check`, `convert` and `schema`: load policies as the programs read them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::policy_check::{Fault, PolicyCheck, effective};
use placement::policy::{LoadPolicy, PolicyError, PolicyKind, ReadingSource, json_schema};
use serde::Deserialize;

use crate::advice;
use crate::args::{CheckPolicy, Convert, Source};
use crate::format::printable;
use crate::output::json;

/// The largest file, in bytes: the limit of a ConfigMap.
const MAX_FILE: u64 = 1 << 20;

/// Checks the policy and writes the effective policy.
///
/// # Errors
///
/// Where a file cannot be read, or that of the queries is faulty. A faulty policy is an answer with exit status 1.
pub(crate) fn check(flags: &CheckPolicy, output: &mut dyn Write) -> Result<ExitCode> {
    let text = read(&flags.file)?;
    let source = source(flags)?;
    let report = report(&text, &source);
    if flags.json {
        writeln!(output, "{}", json(&report)?)?;
    } else {
        write_text(&report, &flags.file, output)?;
    }
    let warned = flags.warnings_as_errors && !report.warnings.is_empty();
    Ok(ExitCode::from(u8::from(!report.valid || warned)))
}

/// Writes a policy as one of our own kind, with all defaults filled in.
///
/// # Errors
///
/// Where the file cannot be read, or holds a faulty policy, or more than our own kind takes.
pub(crate) fn convert(flags: &Convert, output: &mut dyn Write) -> Result<()> {
    let text = read(&flags.file)?;
    let policy = parse(&text, &flags.file)?;
    let converted = policy.to_yaml();
    parse(&converted, &flags.file).context("as a SchedulingPolicy")?;
    if PolicyKind::of(&text) == Ok(PolicyKind::Crane) {
        write!(output, "{}", advice::of(&policy))?;
    }
    Ok(write!(output, "{converted}")?)
}

/// Writes the JSON schema of our own kind.
///
/// # Errors
///
/// Where stdout cannot be written.
pub(crate) fn schema(output: &mut dyn Write) -> Result<()> {
    Ok(writeln!(output, "{}", serde_json::to_string_pretty(&json_schema())?)?)
}

/// The policy of a file.
///
/// # Errors
///
/// Where it cannot be read, or is faulty: the file, the line and the field.
pub(crate) fn parsed(file: &Path) -> Result<LoadPolicy> {
    parse(&read(file)?, file)
}

fn parse(text: &str, file: &Path) -> Result<LoadPolicy> {
    LoadPolicy::from_yaml(text).with_context(|| file.display().to_string())
}

fn report(text: &str, source: &ReadingSource) -> PolicyCheck {
    let kind = PolicyKind::of(text);
    match kind.and_then(|kind| Ok((LoadPolicy::from_yaml(text)?, kind))) {
        Ok((policy, kind)) => effective(&policy, Some(kind), source),
        Err(PolicyError { line, field, problem }) => {
            let error = Some(Fault { line, field, problem });
            PolicyCheck { error, ..PolicyCheck::default() }
        }
    }
}

/// The source of readings, by the flags.
fn source(flags: &CheckPolicy) -> Result<ReadingSource> {
    /// The fields of the annotator's file that are read.
    #[derive(Deserialize)]
    struct Queries {
        metrics: BTreeMap<String, String>,
    }
    let Some(file) = &flags.prometheus_queries_file else {
        return Ok(match flags.source {
            Source::Exporters => ReadingSource::Exporters,
            Source::Prometheus => ReadingSource::Prometheus { queries: None },
            Source::MetricsServer => ReadingSource::MetricsServer,
        });
    };
    if flags.source != Source::Prometheus {
        bail!("--prometheus-queries-file goes with --source prometheus alone");
    }
    let queries: Queries = serde_json::from_str(&read(file)?).with_context(|| {
        format!(r#"{}: expected {{"metrics": {{"cpu_usage_avg_5m": QUERY}}}}"#, file.display())
    })?;
    let metrics = queries.metrics.keys().map(|name| name.as_str().into()).collect();
    Ok(ReadingSource::Prometheus { queries: Some(metrics) })
}

/// The text of a file; `-` is stdin.
///
/// # Errors
///
/// If it cannot be read, or is longer than any ConfigMap.
pub(crate) fn read(file: &Path) -> Result<String> {
    read_at_most(file, MAX_FILE)
}

/// As [`read`], for files of other lengths, in bytes.
///
/// # Errors
///
/// If it cannot be read, or is longer.
pub(crate) fn read_at_most(file: &Path, most: u64) -> Result<String> {
    if file == Path::new("-") {
        return read_all(io::stdin(), most).context("stdin");
    }
    let opened = fs::File::open(file).map_err(anyhow::Error::from);
    let text = opened.and_then(|opened| read_all(opened, most));
    text.with_context(|| file.display().to_string())
}

fn read_all(file: impl Read, most: u64) -> Result<String> {
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        bail!("longer than {} KiB, the most that is read", most >> 10);
    }
    Ok(text)
}

fn write_text(report: &PolicyCheck, file: &Path, output: &mut dyn Write) -> Result<()> {
    let Some(Fault { line, field, problem }) = &report.error else {
        return write_report(report, output);
    };
    output.flush()?;
    let (file, field, problem) = (file.display(), printable(field), printable(problem));
    Ok(writeln!(io::stderr(), "error: {file}: line {line}: {field}: {problem}")?)
}

/// Writes an accepted policy with all its fields, and on stderr what is to be said of it.
///
/// # Errors
///
/// If `output` cannot be written.
pub(crate) fn write_report(report: &PolicyCheck, output: &mut dyn Write) -> Result<()> {
    if let Some(policy) = &report.policy {
        // A newer extender may have fields that this command does not know.
        match LoadPolicy::from_yaml(&policy.to_string()) {
            Ok(policy) => write!(output, "{}", policy.to_yaml())?,
            Err(_) => writeln!(output, "{}", json(policy)?)?,
        }
    }
    output.flush()?;
    for metric in &report.when_configured {
        let name = printable(metric);
        writeln!(io::stderr(), "Note: exporters serve {name} only where --config.file names it")?;
    }
    for warning in &report.warnings {
        writeln!(io::stderr(), "Warning: {}", printable(warning))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = read_all(io::repeat(b'a'), MAX_FILE).unwrap_err().to_string();
        assert_eq!(error, "longer than 1024 KiB, the most that is read");
        assert_eq!(read_all(&b"spec: {}"[..], MAX_FILE).unwrap(), "spec: {}");
    }
}
