//! Tests of the shipped ValidatingAdmissionPolicies: each attempt to forge what Plimsoll's programs write, on the real
//! API server, and what must stay allowed.

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::callers::{Caller, Verb};
use crate::support::fake_nodes::{self, FakeNode, bound_to, on_fake_nodes};
use crate::support::gpu_audit::{CLAIM, audit_exactly, claim};
use crate::support::pods::{
    BINDING, START, all_running, annotation, bound, create, evictable, gated, get, gpu_container,
    idle_container, list, on_node, phase, pod, running, typed,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("the_api_server_finds_no_fault_in_the_policies", well_typed).takes(1).smoke(),
    on_our_nodes("no_user_forges_a_claim_on_a_pod", users).takes(1).smoke(),
    on_our_nodes("no_controller_makes_a_pod_with_a_forged_claim", controllers).takes(1),
    on_our_nodes("no_binding_but_the_extenders_brings_a_claim", bindings).takes(1).smoke(),
    on_our_nodes("no_kubelet_forges_a_claim", kubelets).takes(19).smoke(),
    on_our_nodes("no_gpu_pod_chooses_gpus_by_its_environment", environments).takes(1).smoke(),
    on_our_nodes("no_gpu_pod_names_its_node_but_by_its_kubelet_and_by_affinity", node_names)
        .takes(11)
        .smoke(),
    on_our_nodes("the_device_plugins_token_changes_its_own_node_and_pods_alone", tokens)
        .takes(2)
        .smoke(),
    on_our_nodes("the_device_plugins_token_tells_events_of_its_own_node_and_of_pods_alone", events)
        .takes(1)
        .smoke(),
    on_our_nodes("the_annotators_token_changes_readings_and_its_own_taint_alone", annotators)
        .takes(1)
        .smoke(),
    on_our_nodes(
        "the_extenders_token_binds_with_a_claim_and_evicts_nothing_of_kube_system",
        extenders,
    )
    .takes(1)
    .smoke(),
    on_our_nodes("new_pods_prefer_nodes_by_their_bands", preferred_bands).takes(4).smoke(),
    on_our_nodes("what_is_the_users_own_stays_free", free).takes(1).smoke(),
    on_our_nodes(
        "without_the_policies_a_forged_claim_with_a_node_name_gets_no_units_that_others_hold",
        forged_with_node_name,
    )
    .takes(3),
];

const PODS: &str = "/api/v1/namespaces/plimsoll-e2e/pods";
const NODES: &str = "/api/v1/nodes";
const FAKE: &str = "fake-001";
const CLAIMS: &str = "plimsoll-claims";
const BINDINGS: &str = "plimsoll-bindings";
const EXTENDER_BINDINGS: &str = "plimsoll-extender-bindings";
const EXTENDER_EVENTS: &str = "plimsoll-extender-events";
const EXTENDER_EVICTIONS: &str = "plimsoll-extender-evictions";
const ENVIRONMENT: &str = "plimsoll-gpu-environment";
const AGENT_NODES: &str = "plimsoll-device-plugin-nodes";
const AGENT_STATUS: &str = "plimsoll-device-plugin-node-status";
const AGENT_PODS: &str = "plimsoll-device-plugin-pods";
const AGENT_EVENTS: &str = "plimsoll-device-plugin-events";
const NODE_NAME: &str = "plimsoll-node-name";
const ANNOTATOR: &str = "plimsoll-annotator-nodes";
const ANNOTATOR_EVENTS: &str = "plimsoll-annotator-events";

/// What only Plimsoll's programs write on pods.
const PROTECTED: [&str; 7] = [
    CLAIM,
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_POD",
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "scheduler.framework.gpushare.allocation",
];

fn annotated(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {key: value.into()}}})
}

/// A pod that has this annotation from its creation.
fn born_with(name: &str, key: &str) -> Value {
    let mut pod = typed(pod(name, &[gpu_container("main", 1)]));
    pod["metadata"]["annotations"] = json!({key: "forged"});
    pod
}

/// The API server's own check of the expressions' types.
fn well_typed(env: &TestEnv) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(env.client());
    let ours = ListParams::default().labels("app.kubernetes.io/part-of=plimsoll");
    let checked = wait_for("the API server to have checked the policies", BINDING, || {
        let found = env.block_on(policies.list(&ours))?.items;
        let checked =
            found.iter().filter_map(|policy| policy.status.as_ref()?.type_checking.clone());
        let checked: Vec<_> = checked.collect();
        Ok((checked.len() == 16).then_some(checked))
    })?;
    let warnings: Vec<_> =
        checked.into_iter().filter_map(|checked| checked.expression_warnings).flatten().collect();
    ensure!(warnings.is_empty(), "{warnings:?}");
    Ok(())
}

/// `claimed` was bound by the extender, so it has a claim; `plain` waits without one.
fn with_pods(env: &TestEnv, work: impl FnOnce() -> Result<()>) -> Result<()> {
    fake_nodes::with(env, &[FakeNode::with_gpus(FAKE, &[8])], || {
        create(env, on_fake_nodes(pod("claimed", &[gpu_container("main", 1)])))?;
        bound(env, "claimed", BINDING)?;
        create(env, gated(pod("plain", &[idle_container("main")])))?;
        work()
    })
}

fn users(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    with_pods(env, || {
        let plain = format!("{PODS}/plain");
        let claimed = format!("{PODS}/claimed");
        for key in PROTECTED {
            user.refused(env, Verb::Create, PODS, &born_with("forged", key), CLAIMS)?;
            user.refused(env, Verb::Merge, &plain, &annotated(key, "forged"), CLAIMS)?;
        }
        // Changed and taken away.
        user.refused(env, Verb::Merge, &claimed, &annotated(CLAIM, "{}"), CLAIMS)?;
        user.refused(env, Verb::Merge, &claimed, &annotated(CLAIM, Value::Null), CLAIMS)?;
        user.refused(env, Verb::Strategic, &plain, &annotated(CLAIM, "{}"), CLAIMS)?;
        let add = json!([{"op": "add", "path": "/metadata/annotations", "value": {CLAIM: "{}"}}]);
        user.refused(env, Verb::JsonPatch, &plain, &add, CLAIMS)?;
        let mut applied = typed(annotated(CLAIM, "{}"));
        applied["metadata"]["name"] = json!("plain");
        let forced = format!("{plain}?fieldManager=mallory&force=true");
        user.refused(env, Verb::Apply, &forced, &applied, CLAIMS)?;
        let mut whole = serde_json::to_value(get(env, "plain")?)?;
        whole["metadata"]["annotations"] = json!({CLAIM: "{}"});
        user.refused(env, Verb::Replace, &plain, &whole, CLAIMS)?;
        let status = format!("{plain}/status");
        user.refused(env, Verb::Merge, &status, &annotated(CLAIM, "{}"), CLAIMS)?;
        user.refused(env, Verb::Replace, &status, &whole, CLAIMS)?;
        // These take annotations in no case.
        for part in ["ephemeralcontainers", "resize"] {
            let path = format!("{plain}/{part}");
            let _ = user.call(env, Verb::Merge, &path, &annotated(CLAIM, "{}"))?;
            let left = get(env, "plain")?;
            ensure!(annotation(&left, CLAIM).is_none(), "{part} brought a claim");
        }
        claim(&get(env, "claimed")?).map(drop)
    })
}

/// A ReplicaSet is made, and its pods are not: it says why.
fn controllers(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    let sets = format!("/apis/apps/v1/namespaces/{NAMESPACE}/replicasets");
    let labels = json!({"app": "forged"});
    let mut template = pod("", &[idle_container("main")]);
    template["metadata"] = json!({"labels": labels, "annotations": {CLAIM: "{}"}});
    let set = json!({
        "metadata": {"name": "forged"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    });
    user.done(env, Verb::Create, &sets, &set)?;
    let path = format!("{sets}/forged");
    let said = wait_for("the ReplicaSet to say why it has no pod", BINDING, || {
        let found = user.done(env, Verb::Merge, &path, &json!({}))?;
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let failed = conditions.iter().find(|condition| condition["type"] == "ReplicaFailure");
        Ok(failed.and_then(|failed| failed["message"].as_str().map(str::to_owned)))
    });
    env.cluster()?.kubectl_run(&["-n", NAMESPACE, "delete", "replicaset", "forged"])?;
    let said = said?;
    ensure!(said.contains(CLAIMS) && said.contains("template"), "{said}");
    Ok(())
}

fn bindings(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    fake_nodes::with(env, &[FakeNode::with_gpus(FAKE, &[8])], || {
        // No scheduler looks at it.
        let mut waiting = on_fake_nodes(pod("waiting", &[gpu_container("main", 1)]));
        waiting["spec"]["schedulerName"] = json!("none");
        create(env, waiting)?;
        let paths =
            [format!("{PODS}/waiting/binding"), format!("/api/v1/namespaces/{NAMESPACE}/bindings")];
        for key in PROTECTED {
            for path in &paths {
                user.refused(env, Verb::Create, path, &binding(&json!({key: "0"})), BINDINGS)?;
            }
        }
        ensure!(crate::support::pods::node(&get(env, "waiting")?).is_none(), "it was bound");
        // The scheduler of those who have another one binds so.
        user.done(env, Verb::Create, &paths[0], &binding(&json!({"mine": "1"}))).map(drop)
    })
}

fn binding(annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "waiting", "annotations": annotations},
        "target": {"kind": "Node", "name": FAKE},
    })
}

fn kubelets(env: &TestEnv) -> Result<()> {
    let kubelet = Caller::kubelet(env, FAKE)?;
    with_pods(env, || {
        let status = format!("{PODS}/claimed/status");
        kubelet.done(
            env,
            Verb::Merge,
            &status,
            &json!({"status": {"message": "from a kubelet"}}),
        )?;
        for key in PROTECTED {
            let change = annotated(key, "forged");
            kubelet.refused(env, Verb::Merge, &status, &change, CLAIMS)?;
        }
        kubelet.refused(env, Verb::Merge, &status, &annotated(CLAIM, Value::Null), CLAIMS)?;
        kubelet.done(env, Verb::Create, PODS, &mirror_pod(env, "mirror")?)?;
        let mut forged = mirror_pod(env, "forged")?;
        forged["metadata"]["annotations"][CLAIM] = json!("{}");
        kubelet.refused(env, Verb::Create, PODS, &forged, CLAIMS)
    })
}

/// A mirror pod, which shows a static pod of the node.
fn mirror_pod(env: &TestEnv, name: &str) -> Result<Value> {
    let mut mirror = typed(bound_to(FAKE, pod(name, &[idle_container("main")])));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Node", "name": FAKE, "controller": true,
        "uid": node_uid(env)?,
    }]);
    Ok(mirror)
}

fn node_uid(env: &TestEnv) -> Result<String> {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(env.client());
    env.block_on(nodes.get(FAKE))?.metadata.uid.context("a node without a UID")
}

fn environments(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    for name in [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_GPU_MEMORY_LIMIT",
        "CUDA_MPS_PIPE_DIRECTORY",
    ] {
        let mut own = gated(pod("own", &[gpu_container("main", 1)]));
        own["spec"]["containers"][0]["env"] = variable(name);
        user.refused(env, Verb::Create, PODS, &own, ENVIRONMENT)?;
        let mut beside = gated(pod("beside", &[gpu_container("main", 1), idle_container("side")]));
        beside["spec"]["containers"][1]["env"] = variable(name);
        user.refused(env, Verb::Create, PODS, &beside, ENVIRONMENT)?;
        let mut initial = gated(pod("initial", &[gpu_container("main", 1)]));
        initial["spec"]["initContainers"] = json!([idle_container("init")]);
        initial["spec"]["initContainers"][0]["env"] = variable(name);
        user.refused(env, Verb::Create, PODS, &initial, ENVIRONMENT)?;
    }
    // Pods that ask for no GPU memory may, as before; and other names are free.
    let mut without = gated(pod("without", &[idle_container("main")]));
    without["spec"]["containers"][0]["env"] = variable("NVIDIA_VISIBLE_DEVICES");
    user.done(env, Verb::Create, PODS, &without)?;
    let mut other = gated(pod("other", &[gpu_container("main", 1)]));
    let free = [
        "NCCL_DEBUG",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_API_KEY",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_REQUIRE_CUDA",
        "NVIDIA_TF32_OVERRIDE",
    ];
    other["spec"]["containers"][0]["env"] =
        free.iter().map(|name| json!({"name": name, "value": "all"})).collect();
    user.done(env, Verb::Create, PODS, &other)?;
    // A container that comes later.
    let path = format!("{PODS}/other/ephemeralcontainers");
    let every = debug_container("every", &variable("NVIDIA_VISIBLE_DEVICES"));
    user.refused(env, Verb::Strategic, &path, &every, ENVIRONMENT)?;
    user.done(env, Verb::Strategic, &path, &debug_container("plain", &json!([]))).map(drop)
}

fn variable(name: &str) -> Value {
    json!([{"name": name, "value": "all"}])
}

fn debug_container(name: &str, variables: &Value) -> Value {
    let mut container = idle_container(name);
    container["env"] = variables.clone();
    json!({"spec": {"ephemeralContainers": [container]}})
}

fn node_names(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    fake_nodes::with(env, &[FakeNode::with_gpus(FAKE, &[8])], || {
        let gpu = placed("gpu", gpu_container("main", 1));
        let text = user.refusal(env, Verb::Create, PODS, &gpu, NODE_NAME)?;
        ensure!(text.contains("spec.nodeSelector"), "{text}");
        let mut initial = placed("initial", idle_container("main"));
        initial["spec"]["initContainers"] = json!([gpu_container("init", 1)]);
        user.refused(env, Verb::Create, PODS, &initial, NODE_NAME)?;
        user.done(env, Verb::Create, PODS, &placed("plain", idle_container("main")))?;
        // What a kubelet runs by itself.
        let kubelet = Caller::kubelet(env, FAKE)?;
        let mut mirror = placed("mirror", gpu_container("main", 1));
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        mirror["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Node", "name": FAKE, "controller": true,
            "uid": node_uid(env)?,
        }]);
        // A mirror pod takes no variables from elsewhere.
        mirror["spec"]["containers"][0]["envFrom"].take();
        kubelet.done(env, Verb::Create, PODS, &mirror)?;
        of_daemon_set(env, &user)
    })
}

fn placed(name: &str, container: Value) -> Value {
    typed(bound_to(FAKE, pod(name, &[container])))
}

/// The controller names the node of each pod by affinity, and kube-scheduler and the extender place it.
fn of_daemon_set(env: &TestEnv, user: &Caller) -> Result<()> {
    let sets = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets");
    let labels = json!({"app": "on-each-node"});
    let pod = evictable(on_fake_nodes(pod("", &[gpu_container("main", 1)])));
    let set = json!({
        "metadata": {"name": "on-each-node"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    });
    user.done(env, Verb::Create, &sets, &set)?;
    let bound = wait_for("the DaemonSet's pod to be bound with a claim", BINDING, || {
        let pods = list(env)?;
        let found = pods
            .iter()
            .find(|pod| crate::support::pods::name(pod).starts_with("on-each-node-"))
            .filter(|pod| annotation(pod, CLAIM).is_some());
        Ok(found.map(drop))
    });
    env.remove(&format!("{sets}/on-each-node"))?;
    bound
}

fn events(env: &TestEnv) -> Result<()> {
    let [other, own] = env.cluster()?.nodes() else { anyhow::bail!("not two nodes") };
    let agent = Caller::with_token(env, &token(env, Some(own.name()))?)?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": NAMESPACE});
    let ours = "plimsoll-gpushare-device-plugin";
    let default = events_path("default");
    agent.done(
        env,
        Verb::Create,
        &default,
        &event("default", &node_reference(own.name()), ours),
    )?;
    agent.done(env, Verb::Create, &events_path(NAMESPACE), &event(NAMESPACE, &pod, ours))?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "name": "s", "namespace": NAMESPACE});
    for (path, event) in [
        (default.clone(), event("default", &node_reference(other.name()), ours)),
        (default, event("default", &node_reference(own.name()), "kubelet")),
        (events_path(NAMESPACE), event(NAMESPACE, &pod, "kubelet")),
        (events_path(NAMESPACE), event(NAMESPACE, &secret, ours)),
    ] {
        agent.refused(env, Verb::Create, &path, &event, AGENT_EVENTS)?;
    }
    Ok(())
}

fn event(namespace: &str, regarding: &Value, controller: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"generateName": "tried-", "namespace": namespace},
        "eventTime": "2026-11-20T09:00:00.000000Z", "type": "Warning", "reason": "Tried",
        "action": "Try", "reportingController": controller, "reportingInstance": "x",
        "regarding": regarding, "note": "of a test",
    })
}

fn events_path(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events?dryRun=All")
}

fn node_reference(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": name})
}

/// As the extender, with every right.
fn extenders(env: &TestEnv) -> Result<()> {
    let account = "system:serviceaccount:plimsoll:scheduler-extender";
    let extender = Caller::user(env, account, &["system:masters"])?;
    let ours = "plimsoll-scheduler-extender";
    let pod_named = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": NAMESPACE});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "name": "s", "namespace": NAMESPACE});
    let path = events_path(NAMESPACE);
    extender.done(env, Verb::Create, &path, &event(NAMESPACE, &pod_named, ours))?;
    for event in [event(NAMESPACE, &pod_named, "kubelet"), event(NAMESPACE, &secret, ours)] {
        extender.refused(env, Verb::Create, &path, &event, EXTENDER_EVENTS)?;
    }
    let eviction = |namespace: &str| {
        let metadata = json!({"name": "none", "namespace": namespace});
        let path = format!("/api/v1/namespaces/{namespace}/pods/none/eviction");
        (path, json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}))
    };
    let (path, body) = eviction("kube-system");
    extender.refused(env, Verb::Create, &path, &body, EXTENDER_EVICTIONS)?;
    let (path, body) = eviction(NAMESPACE);
    let (status, answer) = extender.call(env, Verb::Create, &path, &body)?;
    ensure!(status == 404, "{status} {answer}");
    fake_nodes::with(env, &[FakeNode::with_gpus(FAKE, &[8])], || {
        // No scheduler looks at it.
        let mut waiting = on_fake_nodes(pod("waiting", &[idle_container("main")]));
        waiting["spec"]["schedulerName"] = json!("none");
        create(env, waiting)?;
        let paths =
            [format!("{PODS}/waiting/binding"), format!("/api/v1/namespaces/{NAMESPACE}/bindings")];
        for path in &paths {
            for annotations in [json!({}), json!({"mine": "1"}), json!({CLAIM: "{}", "mine": "1"})]
            {
                let body = binding(&annotations);
                extender.refused(env, Verb::Create, path, &body, EXTENDER_BINDINGS)?;
            }
        }
        ensure!(crate::support::pods::node(&get(env, "waiting")?).is_none(), "it was bound");
        // What the extender sends for a pod that asks for no GPU memory.
        extender.done(env, Verb::Create, &paths[0], &binding(&json!({CLAIM: "{}"}))).map(drop)
    })
}

fn annotators(env: &TestEnv) -> Result<()> {
    let words = ["-n", "plimsoll", "create", "token", "annotator"];
    let token = env.cluster()?.kubectl_run(&words)?.trim().to_owned();
    let annotator = Caller::with_token(env, &token)?;
    let ours = "plimsoll-annotator";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": NAMESPACE});
    let default = events_path("default");
    let of_node = node_reference(FAKE);
    annotator.done(env, Verb::Create, &default, &event("default", &of_node, ours))?;
    for (path, event) in [
        (default, event("default", &of_node, "kubelet")),
        (events_path(NAMESPACE), event(NAMESPACE, &pod, ours)),
    ] {
        annotator.refused(env, Verb::Create, &path, &event, ANNOTATOR_EVENTS)?;
    }
    fake_nodes::with(env, &[FakeNode::loaded(FAKE, 0.1)], || {
        fake_nodes::wait_for_taints_to_go(env)?;
        let theirs = json!({"key": "team", "value": "a", "effect": "NoSchedule"});
        let user = Caller::administrator(env)?;
        let node = format!("{NODES}/{FAKE}");
        user.done(env, Verb::Merge, &node, &json!({"spec": {"taints": [theirs]}}))?;
        // Not written, so that the running annotator and extender see nothing of it.
        let dry = format!("{node}?dryRun=All");
        let key = "status-taint.cluster-autoscaler.kubernetes.io/plimsoll-hot";
        for change in [
            annotated("cpu_usage_avg_5m", "0.5,2026-11-20T09:00:00Z"),
            annotated("node_hot_value", "2,2026-11-20T09:00:00Z"),
            annotated("plimsoll.dev/gpu-share", "{}"),
            annotated("mem_usage_avg_5m", Value::Null),
            json!({"metadata": {"labels": {"plimsoll.dev/cpu-band": "5", "plimsoll.dev/gpu-band": null}}}),
            with_taints(&[theirs.clone(), hot_taint(key, "NoSchedule")]),
            with_taints(&[hot_taint(key, "PreferNoSchedule"), theirs.clone()]),
        ] {
            annotator.done(env, Verb::Merge, &dry, &change)?;
        }
        let other = json!({"key": key, "value": "mine", "effect": "NoSchedule"});
        let foreign = json!({"key": "mine", "value": "plimsoll-hot", "effect": "NoSchedule"});
        for change in [
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/team": "mine"}}}),
            json!({"metadata": {"labels": {"gpushare": "true"}}}),
            json!({"metadata": {"labels": {"kubernetes.io/hostname": null, "plimsoll.dev/cpu-band": "5"}}}),
            json!({"metadata": {"labels": {"plimsoll.dev/cpu-band": "8"}}}),
            json!({"metadata": {"finalizers": ["plimsoll.dev/mine"]}}),
            json!({"spec": {"unschedulable": true}}),
            json!({"spec": {"unschedulable": true, "taints": [theirs.clone(), hot_taint(key, "NoSchedule")]}}),
            with_taints(&[]),
            with_taints(&[theirs.clone(), hot_taint(key, "NoExecute")]),
            with_taints(&[theirs.clone(), other]),
            with_taints(&[theirs, foreign]),
            annotated("plimsoll.dev/gpu-cards", "[]"),
            annotated("plimsoll.dev/cordoned-gpus", "GPU-1"),
            annotated("plimsoll.dev/exporter", "192.0.2.1:80"),
            annotated("volumes.kubernetes.io/controller-managed-attach-detach", "false"),
        ] {
            annotator.refused(env, Verb::Merge, &dry, &change, ANNOTATOR)?;
        }
        Ok(())
    })
}

/// By the policy of `annotator.nodeBands`, which the tested installation does not set.
fn preferred_bands(env: &TestEnv) -> Result<()> {
    if env.lacks("MutatingAdmissionPolicy", "v1.36.0")? {
        return Ok(());
    }
    let cluster = env.cluster()?;
    let file = cluster.settings().sources.join("deploy/tests/rendered/node-bands.yaml");
    let path = file.to_string_lossy();
    let tried = cluster.kubectl_run(&["apply", "-f", &path]).and_then(|_| preferring(env));
    let removed = cluster.kubectl_run(&["delete", "-f", &path]);
    tried.and(removed).map(drop)
}

fn preferring(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    let dry = format!("{PODS}?dryRun=All");
    let preferred = |wanted: &Value| -> Result<Value> {
        let made = user.done(env, Verb::Create, &dry, wanted)?;
        let affinity = &made["spec"]["affinity"]["nodeAffinity"];
        Ok(affinity["preferredDuringSchedulingIgnoredDuringExecution"].clone())
    };
    let of_band = |key: &str, band: &str, terms: &Value| -> i64 {
        let matches = |term: &Value| {
            let expression = &term["preference"]["matchExpressions"][0];
            let listed = match expression["operator"].as_str() {
                Some("In") => {
                    expression["values"].as_array().is_some_and(|all| all.contains(&json!(band)))
                }
                operator => operator == Some("Exists"),
            };
            expression["key"] == key && listed
        };
        let terms = terms.as_array().into_iter().flatten().filter(|term| matches(term));
        terms.filter_map(|term| term["weight"].as_i64()).sum()
    };
    let plain = typed(pod("plain", &[idle_container("main")]));
    wait_for("the policy to be in force", START, || {
        Ok((!preferred(&plain)?.is_null()).then_some(()))
    })?;
    let by_claim = {
        let mut claims = plain.clone();
        claims["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "none"}]);
        claims
    };
    let by_units = typed(pod("units", &[gpu_container("main", 1)]));
    for (wanted, key, weights) in [
        (&plain, "plimsoll.dev/cpu-band", [100, 93, 86, 79, 71, 64, 57, 50]),
        (&by_claim, "plimsoll.dev/gpu-band", [100, 86, 71, 57, 43, 29, 14, 0]),
        (&by_units, "plimsoll.dev/gpu-band", [100, 86, 71, 57, 43, 29, 14, 0]),
    ] {
        let terms = preferred(wanted)?;
        let found = ["0", "1", "2", "3", "4", "5", "6", "7"].map(|band| of_band(key, band, &terms));
        ensure!(found == weights, "{found:?}: {terms}");
    }
    let mut own = plain.clone();
    let term = json!([{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]);
    own["spec"]["affinity"] =
        json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": term}});
    ensure!(preferred(&own)? == term, "a preference of its own was changed");
    let mut of_daemon_set = plain.clone();
    of_daemon_set["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]);
    ensure!(preferred(&of_daemon_set)?.is_null(), "a DaemonSet's pod prefers nodes");
    for empty in [json!({}), json!({"nodeAffinity": {}}), json!({"podAntiAffinity": {}})] {
        let mut partly = plain.clone();
        partly["spec"]["affinity"] = empty.clone();
        ensure!(preferred(&partly)?.is_array(), "{empty}: no node is preferred");
    }
    let mut required = plain;
    let terms = json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]);
    required["spec"]["affinity"] = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
    }});
    let made = user.done(env, Verb::Create, &dry, &required)?;
    let affinity = &made["spec"]["affinity"]["nodeAffinity"];
    ensure!(
        affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == terms
            && affinity["preferredDuringSchedulingIgnoredDuringExecution"].is_array(),
        "{affinity}"
    );
    Ok(())
}

fn hot_taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "value": "plimsoll-hot", "effect": effect})
}

fn with_taints(taints: &[Value]) -> Value {
    json!({"spec": {"taints": taints}})
}

fn tokens(env: &TestEnv) -> Result<()> {
    let nodes = env.cluster()?.nodes();
    let [other, own] = nodes else { anyhow::bail!("{} nodes, not two", nodes.len()) };
    create(env, on_node(own, pod("mine", &[gpu_container("main", 1)])))?;
    create(env, on_node(other, pod("theirs", &[gpu_container("main", 1)])))?;
    all_running(env, START)?;
    let agent = Caller::with_token(env, &token(env, Some(own.name()))?)?;
    let gpus = annotated("plimsoll.dev/gpu-cards", "[]");
    let claimed = annotated("ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
    let mine = dry_run(&format!("{PODS}/mine"));
    let theirs = dry_run(&format!("{PODS}/theirs"));

    agent.done(env, Verb::Merge, &node_path(own.name()), &gpus)?;
    agent.done(env, Verb::Merge, &status_path(own.name()), &count_of("aliyun.com/gpu-count"))?;
    agent.done(env, Verb::Merge, &mine, &claimed)?;

    agent.refused(env, Verb::Merge, &node_path(other.name()), &gpus, AGENT_NODES)?;
    agent.refused(
        env,
        Verb::Merge,
        &status_path(other.name()),
        &count_of("aliyun.com/gpu-count"),
        AGENT_STATUS,
    )?;
    agent.refused(env, Verb::Merge, &theirs, &claimed, AGENT_PODS)?;
    for change in [
        annotated("cpu_usage_avg_5m", "0"),
        annotated("plimsoll.dev/exporter", "192.0.2.1:80"),
        annotated("plimsoll.dev/gpu-share", "{}"),
        json!({"metadata": {"labels": {"team": "mine"}}}),
        json!({"metadata": {"finalizers": ["plimsoll.dev/mine"]}}),
        json!({"spec": {"unschedulable": true}}),
        json!({"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}}),
    ] {
        agent.refused(env, Verb::Merge, &node_path(own.name()), &change, AGENT_NODES)?;
    }
    let status = status_path(own.name());
    let withheld = with_condition("GPUUnitsWithheld", "True");
    agent.done(env, Verb::Strategic, &status, &withheld)?;
    agent.done(env, Verb::Merge, &status, &allocatable("aliyun.com/gpu-mem", "0"))?;
    agent.refused(env, Verb::Strategic, &status_path(other.name()), &withheld, AGENT_STATUS)?;
    agent.refused(
        env,
        Verb::Strategic,
        &status,
        &with_condition("Ready", "False"),
        AGENT_STATUS,
    )?;
    agent.refused(env, Verb::Strategic, &status, &with_condition("Mine", "True"), AGENT_STATUS)?;
    for change in [
        allocatable("aliyun.com/gpu-mem", "9"),
        allocatable("cpu", "0"),
        count_of("cpu"),
        count_of("aliyun.com/gpu-mem"),
        json!({"status": {"conditions": []}}),
        json!({"status": {"addresses": []}}),
        json!({"status": {"images": []}}),
        json!({"status": {"volumesInUse": ["mine"]}}),
        annotated("cpu_usage_avg_5m", "0"),
    ] {
        agent.refused(env, Verb::Merge, &status_path(own.name()), &change, AGENT_STATUS)?;
    }
    let image = json!({"spec": {"containers": [{"name": "main", "image": "mine"}]}});
    for (verb, change) in [
        (Verb::Merge, annotated("kubernetes.io/psp", "mine")),
        (Verb::Merge, json!({"metadata": {"labels": {"team": "mine"}}})),
        (Verb::Merge, json!({"metadata": {"finalizers": ["plimsoll.dev/mine"]}})),
        (Verb::Merge, json!({"spec": {"activeDeadlineSeconds": 1}})),
        (Verb::Strategic, image),
    ] {
        agent.refused(env, verb, &mine, &change, AGENT_PODS)?;
    }
    // A token that is bound to no pod tells no node.
    let unbound = Caller::with_token(env, &token(env, None)?)?;
    unbound.refused(env, Verb::Merge, &node_path(own.name()), &gpus, AGENT_NODES)?;
    unbound.refused(env, Verb::Merge, &mine, &claimed, AGENT_PODS)
}

/// Not written, so that the running plugin and the extender see nothing of it.
fn node_path(name: &str) -> String {
    dry_run(&format!("{NODES}/{name}"))
}

fn status_path(name: &str) -> String {
    dry_run(&format!("{NODES}/{name}/status"))
}

fn dry_run(path: &str) -> String {
    format!("{path}?dryRun=All")
}

fn count_of(key: &str) -> Value {
    json!({"status": {"capacity": {key: "9"}, "allocatable": {key: "9"}}})
}

fn allocatable(key: &str, amount: &str) -> Value {
    json!({"status": {"allocatable": {key: amount}}})
}

fn with_condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status}]}})
}

/// A token of the device plugin's account, bound to its pod on this node.
pub(crate) fn token(env: &TestEnv, node: Option<&str>) -> Result<String> {
    let pods = env.program_pods("gpushare-device-plugin")?;
    let mut words = vec!["-n", "plimsoll", "create", "token", "gpushare-device-plugin"];
    if let Some(node) = node {
        let pod = pods.iter().find(|pod| crate::support::pods::node(pod) == Some(node));
        let pod = pod.with_context(|| format!("no device plugin on {node}"))?;
        let name = crate::support::pods::name(pod);
        words.extend(["--bound-object-kind=Pod", "--bound-object-name", name]);
    }
    Ok(env.cluster()?.kubectl_run(&words)?.trim().to_owned())
}

fn free(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    with_pods(env, || {
        for (n, key) in [
            "gpu-card-count",
            "gpu-cores",
            "gpu-processes",
            "gpu-mem-limit",
            "gpu-model",
            "gpu-uuid",
            "gpu-placement",
            "expected-use",
        ]
        .iter()
        .enumerate()
        {
            let key = format!("plimsoll.dev/{key}");
            let born = gated(born_with(&format!("born-{n}"), &key));
            user.done(env, Verb::Create, PODS, &born)?;
            user.done(env, Verb::Merge, &format!("{PODS}/claimed"), &annotated(&key, "1"))?;
        }
        let claimed = format!("{PODS}/claimed");
        user.done(env, Verb::Merge, &claimed, &json!({"metadata": {"labels": {"team": "mine"}}}))?;
        let debug = json!({"spec": {"ephemeralContainers": [idle_container("debug")]}});
        user.done(env, Verb::Strategic, &format!("{claimed}/ephemeralcontainers"), &debug)?;
        let mut whole = serde_json::to_value(get(env, "claimed")?)?;
        whole["metadata"]["labels"] = json!({"team": "theirs"});
        user.done(env, Verb::Replace, &claimed, &whole)?;
        claim(&get(env, "claimed")?).map(drop)
    })
}

/// A node has 4 units left, on two GPUs. A pod of 4 units with a claim on a full GPU, which no scheduler placed,
/// fails.
fn forged_with_node_name(env: &TestEnv) -> Result<()> {
    let host = &env.cluster()?.nodes()[1];
    for (n, units) in [16, 16, 14, 14].into_iter().enumerate() {
        let name = format!("holder-{n}");
        create(env, on_node(host, pod(&name, &[gpu_container("main", units)])))?;
        running(env, &name, START)?;
    }
    let full = claim(&get(env, "holder-0")?)?;
    let gpu = full.get("main").and_then(|gpus| gpus.keys().next()).context("no card")?.clone();
    let mut forged = typed(pod("forged", &[gpu_container("main", 4)]));
    forged["metadata"]["annotations"] = json!({
        CLAIM: json!({"main": {&gpu: 4}}).to_string(),
        "ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "4",
    });
    forged["spec"]["nodeName"] = json!(host.name());
    forged["spec"]["restartPolicy"] = json!("Never");
    Caller::unhindered(env)?.done(env, Verb::Create, PODS, &forged)?;
    wait_for("the forged pod to fail", START, || {
        let pod = get(env, "forged")?;
        ensure!(phase(&pod) != "Running", "it runs");
        Ok((phase(&pod) == "Failed").then_some(()))
    })?;
    audit_exactly(env, 4)
}
