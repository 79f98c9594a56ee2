//! Tests of what pods declare of the network, with the real kube-scheduler and fake nodes.

use anyhow::{Result, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::seen;
use crate::env::TestEnv;
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes, set_readings};
use crate::support::pods::{
    BINDING, bound, create, delete_all, evictable, get, idle_container, node, pod, unschedulable,
};
use crate::support::policy;
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "a_pod_with_a_declared_bandwidth_goes_where_it_has_room_and_waits_where_none_has",
    bandwidth,
)
.takes(40)];

/// What pods declare alone decides, and pods wait.
const POLICY: &str = "\
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 3m}
  estimates: {enabled: false}
  limits: {mode: hard, maxWait: never}
  demand:
    egress: {limit: 0.8, weight: 1}
";
const NARROW: &str = "fake-narrow";
const WIDE: &str = "fake-wide";
/// Annotation of a Node: what it can send, in bits a second.
const SPEED: &str = "plimsoll.dev/egress-bandwidth";
/// Annotation of a pod, the CNI bandwidth plugin's: what it may send, in bits a second.
const DECLARED: &str = "kubernetes.io/egress-bandwidth";
const REASON: &str = "Load[egress_demand] is too high, over 0.8";

/// 40 and 80 Mbit/s can be declared.
fn bandwidth(env: &TestEnv) -> Result<()> {
    let nodes = [(NARROW, "50M"), (WIDE, "100M")]
        .map(|(name, speed)| FakeNode::loaded(name, 0.2).annotated(SPEED, speed));
    policy::with(env, POLICY, || {
        fake_nodes::with(env, &nodes, || {
            seen::by_kube_scheduler(env)?;
            create(env, sending("large", "60M"))?;
            goes_to(&bound(env, "large", BINDING)?, WIDE)?;
            create(env, sending("small", "30M"))?;
            goes_to(&bound(env, "small", BINDING)?, NARROW)?;
            create(env, sending("waits", "30M"))?;
            let reason = unschedulable(env, "waits", BINDING)?;
            ensure!(reason.contains(REASON), "{reason}");
            // One that declares nothing is not kept out.
            create(env, on_fake_nodes(pod("plain", &[idle_container("main")])))?;
            bound(env, "plain", BINDING)?;
            delete_all(env, ["large"])?;
            goes_to(&bound_after_retries(env, "waits")?, WIDE)
        })
    })
}

fn goes_to(pod: &Pod, wanted: &str) -> Result<()> {
    ensure!(node(pod) == Some(wanted), "the pod is on {:?}, and not on {wanted}", node(pod));
    Ok(())
}

/// kube-scheduler may try the pod before the extender has seen the end of the other one: each changed node has it tried
/// again.
fn bound_after_retries(env: &TestEnv, name: &str) -> Result<Pod> {
    let mut round = 0;
    wait_for(&format!("{name} to be bound"), BINDING, || {
        round += 1;
        set_readings(env, &[(WIDE, 0.2 + f64::from(round % 2) / 100.0)])?;
        let pod = get(env, name)?;
        Ok(node(&pod).is_some().then_some(pod))
    })
}

/// Its object goes at once when it is deleted: fake nodes have no kubelet.
fn sending(name: &str, egress: &str) -> Value {
    let mut pod = evictable(on_fake_nodes(pod(name, &[idle_container("main")])));
    pod["metadata"]["annotations"] = json!({DECLARED: egress});
    pod
}
