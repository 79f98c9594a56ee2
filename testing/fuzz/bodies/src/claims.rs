//! ResourceClaims as kube-scheduler writes them, and the parameters for the driver that their authors write.

use api::share_config::ShareConfig;
use cluster::ResourceClaim;
use placement::names::limits;
use placement::units::Cores;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.plimsoll.dev";

/// Either an error that names a field, or facts of bounded length; and shares that it asks for, if any.
pub(crate) fn resource_claim(input: &[u8]) {
    let Ok(claim) = serde_json::from_slice::<ResourceClaim>(input) else { return };
    let asks = claim.asks(DRIVER, "gpu-share.plimsoll.dev");
    assert!(asks.len() <= 32 && asks.iter().all(|ask| (1..=32).contains(&ask.gpus)));
    let facts = match claim.facts(DRIVER) {
        Ok(facts) => facts,
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(": ") && error.len() < 600, "{error}");
            return;
        }
    };
    assert!(!facts.uid.as_str().is_empty() && facts.reserved_for.len() <= 256);
    let Some(allocated) = facts.allocated else { return };
    assert!((1..=128).contains(&allocated.results.len()) && allocated.configs.len() <= 128);
    for result in allocated.results {
        assert!(result.cores.is_none_or(|cores| cores <= Cores::ALL));
        assert!((1..=limits::LABEL).contains(&result.device.len()));
        assert!((1..=limits::NAME).contains(&result.pool.len()));
    }
}

pub(crate) fn resource_claims() -> Vec<Vec<u8>> {
    let result = json!({
        "request": "gpu", "driver": DRIVER, "pool": "a", "device": "gpu-7f2a",
        "shareID": "c3a1f2de-5b6c-4f7a-8f0e-1d2c3b4a5968",
        "consumedCapacity": {"memory": "4Gi", "cores": "30"},
    });
    let config = json!({"source": "FromClass", "requests": ["gpu"], "opaque": {
        "driver": DRIVER, "parameters": {"kind": "ShareConfig"},
    }});
    let users = json!([{"resource": "pods", "name": "p", "uid": "8b1f4a9e"}]);
    let claim = json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "7a3c"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c"}}]}},
        "status": {"reservedFor": users, "allocation": {
            "nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]},
            ]},
            "devices": {"results": [result], "config": [config]},
        }},
    });
    vec![claim.to_string().into_bytes(), br#"{"metadata":{"uid":"u"},"status":null}"#.to_vec()]
}

/// Either a short error, or parameters that stay the same when they are written and read again.
pub(crate) fn share_config(input: &[u8]) {
    let Ok(parameters) = serde_json::from_slice::<Value>(input) else { return };
    match ShareConfig::from_value(&parameters) {
        Ok(config) => {
            let written = serde_json::to_value(config).unwrap_or_default();
            assert_eq!(ShareConfig::from_value(&written), Ok(config));
        }
        Err(error) => assert!(error.to_string().len() < 800, "{error}"),
    }
}

pub(crate) fn share_configs() -> Vec<Vec<u8>> {
    [
        r#"{"apiVersion":"plimsoll.dev/v1","kind":"ShareConfig","isolation":"mps"}"#,
        r#"{"apiVersion":"plimsoll.dev/v1","kind":"ShareConfig","memoryLimit":9223372036854775807}"#,
        r#"{"apiVersion":"plimsoll.dev/v1","kind":"ShareConfig","memoryLimit":"1e-9Gi","x":0}"#,
    ]
    .map(Vec::from)
    .into()
}
