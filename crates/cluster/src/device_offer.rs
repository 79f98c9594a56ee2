//! The ResourceSlice of a node's GPUs, of which claims can have shares: written, compared and removed.
//!
//! Invariant: what is written keeps the API server's rules for a slice, which it takes or refuses as a whole. One slice
//! has all devices of its pool.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Client, Resource};
use placement::fnv;
use placement::names::limits;
use placement::units::{MiB, NodeName};
use serde_json::{Map, Value, json};

use crate::answer::{Built, acknowledged, object};
use crate::call::{CallError, within};
use crate::resource_slice::{DeviceSlice, ResourceSlice, SliceContent};

/// Devices of a slice of which one has a taint: the API server takes no more.
const MAX_DEVICES: usize = 64;
/// Attributes of a device: the API server takes 32 attributes and capacities.
const MAX_ATTRIBUTES: usize = 30;
/// Bytes of the text of an attribute.
const MAX_TEXT: usize = 64;
/// Taints of a device.
const MAX_TAINTS: usize = 16;
/// The least memory of a device: the API server refuses a range of requests without room for one step above its start.
const MIN_MEMORY: MiB = MiB(2);

/// The devices that a node's driver offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOffer {
    /// The node. It is the pool's name, too.
    pub node: NodeName,
    /// The UID of the Node, with which its slice goes; `None` where it is not known.
    pub node_uid: Option<String>,
    /// The driver's name.
    pub driver: String,
    /// The version of the pool, 0 or more.
    pub generation: i64,
    /// The devices, in the order in which kube-scheduler tries them. At most 64 are written, and none of less than
    /// 2 MiB.
    pub devices: Vec<OfferedShare>,
}

/// A device of which several claims can have shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedShare {
    /// Its name, a DNS label that no other one has.
    pub name: String,
    /// The memory that claims can have of it together. A claim that names no amount has all of it.
    pub memory: MiB,
    /// Its attributes, by name: at most 30 are written.
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Why new claims do not get it: at most 16 are written.
    pub taints: Vec<DeviceTaint>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceAttribute {
    /// A text; what is after 64 bytes is not written.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A truth.
    Bool(bool),
}

/// A taint with the effect NoSchedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTaint {
    /// Its key, as a label's.
    pub key: String,
    /// Its value. What a label's value cannot have is written as `-`.
    pub value: String,
}

impl DeviceOffer {
    /// Whether the API server has these devices in this slice. Generations are not compared, nor when taints were
    /// added. Where a slice that was just written differs, the API server has dropped fields, as one without the
    /// feature DRAConsumableCapacity does.
    pub fn is_in(&self, slice: &DeviceSlice) -> bool {
        slice.name == slice_name(&self.node, &self.driver)
            && slice.content == SliceContent::of(&self.spec())
    }

    fn spec(&self) -> Value {
        let mut devices = Vec::new();
        for device in &self.devices {
            if device.memory >= MIN_MEMORY && devices.len() < MAX_DEVICES {
                devices.push(device.to_json());
            }
        }
        json!({
            "driver": self.driver,
            "nodeName": self.node,
            "pool": { "name": self.node, "generation": self.generation.max(0), "resourceSliceCount": 1 },
            "devices": devices,
        })
    }

    fn slice(&self) -> Value {
        let mut slice = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": { "name": slice_name(&self.node, &self.driver) },
            "spec": self.spec(),
        });
        if let Some(uid) = self.node_uid.as_deref().filter(|uid| !uid.is_empty()) {
            slice["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid, "controller": true,
            }]);
        }
        slice
    }
}

impl OfferedShare {
    fn to_json(&self) -> Value {
        let memory = format!("{}Mi", self.memory.0);
        let policy = |default: &str, least: &str| json!({ "default": default, "validRange": { "min": least, "step": least } });
        let mut cores = policy("0", "0");
        cores["validRange"]["step"] = "1".into();
        let mut device = json!({
            "name": self.name,
            "allowMultipleAllocations": true,
            "capacity": {
                "memory": { "value": memory, "requestPolicy": policy(&memory, "1Mi") },
                "cores": { "value": "100", "requestPolicy": cores },
            },
        });
        let mut attributes = Map::new();
        for (name, attribute) in self.attributes.iter().take(MAX_ATTRIBUTES) {
            attributes.insert(name.clone(), attribute.to_json());
        }
        // The API server leaves out what is empty.
        if !attributes.is_empty() {
            device["attributes"] = attributes.into();
        }
        if !self.taints.is_empty() {
            device["taints"] =
                self.taints.iter().take(MAX_TAINTS).map(DeviceTaint::to_json).collect();
        }
        device
    }
}

impl DeviceAttribute {
    fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!({ "string": text[..text.floor_char_boundary(MAX_TEXT)] }),
            Self::Int(number) => json!({ "int": number }),
            Self::Bool(is_true) => json!({ "bool": is_true }),
        }
    }
}

impl DeviceTaint {
    fn to_json(&self) -> Value {
        let value = label_value(&self.value);
        let mut taint = json!({ "key": self.key, "effect": "NoSchedule" });
        if !value.is_empty() {
            taint["value"] = value.into();
        }
        taint
    }
}

/// The text as the value of a label: at most 63 letters, digits, `-`, `_` and `.`, of which a letter or a digit is the
/// first and the last.
fn label_value(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let written: String =
        text.chars().take(limits::LABEL).map(|c| if allowed(c) { c } else { '-' }).collect();
    written.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// The name of the slice of a node's driver: `<node>-<driver>`. Where that is longer than a name may be, the end of the
/// node's name is a hash of it.
///
/// # Examples
///
/// ```
/// let name = cluster::slice_name(&"worker-1".into(), "gpu.plimsoll.dev");
/// assert_eq!(name, "worker-1-gpu.plimsoll.dev");
/// ```
pub fn slice_name(node: &NodeName, driver: &str) -> String {
    let node = node.as_str();
    let name = format!("{node}-{driver}");
    if name.len() <= limits::NAME {
        return name;
    }
    let end = format!("-{:016x}-{driver}", fnv::hash(node.as_bytes()));
    let room = limits::NAME.saturating_sub(end.len());
    let begin = node[..node.floor_char_boundary(room)].trim_end_matches(['-', '.']);
    format!("{begin}{end}")
}

/// Writes a node's slice, and makes it where there is none. Returns it as the API server has it then.
///
/// # Errors
///
/// [`CallError`]; [`CallError::NotFound`] where Kubernetes has no ResourceSlices, [`CallError::Refused`] where a slice
/// of this name is for another node or driver. With [`CallError::Unknown`] it may have been written.
pub async fn write_device_slice(
    client: &Client,
    offer: &DeviceOffer,
    limit: Duration,
) -> Result<DeviceSlice, CallError> {
    let write = async {
        // Most slices are there, and only a kubelet's start removes them.
        match patched(client, offer).await {
            Err(error) if has_code(&error, 404) => {}
            written => return written,
        }
        match object(client, creation(offer)).await {
            Err(error) if has_code(&error, 409) => patched(client, offer).await,
            made => made,
        }
    };
    within(limit, write).await.map(|slice| slice.facts())
}

async fn patched(client: &Client, offer: &DeviceOffer) -> kube::Result<ResourceSlice> {
    let mut slice = offer.slice();
    // What is not ours to say of the nodes, and other kinds of devices.
    for field in ["nodeSelector", "allNodes", "perDeviceNodeSelection", "sharedCounters"] {
        slice["spec"][field] = Value::Null;
    }
    let name = slice_name(&offer.node, &offer.driver);
    let patch = slices().patch(&name, &PatchParams::default(), &Patch::Merge(slice));
    object(client, patch).await
}

fn creation(offer: &DeviceOffer) -> Built {
    use kube::core::request::Error;
    let body = serde_json::to_vec(&offer.slice()).map_err(Error::SerializeBody)?;
    slices().create(&PostParams::default(), body)
}

fn slices() -> Request {
    Request::new(ResourceSlice::url_path(&(), None))
}

fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Deletes a slice, if it is there.
///
/// # Errors
///
/// [`CallError`]; with [`CallError::Unknown`] it may have been deleted.
pub async fn delete_device_slice(
    client: &Client,
    name: &str,
    limit: Duration,
) -> Result<(), CallError> {
    let request = slices().delete(name, &DeleteParams::default());
    match within(limit, acknowledged(client, request)).await {
        Err(CallError::NotFound(_)) => Ok(()),
        deleted => deleted,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn offer() -> DeviceOffer {
        let attributes = [
            ("index", DeviceAttribute::Int(0)),
            ("isolationMps", DeviceAttribute::Bool(false)),
            ("uuid", DeviceAttribute::Text("GPU-aaaaaaaa-1111-2222-3333-444444444444".to_owned())),
        ];
        DeviceOffer {
            node: "a".into(),
            node_uid: Some("u".to_owned()),
            driver: "gpu.plimsoll.dev".to_owned(),
            generation: 3,
            devices: vec![OfferedShare {
                name: "gpu-aaaaaaaa-1111-2222-3333-444444444444".to_owned(),
                memory: MiB(16_000),
                attributes: attributes.map(|(name, value)| (name.to_owned(), value)).into(),
                taints: vec![DeviceTaint {
                    key: "plimsoll.dev/unhealthy".to_owned(),
                    value: "xid 79".to_owned(),
                }],
            }],
        }
    }

    fn stored(spec: &Value) -> DeviceSlice {
        let slice = json!({ "metadata": { "name": "a-gpu.plimsoll.dev" }, "spec": spec });
        serde_json::from_value::<ResourceSlice>(slice).unwrap().facts()
    }

    #[test]
    fn a_slice_has_shares_of_memory_and_of_compute() {
        assert_eq!(
            offer().slice(),
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                "metadata": {
                    "name": "a-gpu.plimsoll.dev",
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u", "controller": true},
                    ],
                },
                "spec": {
                    "driver": "gpu.plimsoll.dev", "nodeName": "a",
                    "pool": {"name": "a", "generation": 3, "resourceSliceCount": 1},
                    "devices": [{
                        "name": "gpu-aaaaaaaa-1111-2222-3333-444444444444",
                        "allowMultipleAllocations": true,
                        "attributes": {
                            "index": {"int": 0}, "isolationMps": {"bool": false},
                            "uuid": {"string": "GPU-aaaaaaaa-1111-2222-3333-444444444444"},
                        },
                        "capacity": {
                            "memory": {"value": "16000Mi", "requestPolicy": {
                                "default": "16000Mi", "validRange": {"min": "1Mi", "step": "1Mi"},
                            }},
                            "cores": {"value": "100", "requestPolicy": {
                                "default": "0", "validRange": {"min": "0", "step": "1"},
                            }},
                        },
                        "taints": [
                            {"key": "plimsoll.dev/unhealthy", "value": "xid-79", "effect": "NoSchedule"},
                        ],
                    }],
                },
            })
        );
    }

    #[test]
    fn a_slice_is_known_again_as_the_api_server_writes_it() {
        let mut spec = offer().spec();
        assert!(offer().is_in(&stored(&spec)));
        let device = &mut spec["devices"][0];
        device["taints"][0]["timeAdded"] = json!("2026-11-20T09:00:00Z");
        device["capacity"]["memory"]["value"] = json!("16384000Ki");
        spec["pool"]["generation"] = json!(9);
        let slice = stored(&spec);
        assert!(offer().is_in(&slice));
        assert_eq!((slice.driver.as_str(), slice.pool.as_str()), ("gpu.plimsoll.dev", "a"));
        assert_eq!(slice.generation, Some(9));
    }

    #[test]
    fn a_slice_without_devices_is_known_again() {
        let empty = DeviceOffer { devices: Vec::new(), ..offer() };
        let mut spec = empty.spec();
        assert!(empty.is_in(&stored(&spec)));
        spec.as_object_mut().unwrap().remove("devices");
        assert!(empty.is_in(&stored(&spec)));
        assert!(!offer().is_in(&stored(&spec)));
    }

    #[test]
    fn a_slice_that_another_hand_changed_is_another() {
        for (place, value) in [
            ("/devices/0/allowMultipleAllocations", json!(null)),
            ("/devices/0/capacity/memory/value", json!("16001Mi")),
            ("/devices/0/capacity/cores/requestPolicy/default", json!("1")),
            ("/devices/0/taints", json!([])),
            ("/devices/0/taints/0/effect", json!("NoExecute")),
            ("/devices/0/attributes/index/int", json!(1)),
            ("/devices", json!([])),
            ("/pool/resourceSliceCount", json!(2)),
            ("/driver", json!("gpu.nvidia.com")),
        ] {
            let mut spec = offer().spec();
            *spec.pointer_mut(place).unwrap() = value;
            assert!(!offer().is_in(&stored(&spec)), "{place}");
        }
        let other = DeviceOffer { node: "b".into(), ..offer() };
        assert!(!other.is_in(&stored(&offer().spec())));
    }

    #[test]
    fn devices_that_no_slice_can_have_are_left_out() {
        let share = offer().devices.remove(0);
        let small = OfferedShare { memory: MiB(1), ..share.clone() };
        let mut devices = vec![share; 65];
        devices.insert(0, small);
        let spec = DeviceOffer { devices, ..offer() }.spec();
        let devices = spec["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 64);
        assert!(devices.iter().all(|device| device["capacity"]["memory"]["value"] == "16000Mi"));
    }

    #[test]
    fn an_offer_without_the_nodes_uid_leaves_the_owner_alone() {
        for node_uid in [None, Some(String::new())] {
            let slice = DeviceOffer { node_uid, ..offer() }.slice();
            assert_eq!(slice["metadata"], json!({ "name": "a-gpu.plimsoll.dev" }));
        }
    }

    /// As `IsDNS1123Subdomain` has it.
    fn is_subdomain(name: &str) -> bool {
        let is_label = |label: &str| {
            let edges = [label.as_bytes().first(), label.as_bytes().last()];
            let is_edge = |byte: Option<&u8>| {
                byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            };
            edges.into_iter().all(is_edge) && label.bytes().all(placement::names::is_of_label)
        };
        name.len() <= 253 && name.split('.').all(is_label)
    }

    proptest! {
        #[test]
        fn a_slices_name_is_a_name_and_tells_nodes_apart(
            node in "[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?){0,12}",
            driver in "[a-z]{1,20}\\.[a-z]{1,40}",
        ) {
            let node = &node[..node.len().min(253)];
            let node = node.trim_end_matches(['-', '.']);
            let name = slice_name(&node.into(), &driver);
            prop_assert!(is_subdomain(&name), "{name}");
            let ending = format!("-{driver}");
            prop_assert!(name.ends_with(&ending));
            let other = format!("{}x", &node[..node.len() - 1]);
            prop_assert!(other == node || slice_name(&other.as_str().into(), &driver) != name);
        }

        #[test]
        fn a_taints_value_is_a_labels_value(text in "\\PC{0,80}|[-a-z._]{0,80}") {
            let value = label_value(&text);
            prop_assert!(value.len() <= 63);
            prop_assert!(value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)));
            let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
            prop_assert!(edge(value.chars().next()) && edge(value.chars().last()));
        }

        #[test]
        fn a_text_of_an_attribute_is_cut_at_a_letter(text in "\\PC{0,80}") {
            let written = DeviceAttribute::Text(text.clone()).to_json();
            let written = written["string"].as_str().unwrap();
            prop_assert!(written.len() <= 64 && text.starts_with(written));
            prop_assert!(text.len() > 64 || text == written);
        }
    }
}
