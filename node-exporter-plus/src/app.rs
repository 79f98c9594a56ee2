//! The wiring: clock, store, sampler, server.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use daemon::Context;
use rustix::time::{ClockId, clock_gettime};

use crate::collectors::{Roots, UptimeFile};
use crate::gpu::{self, Latest, Probe};
use crate::http::Scrape;
use crate::plan::Plan;
use crate::render::Node;
use crate::series::{Clock, Interval, Moment, Now};
use crate::storage::{self, Boot, Storage};
use crate::{Args, Metrics, Sampler, SharedStore, Store, collectors, sample};

/// Starts sampling and serving.
///
/// # Errors
/// When the address is taken, `--path.procfs` is no procfs, or a file does not hold what it should.
pub async fn run(args: Args, context: Context) -> anyhow::Result<()> {
    let (gpu_probe, web) = (probe(&args), args.web());
    let Args {
        listen_address: _,
        tls_cert_file: _,
        tls_key_file: _,
        token_file: _,
        procfs,
        sysfs,
        rootfs,
        kubelet_root: kubelet,
        sample_interval,
        config_file,
        storage_file,
        storage_prepare: _,
        nvml_library: _,
        gpu_probe: _,
        daemon: _,
    } = args;
    require_procfs(&procfs)?;
    let plan =
        config_file.map(|file| plan(&file, sample_interval)).transpose()?.unwrap_or_default();
    let store = SharedStore::new(Store::new(sample_interval, plan));
    let clock: Clock = Arc::new(now);
    let boot = boot_id(&procfs);
    let storage = storage_file.map(|file| storage(&file, boot.as_ref(), &store)).transpose()?;
    let node = Node { boot_id: boot, uptime: None, sample_interval: sample_interval.duration() };
    let uptime = UptimeFile::new(&procfs);
    let metrics = context.register(Metrics::register);

    let scrape = Scrape::new(store.clone(), clock.clone(), &metrics, node, uptime);
    web.serve(scrape, &metrics, &context).await?;

    let roots = Roots { procfs, sysfs, rootfs, kubelet };
    let mut collectors = collectors::all(&roots, sample_interval);
    let cards = Latest::default();
    collectors.push(Box::new(collectors::gpu::Gpu::new(cards.clone(), sample_interval)));
    context.spawn("gpu", gpu::forever(gpu_probe, cards, clock.clone(), context.shutdown()));
    let sampler = Sampler::new(collectors, store.clone(), context.readiness(), metrics);
    context.spawn("sample", sample::forever(sampler, sample_interval, clock, context.shutdown()));
    if let Some(storage) = storage {
        context.spawn("save", storage::forever(storage, store, context.shutdown()));
    }
    Ok(())
}

fn probe(args: &Args) -> Probe {
    let beside = || {
        let own = std::env::current_exe().unwrap_or_default();
        own.with_file_name("gpu-probe")
    };
    Probe {
        program: args.gpu_probe.clone().unwrap_or_else(beside),
        library: args.nvml_library.clone(),
        interval: args.sample_interval,
    }
}

/// Loads what an earlier process of this boot knew.
fn storage(file: &Path, boot: Option<&String>, store: &SharedStore) -> anyhow::Result<Storage> {
    let boot = boot.context(
        "--storage.file needs --path.procfs with sys/kernel/random/boot_id: samples serve one boot",
    )?;
    let storage = Storage::new(file.to_owned(), Boot(boot.clone()));
    let loaded = storage.load(&mut store.lock(), now().boot);
    tracing::info!(file = %file.display(), found = ?loaded, "samples of earlier");
    Ok(storage)
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

fn plan(file: &Path, interval: Interval) -> anyhow::Result<Plan> {
    let named = || format!("--config.file {}", file.display());
    let text = std::fs::read_to_string(file).with_context(named)?;
    Plan::parse(&text, interval).with_context(named)
}

/// The kernel's name for this boot.
fn boot_id(procfs: &Path) -> Option<String> {
    let id = std::fs::read_to_string(procfs.join("sys/kernel/random/boot_id")).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Both clocks of the machine.
#[must_use]
pub fn now() -> Now {
    let boot = clock_gettime(ClockId::Boottime);
    Now { boot: Moment(boot.try_into().unwrap_or_default()), wall: SystemTime::now() }
}
