//! ResourceSlices: the devices that drivers of dynamic resource allocation (DRA) offer on a node.
//!
//! Invariant: a device that cannot be read is left out, and breaks no other one and no list.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use kube::api::ListParams;
use kube::core::Request;
use kube::{Client, Resource};
use placement::quantity::bytes;
use placement::units::NodeName;
use serde::Deserialize;
use serde_json::Value;

use crate::call::{CallError, within};
use crate::meta::{Meta, resource};

/// The field with the name of the node that has a slice's devices.
pub(crate) const NODE_FIELD: &str = "spec.nodeName";
/// Devices of one slice that are read at most: the API server takes no more.
const MAX_DEVICES: usize = 128;
/// Attributes of one device that are read at most: the API server takes no more attributes and capacities.
const MAX_ATTRIBUTES: usize = 32;

/// The parts of a ResourceSlice that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResourceSlice {
    metadata: Meta,
    spec: Value,
}

resource!(
    ResourceSlice,
    ClusterResourceScope,
    "resource.k8s.io",
    "ResourceSlice",
    "resourceslices"
);

/// The name of a device that a driver offers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName {
    /// The driver, such as `gpu.nvidia.com`.
    pub driver: String,
    /// The driver's pool, usually the node's name.
    pub pool: String,
    /// The device's name in its pool, such as `gpu-0`.
    pub device: String,
}

/// A device of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedDevice {
    /// Its name.
    pub name: DeviceName,
    /// The values of its attributes that are texts, such as NVIDIA's `uuid` of a GPU, and `parentUUID` of a part of
    /// one. Each driver names its attributes itself.
    pub texts: BTreeSet<String>,
}

/// What a slice says of its devices, as a hash: without its generation, the times of taints and the spelling of
/// quantities. To be compared within one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SliceContent(u64);

/// What a ResourceSlice says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSlice {
    /// The slice's name.
    pub name: String,
    /// The driver, such as `gpu.nvidia.com`.
    pub driver: String,
    /// The driver's pool, usually the node's name.
    pub pool: String,
    /// The version of the pool; `None` where it cannot be read.
    pub generation: Option<i64>,
    /// All that it says of devices.
    pub content: SliceContent,
    /// Its devices.
    pub devices: Vec<OfferedDevice>,
}

impl ResourceSlice {
    pub(crate) fn facts(&self) -> DeviceSlice {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let driver = text(&self.spec["driver"]);
        let pool = text(&self.spec["pool"]["name"]);
        let mut devices = Vec::new();
        for listed in self.spec["devices"].as_array().into_iter().flatten().take(MAX_DEVICES) {
            let Some(device) = listed["name"].as_str().map(str::to_owned) else { continue };
            let name = DeviceName { driver: driver.clone(), pool: pool.clone(), device };
            let mut texts = BTreeSet::new();
            let attributes = listed["attributes"].as_object();
            for (_, value) in attributes.into_iter().flatten().take(MAX_ATTRIBUTES) {
                texts.extend(value["string"].as_str().map(str::to_owned));
            }
            devices.push(OfferedDevice { name, texts });
        }
        DeviceSlice {
            name: self.metadata.object.name.clone().unwrap_or_default(),
            driver,
            pool,
            generation: self.spec["pool"]["generation"].as_i64(),
            content: SliceContent::of(&self.spec),
            devices,
        }
    }
}

/// The quantities of a device's capacity.
const QUANTITIES: [&str; 5] = [
    "/value",
    "/requestPolicy/default",
    "/requestPolicy/validRange/min",
    "/requestPolicy/validRange/max",
    "/requestPolicy/validRange/step",
];

impl SliceContent {
    /// Of a slice's spec.
    pub(crate) fn of(spec: &Value) -> Self {
        let mut spec = spec.clone();
        if let Some(Value::Object(pool)) = spec.get_mut("pool") {
            pool.remove("generation");
        }
        // The API server leaves out what is empty.
        if spec["devices"].as_array().is_some_and(Vec::is_empty)
            && let Some(fields) = spec.as_object_mut()
        {
            fields.remove("devices");
        }
        let devices = spec.get_mut("devices").and_then(Value::as_array_mut);
        devices.into_iter().flatten().for_each(settle);
        let mut hasher = DefaultHasher::new();
        spec.to_string().hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Writes a device's quantities in one way, and takes out the times of its taints, which the API server sets.
fn settle(device: &mut Value) {
    let capacity = device.get_mut("capacity").and_then(Value::as_object_mut);
    for (_, capacity) in capacity.into_iter().flatten() {
        for place in QUANTITIES {
            let Some(quantity) = capacity.pointer_mut(place) else { continue };
            if let Some(Ok(bytes)) = quantity.as_str().map(bytes) {
                *quantity = bytes.into();
            }
        }
    }
    let taints = device.get_mut("taints").and_then(Value::as_array_mut);
    for taint in taints.into_iter().flatten().filter_map(Value::as_object_mut) {
        taint.remove("timeAdded");
    }
}

/// Whether the ResourceSlices of a node can be listed: not where Kubernetes has none, or where this program may not.
///
/// # Errors
/// [`CallError`] where the API server does not say.
pub async fn has_device_slices(
    client: &Client,
    node: &NodeName,
    limit: Duration,
) -> Result<bool, CallError> {
    let params = ListParams::default().fields(&format!("{NODE_FIELD}={node}")).limit(1);
    let list = async {
        let request = Request::new(ResourceSlice::url_path(&(), None)).list(&params);
        // Whether the slice can be read does not matter.
        client.request_text(request.map_err(kube::Error::BuildRequest)?).await
    };
    match within(limit, list).await {
        Ok(_) => Ok(true),
        Err(CallError::NotFound(_) | CallError::Refused { code: 403, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn facts(slice: Value) -> DeviceSlice {
        serde_json::from_value::<ResourceSlice>(slice).unwrap().facts()
    }

    /// As NVIDIA's driver publishes a GPU and a part of one.
    fn nvidias() -> Value {
        json!({
            "metadata": {"name": "node-1-gpu.nvidia.com-x7k2p", "generateName": "node-1-gpu.nvidia.com-"},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": "node-1",
                "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {
                        "name": "gpu-0",
                        "attributes": {
                            "addressingMode": {"string": "HMM"},
                            "architecture": {"string": "Ampere"},
                            "brand": {"string": "Nvidia"},
                            "cudaComputeCapability": {"version": "8.0.0"},
                            "cudaDriverVersion": {"version": "13.0.0"},
                            "driverVersion": {"version": "580.95.5"},
                            "productName": {"string": "NVIDIA A100-SXM4-40GB"},
                            "resource.kubernetes.io/pciBusID": {"string": "0000:07:00.0"},
                            "type": {"string": "gpu"},
                            "uuid": {"string": "GPU-aaaaaaaa-1111-2222-3333-444444444444"},
                        },
                        "capacity": {"memory": {"value": "40Gi"}},
                    },
                    {
                        "name": "gpu-1-mig-1g5gb-19-0",
                        "attributes": {
                            "parentIndex": {"int": 1},
                            "parentUUID": {"string": "GPU-bbbbbbbb-1111-2222-3333-444444444444"},
                            "profile": {"string": "1g.5gb"},
                            "type": {"string": "mig"},
                            "uuid": {"string": "MIG-cccccccc-1111-2222-3333-444444444444"},
                        },
                    },
                ],
            },
        })
    }

    #[test]
    fn gpus_and_parts_of_gpus_name_the_gpu() {
        let slice = facts(nvidias());
        let [gpu, part] = &slice.devices[..] else { panic!("{slice:?}") };
        assert_eq!(
            gpu.name,
            DeviceName {
                driver: "gpu.nvidia.com".into(),
                pool: "node-1".into(),
                device: "gpu-0".into()
            }
        );
        assert!(gpu.texts.contains("GPU-aaaaaaaa-1111-2222-3333-444444444444"));
        assert!(part.texts.contains("GPU-bbbbbbbb-1111-2222-3333-444444444444"));
    }

    proptest! {
        #[test]
        fn a_broken_part_leaves_the_other_devices(
            place in prop::sample::select(vec![
                "/spec/pool", "/spec/devices/1", "/spec/devices/1/name", "/spec/devices/1/attributes",
                "/spec/devices/1/attributes/uuid", "/spec/devices/1/attributes/uuid/string",
            ]),
            value in prop::sample::select(vec![
                json!(null), json!(7), json!("x"), json!([]), json!({}), json!([{"string": 1}]), json!(true),
            ]),
        ) {
            let mut slice = nvidias();
            *slice.pointer_mut(place).unwrap() = value;
            let read = facts(slice);
            prop_assert_eq!(&read.devices[0].name.device, "gpu-0");
        }
    }

    #[test]
    fn a_slice_without_anything_has_no_devices() {
        for slice in [
            json!({}),
            json!({"spec": null}),
            json!({"spec": []}),
            json!({"spec": {"devices": {}}}),
        ] {
            assert_eq!(facts(slice).devices, []);
        }
    }
}
