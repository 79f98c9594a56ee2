//! Tests of preemption by kube-scheduler where nodes are overloaded.

use anyhow::{Result, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::extender_client::calls;
use crate::support::fake_nodes::{self, FakeNode, bound_to, on_fake_nodes};
use crate::support::pods::{
    BINDING, bound, create, create_all, evictable, get, idle_container, name, node, pod,
    unschedulable,
};
use crate::support::priorities::{self, HIGH, MIDDLE, of_class};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_waiting_pod_of_higher_priority_costs_few_calls_and_writes", waits_quietly)
        .takes(33)
        .smoke(),
    on_our_nodes("preemption_evicts_no_pod_of_an_overloaded_node", one_victim).takes(1).smoke(),
];

/// A reading above the limits of crane's policy.
const OVERLOADED: f64 = 0.9;
/// Overloaded nodes, each with a pod of lower priority.
const NODES: usize = 40;
/// How long calls and writes are counted, in seconds.
const COUNTED_SECONDS: u32 = 20;
/// The most of either while they are counted. Without an event in the cluster there are none. Each event, such as a
/// changed annotation of a node, has the pod tried again. A scheduler that loops makes about a hundred a second.
const MOST: u64 = 20;

/// Without the annotator, so that nothing writes to nodes.
fn waits_quietly(env: &TestEnv) -> Result<()> {
    env.scale("annotator", 0)?;
    let done = priorities::with(env, || {
        let nodes: Vec<FakeNode> =
            (0..NODES).map(|n| FakeNode::loaded(&fake(n), OVERLOADED)).collect();
        fake_nodes::with(env, &nodes, || {
            let lower = (0..NODES)
                .map(|n| bound_to(&fake(n), pod(&format!("lower-{n}"), &[idle_container("main")])));
            create_all(env, lower.collect())?;
            fake_nodes::wait_for_taints_to_go(env)?;
            create(env, on_fake_nodes(of_class(pod("high", &[idle_container("main")]), HIGH)))?;
            unschedulable(env, "high", BINDING)?;
            report_alive(env)?;
            fake_nodes::wait_for_taints_to_go(env)?;
            let before = calls(env, "load-aware/filter")?;
            let writes = writes_of(env, "high")?;
            let filtered = calls(env, "load-aware/filter")? - before;
            env.figure("waiting_pod_20_s", format!("{filtered} filter calls, {writes} writes"));
            ensure!(
                filtered <= MOST && writes <= MOST,
                "{filtered} filter calls and {writes} writes in {COUNTED_SECONDS} s"
            );
            Ok(())
        })
    });
    env.scale("annotator", 2)?;
    done
}

/// Reports in place of kubelets that the nodes are alive. The controller manager changes a node that has not reported
/// for 50 s, and each such change has the pod tried again. kube-scheduler tries none for the report itself.
fn report_alive(env: &TestEnv) -> Result<()> {
    let nodes: Api<Node> = Api::all(env.client());
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": now});
    let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
    (0..NODES).try_for_each(|n| {
        env.block_on(nodes.patch_status(&fake(n), &PatchParams::default(), &patch)).map(drop)
    })
}

/// How often the pod changes in the next [`COUNTED_SECONDS`]: the server ends the watch then.
fn writes_of(env: &TestEnv, wanted: &str) -> Result<u64> {
    let version = get(env, wanted)?.metadata.resource_version.unwrap_or_default();
    let only = WatchParams::default()
        .fields(&format!("metadata.name={wanted}"))
        .timeout(COUNTED_SECONDS)
        .disable_bookmarks();
    env.block_on(async {
        let events = env.pods().watch(&only, &version).await?;
        events
            .try_fold(0, async |count, event| {
                Ok(count + u64::from(matches!(event, WatchEvent::Modified(_))))
            })
            .await
    })
}

/// The pod on the overloaded node has the lowest priority, so kube-scheduler alone would evict it first.
fn one_victim(env: &TestEnv) -> Result<()> {
    let hot = fake(0);
    let cool = fake(1);
    let nodes = [
        FakeNode::loaded(&hot, OVERLOADED).with_processors(1),
        FakeNode::loaded(&cool, 0.2).with_processors(1),
    ];
    priorities::with(env, || {
        fake_nodes::with(env, &nodes, || {
            create(env, bound_to(&hot, full("on-hot")))?;
            create(env, bound_to(&cool, of_class(full("on-cool"), MIDDLE)))?;
            create(env, on_fake_nodes(of_class(full("high"), HIGH)))?;
            let high = bound(env, "high", BINDING)?;
            ensure!(node(&high) == Some(&cool), "high is on {:?}", node(&high));
            let left: Vec<String> =
                crate::support::pods::list(env)?.iter().map(|pod| name(pod).to_owned()).collect();
            ensure!(left == ["high", "on-hot"], "these pods are left: {left:?}");
            Ok(())
        })
    })
}

/// A pod that needs almost all of a node's only processor.
fn full(name: &str) -> Value {
    let mut container = idle_container("main");
    container["resources"] = json!({"requests": {"cpu": "900m"}});
    evictable(pod(name, &[container]))
}

fn fake(n: usize) -> String {
    format!("fake-{n:03}")
}
