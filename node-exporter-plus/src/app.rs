//! The wiring: clock, store, sampler, server.

use std::path::Path;
use std::sync::Arc;

use anyhow::ensure;
use daemon::Context;
use daemon::http::{Limits, bind, serve};
use rustix::time::{ClockId, clock_gettime};

use crate::http::Scrape;
use crate::series::{Clock, Moment};
use crate::{Args, Metrics, Sampler, SharedStore, Store, collectors, http, sample};

/// Starts sampling and serving.
///
/// # Errors
/// When the address is taken, or `--path.procfs` is no procfs.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
    let Args { listen_address, procfs, sample_interval, daemon: _ } = args;
    require_procfs(&procfs)?;
    let store = SharedStore::new(Store::new(sample_interval));
    let clock: Clock = Arc::new(since_boot);
    let metrics = context.register(Metrics::register);

    let listener = bind(listen_address, "--web.listen-address").await?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics and /statistics");
    let scrape = Scrape { store: store.clone(), clock: clock.clone(), metrics: metrics.clone() };
    context
        .spawn("serve", serve(listener, http::router(scrape), Limits::admin(), context.shutdown()));

    let collectors = collectors::all(&procfs, sample_interval);
    let sampler = Sampler::new(collectors, store, context.readiness(), metrics);
    context.spawn("sample", sample::forever(sampler, sample_interval, clock, context.shutdown()));
    Ok(())
}

/// A wrong mount would otherwise show only as a node without readings.
fn require_procfs(procfs: &Path) -> anyhow::Result<()> {
    let stat = procfs.join("stat");
    let hint = "give the host's /proc, mounted read-only";
    ensure!(
        stat.exists(),
        "--path.procfs {}: there is no {}; {hint}",
        procfs.display(),
        stat.display()
    );
    Ok(())
}

/// The time since the machine's boot.
#[must_use]
pub fn since_boot() -> Moment {
    let now = clock_gettime(ClockId::Boottime);
    Moment(now.try_into().unwrap_or_default())
}
