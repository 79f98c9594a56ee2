//! A kube-scheduler, and the extender that it asks.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use reqwest::Client;
use tokio::process::{Child, Command};

use crate::Args;

/// What kube-scheduler writes where an extender gave no answer.
const UNANSWERED: &str = "Skipping extender";

/// A kube-scheduler that places the pods which name it.
pub(crate) struct System {
    pub(crate) name: String,
    log: PathBuf,
    metrics: String,
    extender: Option<Extender>,
    client: Client,
    _scheduler: Child,
}

/// Starts anew for each run, so that it knows nothing of the last one.
struct Extender {
    program: PathBuf,
    flags: Vec<String>,
    ready: String,
    log: PathBuf,
    process: Option<Child>,
}

impl System {
    /// Stock, or with the extender under a policy.
    pub(crate) fn start(args: &Args, name: &str, policy: Option<&Path>) -> anyhow::Result<Self> {
        let (metrics, verbs, admin) = (port()?, port()?, port()?);
        let file = |kind: &str| args.work.join(format!("{name}.{kind}"));
        let (config, log) = (file("yaml"), file("scheduler.log"));
        let extender = policy.map(|policy| Extender {
            program: args.extender.clone(),
            flags: vec![
                format!("--listen-address=127.0.0.1:{verbs}"),
                format!("--admin-address=127.0.0.1:{admin}"),
                format!("--kubeconfig={}", args.kubeconfig.display()),
                format!("--policy-file={}", policy.display()),
            ],
            ready: format!("http://127.0.0.1:{admin}/readyz"),
            log: file("extender.log"),
            process: None,
        });
        let text = match policy {
            Some(policy) => with_extender(args, name, policy, verbs)?,
            None => stock(args, name),
        };
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let scheduler = Command::new(&args.scheduler)
            .arg(format!("--config={}", config.display()))
            .arg(format!("--secure-port={metrics}"))
            .arg("--authorization-always-allow-paths=/metrics")
            .stdin(Stdio::null())
            .stderr(File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{}: cannot start", args.scheduler.display()))?;
        let client = Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build()?;
        let metrics = format!("https://127.0.0.1:{metrics}/metrics");
        Ok(Self { name: name.to_owned(), log, metrics, extender, client, _scheduler: scheduler })
    }

    /// Waits until kube-scheduler knows these numbers of nodes and of pods that are bound.
    pub(crate) async fn wait_until_it_knows(
        &self,
        nodes: usize,
        pods: usize,
    ) -> anyhow::Result<()> {
        let cached = [("nodes", nodes), ("pods", pods)]
            .map(|(kind, number)| format!("scheduler_cache_size{{type=\"{kind}\"}} {number}\n"));
        let start = Instant::now();
        loop {
            // It may not have begun to listen.
            if let Ok(answer) = self.client.get(&self.metrics).send().await {
                let page = answer.text().await?;
                if cached.iter().all(|line| page.contains(line)) {
                    return Ok(());
                }
            }
            if start.elapsed() > Duration::from_secs(60) {
                bail!("{} does not see {nodes} nodes: {}", self.name, self.log.display());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns once the extender has read all nodes and pods.
    pub(crate) async fn start_extender(&mut self) -> anyhow::Result<()> {
        let Some(extender) = &mut self.extender else { return Ok(()) };
        let mut process = Command::new(&extender.program)
            .args(&extender.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&extender.log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{}: cannot start", extender.program.display()))?;
        loop {
            let answer = self.client.get(&extender.ready).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            ensure!(process.try_wait()?.is_none(), fs::read_to_string(&extender.log)?);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        extender.process = Some(process);
        Ok(())
    }

    /// Fails where kube-scheduler placed a pod without the extender's answer: that would be stock's place.
    pub(crate) async fn end_extender(&mut self) -> anyhow::Result<()> {
        let Some(extender) = &mut self.extender else { return Ok(()) };
        if let Some(mut process) = extender.process.take() {
            process.kill().await?;
        }
        let log = fs::read_to_string(&self.log)?;
        let unanswered = log.lines().find(|line| line.contains(UNANSWERED));
        ensure!(unanswered.is_none(), "{}: {}", self.name, unanswered.unwrap_or_default());
        Ok(())
    }
}

/// A port that is free now.
fn port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn stock(args: &Args, name: &str) -> String {
    format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nclientConnection:\n  \
         kubeconfig: {}\n  qps: 5000\n  burst: 5000\nleaderElection:\n  leaderElect: false\nprofiles:\n\
         - schedulerName: {name}\n",
        args.kubeconfig.display()
    )
}

/// What `plimsoll scheduler-config` writes, with more time for a busy machine.
fn with_extender(args: &Args, name: &str, policy: &Path, verbs: u16) -> anyhow::Result<String> {
    let output = std::process::Command::new(&args.plimsoll)
        .args(["scheduler-config", "--scheduler-name", name])
        .arg(format!("--address=http://127.0.0.1:{verbs}"))
        .arg(format!("--kubeconfig={}", args.kubeconfig.display()))
        .arg(format!("--policy={}", policy.display()))
        .output()
        .with_context(|| format!("{}: cannot start", args.plimsoll.display()))?;
    ensure!(output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned());
    let text = String::from_utf8(output.stdout)?;
    Ok(text
        .replace("leaderElect: true", "leaderElect: false")
        .replace("clientConnection:\n", "clientConnection:\n  qps: 5000\n  burst: 5000\n")
        .replace("httpTimeout: 500ms", "httpTimeout: 10s"))
}
