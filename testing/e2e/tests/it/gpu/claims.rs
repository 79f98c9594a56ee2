//! Tests of claims that are changed after Bind: no GPU is given to another pod because of it.

use anyhow::{Context, Result, ensure};
use e2e::build::images::BUSYBOX;
use e2e::command::wait_for;
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::callers::{Caller, Verb};
use crate::support::extender_client::used_units;
use crate::support::fake_nodes::{self, FakeNode, bound_to, gpu_uuid};
use crate::support::gpu_audit::{CLAIM, audit_exactly, claim};
use crate::support::pods::{
    BINDING, GPU, START, all_running, bound, create, gpu_container, idle_container, on_node, pod,
    unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_claim_that_is_edited_or_removed_after_bind_empties_no_gpu", edited)
        .takes(3)
        .smoke(),
    on_our_nodes("an_init_only_pods_gpu_stays_charged_after_its_claim_is_edited", init_only)
        .takes(4)
        .smoke(),
];

/// Where the marker of [`wait_for_extender`] goes.
const MARKED: &str = "fake-099";

/// On nodes without a kubelet, so that no record of one corrects the extender.
fn edited(env: &TestEnv) -> Result<()> {
    let edits = [
        ("fake-001", Some(claim_of(&gpu_uuid("fake-001", 1)))),
        ("fake-002", Some(claim_of("GPU-00000000-0000-4000-8000-000000000000"))),
        ("fake-003", Some("nonsense".to_owned())),
        ("fake-004", None),
    ];
    let nodes: Vec<FakeNode> = edits
        .iter()
        .map(|(node, _)| FakeNode::with_gpus(node, &[8, 8]))
        .chain([FakeNode::with_gpus(MARKED, &[8])])
        .collect();
    fake_nodes::with(env, &nodes, || {
        for (node, edit) in &edits {
            let [first, second, third] =
                ["first", "second", "third"].map(|p| format!("{p}-{node}"));
            for name in [&first, &second] {
                create(env, gpu_on(node, name))?;
                bound(env, name, BINDING)?;
            }
            let before = used_units(env, node)?;
            ensure!(before == [5, 5], "{node}: {before:?}");
            annotate(env, &first, edit.as_deref())?;
            wait_for_extender(env, node)?;
            create(env, gpu_on(node, &third))?;
            unschedulable(env, &third, BINDING).with_context(|| {
                format!("{node}: {:?} after the edit", used_units(env, node).ok())
            })?;
        }
        Ok(())
    })
}

/// The kubelet's records list no init container, so the extender has the claim only.
fn init_only(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    let mut initial = on_node(host, pod("initial", &[idle_container("main")]));
    initial["spec"]["initContainers"] = json!([{
        "name": "init", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["true"],
        "resources": {"limits": {GPU: 10}},
    }]);
    create(env, initial)?;
    all_running(env, START)?;
    for n in 0..3 {
        create(env, on_node(host, pod(&format!("other-{n}"), &[gpu_container("main", 10)])))?;
    }
    let pods = all_running(env, START)?;
    let mine = pods.iter().find(|pod| crate::support::pods::name(pod) == "initial");
    let claimed = claim(mine.context("the pod is gone")?)?;
    let own = claimed["init"].keys().next().context("an empty claim")?.clone();
    let other = host.gpus().into_iter().find(|gpu| gpu.uuid != own).context("one GPU only")?;
    let nodes = [FakeNode::with_gpus(MARKED, &[8])];
    fake_nodes::with(env, &nodes, || {
        annotate(env, "initial", Some(&format!(r#"{{"init":{{"{}":10}}}}"#, other.uuid)))?;
        wait_for_extender(env, "init")?;
        create(env, on_node(host, pod("late", &[gpu_container("main", 10)])))?;
        unschedulable(env, "late", BINDING)?;
        audit_exactly(env, 3)
    })
}

/// A pod of 5 units for this node.
fn gpu_on(node: &str, name: &str) -> Value {
    let mut pod = fake_nodes::on_fake_nodes(pod(name, &[gpu_container("main", 5)]));
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    pod
}

fn claim_of(gpu: &str) -> String {
    json!({"main": {gpu: 5}}).to_string()
}

/// Changes a pod's claim, or removes it, as anyone could without the shipped policies.
fn annotate(env: &TestEnv, pod: &str, value: Option<&str>) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
    let change = json!({"metadata": {"annotations": {CLAIM: value}}});
    Caller::unhindered(env)?.done(env, Verb::Merge, &path, &change).map(drop)
}

/// Waits until the extender has seen every earlier change of pods. Its watch is in order, and it charges the marker, a
/// pod without a claim that seems to run, on every GPU of its node.
fn wait_for_extender(env: &TestEnv, marker: &str) -> Result<()> {
    let before = used_units(env, MARKED)?;
    let name = format!("marker-{marker}");
    let mut pod = bound_to(MARKED, pod(&name, &[gpu_container("main", 1)]));
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let unhindered = Caller::unhindered(env)?;
    unhindered.done(env, Verb::Create, &pods, &pod)?;
    let admitted = json!({"status": {"startTime": "2026-01-01T00:00:00Z"}});
    unhindered.done(env, Verb::Merge, &format!("{pods}/{name}/status"), &admitted)?;
    wait_for("the extender to see the marker", BINDING, || {
        Ok((used_units(env, MARKED)? != before).then_some(()))
    })
}
