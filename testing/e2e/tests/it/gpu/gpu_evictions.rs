//! Tests of `extender.evictForGpus`: evictions for a pod whose node has units enough and no GPU with room.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::extender_client::{EXTENDER, counted};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::pods::{
    BINDING, bound, create, evictable, gpu_container, list, name, pod, unschedulable,
};
use crate::support::priorities::{self, HIGH, of_class};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "where_totals_fit_and_gpus_do_not_the_fewest_pods_are_evicted_and_none_that_a_budget_keeps",
    fewest,
)
.takes(37)];

const NODE: &str = "fake-001";
/// Of all pods here: a budget covers none without a label.
const LABEL: &str = "card-evictions";
/// What the tests run on, and with the value.
const VALUES: [&str; 2] = ["tested", "evict-for-cards"];
const RIGHTS: &str = "plimsoll-scheduler-extender-evictions";
/// Looks at the waiting pod come after 10, 20 and 40 seconds. After the evictions kube-scheduler has to try the pod
/// again, as for [`BINDING`].
const LOOKS: Duration = BINDING;

fn fewest(env: &TestEnv) -> Result<()> {
    evicting(env, || {
        with_full_gpus(env, forbidden)?;
        with_full_gpus(env, evicted)
    })
}

/// Runs `work` while the extender evicts for GPUs.
pub(crate) fn evicting(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = apply(env, VALUES[1]).and_then(|()| work());
    let restored = apply(env, VALUES[0]).and_then(|()| {
        let kinds = ["clusterrole", "clusterrolebinding"].map(|kind| format!("{kind}/{RIGHTS}"));
        env.cluster()?.kubectl_run(&["delete", &kinds[0], &kinds[1]]).map(drop)
    });
    done?;
    restored
}

/// Two GPUs of 16 units, with 6 free on each: two pods of 5 are on the first one, one of 10 is on the second.
fn with_full_gpus(env: &TestEnv, work: fn(&TestEnv) -> Result<()>) -> Result<()> {
    priorities::with(env, || {
        fake_nodes::with(env, &[FakeNode::with_gpus(NODE, &[16, 16])], || {
            for (name, units) in [("small-0", 5), ("small-1", 5), ("large", 10)] {
                create(env, gpu(name, units))?;
                bound(env, name, BINDING)?;
                fake_nodes::report_ended(env, name)?;
            }
            work(env)
        })
    })
}

fn forbidden(env: &TestEnv) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(env.client(), NAMESPACE);
    let budget = json!({
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {LABEL: LABEL}}},
    });
    env.block_on(budgets.create(&PostParams::default(), &parse(budget)?))?;
    let kept = (|| {
        let before = looks(env)?;
        create(env, of_class(gpu("high", 12), HIGH))?;
        unschedulable(env, "high", BINDING)?;
        wait_for("a look at the pod", LOOKS, || Ok((looks(env)? > before).then_some(())))?;
        let left = names(env)?;
        ensure!(left == ["high", "large", "small-0", "small-1"], "these are left: {left:?}");
        Ok(())
    })();
    env.block_on(budgets.delete("all", &DeleteParams::default()))?;
    kept
}

/// How often nothing could be done for a pod.
fn looks(env: &TestEnv) -> Result<u64> {
    counted(env, "plimsoll_extender_card_evictions_total{outcome=\"no-victims\"}")
}

fn evicted(env: &TestEnv) -> Result<()> {
    create(env, of_class(gpu("high", 12), HIGH))?;
    bound(env, "high", LOOKS)?;
    let left = names(env)?;
    ensure!(left == ["high", "small-0", "small-1"], "these pods are left: {left:?}");
    Ok(())
}

fn names(env: &TestEnv) -> Result<Vec<String>> {
    Ok(list(env)?.iter().map(|pod| name(pod).to_owned()).collect())
}

fn gpu(name: &str, units: u64) -> Value {
    let mut pod = on_fake_nodes(evictable(pod(name, &[gpu_container("main", units)])));
    pod["metadata"]["labels"] = json!({LABEL: LABEL});
    pod
}

fn apply(env: &TestEnv, values: &str) -> Result<()> {
    env.cluster()?.apply(values)?;
    env.rolled_out(EXTENDER)
}
