//! Nodes and pods as the API server's watch delivers them.

use annotator::exporter::endpoint::endpoint;
use annotator::pods::BoundPod;
use cluster::{Node, Pod};
use http::Uri;
use placement::demand::Demand;
use placement::names::{Names, limits};
use placement::reading::ReadingCodec;
use placement::resources::PodResources;
use serde_json::{Value, json};

/// Either an error, or an object whose facts can be read. An exporter's address is a host and a port without a user, a
/// path or a query.
pub(crate) fn objects(input: &[u8]) {
    let names = Names::default();
    if let Ok(pod) = serde_json::from_slice::<Pod>(input) {
        let bound = BoundPod::select(&pod, &names);
        assert_eq!(bound.is_some(), pod.facts(&names).node.is_some());
        pod_use(&pod, &names);
    }
    let Ok(node) = serde_json::from_slice::<Node>(input) else { return };
    let facts = node.facts(&names, &ReadingCodec::default());
    match endpoint(&facts, 19101, &names.exporter()) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(endpoint) => {
            let uri: Option<Uri> = format!("http://{}/x", endpoint.address()).parse().ok();
            let authority = uri.as_ref().and_then(Uri::authority).map(http::uri::Authority::as_str);
            // An address that is no URI is never polled.
            assert!(
                authority.is_none_or(|whole| whole == endpoint.address() && !whole.contains('@'))
            );
            assert!(uri.is_none_or(|uri| uri.path() == "/x" && uri.query().is_none()));
        }
    }
}

/// What a pod asks for and expects is finite and not negative, and its workload lies in its own namespace.
fn pod_use(pod: &Pod, names: &Names) {
    let PodResources { requests, limits } = pod.resources();
    let expected = pod.expected_use(names).unwrap_or_default();
    for stated in [requests, limits, expected] {
        let amounts = [stated.cpu, stated.memory];
        assert!(amounts.into_iter().flatten().all(|amount| amount.is_finite() && amount >= 0.0));
    }
    let declared = pod.declared(names);
    let most = declared.faults.iter().map(String::len).max().unwrap_or_default();
    assert!(declared.faults.len() <= Demand::ALL.len() && most < 2_000);
    assert!(Demand::ALL.iter().all(|demand| *declared.rates.get(*demand) <= 1_000_000_000_000_000));
    if let Some(workload) = pod.workload() {
        assert_eq!(&*workload.namespace, pod.namespace());
        assert!(!workload.name.is_empty() && workload.name.len() <= limits::NAME);
        assert!(!workload.kind.is_empty() && workload.kind.len() <= limits::LABEL);
    }
}

fn node(exporter: &str) -> Value {
    json!({
        "metadata": {"name": "a", "annotations": {
            "plimsoll.dev/exporter": exporter, "cpu_usage_avg_5m": "0.63012,2026-11-20T09:00:00Z",
            "plimsoll.dev/gpu-cards": "[]",
        }},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "fd00::7"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let pod = json!({
        "metadata": {
            "name": "p", "uid": "7a3c", "labels": {"pod-template-hash": "5d4f"},
            "annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "plimsoll.dev/expected-use": "{\"cpu\":\"500m\"}", "kubernetes.io/egress-bandwidth": "10M", "plimsoll.dev/disk-read": "1k"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "p-5d4f", "controller": true}],
        },
        "spec": {"nodeName": "a", "containers": [
            {"name": "main", "command": ["x"], "resources": {
                "requests": {"cpu": "250m", "memory": "1.5Gi"}, "limits": {"aliyun.com/gpu-mem": "1e3"},
            }},
        ]},
        "status": {"phase": "Running", "startTime": "2026-11-20T09:00:00Z", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T09:00:00Z"},
        ]},
    });
    let task = json!({
        "metadata": {"name": "build-8f3a-x8d2k", "generateName": "build-8f3a-", "namespace": "ci",
            "ownerReferences": [{"kind": "Job", "name": "build-8f3a", "controller": true}]},
        "spec": {"containers": [{"name": "ci", "image": "a:5000/ci:8f3a", "args": ["--date=2026-11-20", "é"],
            "resources": {"requests": {"cpu": "250m"}}}]},
    });
    [node("10.0.0.7:19101"), node("[fd00::7]:1"), node("exporter.example:65535"), pod, task]
        .map(|value| value.to_string().into_bytes())
        .into()
}
