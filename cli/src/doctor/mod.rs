//! `plimsoll doctor`: whether Plimsoll is installed, wired and healthy.
//!
//! [`collect`] reads [`facts`] and judges nothing; each check is a function from facts to findings and reads nothing.
//! Invariants: nothing is changed, and every check that runs has a finding. What cannot be read is never taken for
//! well: it is [`Level::Unknown`].

mod access_checks;
mod autoscalers;
pub(crate) mod certificates;
pub(crate) mod collect;
mod facts;
mod finding;
mod gpu;
mod health;
mod programs;
mod readings;
mod scheduling;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use jiff::Timestamp;
use serde::Serialize;

use crate::args::operate::Doctor;
use crate::cluster_access::Cluster;
use crate::format::printable;
use crate::output::write_form;
use facts::Fact::{self, *};
use facts::Facts;
use finding::{Finding, Findings, Level};

/// Days before a certificate's end from which doctor warns, in a support bundle.
const CERTIFICATE_DAYS: u16 = 30;
/// The exit status where no check fails and something is not known.
const NOT_KNOWN: u8 = 3;

/// What is written as JSON.
#[derive(Serialize)]
pub(crate) struct Report {
    time: Timestamp,
    namespace: String,
    findings: Vec<Finding>,
}

/// A check, by its name.
struct Check {
    name: &'static str,
    /// What it looks at beside Plimsoll's workloads and pods; nothing else is known to it.
    facts: &'static [Fact],
    run: Run,
}

/// All checks, in the order of their lines.
const CHECKS: [Check; 19] = [
    check("extender", &[ExtenderHealth], programs::extender),
    check("annotator", &[AnnotatorHealth], programs::annotator),
    check(
        "kube-scheduler",
        &[Nodes, Schedulers, KubeadmConfig, SecondConfig],
        scheduling::configured,
    ),
    check("requests", &[Events, ExtenderHealth], scheduling::requests),
    check(
        "autoscalers",
        &[Nodes, Policy, SecondConfig, AutoscalerStatus],
        autoscalers::autoscalers,
    ),
    check("certificate", &[Time, Certificates, ExtenderHealth], certificates::certificates),
    check("clocks", &[Time, NodeLeases], readings::clocks),
    check("readings", &[AnnotatorHealth, ExtenderHealth], readings::fresh),
    check("writers", &[Time, Nodes, Policy], readings::writers),
    check("policy", &[Policy, ExtenderHealth, AnnotatorHealth], programs::policy),
    check("rights", &[Rights], access_checks::rights),
    check("admission", &[Admission], access_checks::admission),
    check("gpu-nodes", &[Nodes, PluginHealth], gpu::nodes),
    check("cards", &[ExtenderHealth, PluginHealth], gpu::gpus),
    check("unit", &[PluginHealth], gpu::unit),
    check("cdi", &[Nodes, ExtenderHealth, PluginHealth], gpu::cdi),
    check("runtime", &[Time, Nodes, Events, Toolkits], gpu::runtime),
    check(
        "other-plugins",
        &[Time, Nodes, Events, ExtenderHealth, PluginHealth],
        gpu::other_plugins,
    ),
    check("versions", &[Nodes, ServerVersion, ExtenderHealth, AnnotatorHealth], programs::versions),
];

/// A check of facts.
type Run = fn(&Facts, &mut Findings);

const fn check(name: &'static str, facts: &'static [Fact], run: Run) -> Check {
    Check { name, facts, run }
}

/// Examines the cluster.
///
/// # Errors
///
/// If there is no such check, or kubectl reaches no cluster.
pub(crate) fn doctor(flags: &Doctor, output: &mut dyn Write) -> Result<ExitCode> {
    let checks = chosen(&flags.only)?;
    let cluster = Cluster::new(&flags.query.access);
    let facts = collect::collect(&cluster, &needed(&checks), flags.certificate_days)?;
    let report = report(&facts, &checks);
    let code = exit_code(&report.findings);
    let mut wrong: Vec<&Finding> = report.findings.iter().collect();
    wrong.retain(|finding| finding.level != Level::Ok);
    wrong.dedup_by_key(|finding| finding.check);
    let name = |finding: &&Finding| finding.check.to_owned();
    if !write_form(&report, wrong.iter().map(name), flags.query.format, output)? {
        write_table(&report.findings, output)?;
    }
    Ok(code)
}

/// All findings as a table and as JSON, for a support bundle: no Secret is asked for, so of certificates only those
/// that the extender tells of are looked at.
///
/// # Errors
///
/// If kubectl reaches no cluster.
pub(crate) fn texts(cluster: &Cluster) -> Result<(String, String)> {
    let checks: Vec<&Check> = CHECKS.iter().collect();
    let mut facts = needed(&checks);
    facts.remove(&Fact::Certificates);
    let report = report(&collect::collect(cluster, &facts, CERTIFICATE_DAYS)?, &checks);
    let mut table = Vec::new();
    write_table(&report.findings, &mut table)?;
    let json = serde_json::to_string_pretty(&report)?;
    Ok((String::from_utf8_lossy(&table).into_owned(), json))
}

/// The checks of these names; all if none is named.
fn chosen(names: &[String]) -> Result<Vec<&'static Check>> {
    for name in names {
        if !CHECKS.iter().any(|check| check.name == name) {
            let all: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
            bail!("--only {name}: there is no such check; there are {}", all.join(", "));
        }
    }
    let is_chosen = |it: &&Check| names.is_empty() || names.iter().any(|name| name == it.name);
    Ok(CHECKS.iter().filter(is_chosen).collect())
}

/// The facts that these checks look at.
fn needed(checks: &[&Check]) -> BTreeSet<Fact> {
    checks.iter().flat_map(|check| check.facts).copied().collect()
}

fn report(facts: &Facts, checks: &[&Check]) -> Report {
    let mut findings = Vec::new();
    for check in checks {
        let mut found = Findings::of(check.name);
        (check.run)(facts, &mut found);
        findings.extend(found.done());
    }
    Report { time: facts.time(), namespace: facts.namespace.clone(), findings }
}

fn exit_code(findings: &[Finding]) -> ExitCode {
    if findings.iter().any(|finding| finding.level == Level::Fail) {
        ExitCode::FAILURE
    } else if findings.iter().any(|finding| finding.level == Level::Unknown) {
        ExitCode::from(NOT_KNOWN)
    } else {
        ExitCode::SUCCESS
    }
}

/// A line for each finding, and what to do in the next.
fn write_table(findings: &[Finding], output: &mut dyn Write) -> Result<()> {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Unknown => "unknown",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        writeln!(output, "{level:<9}{:<width$}   {}", finding.check, printable(&finding.what))?;
        if let Some(todo) = &finding.todo {
            writeln!(output, "{:<1$}-> {2}", "", width + 12, printable(todo))?;
        }
    }
    let [fails, warnings, unknown] = [Level::Fail, Level::Warn, Level::Unknown]
        .map(|level| findings.iter().filter(|finding| finding.level == level).count());
    if fails + warnings + unknown > 0 {
        writeln!(output, "\n{fails} FAIL, {warnings} warn, {unknown} unknown")?;
    }
    Ok(())
}
