//! Tests of the device plugin's rollouts: no pod is sent to a kubelet that has no plugin.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::build::images::BUSYBOX;
use e2e::command::wait_for;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{BINDING, START, gpu_container};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] =
    &[on_our_nodes("no_pod_of_a_stream_fails_over_five_rollouts_of_the_device_plugin", rollouts)
        .takes(240)];

const PLUGINS: &str = "daemonset/gpushare-device-plugin";
const ROLLOUTS: usize = 5;
const STREAM: &str = "stream";
/// Pods of the stream at a time. Each runs for three seconds, so about one a second is made.
const AT_A_TIME: u32 = 4;

/// The stream begins before the first rollout and goes on after the last.
fn rollouts(env: &TestEnv) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(env.client(), NAMESPACE);
    env.block_on(jobs.create(&PostParams::default(), &parse(stream())?))?;
    let tried = succeeded_more(env, &jobs, 4).and_then(|()| {
        for _ in 0..ROLLOUTS {
            let begun = Instant::now();
            kubectl(env, &["rollout", "restart", PLUGINS])?;
            kubectl(env, &["rollout", "status", PLUGINS, "--timeout=400s"])?;
            env.figure(
                "seconds of a rollout of the device plugin",
                begun.elapsed().as_secs().to_string(),
            );
            none_failed(&status(env, &jobs)?)?;
        }
        succeeded_more(env, &jobs, 4)
    });
    let last = status(env, &jobs);
    env.block_on(jobs.delete(STREAM, &DeleteParams::foreground()))?;
    tried?;
    let last = last?;
    env.figure("gpu pods over five rollouts of the device plugin", format!("{:?}", last.succeeded));
    none_failed(&last)?;
    wait_for("the stream's pods to be gone", START, || {
        Ok(env.block_on(jobs.get_opt(STREAM))?.is_none().then_some(()))
    })?;
    audit_exactly(env, 0)
}

/// A Job that makes one pod after another, for as long as it is there.
fn stream() -> serde_json::Value {
    let mut container = gpu_container("main", 1);
    container["image"] = json!(BUSYBOX);
    container["command"] = json!(["sleep", "3"]);
    json!({
        "metadata": {"name": STREAM},
        "spec": {
            "completions": 100_000,
            "parallelism": AT_A_TIME,
            "backoffLimit": 1000,
            "template": {"spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "containers": [container],
            }},
        },
    })
}

fn kubectl(env: &TestEnv, words: &[&str]) -> Result<()> {
    env.cluster()?.kubectl_run(&[&["-n", "plimsoll"], words].concat()).map(drop)
}

fn status(env: &TestEnv, jobs: &Api<Job>) -> Result<JobStatus> {
    Ok(env.block_on(jobs.get(STREAM))?.status.unwrap_or_default())
}

fn none_failed(status: &JobStatus) -> Result<()> {
    let failed = status.failed.unwrap_or_default();
    ensure!(failed == 0, "{failed} pods failed, {:?} succeeded", status.succeeded);
    Ok(())
}

/// Waits until so many more pods of the stream have ended well.
fn succeeded_more(env: &TestEnv, jobs: &Api<Job>, more: i32) -> Result<()> {
    let limit: Duration = START + BINDING;
    let before = status(env, jobs)?.succeeded.unwrap_or_default();
    wait_for(&format!("{more} more pods to end well"), limit, || {
        let now = status(env, jobs)?;
        none_failed(&now)?;
        Ok((now.succeeded.unwrap_or_default() >= before + more).then_some(()))
    })
}
