//! The measured processes, and what the kernel counts of them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use scheduler_extender::{Args, app};

/// For the extender to have read the cluster.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server in a process of its own; ended when it is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) address: SocketAddr,
    /// Where it serves its metrics; `None` of the echo.
    admin: Option<SocketAddr>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs as the extender's own `main` does.
pub(super) fn be_extender(flags: &[String]) -> ExitCode {
    let program = ["scheduler-extender".to_owned()];
    app::main(Args::parse_from(program.iter().chain(flags)))
}

impl Server {
    /// `rejects`: with a reason for every third node.
    pub(super) fn echo(rejects: bool) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("echo").args(rejects.then_some("--rejects"));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(Self { child, address: line.trim().parse()?, admin: None })
    }

    /// Returns once the extender has read the whole cluster.
    pub(super) fn extender(
        args: &crate::Args,
        kubeconfig: &Path,
        policy: &Path,
    ) -> anyhow::Result<Self> {
        let address = free()?;
        let admin = free()?;
        let program = args.extender.as_deref();
        let mut command = match program {
            Some(program) => Command::new(program),
            None => Command::new(std::env::current_exe()?),
        };
        let child = command
            .args(program.is_none().then_some("extender"))
            .args(["--log-level", "error"])
            .args((args.claims > 0).then_some("--claims"))
            .args(["--listen-address", &address.to_string()])
            .args(["--admin-address", &admin.to_string()])
            .args(["--kubeconfig".as_ref(), kubeconfig.as_os_str()])
            .args(["--policy-file".as_ref(), policy.as_os_str()])
            .spawn()?;
        let server = Self { child, address, admin: Some(admin) };
        let began = Instant::now();
        while !is_ready(admin) {
            if began.elapsed() > PATIENCE {
                bail!("the extender is not ready after {PATIENCE:?}");
            }
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// CPU that it has used, in microseconds.
    pub(super) fn cpu(&self) -> anyhow::Result<f64> {
        let mut nanoseconds = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let used = text.split(' ').next().context("an empty schedstat")?;
            nanoseconds += used.parse::<u64>()?;
        }
        Ok(nanoseconds as f64 / 1e3)
    }

    /// `VmRSS` now, and the most that it was, in KiB.
    pub(super) fn memory(&self) -> anyhow::Result<[u64; 2]> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        Ok([field(&text, "VmRSS:")?, field(&text, "VmHWM:")?])
    }

    /// How many events of Nodes the extender has processed.
    pub(super) fn events_of_nodes(&self) -> anyhow::Result<usize> {
        const EVENTS: &str = r#"plimsoll_watch_events_total{resource="nodes"} "#;
        let page = get(self.admin.context("the echo has no metrics")?, "/metrics")?;
        let count = page.lines().find_map(|line| line.strip_prefix(EVENTS));
        Ok(count.with_context(|| format!("no metric {EVENTS}"))?.trim().parse()?)
    }

    /// Returns once the extender has processed so many events of Nodes since the start.
    pub(super) fn wait_for_events(&self, events: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.events_of_nodes()? < events {
            if began.elapsed() > PATIENCE {
                bail!("the extender has not processed {events} events after {PATIENCE:?}");
            }
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Returns once the process has used no CPU for a while: what it was told of is done.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        let mut used = self.cpu()?;
        loop {
            sleep(Duration::from_millis(200));
            let now = self.cpu()?;
            if now - used < 1_000.0 {
                return Ok(());
            }
            used = now;
        }
    }
}

fn field(text: &str, name: &str) -> anyhow::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no memory")?;
    Ok(line.trim_matches(|c: char| !c.is_ascii_digit()).parse()?)
}

/// A port that nothing listens on.
fn free() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn is_ready(admin: SocketAddr) -> bool {
    get(admin, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// An answer with its head.
fn get(admin: SocketAddr, path: &str) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(admin)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
