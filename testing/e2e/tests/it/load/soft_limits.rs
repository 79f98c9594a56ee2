//! Tests of what limits do where every node is over one, with the real kube-scheduler and fake nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::SignedDuration;
use kube::api::{Api, ListParams};

use super::seen;
use crate::env::{NAMESPACE, TestEnv};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes, set_readings};
use crate::support::pods::{
    BINDING, all_bound, create, create_all, get, idle_container, name, node, pod, unschedulable,
};
use crate::support::policy::{self, OURS};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "where_every_node_is_over_its_limit_the_least_loaded_take_the_pod_and_an_event_says_so",
    all_hot,
)
.takes(30)];

/// So many nodes, each a point hotter than the one before. Those within a tenth of the limit of the least loaded pass.
const NODES: usize = 20;
/// How long a pod waits under hard limits at most, in seconds.
const MAX_WAIT: i64 = 15;
const HARD: &str = "  limits: {mode: hard, maxWait: 15s}\n";
/// The maximum wait, and kube-scheduler's back-off of at most 10 s, on a busy host.
const GOES: Duration = Duration::from_secs(120);

fn all_hot(env: &TestEnv) -> Result<()> {
    policy::with(env, OURS, || {
        with_hot_nodes(env, "soft", || {
            create_all(
                env,
                (0..4)
                    .map(|n| on_fake_nodes(pod(&format!("soft-{n}"), &[idle_container("main")])))
                    .collect(),
            )?;
            let pods = all_bound(env, BINDING)?;
            ensure!(pods.iter().all(|pod| is_least_loaded("soft", pod)), "{:?}", nodes_of(&pods));
            pods.iter().try_for_each(|pod| warned(env, name(pod)))
        })?;
        policy::put_in_force(env, &format!("{OURS}{HARD}"))?;
        with_hot_nodes(env, "hard", || waits_and_goes(env))
    })
}

fn waits_and_goes(env: &TestEnv) -> Result<()> {
    create(env, on_fake_nodes(pod("patient", &[idle_container("main")])))?;
    unschedulable(env, "patient", BINDING)?;
    let since = scheduled_since(&get(env, "patient")?)?;
    let mut round = 0;
    let pod = wait_for("the pod to go after its maximum wait", GOES, || {
        // Each changed node has kube-scheduler try the pod again.
        round += 1;
        set_readings(
            env,
            &[(&fake("hard", NODES - 1), hot(NODES - 1) + f64::from(round % 2) / 100.0)],
        )?;
        let pod = get(env, "patient")?;
        Ok(node(&pod).is_some().then_some(pod))
    })?;
    ensure!(is_least_loaded("hard", &pod), "the pod is on {:?}", node(&pod));
    let waited = scheduled_since(&pod)?.duration_since(since);
    env.figure("seconds_waited_of_15_at_most", waited.as_secs().to_string());
    // Both times are whole seconds.
    ensure!(waited >= SignedDuration::from_secs(MAX_WAIT - 1), "it waited {waited:?}");
    warned(env, "patient")
}

/// Since when the pod's condition `PodScheduled` has been as it is.
fn scheduled_since(pod: &Pod) -> Result<k8s_openapi::jiff::Timestamp> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
    let since = scheduled.and_then(|condition| condition.last_transition_time.as_ref());
    since.map(|time| time.0).context("the pod has no condition PodScheduled")
}

/// Runs `work` with nodes that are all over the limit, each a little more than the one before.
fn with_hot_nodes(env: &TestEnv, round: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let nodes: Vec<FakeNode> =
        (0..NODES).map(|n| FakeNode::loaded(&fake(round, n), hot(n))).collect();
    // Which of them are the least loaded is decided among those that kube-scheduler asks about.
    fake_nodes::with(env, &nodes, || seen::by_kube_scheduler(env).and_then(|()| work()))
}

fn hot(n: usize) -> f64 {
    0.7 + n as f64 / 100.0
}

fn fake(round: &str, n: usize) -> String {
    format!("fake-{round}-{n:02}")
}

fn is_least_loaded(round: &str, pod: &Pod) -> bool {
    // With a limit of 65%: up to 6 points above the first.
    node(pod).is_some_and(|node| (0..=6).any(|n| node == fake(round, n)))
}

fn nodes_of(pods: &[Pod]) -> Vec<Option<&str>> {
    pods.iter().map(node).collect()
}

/// Waits for the event of the pod that says that every node was over its limit.
fn warned(env: &TestEnv, pod: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(env.client(), NAMESPACE);
    let of_pod = ListParams::default()
        .fields(&format!("involvedObject.name={pod},reason=AllNodesOverLoadLimit"));
    let event = wait_for(&format!("the event of {pod}"), BINDING, || {
        Ok(env.block_on(events.list(&of_pod))?.items.into_iter().next())
    })?;
    let message = event.message.unwrap_or_default();
    ensure!(event.type_.as_deref() == Some("Warning"), "the event is {:?}", event.type_);
    let asks = format!("kubectl plimsoll why {pod} -n {NAMESPACE}");
    ensure!(message.contains(&asks), "the event says {message:?}");
    Ok(())
}
