//! Tests of a policy that changes while the programs run.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::env::TestEnv;
use crate::support::extender_client::EXTENDER;
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes, set_readings};
use crate::support::pods::{
    BINDING, bound, create, idle_container, pod, restarts, uid, unschedulable,
};
use crate::support::policy::{self, OURS};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[on_our_nodes(
    "a_changed_policy_is_in_force_without_a_restart_and_a_faulty_one_changes_nothing",
    hot_reload,
)
.takes(20)];

/// The only node's reading.
const LOAD: f64 = 0.5;
/// Below that reading, and pods wait.
const STRICT: &str = "\
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 3m, limit: 0.3, weight: 1}
  limits: {mode: hard, maxWait: never}
";
/// The same limit, in a field that does not exist.
const FAULTY: &str = "\
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics:
  - {name: cpu_usage_avg_5m, period: 3m, maximum: 0.9, weight: 1}
";

fn hot_reload(env: &TestEnv) -> Result<()> {
    let before = runs(env)?;
    policy::with(env, STRICT, || {
        fake_nodes::with(env, &[FakeNode::loaded("fake-reload", LOAD)], || {
            create(env, plain("strict"))?;
            unschedulable(env, "strict", BINDING)?;
            policy::offer_faulty(env, FAULTY)?;
            create(env, plain("faulty"))?;
            unschedulable(env, "faulty", BINDING)?;
            policy::put_in_force(env, OURS)?;
            // A changed node has kube-scheduler try the pods again.
            set_readings(env, &[("fake-reload", LOAD)])?;
            bound(env, "strict", BINDING)?;
            bound(env, "faulty", BINDING).map(drop)
        })
    })?;
    ensure!(runs(env)? == before, "the extender was restarted: {before:?}, then {:?}", runs(env)?);
    Ok(())
}

/// The pods of the extender by UID, with how often their containers were restarted.
fn runs(env: &TestEnv) -> Result<Vec<(String, i32)>> {
    let pods = env.program_pods(EXTENDER)?;
    Ok(pods.iter().map(|pod| (uid(pod).to_owned(), restarts(pod))).collect())
}

fn plain(name: &str) -> Value {
    on_fake_nodes(pod(name, &[idle_container("main")]))
}
