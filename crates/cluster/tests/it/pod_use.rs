//! What a pod asks for of CPU and memory, and which workload it belongs to.

use cluster::{ExpectedUseError, Pod};
use placement::names::Names;
use placement::resources::{PerResource, PodResources};
use serde_json::{Value, json};

const GI: f64 = 1_073_741_824.0;

fn pod(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

fn resources(spec: Value, status: Value) -> PodResources {
    pod(json!({ "metadata": { "name": "web-0", "namespace": "shop" }, "spec": spec, "status": status }))
        .resources()
}

fn container(name: &str, resources: Value) -> Value {
    json!({ "name": name, "resources": resources })
}

fn amounts(cpu: Option<f64>, memory: Option<f64>) -> PerResource<Option<f64>> {
    PerResource { cpu, memory }
}

#[test]
fn containers_that_run_together_are_added_up() {
    let web = json!({ "requests": { "cpu": "500m", "memory": "1Gi" }, "limits": { "cpu": 2, "memory": "2Gi" } });
    let log = json!({ "requests": { "cpu": "100m" }, "limits": { "cpu": "1", "memory": "1Gi" } });
    let setup = json!({ "requests": { "cpu": "8" } });
    let mut sidecar = container("log", log);
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({ "initContainers": [container("setup", setup), sidecar], "containers": [container("web", web)] });
    let asked = resources(spec, json!({}));
    assert_eq!(asked.requests, amounts(Some(0.6), Some(GI)));
    assert_eq!(asked.limits, amounts(Some(3.0), Some(3.0 * GI)));
}

#[test]
fn one_container_without_a_limit_or_with_limit_0_leaves_the_pod_without() {
    let limited = json!({ "limits": { "cpu": "1", "memory": "1Gi" } });
    for open in [json!({}), json!({ "limits": { "cpu": "0", "memory": 0 } }), Value::Null] {
        let containers = json!([container("a", limited.clone()), container("b", open)]);
        let asked = resources(json!({ "containers": containers }), json!({}));
        assert_eq!(asked, PodResources::default());
    }
    assert_eq!(resources(json!({}), json!({})), PodResources::default());
}

#[test]
fn resources_of_the_pod_as_a_whole_go_before_those_of_its_containers() {
    let spec = json!({
        "containers": [container("a", json!({ "requests": { "cpu": "1", "memory": "1Gi" } }))],
        "resources": { "requests": { "cpu": "3" }, "limits": { "memory": "4Gi" } },
        "overhead": { "memory": "1Gi" },
    });
    let asked = resources(spec, json!({}));
    assert_eq!(asked.requests, amounts(Some(3.0), Some(2.0 * GI)));
    assert_eq!(asked.limits, amounts(None, Some(5.0 * GI)));
}

fn requesting(cpu: &str) -> Value {
    let asked = json!({ "requests": { "cpu": cpu }, "limits": { "cpu": cpu } });
    json!({ "containers": [container("a", asked)] })
}

fn resizing(conditions: Value) -> Value {
    json!({
        "conditions": conditions,
        "containerStatuses": [
            { "name": "a", "allocatedResources": { "cpu": "2" }, "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "1" } } },
        ],
    })
}

fn cpu(spec: Value, status: Value) -> (f64, f64) {
    let asked = resources(spec, status);
    (asked.requests.cpu.unwrap(), asked.limits.cpu.unwrap())
}

#[test]
fn during_a_resize_in_place_the_largest_counts() {
    assert_eq!(cpu(requesting("4"), resizing(json!([]))), (4.0, 4.0));
    assert_eq!(cpu(requesting("500m"), resizing(Value::Null)), (2.0, 1.0));
    let infeasible =
        json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
    assert_eq!(cpu(requesting("400"), resizing(infeasible)), (2.0, 1.0));
    // A kubelet that reports no resources.
    let silent = json!({ "containerStatuses": [{ "name": "a", "resources": null, "allocatedResources": null }] });
    assert_eq!(cpu(requesting("4"), silent), (4.0, 4.0));
}

#[test]
fn quantities_that_cannot_be_read_are_absent() {
    for wrong in [
        json!("lots"),
        json!("-1"),
        json!("1e999"),
        json!(-1),
        json!(true),
        json!([1]),
        Value::Null,
    ] {
        let asked =
            json!({ "requests": { "cpu": wrong, "memory": "1Gi" }, "limits": { "cpu": wrong } });
        let asked = resources(json!({ "containers": [container("a", asked)] }), json!({}));
        assert_eq!(asked.requests, amounts(None, Some(GI)), "{wrong}");
        assert_eq!(asked.limits, amounts(None, None));
    }
    let huge = json!({ "requests": { "cpu": "1.7e308" } });
    let asked = resources(
        json!({ "containers": [container("a", huge.clone()), container("b", huge)] }),
        json!({}),
    );
    assert_eq!(asked.requests.cpu, None);
}

fn owned(owner: Value, labels: Value) -> Pod {
    pod(json!({
        "metadata": { "name": "x", "namespace": "shop", "labels": labels, "ownerReferences": [owner] },
        "spec": { "containers": [{ "name": "web", "image": "shop:1", "command": ["serve"] }] },
    }))
}

fn controller(kind: &str, name: &str) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": true })
}

#[test]
fn a_pods_controller_is_the_one_that_a_person_made() {
    let hash = json!({ "pod-template-hash": "5d4f8c7b9" });
    let rollout = json!({ "rollouts-pod-template-hash": "5d4f8c7b9" });
    let knative =
        json!({ "pod-template-hash": "5d4f8c7b9", "serving.knative.dev/configuration": "hello" });
    for (kind, name, labels, wanted) in [
        ("ReplicaSet", "web-5d4f8c7b9", &hash, ("Deployment", "web")),
        ("ReplicaSet", "web-5d4f8c7b9", &json!({}), ("ReplicaSet", "web-5d4f8c7b9")),
        ("ReplicaSet", "web5d4f8c7b9", &hash, ("ReplicaSet", "web5d4f8c7b9")),
        ("ReplicaSet", "-5d4f8c7b9", &hash, ("ReplicaSet", "-5d4f8c7b9")),
        ("ReplicaSet", "web-", &json!({ "pod-template-hash": "" }), ("ReplicaSet", "web-")),
        ("ReplicaSet", "web-5d4f8c7b9", &rollout, ("Rollout", "web")),
        ("ReplicaSet", "hello-00007-deployment-5d4f8c7b9", &knative, ("Configuration", "hello")),
        ("StatefulSet", "db-5d4f8c7b9", &hash, ("StatefulSet", "db-5d4f8c7b9")),
        ("CloneSet", "web", &hash, ("CloneSet", "web")),
        ("Job", "report-29712345", &Value::Null, ("CronJob", "report")),
        ("Job", "report-2026", &Value::Null, ("Job", "report-2026")),
        ("Job", "report-2971234x", &Value::Null, ("Job", "report-2971234x")),
        ("Job", "-29712345", &Value::Null, ("Job", "-29712345")),
    ] {
        let pod = owned(controller(kind, name), labels.clone());
        assert_eq!(pod.controller(), Some(wanted), "{kind} {name}");
    }
}

#[test]
fn a_static_pod_and_one_whose_controller_has_no_name_belong_to_no_workload() {
    for owner in
        [json!({ "kind": "StatefulSet", "controller": true }), controller("Node", "worker-1")]
    {
        let pod = owned(owner.clone(), json!({}));
        assert_eq!((pod.controller(), pod.workload()), (None, None), "{owner}");
    }
}

/// The API server bounds neither the kind nor the name of an owner.
#[test]
fn an_owner_with_a_name_that_no_object_has_makes_no_workload() {
    let long = "a".repeat(254);
    assert_eq!(owned(controller("StatefulSet", &long), json!({})).workload(), None);
    assert_eq!(owned(controller(&long, "db"), json!({})).workload(), None);
    assert_eq!(owned(controller("StatefulSet", "db@0000000000000000"), json!({})).workload(), None);
    assert!(owned(controller("StatefulSet", &long[1..]), json!({})).workload().is_some());
}

/// An owner reference names no namespace, so one that is forged names a controller of the pod's own namespace at most.
#[test]
fn a_forged_owner_of_another_namespace_makes_a_workload_of_the_pods_own() {
    let mut owner = controller("Deployment", "payments");
    owner["namespace"] = json!("bank");
    assert_eq!(&*owned(owner, json!({})).workload().unwrap().namespace, "shop");
}

fn template(spec: Value) -> u64 {
    let metadata =
        json!({ "namespace": "shop", "ownerReferences": [controller("StatefulSet", "db")] });
    pod(json!({ "metadata": metadata, "spec": spec })).workload().unwrap().template
}

fn changed(change: Value) -> Value {
    let mut container =
        json!({ "name": "db", "image": "db:1", "command": ["db"], "args": ["--fast"] });
    container.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    json!({ "containers": [container], "nodeName": "worker-1" })
}

#[test]
fn a_template_is_what_its_containers_run_and_not_what_they_request() {
    let first = template(changed(json!({})));
    assert_eq!(first, 13_855_258_772_041_141_616, "extender and annotator of two releases agree");
    let same = changed(
        json!({ "resources": { "requests": { "cpu": "4" } }, "env": [{ "name": "A", "value": "b" }] }),
    );
    assert_eq!(template(same), first);
    for change in [
        json!({ "name": "other" }),
        json!({ "image": "db:2" }),
        json!({ "command": ["db", "--fast"], "args": [] }),
        json!({ "args": ["--fas", "t"] }),
        json!({ "args": null }),
    ] {
        assert_ne!(template(changed(change.clone())), first, "{change}");
    }
}

fn expected(text: &str) -> Result<PerResource<Option<f64>>, ExpectedUseError> {
    let annotations = json!({ "plimsoll.dev/expected-use": text });
    pod(json!({ "metadata": { "annotations": annotations } })).expected_use(&Names::default())
}

#[test]
fn a_pods_own_expectation_is_read() {
    assert_eq!(pod(json!({})).expected_use(&Names::default()), Ok(amounts(None, None)));
    assert_eq!(expected("{}"), Ok(amounts(None, None)));
    assert_eq!(expected(r#"{"memory":"1Gi"}"#), Ok(amounts(None, Some(GI))));
    assert_eq!(expected(r#"{"cpu":"500m","memory":"0"}"#), Ok(amounts(Some(0.5), Some(0.0))));
}

#[test]
fn a_faulty_expectation_is_an_error_that_names_the_resource() {
    for wrong in ["-1", "NaN", "inf", "1e300", "2M", "", "half"] {
        let error = expected(&json!({ "cpu": wrong, "memory": "1Gi" }).to_string()).unwrap_err();
        let wanted =
            format!("cpu: expected a quantity of 0 or more, such as `500m`, found `{wrong}`");
        assert_eq!(error.to_string(), wanted);
    }
    let error = expected(r#"{"mem":"1Gi"}"#).unwrap_err().to_string();
    assert!(
        error.starts_with(r#"not of the form `{"cpu":"500m","memory":"1Gi"}`: unknown field"#),
        "{error}"
    );
}
