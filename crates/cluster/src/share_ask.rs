//! What a ResourceClaim asks for that is not allocated yet.
//!
//! Invariant: what cannot be read asks for nothing. kube-scheduler and the driver decide about it, and say why.

use api::share_config::ShareConfig;
use placement::gpu::Isolation;
use placement::units::{Cores, MiB};
use serde::Deserialize;
use serde_json::Value;

use crate::quantity::Quantity;

/// Requests and configurations that are read of one claim, each: the API server takes 32.
const MAX_ITEMS: usize = 32;
/// Devices that one claim can have.
const MAX_GPUS: u32 = 32;

/// The same share of some GPUs of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareAsk {
    /// GPUs, 1 to 32.
    pub gpus: u32,
    /// Memory of each, rounded up to MiB; `None` for all of it.
    pub memory: Option<MiB>,
    /// Percent of the compute of each.
    pub cores: Cores,
    /// The weakest isolation that the claim's own configuration allows.
    pub isolation: Isolation,
}

/// The requests of a claim's `spec` for devices of the DeviceClass `class`, which `driver` has. Requests of
/// administrators are none, and neither are alternatives, of which kube-scheduler takes one.
pub(crate) fn share_asks(spec: &Value, driver: &str, class: &str) -> Vec<ShareAsk> {
    let mut asks = Vec::new();
    for request in items(&spec["devices"]["requests"]) {
        let exactly = &request["exactly"];
        if exactly["deviceClassName"] == class && exactly["adminAccess"] != true {
            let isolation = isolation(&spec["devices"]["config"], driver, &request["name"]);
            asks.extend(share_ask(exactly, isolation));
        }
    }
    asks
}

/// Whether the `spec` asks for the share of [`share_asks`] and nothing else: for no second request, no other capacity,
/// and no certain devices.
pub(crate) fn is_one_share(spec: &Value, asks: &[ShareAsk]) -> bool {
    let devices = &spec["devices"];
    let exactly = &devices["requests"][0]["exactly"];
    let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    let is_counted = |name: &String| name == "memory" || name == "cores";
    asks.len() == 1
        && items(&devices["requests"]).count() == 1
        && exactly["capacity"]["requests"].as_object().is_none_or(|it| it.keys().all(is_counted))
        && is_empty(&exactly["selectors"])
        && is_empty(&devices["constraints"])
}

fn share_ask(exactly: &Value, isolation: Isolation) -> Option<ShareAsk> {
    let is_exact = exactly["allocationMode"].is_null() || exactly["allocationMode"] == "ExactCount";
    let count = &exactly["count"];
    let gpus = if count.is_null() { 1 } else { u32::try_from(count.as_u64()?).ok()? };
    let capacity = &exactly["capacity"]["requests"];
    let memory = stated(&capacity["memory"], |it| Some(MiB::holding(it.bytes().ok()?)))?;
    let cores = stated(&capacity["cores"], |it| it.count().ok().map(Cores))?.unwrap_or_default();
    (is_exact && (1..=MAX_GPUS).contains(&gpus)).then_some(ShareAsk {
        gpus,
        memory,
        cores,
        isolation,
    })
}

/// `Some(None)` where there is no quantity, `None` where there is one that cannot be read.
fn stated<T>(quantity: &Value, read: impl Fn(&Quantity) -> Option<T>) -> Option<Option<T>> {
    if quantity.is_null() {
        return Some(None);
    }
    read(&Quantity::deserialize(quantity).ok()?).map(Some)
}

/// The strongest of the driver's configurations of a request.
fn isolation(config: &Value, driver: &str, request: &Value) -> Isolation {
    let mut strongest = Isolation::default();
    for config in items(config) {
        let (opaque, of) = (&config["opaque"], &config["requests"]);
        let is_of_all = of.as_array().is_none_or(Vec::is_empty);
        if opaque["driver"] == driver && (is_of_all || items(of).any(|name| name == request)) {
            let read = ShareConfig::from_value(&opaque["parameters"]).ok();
            strongest = strongest.max(read.and_then(|read| read.isolation).unwrap_or_default());
        }
    }
    strongest
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten().take(MAX_ITEMS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(exactly: &Value) -> Vec<ShareAsk> {
        let spec = json!({"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}});
        share_asks(&spec, "gpu.plimsoll.dev", "gpu-share.plimsoll.dev")
    }

    fn exactly(fields: &Value) -> Value {
        let mut exactly = json!({"deviceClassName": "gpu-share.plimsoll.dev"});
        let fields = fields.as_object().unwrap().clone();
        exactly.as_object_mut().unwrap().extend(fields);
        exactly
    }

    fn share(gpus: u32, memory: Option<u64>, cores: u32) -> ShareAsk {
        let isolation = Isolation::None;
        ShareAsk { gpus, memory: memory.map(MiB), cores: Cores(cores), isolation }
    }

    #[test]
    fn a_share_is_memory_and_compute_of_some_gpus() {
        for (fields, wanted) in [
            (json!({}), share(1, None, 0)),
            (json!({"capacity": {"requests": {"memory": "4Gi"}}}), share(1, Some(4096), 0)),
            (
                json!({"count": 2, "allocationMode": "ExactCount",
                    "capacity": {"requests": {"memory": "1500Ki", "cores": "30"}}}),
                share(2, Some(2), 30),
            ),
        ] {
            assert_eq!(asked(&exactly(&fields)), [wanted]);
        }
    }

    #[test]
    fn what_cannot_be_read_or_may_be_something_else_asks_for_nothing() {
        for fields in [
            json!({"deviceClassName": "nic.example.com"}),
            json!({"adminAccess": true}),
            json!({"allocationMode": "All"}),
            json!({"count": 0}),
            json!({"count": "2"}),
            json!({"count": 1_u64 << 32}),
            json!({"count": 33}),
            json!({"capacity": {"requests": {"memory": "much"}}}),
            json!({"capacity": {"requests": {"memory": [4]}}}),
            json!({"capacity": {"requests": {"cores": "500m"}}}),
        ] {
            assert_eq!(asked(&exactly(&fields)), [], "{fields}");
        }
        let alternatives = json!({"devices": {"requests": [{"name": "gpu", "firstAvailable": [exactly(&json!({}))]}]}});
        for spec in
            [json!(null), json!(7), json!({"devices": {"requests": [7, null]}}), alternatives]
        {
            assert_eq!(share_asks(&spec, "gpu.plimsoll.dev", "gpu-share.plimsoll.dev"), []);
        }
    }

    #[test]
    fn only_what_asks_for_one_share_of_any_gpu_is_one_share() {
        let is_one = |spec: &Value| {
            let asks = share_asks(spec, "gpu.plimsoll.dev", "gpu-share.plimsoll.dev");
            is_one_share(spec, &asks)
        };
        let of = |fields: &Value| json!({"devices": {"requests": [{"name": "gpu", "exactly": exactly(fields)}]}});
        for fields in [
            json!({}),
            json!({"count": 2, "selectors": []}),
            json!({"capacity": {"requests": {"memory": "4Gi", "cores": "30"}}}),
        ] {
            assert!(is_one(&of(&fields)), "{fields}");
        }
        for fields in [
            json!({"selectors": [{"cel": {"expression": "false"}}]}),
            json!({"capacity": {"requests": {"memory": "4Gi", "other": "1"}}}),
            json!({"allocationMode": "All"}),
        ] {
            assert!(!is_one(&of(&fields)), "{fields}");
        }
        let mut constrained = of(&json!({"count": 2}));
        constrained["devices"]["constraints"] = json!([{"matchAttribute": "example.com/a"}]);
        let mut second = of(&json!({}));
        let nic = json!({"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}});
        second["devices"]["requests"].as_array_mut().unwrap().push(nic);
        assert!(!is_one(&constrained) && !is_one(&second) && !is_one(&Value::Null));
    }

    #[test]
    fn a_share_is_limited_as_the_claims_own_configurations_say() {
        let config = |driver: &str, requests: &[&str], isolation: &str| {
            let parameters = json!({"apiVersion": "plimsoll.dev/v1", "kind": "ShareConfig", "isolation": isolation});
            json!({"requests": requests, "opaque": {"driver": driver, "parameters": parameters}})
        };
        let driver = "gpu.plimsoll.dev";
        for (configs, wanted) in [
            (vec![config(driver, &[], "mps")], Isolation::Mps),
            (
                vec![config(driver, &["gpu"], "driver"), config(driver, &[], "mps")],
                Isolation::Driver,
            ),
            (vec![config(driver, &["other"], "mps")], Isolation::None),
            (vec![config("other.example.com", &[], "mps")], Isolation::None),
            (vec![config(driver, &[], "much"), json!(7)], Isolation::None),
        ] {
            let requests = json!([{"name": "gpu", "exactly": exactly(&json!({}))}]);
            let spec = json!({"devices": {"requests": requests, "config": configs}});
            let asks = share_asks(&spec, driver, "gpu-share.plimsoll.dev");
            assert_eq!(asks[0].isolation, wanted, "{spec}");
        }
    }
}
