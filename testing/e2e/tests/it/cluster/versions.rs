//! A test of the last release's programs beside those of this one (docs/install.md#upgrading). It runs after Plimsoll
//! was removed.

use anyhow::Result;
use e2e::build::images::REGISTRY;
use e2e::build::last_release::{self, last_release};
use e2e::cluster::chart::ChartRelease;
use e2e::cluster::install::NAMESPACE as PLIMSOLLS;

use super::chart::{removed_after, without_plimsoll};
use crate::env::TestEnv;
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{START, create, gpu_container, list, pod, running};
use crate::support::readings::{WRITTEN_AT_ONCE, written_from_now_on};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "the_last_releases_programs_and_these_work_side_by_side_in_an_upgrade_and_a_rollback",
    side_by_side,
)
.takes(500)];

/// The tag of this release's images.
const TAG: &str = env!("CARGO_PKG_VERSION");
/// The workloads in one of the two orders in which they come to this release.
const ORDER: [(&str, &str); 4] = [
    ("deployment", "scheduler-extender"),
    ("daemonset", "gpushare-device-plugin"),
    ("deployment", "annotator"),
    ("daemonset", "node-exporter-plus"),
];

/// The last release is installed by its own chart. One program after the other becomes this release's, then the
/// manifests do. After a rollback they come the other way round, so that of every two programs each was once the newer
/// one.
fn side_by_side(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    without_plimsoll(env)?;
    let last = last_release(cluster.settings())?;
    cluster.import(&last.images)?;
    let release = ChartRelease::new(cluster, PLIMSOLLS, "helm4")?;
    let before = release.by_chart(&last.chart);
    let tag = format!("--set=image.tag={}", last_release::TAG);
    removed_after(env, &release, || {
        before.install(&[&tag, WRITTEN_AT_ONCE[0], WRITTEN_AT_ONCE[1]])?;
        before.enable_scheduler()?;
        places(env, "all-of-the-last")?;
        one_by_one(env, "upgrade", ORDER)?;
        release.upgrade(&WRITTEN_AT_ONCE)?;
        places(env, "all-of-this")?;
        // kubectl has set images, which Helm's server-side apply leaves alone otherwise.
        release.rollback("1", &["--force-conflicts"])?;
        places(env, "rolled-back")?;
        let mut others_first = ORDER;
        others_first.reverse();
        one_by_one(env, "again", others_first)
    })
}

/// Gives each program the image of this release, one after the other. After each, a pod is placed.
fn one_by_one(env: &TestEnv, when: &str, order: [(&str, &str); 4]) -> Result<()> {
    let cluster = env.cluster()?;
    for (kind, program) in order {
        let workload = format!("{kind}/{program}");
        let image = format!("{program}={REGISTRY}/{program}:{TAG}");
        cluster.kubectl_run(&["-n", PLIMSOLLS, "set", "image", &workload, &image])?;
        let status = ["-n", PLIMSOLLS, "rollout", "status", &workload, "--timeout=300s"];
        cluster.kubectl_run(&status)?;
        places(env, &format!("{when}-{program}"))?;
    }
    Ok(())
}

/// Every node gets a reading from now on, and a GPU pod runs on the GPU that it claims, as do those before it.
fn places(env: &TestEnv, name: &str) -> Result<()> {
    written_from_now_on(env)?;
    create(env, pod(name, &[gpu_container("main", 3)]))?;
    running(env, name, START)?;
    audit_exactly(env, list(env)?.len())
}
