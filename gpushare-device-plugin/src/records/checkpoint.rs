//! The kubelet's checkpoint: its file of which container holds which devices.
//!
//! The kubelet writes it after each container's allocation and after each device list of a plugin, and
//! reads it back after its own restart. Unlike PodResources it has UIDs and init containers, and reading
//! it changes nothing in the kubelet. Its format is the kubelet's own, the same since v1.20
//! (pkg/kubelet/cm/devicemanager/checkpoint). A file of another format is an error; callers then continue
//! without the checkpoint.
//!
//! It is read at each use and not kept in [`super::Records`]: it is the kubelet's state of one moment, and the next
//! allocation replaces it. Records take from it only what they lack ([`super::Records::restore`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cluster::PodFacts;
use kubelet_api::v1beta1::ContainerAllocateResponse;
use placement::units::{GpuId, MiB, PodUid};
use prost::Message as _;
use serde::Deserialize;

use crate::container::UNIT_MIB;
use crate::container::cdi::PodLimits;
use crate::gpus::ids::{Ids, first_few};
use crate::isolation::limit::Limit;

/// The file's name in the kubelet's device plugin directory.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// The location of the kubelet's checkpoint, and the resource that is read from it.
#[derive(Debug, Clone)]
pub struct CheckpointFile {
    /// The kubelet's device plugin directory.
    pub directory: PathBuf,
    /// The resource whose ids are read, such as `aliyun.com/gpu-mem`.
    pub resource: String,
}

/// The content of the checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Containers that hold ids of our resource. Those of deleted pods are included until the kubelet frees
    /// their ids.
    pub held: Vec<HeldIds>,
    /// The limits of these containers, by the devices of their responses: by the pod's UID and the container's name.
    pub container_limits: BTreeMap<(PodUid, String), Limit>,
    /// GPUs that containers hold by other resources, such as `nvidia.com/gpu`.
    pub other_plugin_gpus: Vec<OtherPluginGpu>,
    /// GPUs that other resources offer now, by resource.
    pub other_plugin_offers: BTreeMap<String, BTreeSet<GpuId>>,
    /// Whether another device plugin has healthy devices on this node.
    pub other_plugins: bool,
}

/// The ids of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldIds {
    /// The UID of its pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: String,
    /// The ids, never empty.
    pub ids: Ids,
    /// GPU memory of one unit when the ids were granted; `None` if the stored response does not contain it.
    pub unit: Option<MiB>,
}

/// A GPU that a container holds through another plugin's resource or by a resource claim, exclusively or shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherPluginGpu {
    /// The UID of its pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: String,
    /// The resource, such as `nvidia.com/gpu`, or the claim's driver, such as `gpu.nvidia.com`.
    pub resource: String,
    /// The GPU.
    pub gpu: GpuId,
}

/// The checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the kubelet's checkpoint {path} cannot be read: {reason}")]
pub struct CheckpointError {
    path: PathBuf,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CheckpointText {
    data: Data,
}

// Go writes an empty list or map as null.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<String, Option<Vec<String>>>>,
    /// The plugin's response to Allocate: a protobuf message in base64.
    alloc_resp: Option<String>,
}

/// Containers hold ids of another unit than the one set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--unit-mib is {}, but containers hold units of {held}: delete the GPU pods of this node ({pods}), \
     or set --unit-mib={} again", unit.0, held.0
)]
pub struct UnitChanged {
    unit: MiB,
    held: MiB,
    pods: String,
}

impl CheckpointFile {
    /// Reads the file. A missing file is an empty checkpoint: the kubelet has not written one yet.
    ///
    /// # Errors
    /// If the file cannot be read or has another format.
    pub fn read(&self) -> Result<Checkpoint, CheckpointError> {
        Ok(self.find()?.unwrap_or_default())
    }

    /// As [`CheckpointFile::read`]; `None` if there is no file.
    ///
    /// # Errors
    /// As [`CheckpointFile::read`].
    pub fn find(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let path = self.directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CheckpointError { path, reason: error.to_string() }),
        };
        match Checkpoint::parse(&text, &self.resource) {
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(error) => Err(CheckpointError { path, reason: error.to_string() }),
        }
    }
}

impl Checkpoint {
    /// Checks that no container holds ids of another unit than `unit`. `pod` looks up a pod's name; `None`
    /// for a deleted pod, whose entry stays until the kubelet's next allocation.
    ///
    /// # Errors
    /// If a container holds ids of another unit.
    pub fn check_unit(
        &self,
        unit: MiB,
        pod: impl Fn(&PodUid) -> Option<String>,
    ) -> Result<(), UnitChanged> {
        let mut pods = BTreeSet::new();
        let mut old = None;
        for held in &self.held {
            let Some(held_unit) = held.unit else { continue };
            if held_unit != unit
                && let Some(name) = pod(&held.pod)
            {
                pods.insert(name);
                old = Some(held_unit);
            }
        }
        match old {
            None => Ok(()),
            Some(held) => Err(UnitChanged { unit, held, pods: first_few(pods) }),
        }
    }

    /// The GPUs that existing pods hold through other resources. `pod` looks up what the API server shows of a UID.
    pub fn gpus_held_elsewhere<'c>(
        &'c self,
        pod: impl Fn(&PodUid) -> Option<Arc<PodFacts>> + 'c,
    ) -> impl Iterator<Item = &'c OtherPluginGpu> {
        self.other_plugin_gpus
            .iter()
            .filter(move |gpu| pod_exists(&gpu.pod, pod(&gpu.pod).as_deref()))
    }

    /// Parses the text of a checkpoint. Ids that are not of this plugin's form are left out.
    ///
    /// # Errors
    /// If it is not JSON of the kubelet's format.
    pub fn parse(text: &str, resource: &str) -> Result<Self, serde_json::Error> {
        let data = serde_json::from_str::<CheckpointText>(text)?.data;
        let mut checkpoint = Self::default();
        for entry in data.pod_device_entries.into_iter().flatten() {
            if entry.resource_name == resource {
                if let Some(limit) = entry.limit() {
                    let pod = PodUid::from(entry.pod_uid.as_str());
                    checkpoint.container_limits.insert((pod, entry.container_name.clone()), limit);
                }
                checkpoint.held.push(entry.held_ids());
            } else {
                checkpoint.other_plugin_gpus.extend(entry.other_plugin_gpus());
            }
        }
        checkpoint.held.retain(|held| !held.ids.is_empty());
        for (name, registered) in data.registered_devices.into_iter().flatten() {
            let ids = registered.unwrap_or_default();
            if name == resource || ids.is_empty() {
                continue;
            }
            checkpoint.other_plugins = true;
            let gpus: BTreeSet<GpuId> =
                ids.iter().filter_map(|id| gpu_of_other_plugin(id)).collect();
            if !gpus.is_empty() {
                checkpoint.other_plugin_offers.insert(name, gpus);
            }
        }
        Ok(checkpoint)
    }

    /// The limits that each pod has.
    pub fn limits(&self) -> PodLimits {
        self.container_limits.iter().map(|((pod, _), limit)| (pod.clone(), *limit)).collect()
    }
}

/// The GPU of another plugin's device. NVIDIA's device plugin names a GPU by its UUID, and a replica of one by
/// `UUID::N`.
fn gpu_of_other_plugin(id: &str) -> Option<GpuId> {
    let uuid = id.split_once("::").map_or(id, |(uuid, _)| uuid);
    uuid.starts_with("GPU-").then(|| GpuId::from(uuid))
}

/// Whether the UID is that of a static pod: the API server shows it under the UID of its mirror pod. In the kubelet it
/// has no hyphens.
pub fn is_static(uid: &PodUid) -> bool {
    !uid.as_str().contains('-')
}

/// Whether a pod of the checkpoint may still use its devices, by the `facts` that the API server shows of its UID. The
/// kubelet drops the entries of ended pods only at its next allocation.
pub fn pod_exists(uid: &PodUid, facts: Option<&PodFacts>) -> bool {
    facts.map_or(is_static(uid), |facts| !facts.finished)
}

impl Entry {
    /// The ids of all NUMA nodes.
    fn ids(&self) -> impl Iterator<Item = &String> {
        self.device_ids.iter().flat_map(BTreeMap::values).flatten().flatten()
    }

    fn other_plugin_gpus(&self) -> Vec<OtherPluginGpu> {
        let mut held = Vec::new();
        for gpu in self.ids().filter_map(|id| gpu_of_other_plugin(id)) {
            held.push(OtherPluginGpu {
                pod: PodUid::from(self.pod_uid.as_str()),
                container: self.container_name.clone(),
                resource: self.resource_name.clone(),
                gpu,
            });
        }
        held
    }

    /// The limit of the container, by the one device of its response that is of a limit.
    fn limit(&self) -> Option<Limit> {
        let response = self.alloc_resp.as_deref().and_then(response)?;
        response.cdi_devices.iter().find_map(|device| device.name.split_once('=')?.1.parse().ok())
    }

    fn held_ids(self) -> HeldIds {
        HeldIds {
            pod: PodUid::from(self.pod_uid.as_str()),
            ids: self.ids().filter_map(|id| id.parse().ok()).collect(),
            container: self.container_name,
            unit: self.alloc_resp.as_deref().and_then(unit),
        }
    }
}

/// The unit in the environment of a response to Allocate.
fn unit(text: &str) -> Option<MiB> {
    response(text)?.envs.get(UNIT_MIB)?.parse().ok().map(MiB)
}

fn response(text: &str) -> Option<ContainerAllocateResponse> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    ContainerAllocateResponse::decode(bytes.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use kubelet_api::v1beta1::CdiDevice;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::ids;
    use crate::isolation::limit::MpsLimit;

    /// Written by the package `devicemanager/checkpoint` of kubelet v1.36.2, byte by byte: three containers
    /// with ids of this plugin, the last without a unit in its response, and one of another plugin.
    const FILE: &str = include_str!("../../tests/fixtures/kubelet_internal_checkpoint");
    const RESOURCE: &str = "aliyun.com/gpu-mem";

    fn held(pod: &str, container: &str, ids: Ids, unit: Option<MiB>) -> HeldIds {
        HeldIds { pod: pod.into(), container: container.to_owned(), ids, unit }
    }

    /// A checkpoint of these entries, and of these ids by resource that plugins offer.
    fn text(entries: &[Value], registered: &Value) -> String {
        let data = json!({ "PodDeviceEntries": entries, "RegisteredDevices": registered });
        json!({ "Data": data, "Checksum": 1 }).to_string()
    }

    fn entry(pod: &str, resource: &str, id: &str, response: &str) -> Value {
        json!({
            "PodUID": pod,
            "ContainerName": "c",
            "ResourceName": resource,
            "DeviceIDs": { "0": [id] },
            "AllocResp": response,
        })
    }

    /// A response to Allocate with these CDI devices, as the checkpoint has it.
    fn response_with(devices: &[&str]) -> String {
        let cdi_devices = devices.iter().map(|name| CdiDevice { name: (*name).to_owned() });
        let response = ContainerAllocateResponse {
            cdi_devices: cdi_devices.collect(),
            ..ContainerAllocateResponse::default()
        };
        BASE64_STANDARD.encode(response.encode_to_vec())
    }

    #[test]
    fn a_kubelets_checkpoint_names_every_container_and_other_plugins() {
        let checkpoint = Checkpoint::parse(FILE, RESOURCE).unwrap();
        let expected = [
            held("a3d1f0a2-0001", "init", ids(["aaaaaaaa-0", "aaaaaaaa-1"]), Some(MiB(1024))),
            held("a3d1f0a2-0001", "main", ids(["aaaaaaaa-1"]), Some(MiB(1024))),
            held("a3d1f0a2-0002", "main", ids(["bbbbbbbb-7"]), None),
        ];
        assert_eq!((&checkpoint.held[..], checkpoint.other_plugins), (&expected[..], true));
        let other = Checkpoint::parse(FILE, "example.com/nic").unwrap();
        assert_eq!((other.held, other.other_plugins), (vec![], true), "ids of another form");
    }

    #[test]
    fn the_limits_of_containers_are_known_by_the_devices_of_their_responses() {
        let of_p = response_with(&[
            "nvidia.com/gpu=GPU-a",
            "plimsoll.dev/gpu-mem=GPU-a",
            "plimsoll.dev/gpu-mem=driver-2",
        ]);
        let of_q = response_with(&["plimsoll.dev/gpu-mem=mps-1-2-100"]);
        let of_r = response_with(&["plimsoll.dev/gpu-mem=GPU-a"]);
        let of_s = response_with(&["plimsoll.dev/gpu-mem=driver-4"]);
        let entries = [
            entry("p", RESOURCE, "aaaaaaaa-0", &of_p),
            entry("q", RESOURCE, "aaaaaaaa-0", &of_q),
            entry("r", RESOURCE, "aaaaaaaa-0", &of_r),
            entry("s", "example.com/other", "aaaaaaaa-0", &of_s),
            entry("t", RESOURCE, "aaaaaaaa-0", "!"),
        ];
        let text = text(&entries, &Value::Null);
        let checkpoint = Checkpoint::parse(&text, RESOURCE).unwrap();
        let driver = Limit::Driver { limit: MiB(2) };
        let mps = Limit::Mps(MpsLimit { gpus: 1, limit: MiB(2), threads: 100 });
        let limits = PodLimits::from([("p".into(), driver), ("q".into(), mps)]);
        assert_eq!(checkpoint.limits(), limits);
        let by_container: Vec<_> = checkpoint
            .container_limits
            .iter()
            .map(|((pod, container), limit)| (pod.as_str(), container.as_str(), *limit))
            .collect();
        assert_eq!(by_container, [("p", "c", driver), ("q", "c", mps)]);
    }

    #[test]
    fn gpus_of_another_plugin_are_known_by_their_uuids() {
        let entries = [
            entry("p", "nvidia.com/gpu", "GPU-a", ""),
            entry("p", "nvidia.com/gpu.shared", "GPU-b::3", ""),
            entry("p", "nvidia.com/mig-1g.5gb", "MIG-x", ""),
            entry("p", RESOURCE, "GPU-c", ""),
        ];
        let text = text(&entries, &Value::Null);
        let whole = Checkpoint::parse(&text, RESOURCE).unwrap().other_plugin_gpus;
        let named: Vec<(&str, &str)> =
            whole.iter().map(|held| (held.gpu.as_str(), held.resource.as_str())).collect();
        let expected = [("GPU-a", "nvidia.com/gpu"), ("GPU-b", "nvidia.com/gpu.shared")];
        assert_eq!(named, expected);
    }

    #[test]
    fn gpus_that_other_resources_offer_are_known_while_they_are_healthy() {
        let registered = json!({
            RESOURCE: ["GPU-a"],
            "nvidia.com/gpu": ["GPU-b::0", "GPU-b::1", "GPU-c"],
            "nvidia.com/mig-1g.5gb": ["MIG-x"],
            "gone/gpu": [],
            "example.com/nic": ["eth0"],
        });
        let text = text(&[], &registered);
        let checkpoint = Checkpoint::parse(&text, RESOURCE).unwrap();
        let both = [GpuId::from("GPU-b"), GpuId::from("GPU-c")];
        assert_eq!(
            checkpoint.other_plugin_offers,
            [("nvidia.com/gpu".to_owned(), both.into())].into()
        );
        assert!(checkpoint.other_plugins);
    }

    #[test]
    fn an_absent_checkpoint_holds_nothing_and_one_of_another_format_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = CheckpointFile {
            directory: directory.path().to_owned(),
            resource: RESOURCE.to_owned(),
        };
        assert_eq!(file.read().unwrap(), Checkpoint::default());
        assert_eq!(file.find().unwrap(), None);
        let empty = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a/b":null,"c/d":[]}},"Checksum":1}"#;
        fs::write(directory.path().join(super::FILE), empty).unwrap();
        assert_eq!(file.read().unwrap(), Checkpoint::default());
        for text in ["", "{}", r#"{"Data":{"PodDeviceEntries":[{"PodUID":"p"}]}}"#] {
            fs::write(directory.path().join(super::FILE), text).unwrap();
            let error = file.read().unwrap_err().to_string();
            assert!(error.contains("kubelet_internal_checkpoint cannot be read: "), "{error}");
        }
    }

    fn named(uid: &PodUid) -> Option<String> {
        Some(format!("default/{uid}"))
    }

    #[test]
    fn another_unit_is_refused_while_its_pods_exist() {
        let checkpoint = Checkpoint::parse(FILE, RESOURCE).unwrap();
        assert_eq!(checkpoint.check_unit(MiB(1024), named), Ok(()));
        assert_eq!(checkpoint.check_unit(MiB(512), |_| None), Ok(()), "all are gone");
        let refused = checkpoint.check_unit(MiB(512), named).unwrap_err().to_string();
        assert_eq!(
            refused,
            "--unit-mib is 512, but containers hold units of 1024 MiB: delete the GPU pods of this node \
             (default/a3d1f0a2-0001), or set --unit-mib=1024 again"
        );
    }
}
