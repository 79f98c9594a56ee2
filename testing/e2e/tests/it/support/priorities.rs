//! Owns the priority classes of the tests, for pods that may evict others.

use std::time::Duration;

use anyhow::Result;
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::env::{TestEnv, parse};
use crate::support::pods::{idle_container, pod};

/// The class of pods that may be evicted by those of [`HIGH`], and may evict pods without a class, whose priority is 0.
pub(crate) const MIDDLE: &str = "plimsoll-e2e-middle";
/// The class of pods that may evict all others of the tests.
pub(crate) const HIGH: &str = "plimsoll-e2e-high";
const CLASSES: [(&str, i32); 2] = [(MIDDLE, 1_000), (HIGH, 2_000)];

/// Runs `work` while the classes exist.
pub(crate) fn with<T>(env: &TestEnv, work: impl FnOnce() -> Result<T>) -> Result<T> {
    remove(env)?;
    let done = create(env).and_then(|()| work());
    let removed = remove(env);
    let done = done?;
    removed.map(|()| done)
}

/// Gives a pod a priority class.
pub(crate) fn of_class(mut pod: Value, class: &str) -> Value {
    pod["spec"]["priorityClassName"] = json!(class);
    pod
}

fn create(env: &TestEnv) -> Result<()> {
    let api: Api<PriorityClass> = Api::all(env.client());
    for (name, value) in CLASSES {
        let class = parse(json!({"metadata": {"name": name}, "value": value}))?;
        env.block_on(api.create(&PostParams::default(), &class))?;
    }
    CLASSES.iter().try_for_each(|(name, _)| is_known(env, name))
}

/// Waits until the API server admits pods of a class. It looks classes up in a cache, which may not have a new one yet.
fn is_known(env: &TestEnv, class: &str) -> Result<()> {
    let probe: Pod = parse(of_class(pod("of-a-class", &[idle_container("main")]), class))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    wait_for(&format!("pods of the class {class} to be admitted"), Duration::from_secs(60), || {
        env.block_on(env.pods().create(&dry, &probe)).map(Some)
    })
    .map(drop)
}

/// Removes the classes. A missing one is no error.
fn remove(env: &TestEnv) -> Result<()> {
    let api: Api<PriorityClass> = Api::all(env.client());
    for (name, _) in CLASSES {
        let deleted = env.block_on(async {
            match api.delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                other => other.map(drop),
            }
        });
        deleted?;
    }
    Ok(())
}
