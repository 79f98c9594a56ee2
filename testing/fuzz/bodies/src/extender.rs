//! Requests of kube-scheduler (Filter, Prioritize, Bind), of explain and of simulate.

use std::sync::LazyLock;

use api::simulate::MAX_PODS;
use placement::gpu::Claim;
use placement::names::Names;
use placement::units::Units;
use scheduler_extender::node_request;
use scheduler_extender::view::NodeNames;
use scheduler_extender::wire::{self, BindingArgs, FilterResult, HostPriority};
use serde_json::{Value, json};

/// The body of Filter, Prioritize, Bind, explain and simulate: either an error with a text, or a request whose node
/// names appear in the answer as they were sent.
pub(crate) fn requests(input: &[u8]) {
    if let Err(error) = wire::parse::<BindingArgs>(input) {
        assert!(!error.to_string().is_empty());
    }
    match wire::read_explain_request(input) {
        Ok(request) => assert!(request.node_names.is_none_or(|names| names.len() <= 100_000)),
        Err(error) => assert!(error.to_string().contains("namespace") || input.len() > 100_000),
    }
    match wire::read_simulation(input) {
        Ok(asked) => assert!(asked.pods.len() <= MAX_PODS),
        Err(error) => assert!(error.to_string().contains("cannot read the request: ")),
    }
    let (pod, names) = match wire::read(input) {
        Ok(read) => read,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let facts = pod.facts(&Names::default());
    if let Ok(Some(gpu)) = &facts.gpu {
        assert!(gpu.request.peak() > Units::ZERO);
        if let Ok(Some(claim)) = &gpu.claim {
            assert_eq!(Claim::checked(&gpu.request, claim.containers()).as_ref(), Ok(claim));
        }
    }
    let given: Vec<&str> = names.iter().map(wire::Name::as_str).collect();
    let passed = FilterResult { node_names: Some(given.clone()), ..FilterResult::default() };
    assert_eq!(as_json(&passed)["NodeNames"], json!(given));
    let scores: Vec<_> = given.iter().map(|host| HostPriority { host, score: 10 }).collect();
    assert_eq!(as_json(&scores).as_array().map(Vec::len), Some(given.len()));
}

/// The names of a request: what is read without serde, serde reads alike.
pub(crate) fn names(input: &[u8]) {
    static KNOWN: LazyLock<NodeNames> = LazyLock::new(|| {
        NodeNames::new(["worker-1", "worker-2", "w\"\u{e9}"].map(|name| Some(name.into())))
    });
    let Some(request) = node_request::read_go_json(input, &KNOWN) else { return };
    let with_serde = match node_request::read_with_serde(input, &KNOWN) {
        Ok(with_serde) => with_serde,
        // The pod alone is one level less deep.
        Err(error) => return assert!(error.to_string().contains("recursion limit"), "{error}"),
    };
    let names = Names::default();
    assert_eq!(request.pod.facts(&names), with_serde.pod.facts(&names));
    assert_eq!(request.nodes, with_serde.nodes);
    assert_eq!(request.names, with_serde.names);
}

/// Requests as Go writes them.
pub(crate) fn go_examples() -> Vec<Vec<u8>> {
    [r#"["worker-1","worker-2","other"]"#, r#"["w\"\u00e9","worker-2"]"#, "[]"]
        .map(|names| {
            format!(r#"{{"Pod":{{"metadata":{{"uid":"7a3c"}}}},"Nodes":null,"NodeNames":{names}}}"#)
                .into_bytes()
        })
        .into()
}

fn as_json(answer: &impl serde::Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_default()
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let pod = json!({
        "metadata": {
            "name": "train", "namespace": "default", "uid": "7a3c", "creationTimestamp": "2026-11-20T09:00:00Z",
            "annotations": {"plimsoll.dev/gpu-claim": "{\"main\":{\"GPU-1\":3}}"},
            "ownerReferences": [{"kind": "DaemonSet", "name": "x", "controller": true}],
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "3", "cpu": "500m"}}}],
            "initContainers": [{"name": "init", "restartPolicy": "Always", "resources": {"limits": {"aliyun.com/gpu-mem": 2}}}],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
    });
    let node = json!({
        "metadata": {"name": "new", "labels": {"team": "a"}, "annotations": {"plimsoll.dev/gpu-isolation": "mps"}},
        "status": {"allocatable": {"aliyun.com/gpu-mem": "48", "aliyun.com/gpu-count": 2}},
    });
    let simulated = json!({"pods": [pod, {}], "node": node});
    let request =
        json!({"Pod": pod, "Nodes": null, "NodeNames": ["worker-1", "worker-2", "w\"\u{e9}"]});
    let bind = json!({"PodName": "train", "PodNamespace": "default", "PodUID": "7a3c", "Node": "worker-1"});
    let named =
        json!({"namespace": "default", "name": "train", "fresh": true, "nodeNames": ["worker-1"]});
    [request, bind, named, simulated].map(|value| value.to_string().into_bytes()).into()
}
