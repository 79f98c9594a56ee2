//! Tests of pods with many annotations: what Bind adds to them leaves room for those who write to the pod later.

use anyhow::{Context, Result, ensure};
use cluster::MAX_ANNOTATION_BYTES;
use e2e::command::wait_for;
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::callers::{Caller, Verb};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::pods::{
    BINDING, bound, create, delete_all, evictable, get, gpu_container, list, name, pod,
    unschedulable,
};
use crate::support::priorities::{self, HIGH, of_class};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "the_largest_pod_that_is_bound_is_reported_evicted_and_preempted_and_a_byte_more_is_refused",
    largest,
)
.takes(10)
.smoke()];

const NODE: &str = "fake-001";
const UNITS: u64 = 8;
const TEXT: &str = "text";

/// Kubernetes checks the annotations of a pod at each update, of its status too, and not what a binding adds. An
/// eviction and kube-scheduler's preemption write the victim's status first.
fn largest(env: &TestEnv) -> Result<()> {
    let longest = longest()?;
    priorities::with(env, || {
        fake_nodes::with(env, &[FakeNode::with_gpus(NODE, &[UNITS])], || {
            create(env, with_text("larger", longest + 1))?;
            let why = unschedulable(env, "larger", BINDING)?;
            ensure!(why.contains("annotations") && why.contains("192 KiB"), "{why}");
            delete_all(env, ["larger"])?;
            gone(env, "larger")?;

            bound_and_reported(env, "evicted", longest)?;
            let path = "/api/v1/namespaces/plimsoll-e2e/pods/evicted/eviction";
            let eviction = json!({
                "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"},
            });
            Caller::administrator(env)?.done(env, Verb::Create, path, &eviction)?;
            gone(env, "evicted")?;

            bound_and_reported(env, "preempted", longest)?;
            let high = evictable(pod("high", &[gpu_container("main", UNITS)]));
            create(env, on_fake_nodes(of_class(high, HIGH)))?;
            bound(env, "high", BINDING)?;
            gone(env, "preempted")
        })
    })
}

/// The longest text of an annotation that a pod of [`with_text`] may have.
fn longest() -> Result<usize> {
    let empty: cluster::Pod = serde_json::from_value(with_text("p", 0))?;
    let names = Default::default();
    let request = empty.request(&names)?.context("the pod requests no GPU memory")?;
    let (own, added) = empty.annotation_bytes(&names, &request);
    Ok(MAX_ANNOTATION_BYTES - own - added)
}

fn with_text(name: &str, bytes: usize) -> Value {
    let mut pod = on_fake_nodes(evictable(pod(name, &[gpu_container("main", UNITS)])));
    pod["metadata"]["annotations"] = json!({TEXT: "x".repeat(bytes)});
    pod
}

/// Creates the pod, waits until it is bound, and writes its status and an annotation as a kubelet and an operator
/// would.
fn bound_and_reported(env: &TestEnv, name: &str, text: usize) -> Result<()> {
    create(env, with_text(name, text))?;
    bound(env, name, BINDING)?;
    let annotations = get(env, name)?.metadata.annotations.unwrap_or_default();
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    env.figure("annotation_bytes of the largest bound pod", bytes.to_string());
    ensure!(bytes > text && bytes <= MAX_ANNOTATION_BYTES, "{bytes} bytes of annotations");
    fake_nodes::report_admitted(env, name)?;
    fake_nodes::report_ended(env, name)?;
    let path = format!("/api/v1/namespaces/plimsoll-e2e/pods/{name}");
    let more = json!({"metadata": {"annotations": {"more": "y".repeat(60 << 10)}}});
    Caller::administrator(env)?.done(env, Verb::Merge, &path, &more).map(drop)
}

fn gone(env: &TestEnv, wanted: &str) -> Result<()> {
    wait_for(&format!("{wanted} to be gone"), BINDING, || {
        Ok((!list(env)?.iter().any(|pod| name(pod) == wanted)).then_some(()))
    })
}
