//! The wiring: flags and files, store, sampler, server.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use daemon::Context;
use rustix::time::{ClockId, clock_gettime};

use crate::collectors::UptimeFile;
use crate::config::Config;
use crate::gpu::{self, LatestReport};
use crate::http::Endpoints;
use crate::render::Node;
use crate::series::{Clock, Interval, Moment, Now};
use crate::storage::{self, BootId, Storage};
use crate::{Args, Metrics, Sampler, SharedStore, Store, collectors, pods, sample};

/// Starts sampling and serving.
///
/// # Errors
/// When there is no procfs below `--host-root`, a file that a flag names cannot be used, or the address is taken. The
/// exporter's port is opened after everything else that can fail.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
    let roots = args.roots();
    require_procfs(&args.host_root, &roots.procfs)?;
    let interval = args.sample_interval;
    let config = args.config_file.as_deref().map(|file| read_config(file, interval)).transpose()?;
    let store = SharedStore::new(Store::new(interval, config.unwrap_or_default()));
    let boot = boot_id(&roots.procfs);
    let storage =
        args.storage_file.as_ref().map(|file| load(file, boot.as_ref(), &store)).transpose()?;
    let clock: Clock = Arc::new(now);
    let metrics = context.register(Metrics::register);

    let node = Node { boot_id: boot, uptime: None, sample_interval: interval.duration() };
    let uptime = UptimeFile::new(&roots.procfs);
    let endpoints =
        Endpoints::new(store.clone(), clock.clone(), node, uptime, roots.cgroupfs.clone());
    check_cgroups(&roots.cgroupfs);
    args.server().start(endpoints, &metrics, &context).await?;

    let probe = args.probe();
    let gpus = LatestReport::default();
    let mut collectors = collectors::all(&roots, interval);
    collectors.push(Box::new(collectors::gpu::Gpu::new(gpus.clone(), interval)));
    context.spawn("gpu", gpu::forever(probe, gpus, clock.clone(), context.shutdown()));
    let sampler = Sampler::new(collectors, store.clone(), context.health(), metrics);
    context.spawn("sample", sample::forever(sampler, interval, clock, context.shutdown()));
    if let Some(storage) = storage {
        context.spawn("save", storage::forever(storage, store, context.shutdown()));
    }
    Ok(())
}

/// Loads the samples of an earlier process of this boot.
fn load(file: &Path, boot: Option<&String>, store: &SharedStore) -> anyhow::Result<Storage> {
    let id = boot.context(
        "--storage.file needs proc/sys/kernel/random/boot_id below --host-root, since samples serve one boot",
    )?;
    let storage = Storage::new(file.to_owned(), BootId(id.clone()));
    let loaded = storage.load(&mut store.lock(), now().boot);
    tracing::info!(file = %file.display(), found = ?loaded, "looked for samples of this boot");
    Ok(storage)
}

/// Checks that a procfs is there. A wrong mount would otherwise show only as a node without readings.
fn require_procfs(host: &Path, procfs: &Path) -> anyhow::Result<()> {
    let stat = procfs.join("stat");
    let (host, procfs) = (host.display(), procfs.display());
    ensure!(
        stat.exists(),
        "--host-root {host}: there is no {}; mount the host's /proc read-only at {procfs}",
        stat.display()
    );
    Ok(())
}

/// Logs where no pods can be read: the rest of the exporter needs none.
fn check_cgroups(cgroupfs: &Path) {
    if let Err(error) = pods::check(cgroupfs) {
        tracing::warn!(%error, "the control groups of pods cannot be read: /v1/pods answers 404");
    }
}

fn read_config(file: &Path, interval: Interval) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(file).map_err(anyhow::Error::from);
    let config = text.and_then(|text| Ok(Config::parse(&text, interval)?));
    config.with_context(|| format!("--config.file {}", file.display()))
}

/// The kernel's id of this boot.
fn boot_id(procfs: &Path) -> Option<String> {
    let id = std::fs::read_to_string(procfs.join("sys/kernel/random/boot_id")).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// The time now, by the kernel's clocks.
#[must_use]
pub fn now() -> Now {
    let boot = clock_gettime(ClockId::Boottime);
    Now { boot: Moment(boot.try_into().unwrap_or_default()), wall: SystemTime::now() }
}
