//! Tests of calls to the extender's port that kube-scheduler did not make.

use anyhow::{Context, Result, ensure};
use e2e::kernel::processes::resident_kib;
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::extender_client::{EXTENDER, call, used_units};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::pods::{BINDING, bound, create, gpu_container, pod, uid, unschedulable};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_bind_with_the_uid_of_another_pod_changes_nothing", foreign_uid).takes(2),
    on_our_nodes("oversize_names_are_refused_and_take_no_memory", oversize_names).takes(39),
];

const NODE: &str = "fake-001";

/// The only card has 8 units, and `holder` has 5 of them.
fn foreign_uid(env: &TestEnv) -> Result<()> {
    fake_nodes::with(env, &[FakeNode::with_cards(NODE, &[8])], || {
        create(env, five_units("holder"))?;
        let holder = bound(env, "holder", BINDING)?;
        create(env, five_units("waiting"))?;
        unschedulable(env, "waiting", BINDING)?;
        for name in ["no-such-pod", "waiting"] {
            let binding = json!({
                "PodName": name, "PodNamespace": NAMESPACE, "PodUID": uid(&holder), "Node": NODE,
            });
            let response = call(env, "gpushare-scheduler/bind", &binding)?;
            let result: Value = serde_json::from_str(&response.body).unwrap_or_default();
            ensure!(result["Error"].as_str() != Some(""), "{name}: {}", response.body);
            let used = used_units(env, NODE)?;
            ensure!(used == [5], "after a bind of {name}, {used:?} units are in use");
        }
        create(env, five_units("late"))?;
        unschedulable(env, "late", BINDING)?;
        unschedulable(env, "waiting", BINDING).map(drop)
    })
}

fn five_units(name: &str) -> Value {
    on_fake_nodes(pod(name, &[gpu_container("main", 5)]))
}

fn oversize_names(env: &TestEnv) -> Result<()> {
    const CALLS: usize = 30;
    const NAME: usize = 4 << 20;
    /// What the extender may keep of them.
    const KIB: u64 = 20 << 10;
    let before = memory(env)?;
    for n in 0..CALLS {
        let name = format!("{n:02}{}", "x".repeat(NAME));
        let pod = json!({"metadata": {"name": "pod", "namespace": NAMESPACE, "uid": name}});
        let args = json!({"Pod": pod, "NodeNames": [name]});
        call(env, "load-aware/prioritize", &args)?;
        let binding = json!({"PodName": "p", "PodNamespace": "n", "PodUID": name, "Node": name});
        call(env, "gpushare-scheduler/bind", &binding)?;
    }
    let grown = memory(env)?.saturating_sub(before);
    env.figure("extender_kib_after_60_oversize_calls", grown.to_string());
    ensure!(grown < KIB, "the extender has grown by {grown} KiB");
    Ok(())
}

/// The resident memory of the extender in KiB.
fn memory(env: &TestEnv) -> Result<u64> {
    let processes = env.programs(EXTENDER)?;
    let sizes = processes.iter().map(|process| resident_kib(*process));
    sizes.sum::<Option<u64>>().context("the extender does not run")
}
