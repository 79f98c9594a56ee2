//! Tests of a kube-scheduler beside that of the control plane, which knows nothing of the extender, as on a cluster
//! whose control plane is a provider's.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::install::{self, Setup};
use e2e::command::wait_for;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use serde_json::{Value, json};

use super::uninstall::scheduler_is_as_before;
use crate::env::{NAMESPACE, TestEnv};
use crate::support::callers::{Caller, Verb};
use crate::support::gpu_audit::{audit_exactly, claim};
use crate::support::pods::{
    BINDING, START, bound, create, get, gpu_container, idle_container, list, message, name, phase,
    pod, running, runs, typed,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes(
        "beside_the_providers_scheduler_a_pod_that_names_ours_gets_its_gpu_and_each_has_its_own_lease",
        own_lease,
    )
    .takes(40),
    on_our_nodes(
        "beside_the_providers_scheduler_a_gpu_pod_without_the_line_is_refused_with_it",
        without_the_line,
    )
    .takes(30),
    on_our_nodes(
        "a_gpu_pod_that_the_providers_scheduler_binds_ends_once_and_is_not_made_again",
        ends_once,
    )
    .takes(25),
];

const VALUES: &str = "second-scheduler";
/// What pods name in `spec.schedulerName`.
const NAME: &str = "plimsoll-scheduler";
const POLICY: &str = "plimsoll-scheduler-name";
/// The text that an author is to add.
const LINE: &str = "`schedulerName: plimsoll-scheduler`";
/// Its Deployment, ServiceAccount, and the name in the labels of its objects.
const PROGRAM: &str = "kube-scheduler";
const PODS: &str = "/api/v1/namespaces/plimsoll-e2e/pods";
const SETS: &str = "/apis/apps/v1/namespaces/plimsoll-e2e/replicasets";
/// Until the API server goes by a policy that was put there or taken away.
const IN_FORCE: Duration = Duration::from_secs(60);

/// Runs `work` with the second scheduler, while that of the control plane is as kubeadm set it up. Afterwards, that one
/// asks the extender again, and all that the mode adds is gone.
fn beside(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let cluster = env.cluster()?;
    let control_plane = cluster.nodes().first().context("no node")?;
    install::disable_scheduler(cluster)?;
    let done = scheduler_is_as_before(cluster, control_plane)
        .and_then(|()| start(env))
        .and_then(|()| work());
    let removed = remove(env);
    install::enable_scheduler(cluster, Setup::Tested)?;
    done?;
    removed
}

fn start(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    cluster.apply(VALUES)?;
    env.rolled_out(PROGRAM)?;
    in_force(env)
}

/// Waits until the API server refuses GPU pods without the line.
fn in_force(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    wait_for("the policy to be in force", IN_FORCE, || {
        let (status, _) = user.call(env, Verb::Create, &dry_run(), &nameless("probe"))?;
        Ok((status == 403).then_some(()))
    })
}

fn dry_run() -> String {
    format!("{PODS}?dryRun=All")
}

/// Removes what the mode adds, and puts back what it changes.
fn remove(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let labelled = format!("app.kubernetes.io/name={PROGRAM},app.kubernetes.io/part-of=plimsoll");
    let delete = ["delete", "--wait", "--timeout=180s", "--ignore-not-found"];
    let in_namespace =
        "deployment,poddisruptionbudget,networkpolicy,configmap,role,rolebinding,serviceaccount";
    let policies = "validatingadmissionpolicybinding,validatingadmissionpolicy";
    for words in [
        &[policies, POLICY][..],
        &["-n", "plimsoll", in_namespace, "-l", &labelled],
        &["-n", "plimsoll", "lease", NAME],
        &["-n", "kube-system", "rolebinding", "-l", &labelled],
        &["clusterrolebinding", "-l", &labelled],
    ] {
        cluster.kubectl_run(&[&delete[..], words].concat())?;
    }
    cluster.apply(Setup::Tested.values())
}

/// The same pod, for our scheduler.
fn by_ours(mut pod: Value) -> Value {
    pod["spec"]["schedulerName"] = json!(NAME);
    pod
}

/// A GPU pod without the line.
fn nameless(name: &str) -> Value {
    typed(pod(name, &[gpu_container("main", 1)]))
}

fn own_lease(env: &TestEnv) -> Result<()> {
    beside(env, || {
        create(env, by_ours(pod("ours", &[gpu_container("main", 2)])))?;
        create(env, pod("theirs", &[idle_container("main")]))?;
        let ours = running(env, "ours", START)?;
        ensure!(claim(&ours)?.contains_key("main"), "no claim");
        audit_exactly(env, 1)?;
        running(env, "theirs", START)?;
        // The one in the cluster is a pod of its Deployment, the other's name is that of its node.
        let own = holder(env, "plimsoll", NAME)?;
        ensure!(own.starts_with("kube-scheduler-"), "our Lease is held by {own}");
        let providers = holder(env, "kube-system", PROGRAM)?;
        ensure!(!providers.starts_with("kube-scheduler-"), "the provider's is held by {providers}");
        // What docs/security.md says of the built-in role, and why there is a Role for the own Lease.
        ensure!(may_update(env, "kube-system", PROGRAM)?, "the provider's Lease is out of reach");
        ensure!(may_update(env, "plimsoll", NAME)?, "the own Lease is out of reach");
        ensure!(!may_update(env, "kube-system", NAME)?, "more than the role gives");
        no_fault_in_the_policy(env)
    })
}

fn holder(env: &TestEnv, namespace: &str, name: &str) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(env.client(), namespace);
    let lease = env.block_on(leases.get(name))?;
    lease.spec.and_then(|spec| spec.holder_identity).context("nobody holds the Lease")
}

/// Whether our scheduler's account may update this Lease.
fn may_update(env: &TestEnv, namespace: &str, lease: &str) -> Result<bool> {
    let asked = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:plimsoll:{PROGRAM}"),
            "resourceAttributes": {
                "group": "coordination.k8s.io", "resource": "leases", "verb": "update",
                "namespace": namespace, "name": lease,
            },
        },
    });
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = Caller::administrator(env)?.done(env, Verb::Create, reviews, &asked)?;
    answer["status"]["allowed"].as_bool().context("no answer")
}

/// The API server's own check of the expressions' types.
fn no_fault_in_the_policy(env: &TestEnv) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(env.client());
    let checked = wait_for("the API server to have checked the policy", BINDING, || {
        Ok(env.block_on(policies.get(POLICY))?.status.and_then(|status| status.type_checking))
    })?;
    let warnings = checked.expression_warnings.unwrap_or_default();
    ensure!(warnings.is_empty(), "{warnings:?}");
    Ok(())
}

fn without_the_line(env: &TestEnv) -> Result<()> {
    beside(env, || {
        let user = Caller::administrator(env)?;
        let refusal = |pod: &Value| user.refusal(env, Verb::Create, &dry_run(), pod, POLICY);
        for scheduler in [Value::Null, json!(""), json!("default-scheduler"), json!("volcano")] {
            let mut other = nameless("other");
            other["spec"]["schedulerName"] = scheduler;
            let said = refusal(&other)?;
            ensure!(said.contains(LINE), "{said}");
        }
        let mut by_request = typed(pod("by-request", &[idle_container("main")]));
        by_request["spec"]["containers"][0]["resources"] =
            json!({"requests": {"aliyun.com/gpu-mem": 1}, "limits": {"aliyun.com/gpu-mem": 1}});
        refusal(&by_request)?;
        let mut in_init = typed(pod("in-init", &[idle_container("main")]));
        in_init["spec"]["initContainers"] = json!([gpu_container("first", 1)]);
        refusal(&in_init)?;
        // What is free.
        for free in [typed(pod("plain", &[idle_container("main")])), by_ours(nameless("ours"))] {
            user.done(env, Verb::Create, &dry_run(), &free)?;
        }
        Ok(())
    })
}

/// A ReplicaSet of one pod with this container.
fn replica_set(name: &str, container: Value) -> Value {
    let labels = json!({"app": name});
    let mut template = pod("", &[container]);
    template["metadata"] = json!({"labels": labels});
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    })
}

fn ends_once(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    beside(env, || {
        let user = Caller::administrator(env)?;
        // As one that was there before the policy.
        cluster.kubectl_run(&["delete", "validatingadmissionpolicybinding", POLICY])?;
        wait_for("the policy to be lifted", IN_FORCE, || {
            let (status, _) = user.call(env, Verb::Create, &dry_run(), &nameless("probe"))?;
            Ok((status == 201).then_some(()))
        })?;
        create(env, pod("early", &[gpu_container("main", 1)]))?;
        bound(env, "early", BINDING)?;
        let said = wait_for("the pod to end", START, || {
            let early = get(env, "early")?;
            if runs(&early) {
                bail!("it runs without a claim");
            }
            Ok((phase(&early) == "Failed").then(|| message(&early)))
        })?;
        ensure!(said.starts_with("UnexpectedAdmissionError"), "{said}");
        // Its controller would make another one.
        cluster.apply(VALUES)?;
        in_force(env)?;
        user.done(env, Verb::Create, SETS, &replica_set("again", gpu_container("main", 1)))?;
        let path = format!("{SETS}/again");
        let said = wait_for("the ReplicaSet to say why it has no pod", BINDING, || {
            let found = user.done(env, Verb::Merge, &path, &json!({}))?;
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let failed = conditions.iter().find(|condition| condition["type"] == "ReplicaFailure");
            Ok(failed.and_then(|failed| failed["message"].as_str().map(str::to_owned)))
        });
        let pods = list(env);
        cluster.kubectl_run(&["-n", NAMESPACE, "delete", "replicaset", "again"])?;
        let said = said?;
        ensure!(said.contains(LINE), "{said}");
        let pods: Vec<String> = pods?.iter().map(|pod| name(pod).to_owned()).collect();
        ensure!(pods == ["early"], "{pods:?}");
        Ok(())
    })
}
