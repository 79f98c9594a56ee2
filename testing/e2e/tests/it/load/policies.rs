//! Tests of a policy that changes while the programs run, and of one that decides without effect.

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use serde_json::Value;

use super::seen;
use crate::env::TestEnv;
use crate::support::extender_client::{EXTENDER, REPLICAS, counted, plimsoll, shadow};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes, set_readings};
use crate::support::pods::{
    BINDING, START, bound, create, idle_container, node, pod, restarts, uid, unschedulable,
};
use crate::support::policy::{self, OURS};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "a_changed_policy_is_in_force_without_a_restart_and_a_faulty_one_changes_nothing",
        hot_reload,
    )
    .takes(20),
    on_our_nodes("a_shadow_policy_changes_nothing_and_its_disagreements_are_told", shadow_policy)
        .takes(200),
];

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
/// Where the deployment's ConfigMap holds the shadow policy.
const SHADOW_KEY: &str = "shadow.yaml";
const SHADOW_VARIABLE: &str = "PLIMSOLL_SHADOW_POLICY_FILE";

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

/// The shadow policy rejects the node that the policy in force prefers.
fn shadow_policy(env: &TestEnv) -> Result<()> {
    policy::set_key(env, SHADOW_KEY, Some(STRICT))?;
    let done = set_shadow(env, &format!("{SHADOW_VARIABLE}=/etc/plimsoll/{SHADOW_KEY}"))
        .and_then(|()| disagreement(env));
    let cleared = policy::set_key(env, SHADOW_KEY, None)
        .and_then(|()| set_shadow(env, &format!("{SHADOW_VARIABLE}-")));
    done?;
    cleared
}

fn disagreement(env: &TestEnv) -> Result<()> {
    let nodes = [FakeNode::loaded("fake-cool", LOAD), FakeNode::loaded("fake-hot", 0.6)];
    // A new pod may begin with the ConfigMap of before, which its kubelet replaces within some 90 s.
    wait_for("each replica to read the shadow policy", START, || {
        let read =
            counted(env, "plimsoll_file_changes_total{file=\"shadow-policy\",outcome=\"changed\"")?;
        Ok((read >= REPLICAS as u64).then_some(()))
    })?;
    fake_nodes::with(env, &nodes, || {
        seen::by_kube_scheduler(env)?;
        create(env, plain("shadowed"))?;
        let pod = bound(env, "shadowed", BINDING)?;
        ensure!(node(&pod) == Some("fake-cool"), "the pod is on {:?}", node(&pod));
        let told = wait_for("the shadow to tell of the pod", BINDING, || {
            let told = told(env, "shadowed")?;
            Ok((told["node"] == "fake-cool").then_some(told))
        })?;
        ensure!(told["policy"]["rejected"] == 0 && told["shadow"]["rejected"] == 2, "{told}");
        let differs = told["differs"].as_array().context("no differences")?;
        ensure!(differs.contains(&Value::from("filter")), "{told}");
        let counter = "plimsoll_extender_shadow_disagreements_total{kind=\"filter\"";
        ensure!(counted(env, counter)? >= 1, "no disagreement is counted");
        // The command asks one replica, which leaves out another that has not answered it in 3 s.
        wait_for("the command to tell of the disagreement", BINDING, || {
            let table = plimsoll(env, &["policy", "diff"])?;
            let line = table.lines().find(|line| line.contains("shadowed"));
            ensure!(
                line.is_some_and(|line| line.contains("fake-cool") && line.contains("filter")),
                "{table}"
            );
            Ok(Some(()))
        })
    })
}

/// What the shadow tells of this pod.
fn told(env: &TestEnv, name: &str) -> Result<Value> {
    let all = shadow(env)?;
    let pods = all["pods"].as_array().context("no pods")?;
    let mine = pods.iter().find(|pod| pod["pod"]["name"] == name);
    mine.cloned().with_context(|| format!("{name} is not in {all}"))
}

/// Sets or removes the variable as docs/operations.md describes, and waits for the restarted extender.
fn set_shadow(env: &TestEnv, assignment: &str) -> Result<()> {
    let cluster = env.cluster()?;
    let extender = format!("deployment/{EXTENDER}");
    cluster.kubectl_run(&["-n", "plimsoll", "set", "env", &extender, assignment])?;
    env.rolled_out(EXTENDER)?;
    seen::through_its_service(env)
}

fn plain(name: &str) -> Value {
    on_fake_nodes(pod(name, &[idle_container("main")]))
}
