//! An extender whose Filter rejects every node for load, as ours does, and counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::server;

const REASON: &str =
    "Load[cpu_shared_busy_avg_5m] is too high, over 0.8 (see: kubectl plimsoll explain pod)";

pub(crate) struct Extender {
    pub(crate) port: u16,
    calls: Arc<AtomicU64>,
}

pub(crate) async fn start() -> Result<Extender> {
    let calls = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&calls);
    let port = server::start(Arc::new(move |_, _, body| {
        counted.fetch_add(1, Ordering::Relaxed);
        ("200 OK", reject(body))
    }));
    Ok(Extender { port: port.await?, calls })
}

fn reject(body: &[u8]) -> String {
    let asked: Value = serde_json::from_slice(body).unwrap_or_default();
    let names = asked["NodeNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let failed: BTreeMap<&str, &str> = names.map(|name| (name, REASON)).collect();
    json!({"NodeNames": [], "FailedNodes": {}, "FailedAndUnresolvableNodes": failed}).to_string()
}

impl Extender {
    /// Filter calls since the start.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Waits until every pod was asked about.
    pub(crate) async fn until_rejected(&self, pods: usize) -> Result<()> {
        for _ in 0..600 {
            if self.calls() >= pods as u64 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!("kube-scheduler asked {} times about {pods} pods in two minutes", self.calls())
    }
}
