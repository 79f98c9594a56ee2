//! Owns the policy of the programs in the cluster: their ConfigMap, changed for a test and restored after it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::env::TestEnv;

/// A policy of our own kind with its defaults: soft limits, in-flight estimates, scores from 0 to 100.
pub(crate) const OURS: &str = "\
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 3m, limit: 0.65, weight: 1}
  - {name: mem_usage_avg_5m, period: 3m, limit: 0.65, weight: 1}
";

/// The programs that read the policy.
const READERS: [Reader; 2] = [
    Reader { program: "scheduler-extender", port: 19102 },
    Reader { program: "annotator", port: 19103 },
];
/// The ConfigMap, and its key that is the policy in force.
const NAME: &str = "policy";
const IN_FORCE: &str = "policy.yaml";
/// Programs look at the file every 5 s. Where the kubelet looks at the changed pod before it has the new ConfigMap, it
/// writes the file at its next look at that pod, within 90 s.
const LIMIT: Duration = Duration::from_secs(300);

struct Reader {
    program: &'static str,
    port: u16,
}

impl Reader {
    /// How often each of its pods has read a changed policy with this outcome, `changed` or `refused`.
    fn reads(&self, env: &TestEnv, outcome: &str) -> Result<Vec<u64>> {
        let series =
            format!(r#"plimsoll_file_changes_total{{file="policy",outcome="{outcome}"}} "#);
        Ok(env
            .metrics_of_each(self.program, self.port)?
            .values()
            .map(|page| {
                let counts = page.lines().filter_map(|line| line.strip_prefix(&series));
                counts.filter_map(|count| count.parse::<u64>().ok()).sum()
            })
            .collect())
    }
}

/// Runs `work` with this policy in force, and restores the one before also after an error.
pub(crate) fn with<T>(env: &TestEnv, policy: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = in_force(env)?.context("no policy is installed")?;
    let done = put_in_force(env, policy).and_then(|()| work());
    let restored = put_in_force(env, &before);
    let done = done?;
    restored.map(|()| done)
}

/// Puts a policy in force, and waits until the programs have read it.
pub(crate) fn put_in_force(env: &TestEnv, policy: &str) -> Result<()> {
    if in_force(env)?.as_deref() == Some(policy) {
        return Ok(());
    }
    changed_by(env, || set_in_force(env, policy))
}

/// Offers a faulty policy, and waits until the programs have refused it.
pub(crate) fn offer_faulty(env: &TestEnv, policy: &str) -> Result<()> {
    after_reading(env, "refused", || set_in_force(env, policy))
}

/// Waits until the programs have read the policy that `change` installs.
pub(crate) fn changed_by(env: &TestEnv, change: impl FnOnce() -> Result<()>) -> Result<()> {
    after_reading(env, "changed", change)
}

fn after_reading(env: &TestEnv, outcome: &str, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let known = counts_of_reads(env, outcome)?;
    change()?;
    refresh_config_maps(env)?;
    wait_for(&format!("the programs to report the policy as {outcome}"), LIMIT, || {
        Ok(counts_of_reads(env, outcome)?
            .iter()
            .zip(&known)
            .all(|(now, known)| now > known)
            .then_some(()))
    })
}

fn counts_of_reads(env: &TestEnv, outcome: &str) -> Result<Vec<u64>> {
    let of_each = READERS.iter().map(|reader| reader.reads(env, outcome));
    Ok(of_each.collect::<Result<Vec<_>>>()?.concat())
}

fn in_force(env: &TestEnv) -> Result<Option<String>> {
    let map = env.block_on(config_maps(env).get(NAME))?;
    Ok(map.data.and_then(|mut data| data.remove(IN_FORCE)))
}

fn set_in_force(env: &TestEnv, policy: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"data": {IN_FORCE: policy}}));
    let patched = env.block_on(config_maps(env).patch(NAME, &PatchParams::default(), &patch))?;
    let set = patched.data.is_some_and(|data| data.get(IN_FORCE).is_some_and(|it| it == policy));
    ensure!(set, "the ConfigMap {NAME} did not take it");
    Ok(())
}

fn config_maps(env: &TestEnv) -> Api<ConfigMap> {
    Api::namespaced(env.client(), "plimsoll")
}

/// Changes the pods, upon which the kubelet reads their ConfigMaps again. Otherwise it does so once a minute.
fn refresh_config_maps(env: &TestEnv) -> Result<()> {
    for Reader { program, .. } in READERS {
        let selector = format!("app.kubernetes.io/name={program}");
        let stamp = format!("plimsoll-e2e/refresh={:?}", std::time::Instant::now());
        let stamp: String = stamp.chars().filter(|c| !" {}:".contains(*c)).collect();
        let words = ["-n", "plimsoll", "annotate", "pods", "--overwrite", "-l", &selector, &stamp];
        env.cluster()?.kubectl_run(&words)?;
    }
    Ok(())
}
