//! `plimsoll doctor`: whether Plimsoll is installed, wired and healthy.
//!
//! [`collect`] reads [`facts`] and judges nothing; each check is a function from facts to findings and reads nothing. A
//! fact that cannot be read is a finding too. Invariant: nothing is changed.

mod access_checks;
mod certificates;
pub(crate) mod collect;
mod facts;
mod finding;
mod gpu;
mod page;
mod programs;
mod readings;
mod scheduling;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use jiff::Timestamp;
use serde::Serialize;

use crate::args::operate::Doctor;
use crate::cluster_access::Cluster;
use crate::format::printable;
use crate::output::{write_names, write_value};
use facts::Facts;
use finding::{Finding, Level};

/// Days before a certificate's end from which doctor warns, in a support bundle.
const CERTIFICATE_DAYS: u16 = 30;

/// What is written as JSON.
#[derive(Serialize)]
pub(crate) struct Report {
    time: Timestamp,
    namespace: String,
    findings: Vec<Finding>,
}

/// Examines the cluster.
///
/// # Errors
///
/// If kubectl reaches no cluster, or there is no such check.
pub(crate) fn doctor(flags: &Doctor, output: &mut dyn Write) -> Result<ExitCode> {
    let cluster = Cluster::new(&flags.access);
    let facts = collect::collect(&cluster, &collect::CERTIFICATES)?;
    let mut report = report(&facts, flags.certificate_days);
    if !flags.only.is_empty() {
        for name in &flags.only {
            if !CHECKS.contains(&name.as_str()) {
                bail!("--only {name}: there is no such check; there are {}", CHECKS.join(", "));
            }
        }
        report.findings.retain(|finding| flags.only.iter().any(|name| name == finding.check));
    }
    let fails = report.findings.iter().any(|finding| finding.level == Level::Fail);
    let code = if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    let mut wrong: Vec<String> = report
        .findings
        .iter()
        .filter(|finding| finding.level != Level::Ok)
        .map(|finding| finding.check.to_owned())
        .collect();
    wrong.dedup();
    if write_value(&report, flags.format, output)? || write_names(wrong, flags.format, output)? {
        return Ok(code);
    }
    write_table(&report.findings, output)?;
    Ok(code)
}

/// All findings as a table and as JSON, for a support bundle: no Secret is asked for, so of certificates only those
/// that the extender tells of are looked at.
///
/// # Errors
///
/// If kubectl reaches no cluster.
pub(crate) fn texts(cluster: &Cluster) -> Result<(String, String)> {
    let report = report(&collect::collect(cluster, &[])?, CERTIFICATE_DAYS);
    let mut table = Vec::new();
    write_table(&report.findings, &mut table)?;
    let table = String::from_utf8_lossy(&table).into_owned();
    Ok((table, serde_json::to_string_pretty(&report)?))
}

/// The names of the checks.
const CHECKS: [&str; 18] = [
    "extender",
    "annotator",
    "kube-scheduler",
    "requests",
    "certificate",
    "clocks",
    "readings",
    "writers",
    "policy",
    "rights",
    "admission",
    "gpu-nodes",
    "unit",
    "cdi",
    "runtime",
    "other-plugins",
    "versions",
    "cards",
];

fn report(facts: &Facts, certificate_days: u16) -> Report {
    let findings = [
        programs::extender(facts),
        programs::annotator(facts),
        scheduling::configured(facts),
        scheduling::requests(facts),
        certificates::certificates(facts, certificate_days),
        readings::clocks(facts),
        readings::fresh(facts),
        readings::writers(facts),
        programs::policy(facts),
        access_checks::rights(facts),
        access_checks::admission(facts),
        gpu::nodes(facts),
        gpu::cards(facts),
        gpu::unit(facts),
        gpu::cdi(facts),
        gpu::runtime(facts),
        gpu::other_plugins(facts),
        programs::versions(facts),
    ];
    Report { time: facts.time(), namespace: facts.namespace.clone(), findings: findings.concat() }
}

/// A line for each finding, and what to do in the next.
fn write_table(findings: &[Finding], output: &mut dyn Write) -> Result<()> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        writeln!(output, "{level:<6}{:<width$}   {}", finding.check, printable(&finding.what))?;
        if let Some(todo) = &finding.todo {
            writeln!(output, "{:<1$}-> {2}", "", width + 9, printable(todo))?;
        }
    }
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let (fails, warnings) = (count(Level::Fail), count(Level::Warn));
    if fails + warnings > 0 {
        writeln!(output, "\n{fails} FAIL, {warnings} warn")?;
    }
    Ok(())
}
