//! Tests of what a user reads of a pod that load keeps waiting: its condition and its events.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};

use super::seen;
use crate::env::{NAMESPACE, TestEnv};
use crate::support::extender_client::calls;
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes, set_readings};
use crate::support::pods::{BINDING, create, idle_container, pod, unschedulable};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "the_reason_of_a_pod_that_load_rejects_stays_the_same_while_readings_change",
    same_reason,
)
.takes(2)];

const NODES: usize = 10;
/// kube-scheduler tries a waiting pod again after a back-off of at most 10 s.
const RETRY: Duration = Duration::from_secs(120);

fn same_reason(env: &TestEnv) -> Result<()> {
    let names: Vec<String> = (0..NODES).map(|n| format!("fake-{n:03}")).collect();
    let nodes: Vec<FakeNode> =
        names.iter().enumerate().map(|(n, name)| FakeNode::loaded(name, load(n))).collect();
    fake_nodes::with(env, &nodes, || {
        // The reason tells the number of nodes.
        seen::by_kube_scheduler(env)?;
        create(env, on_fake_nodes(pod("waiting", &[idle_container("main")])))?;
        let first = unschedulable(env, "waiting", BINDING)?;
        ensure!(!first.contains('%'), "the reason is used as a format: {first}");
        for round in 1..=3 {
            let before = calls(env, "load-aware/filter")?;
            let loads: Vec<(&str, f64)> = names
                .iter()
                .enumerate()
                .map(|(n, name)| (name.as_str(), load(n + round)))
                .collect();
            set_readings(env, &loads)?;
            wait_for("the pod to be tried again", RETRY, || {
                Ok((calls(env, "load-aware/filter")? > before).then_some(()))
            })?;
            let now = unschedulable(env, "waiting", BINDING)?;
            ensure!(now == first, "the reason changed from {first:?} to {now:?}");
        }
        events_are_readable(env)
    })
}

/// Different for each node and each round, and above the limits of crane's policy.
fn load(n: usize) -> f64 {
    0.85 + n as f64 / 100.0
}

fn events_are_readable(env: &TestEnv) -> Result<()> {
    let events: Api<Event> = Api::namespaced(env.client(), NAMESPACE);
    let of_pod = ListParams::default().fields("involvedObject.name=waiting");
    let messages = wait_for("the pod's event", RETRY, || {
        let all = env.block_on(events.list(&of_pod))?.items;
        let messages: Vec<String> = all.into_iter().filter_map(|event| event.message).collect();
        Ok((!messages.is_empty()).then_some(messages))
    })?;
    ensure!(messages.iter().all(|message| !message.contains('%')), "{messages:?}");
    Ok(())
}
