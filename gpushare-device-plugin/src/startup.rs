//! What is done before GPUs are published, and before the kubelet is served.
//!
//! Invariant: no GPU is published while containers hold units of another size, and the kubelet is not served before the
//! GPUs are known; it waits for everything else for a bounded time.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use daemon::{Condition, Status};
use placement::units::{MiB, PodUid};
use tokio::time::{Instant, sleep, timeout};

use crate::admission::Admission;
use crate::container::cdi::SpecFile;
use crate::gpus::sizing::Sizing;
use crate::gpus::watch::Prepare;
use crate::health;
use crate::kubelet::session::Plugin;
use crate::lingering::Lingering;
use crate::pods::{PodCache, PodRef};
use crate::records::checkpoint::CheckpointFile;

/// Time for the first list of pods. After it the plugin registers without the list, since containers that
/// restart need the plugin even while the API server is unreachable.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a failed read of the kubelet's checkpoint is repeated.
const RESTORE_PAUSE: Duration = Duration::from_secs(2);
/// Time for which the GPUs are held back while the checkpoint cannot be read. The kubelet may write a new one only
/// once the plugin is registered.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(5);

/// What is done before GPUs are published: no container may hold ids of another unit, and the CDI
/// specification must list the GPUs.
pub(crate) fn prepare_gpus(
    sizing: Sizing,
    spec: Option<Arc<SpecFile>>,
    checkpoint: CheckpointFile,
    pods: Arc<PodCache>,
    condition: Condition,
) -> Prepare {
    let begin = OnceLock::new();
    Box::new(move |gpus| {
        sizing.check(gpus).map_err(|error| {
            condition.set(health::unit_too_small(&error));
            error.to_string()
        })?;
        let waits = begin.get_or_init(Instant::now).elapsed() < CHECKPOINT_PATIENCE;
        check_unit(&checkpoint, &pods, sizing.unit, waits, &condition)?;
        condition.set(Status::ok(sizing.unit.to_string()));
        let Some(file) = &spec else { return Ok(()) };
        let recorded = checkpoint.read().map(|checkpoint| checkpoint.limits()).unwrap_or_default();
        file.write(gpus, recorded).map_err(|error| error.to_string())
    })
}

/// Checks that no container holds ids of another unit. A checkpoint that cannot be read is an error only if `waits`.
fn check_unit(
    checkpoint: &CheckpointFile,
    pods: &PodCache,
    unit: MiB,
    waits: bool,
    condition: &Condition,
) -> Result<(), String> {
    match checkpoint.read() {
        Ok(checkpoint) => checkpoint.check_unit(unit, |uid| name_of(uid, pods)).map_err(|error| {
            condition.set(health::unit_changed(error.to_string()));
            error.to_string()
        }),
        Err(error) if waits => Err(format!("{error}; trying again")),
        Err(error) => {
            tracing::warn!(
                "cannot check whether containers hold units of another --unit-mib: {error}"
            );
            Ok(())
        }
    }
}

/// The name of a pod that has not ended; `None` for a deleted or finished one. Until the pods are listed, each counts
/// as existing.
fn name_of(uid: &PodUid, pods: &PodCache) -> Option<String> {
    match pods.by_uid(uid) {
        Some(facts) if facts.finished => None,
        Some(facts) => Some(PodRef::of(&facts).to_string()),
        None if pods.is_listed() => None,
        None => Some(uid.to_string()),
    }
}

/// Waits for what must be loaded before the kubelet calls: the GPUs, the pods, what an earlier process granted, and
/// which container holds which ids.
pub(crate) async fn prepare(plugin: &mut Plugin, lingering: &Lingering, registered: &Condition) {
    let gpus = plugin.gpus.wait_for(|gpus| !gpus.is_empty());
    if gpus.await.is_err() {
        return;
    }
    // Takes seconds at most: it reads files of the node, and waits so long for the first list of ResourceSlices. By
    // then it is known which GPUs take no new pods.
    let mut support = plugin.admission.isolation().support.clone();
    if support.wait_for(Option::is_some).await.is_err() {
        return;
    }
    load(lingering, registered).await;
    match timeout(FIRST_LIST_TIMEOUT, plugin.admission.restore()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            list_instead(plugin, &error.to_string()).await;
            restore_later(plugin.admission.clone());
        }
        Err(_) => {
            tracing::warn!(
                "the API server sent no list of pods within {FIRST_LIST_TIMEOUT:?}: registering without it"
            );
            restore_later(plugin.admission.clone());
        }
    }
}

/// Waits up to [`FIRST_LIST_TIMEOUT`] for a file that cannot be read. Containers that restart need the plugin even
/// without the file.
async fn load(lingering: &Lingering, registered: &Condition) {
    if lingering.load_grants() {
        return;
    }
    registered.set_not_ready("what an earlier process granted cannot be read");
    if timeout(FIRST_LIST_TIMEOUT, lingering.grants_loaded()).await.is_err() {
        tracing::warn!(
            "what an earlier process granted was not read within {FIRST_LIST_TIMEOUT:?}: registering \
             without it"
        );
    }
}

/// Reads the ids of containers from a List, which has no init containers, in place of the checkpoint. This plugin is
/// not registered yet, so no Allocate of its resource is in progress during the List.
async fn list_instead(plugin: &Plugin, why: &str) {
    tracing::warn!("{why}; using the PodResources API instead");
    if let Err(status) = plugin.admission.relist().await {
        tracing::warn!("PodResources List: {}", status.message());
    }
}

/// Retries to read the checkpoint, after the first list of pods, until it succeeds or the process ends.
fn restore_later(admission: Arc<Admission>) {
    tokio::spawn(async move {
        while let Err(error) = admission.restore().await {
            tracing::debug!("{error}");
            sleep(RESTORE_PAUSE).await;
        }
    });
}
