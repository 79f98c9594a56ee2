//! Pods and nodes as moves see them.

use cluster::{PodReference, applicant, read_node};
use placement::moves::{ReadNode, StayReason};
use placement::names::Names;
use placement::resources::Amounts;
use serde_json::{Value, json};

use crate::api::LIMIT;
use crate::stored::{client, list};

const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// A pod of a ReplicaSet with a part of a GPU.
fn pod() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "labels": { "app": "web" },
            "annotations": {}, "ownerReferences": owner("ReplicaSet"),
        },
        "spec": {
            "priority": 3,
            "containers": [{ "name": "main", "resources": {
                "requests": { "cpu": "1", "aliyun.com/gpu-mem": "10" },
                "limits": { "aliyun.com/gpu-mem": "10" },
            } }],
        },
    })
}

fn owner(kind: &str) -> Value {
    json!([{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "o", "controller": true }])
}

fn node() -> Value {
    json!({
        "metadata": { "name": "a", "labels": { "pool": "x" } },
        "status": {
            "allocatable": { "cpu": "4", "pods": "110", "aliyun.com/gpu-mem": "32" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn set(object: &mut Value, path: &[&str], value: Value) {
    *path.iter().fold(object, |at, key| &mut at[*key]) = value;
}

async fn read(node: Value, pods: &[Value]) -> ReadNode {
    let (node, pods) = (node.to_string(), list(pods));
    let client = client(move |request| {
        let is_list = request.uri().path().ends_with("/pods");
        Some(if is_list { pods.clone() } else { node.clone() })
    });
    read_node(&client, "a", &Names::default(), |_| Amounts::default(), LIMIT).await.unwrap()
}

#[tokio::test]
async fn a_node_is_read_with_what_its_pods_leave_and_what_they_need() {
    let read = read(node(), &[pod()]).await;
    assert!(read.is_open && read.keeps_out.is_empty());
    let free = [("aliyun.com/gpu-mem", 22.0), ("cpu", 3.0), ("pods", 109.0)];
    assert_eq!(read.free, free.map(|(name, amount)| (name.to_owned(), amount)).into());
    let [web] = &read.residents[..] else { panic!("{read:?}") };
    assert_eq!((web.stays, web.priority, web.consents), (None, 3, false));
    assert_eq!(web.controller.as_ref().unwrap().name, "ReplicaSet/o");
    assert_eq!(web.needs.request.as_ref().unwrap().peak().0, 10);
    assert_eq!((web.needs.takes["cpu"], web.needs.takes["pods"]), (1.0, 1.0));
    assert_eq!(web.needs.labelled.labels.as_ref().unwrap()["app"], "web");
}

#[tokio::test]
async fn a_pod_that_may_not_be_moved_is_told_why() {
    use StayReason::{
        Annotation, Controller, DaemonSet, Ending, HostPort, NoController, NodeRules, OtherPods,
        Request, ResourceClaims, Volume,
    };
    let affinity = |operator: &str, value: &str| {
        let term = json!({ "key": "cards", "operator": operator, "values": [value] });
        json!({ "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": [{ "matchExpressions": [term] }] } } })
    };
    let near = json!({ "podAntiAffinity": { REQUIRED: [
        { "topologyKey": "kubernetes.io/hostname", "labelSelector": {} },
    ] } });
    let spread =
        |when: &str| json!([{ "maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": when }]);
    let claim = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
    let field = json!({ "key": "spec.x", "operator": "In", "values": ["x"] });
    let fields = json!({ "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": [{ "matchFields": [field] }] } } });
    for (path, value, why) in [
        (&["metadata", "labels"][..], json!({}), None),
        (&["metadata", "ownerReferences"], json!([]), Some(NoController)),
        (&["metadata", "ownerReferences"], owner("Node"), Some(NoController)),
        (&["metadata", "ownerReferences"], owner("DaemonSet"), Some(DaemonSet)),
        (&["metadata", "ownerReferences"], owner("RayCluster"), Some(Controller)),
        (&["metadata", "ownerReferences"], owner("StatefulSet"), None),
        (&["metadata", "annotations", SAFE_TO_EVICT], json!("false"), Some(Annotation)),
        (&["metadata", "annotations", SAFE_TO_EVICT], json!("true"), None),
        (&["metadata", "deletionTimestamp"], json!("2026-11-20T09:00:00Z"), Some(Ending)),
        (&["metadata", "annotations", "plimsoll.dev/gpu-card-count"], json!("x"), Some(Request)),
        (&["spec", "volumes"], claim, Some(Volume)),
        (&["spec", "hostNetwork"], json!(true), Some(HostPort)),
        (&["spec", "initContainers"], json!([{ "ports": [{ "hostPort": 80 }] }]), Some(HostPort)),
        (&["spec", "affinity"], near, Some(OtherPods)),
        (&["spec", "topologySpreadConstraints"], spread("DoNotSchedule"), Some(OtherPods)),
        (&["spec", "topologySpreadConstraints"], spread("ScheduleAnyway"), None),
        (&["spec", "affinity"], affinity("Gt", "3"), None),
        (&["spec", "affinity"], affinity("Gt", "x"), Some(NodeRules)),
        (&["spec", "affinity"], fields, Some(NodeRules)),
        (&["spec", "resourceClaims"], json!([{ "name": "c" }]), Some(ResourceClaims)),
    ] {
        let mut pod = pod();
        set(&mut pod, path, value.clone());
        let read = read(node(), &[pod]).await;
        let found: Vec<_> = read.residents.iter().map(|pod| pod.stays).collect();
        assert_eq!(found, [why], "{path:?} {value}");
    }
    let mut consenting = pod();
    set(&mut consenting, &["metadata", "annotations", SAFE_TO_EVICT], json!("true"));
    set(&mut consenting, &["metadata", "ownerReferences"], owner("RayCluster"));
    let read = read(node(), &[consenting]).await;
    assert!(read.residents[0].consents && read.residents[0].stays.is_none());
}

#[tokio::test]
async fn a_node_that_takes_no_pods_is_told_from_others() {
    let pool = json!([{ "key": "pool", "value": "x", "effect": "NoSchedule" }]);
    let unready = json!([{ "type": "Ready", "status": "Unknown" }]);
    for (path, value, is_open, is_allowed) in [
        (&["spec"][..], json!({}), true, true),
        (&["spec", "unschedulable"], json!(true), true, false),
        (&["spec", "taints"], pool, true, false),
        (&["metadata", "labels"], json!({ "pool": "y" }), true, false),
        (&["status", "conditions"], unready, false, true),
        (&["status", "conditions"], json!([]), false, true),
        (&["spec", "unschedulable"], json!("odd"), false, true),
    ] {
        let (mut node, mut pod) = (node(), pod());
        set(&mut node, path, value.clone());
        set(&mut pod, &["spec", "nodeSelector"], json!({ "pool": "x" }));
        let read = read(node, &[pod]).await;
        assert_eq!(read.is_open, is_open, "{path:?} {value}");
        let allows = read.residents[0].needs.rules.allow(&read.traits);
        assert_eq!(allows, is_allowed, "{path:?} {value}");
    }
}

#[tokio::test]
async fn what_the_pods_of_a_node_keep_out_is_known_or_taken_for_all() {
    let expression = json!({ "key": "app", "operator": "Exists" });
    for (term, namespaces, is_by_labels) in [
        (json!({ "labelSelector": {} }), Some(vec!["shop"]), true),
        (json!({ "labelSelector": {}, "namespaces": ["a", "b"] }), Some(vec!["a", "b"]), true),
        (json!({ "labelSelector": {}, "namespaceSelector": {} }), None, true),
        (
            json!({ "labelSelector": { "matchExpressions": [{ "key": "a", "operator": "Odd" }] } }),
            Some(vec!["shop"]),
            false,
        ),
        (json!({ "labelSelector": { "matchExpressions": vec![expression; 17] } }), None, false),
    ] {
        let mut pod = pod();
        set(&mut pod, &["spec", "affinity"], json!({ "podAntiAffinity": { REQUIRED: [term] } }));
        let read = read(node(), &[pod]).await;
        let [rule] = &read.keeps_out[..] else { panic!("{term}") };
        let found = rule.namespaces.as_ref().map(|all| all.iter().map(String::as_str).collect());
        assert_eq!((found, rule.labels.is_some()), (namespaces, is_by_labels), "{term}");
    }
    // One without a selector keeps none out. A node with more rules than are checked takes no pods.
    let of = |terms: Vec<Value>| {
        let mut pod = pod();
        set(&mut pod, &["spec", "affinity"], json!({ "podAntiAffinity": { REQUIRED: terms } }));
        pod
    };
    assert!(read(node(), &[of(vec![json!({})])]).await.keeps_out.is_empty());
    let rules = |count| of(vec![json!({ "labelSelector": {} }); count]);
    assert!(read(node(), &[rules(128)]).await.is_open);
    assert!(!read(node(), &[rules(129)]).await.is_open);
}

#[tokio::test]
async fn a_pod_that_waits_is_read_unless_it_is_another_or_its_rules_cannot_be_checked() {
    for (path, value, is_read) in [
        (&["metadata", "ownerReferences"][..], json!([]), true),
        (&["metadata", "uid"], json!("other"), false),
        (&["spec", "hostNetwork"], json!(true), false),
        (&["spec", "resourceClaims"], json!([{ "name": "c" }]), false),
        (&["spec", "nodeSelector"], json!("odd"), false),
    ] {
        let mut pod = pod();
        set(&mut pod, path, value.clone());
        let client = client(move |_| Some(pod.to_string()));
        let [namespace, name, uid] = ["shop", "web", "u"].map(str::to_owned);
        let about = PodReference { namespace, name, uid };
        let read = applicant(&client, &about, &Names::default(), LIMIT).await.unwrap();
        assert_eq!(read.is_some(), is_read, "{path:?} {value}");
    }
}
