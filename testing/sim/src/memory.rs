//! A program as a process of its own, whose memory is compared with the limit that it is shipped with, and pods as
//! large as the API server takes.

use std::io;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::{KeptAddress, PodBuilder, http_client, pod};

/// The largest pod in bytes that etcd takes, with some room for the rest of the object.
const LARGEST: usize = 1_400_000;

/// Annotations of an object, in bytes: Kubernetes' limit.
const ANNOTATIONS: usize = 256 * 1024;

/// Longest wait for a program, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(400);

/// A pod of which the API server takes no larger one. By its number, it is large in one way or another.
pub fn large_pod(number: usize) -> PodBuilder {
    let name = format!("large-{number:03}");
    let mut large = Value::from(pod(&name).container("main", "cpu", 1));
    let main = &mut large["spec"]["containers"][0];
    match number % 8 {
        // The parser's trees of the stand-in take 100 times the text, so there are few of these.
        0 if number < 16 => {
            // Three bytes each as the API server stores it.
            main["args"] = vec!["a"; LARGEST / 3].into();
        }
        1 if number < 16 => {
            // As many as fit, with short names and no values.
            let annotations = (0..ANNOTATIONS / 6)
                .map(|number| (format!("n{number:05x}"), Value::from("")))
                .collect();
            large["metadata"]["annotations"] = Value::Object(annotations);
        }
        2 => {
            let variable = serde_json::json!({"name": "X", "value": "x".repeat(LARGEST)});
            main["env"] = vec![variable].into();
        }
        // JSON has six bytes for each.
        3 => main["command"] = vec!["\u{1}".repeat(LARGEST)].into(),
        _ => main["args"] = vec!["x".repeat(LARGEST)].into(),
    }
    PodBuilder(large)
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Measured {
    child: Child,
    admin: SocketAddr,
    _kept: KeptAddress,
}

impl Drop for Measured {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Measured {
    /// Starts a program with these flags, and one for its admin port.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(program: &str, flags: &[String]) -> io::Result<Self> {
        let kept = KeptAddress::new()?;
        let admin = kept.address();
        let child = Command::new(program)
            .args(flags)
            .arg(format!("--admin-address={admin}"))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, admin, _kept: kept })
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// Where it ends, or does not become ready.
    pub async fn ready(&mut self) -> io::Result<()> {
        self.until("readyz", |status, _| status == 200).await
    }

    /// Waits until a metric without labels is at least so much.
    ///
    /// # Errors
    /// Where it ends, or the metric does not get there.
    pub async fn until_metric(&mut self, name: &str, least: f64) -> io::Result<()> {
        self.until("metrics", |_, page: &str| {
            let values =
                page.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            values.fold(0.0, f64::max) >= least
        })
        .await
    }

    /// The value of a metric without labels; 0 where the page has none.
    ///
    /// # Errors
    /// Where the page cannot be read.
    pub async fn metric(&self, name: &str) -> io::Result<f64> {
        let url = format!("http://{}/metrics", self.admin);
        let answer = http_client()?.get(&url).send().await.map_err(io::Error::other)?;
        let page = answer.text().await.map_err(io::Error::other)?;
        let values = page.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Ok(values.fold(0.0, f64::max))
    }

    async fn until(&mut self, page: &str, holds: impl Fn(u16, &str) -> bool) -> io::Result<()> {
        let client = http_client()?;
        let url = format!("http://{}/{page}", self.admin);
        let wait = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return Err(io::Error::other(format!("the program has ended: {status}")));
                }
                if let Ok(answer) = client.get(&url).send().await {
                    let status = answer.status().as_u16();
                    if holds(status, &answer.text().await.unwrap_or_default()) {
                        return Ok(());
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await?
    }

    /// The most memory that it has had so far, in bytes.
    ///
    /// # Errors
    /// Where `/proc` does not say.
    pub fn peak(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no VmHWM"))
    }
}

/// The memory limit of a program in the shipped manifests, in bytes.
#[must_use]
pub fn memory_limit(program: &str) -> Option<u64> {
    const MANIFESTS: &str = include_str!("../../../deploy/manifests/external/plimsoll.yaml");
    let container = MANIFESTS.split_once(&format!("\n      - name: {program}\n"))?.1;
    let limits = container.split_once("limits:")?.1;
    let amount = limits.lines().find_map(|line| line.trim().strip_prefix("memory:"))?;
    amount.trim().strip_suffix("Mi")?.parse::<u64>().ok().map(|mib| mib << 20)
}
