//! The annotator's process: its start and end, and what it used so far.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::{Child, Command};

/// Clock ticks a second in `/proc/PID/stat`, on every architecture that Linux supports today.
const TICKS: f64 = 100.0;

/// Where it serves its metrics.
const ADMIN: &str = "127.0.0.1:29103";

/// Where it answers with readings.
const LISTEN: &str = "127.0.0.1:29106";

/// A running annotator. Dropping it ends it.
pub(crate) struct Annotator {
    process: Child,
    id: u32,
    client: reqwest::Client,
}

/// What it did so far. All but memory only grow.
pub(crate) struct Sample {
    /// CPU seconds in the program.
    pub(crate) user: f64,
    /// CPU seconds in the kernel.
    pub(crate) system: f64,
    pub(crate) polls: f64,
    pub(crate) failures: f64,
    pub(crate) pod_asks: f64,
    pub(crate) patches: f64,
    pub(crate) late: f64,
    pub(crate) connections: f64,
    /// KiB.
    pub(crate) rss: u64,
    /// KiB.
    pub(crate) most_rss: u64,
}

impl Sample {
    pub(crate) fn cpu(&self) -> f64 {
        self.user + self.system
    }
}

impl Annotator {
    pub(crate) fn start(program: &Path, flags: &[String]) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(flags).arg(format!("--admin-address={ADMIN}"));
        command.arg(format!("--listen-address={LISTEN}")).arg("--log-level=error");
        let process = command.stdin(Stdio::null()).kill_on_drop(true).spawn();
        let process = process.with_context(|| format!("{}: cannot start", program.display()))?;
        let id = process.id().context("it has ended")?;
        Ok(Self { process, id, client: sim::http_client()? })
    }

    /// Waits until it has polled `nodes` times with success.
    pub(crate) async fn settle(&self, nodes: u32) -> anyhow::Result<()> {
        for _ in 0..240 {
            if self.page().await.is_ok_and(|page| answered(&page) >= f64::from(nodes)) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("not all nodes were polled within two minutes")
    }

    pub(crate) async fn sample(&self, connections: usize) -> anyhow::Result<Sample> {
        const LATE: &str = "plimsoll_annotator_late_seconds_bucket";
        ensure!(self.process.id().is_some(), "the annotator has ended");
        let page = self.page().await?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id))?;
        let status = fs::read_to_string(format!("/proc/{}/status", self.id))?;
        // The fields after the name, which is in parentheses: utime and stime are the 14th and 15th of all.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has no name")?;
        let fields: Vec<f64> =
            fields.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
        Ok(Sample {
            user: fields.get(11).copied().unwrap_or(0.0) / TICKS,
            system: fields.get(12).copied().unwrap_or(0.0) / TICKS,
            polls: answered(&page),
            failures: sum(&page, "plimsoll_annotator_polls_total", "") - answered(&page),
            pod_asks: sum(&page, "plimsoll_annotator_pod_use_polls_total", ""),
            patches: sum(&page, "plimsoll_annotator_patches_total", "outcome=\"ok\""),
            late: sum(&page, LATE, "le=\"+Inf\"") - sum(&page, LATE, "le=\"0.64\""),
            connections: connections as f64,
            rss: memory(&status, "VmRSS").context("no VmRSS")?,
            most_rss: memory(&status, "VmHWM").context("no VmHWM")?,
        })
    }

    /// Its answer to an extender that has the answer of a version.
    pub(crate) async fn readings(&self, since: Option<&str>) -> anyhow::Result<String> {
        let since = since.map(|version| format!("?since={version}")).unwrap_or_default();
        let answer = self.client.get(format!("http://{LISTEN}/v1/readings{since}")).send().await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    async fn page(&self) -> anyhow::Result<String> {
        let answer = self.client.get(format!("http://{ADMIN}/metrics")).send().await?;
        Ok(answer.error_for_status()?.text().await?)
    }
}

/// An amount of `/proc/PID/status`, in KiB.
fn memory(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn answered(page: &str) -> f64 {
    sum(page, "plimsoll_annotator_polls_total", "outcome=\"ok\"")
}

/// The sum of the values of `metric` whose labels contain `label`.
fn sum(page: &str, metric: &str, label: &str) -> f64 {
    let lines = page.lines().filter_map(|line| line.strip_prefix(metric));
    let lines = lines.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    lines.filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}
