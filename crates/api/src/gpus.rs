//! The node annotation `gpu-cards`: a node's GPUs as its device plugin reports them.
//!
//! A node writes it about itself. It is trusted for this node only, after bounds and checks.
//!
//! # Examples
//!
//! ```
//! use api::gpus::Gpus;
//!
//! let text = r#"[{"uuid":"GPU-7f2a","index":0,"model":"NVIDIA A10","memoryMiB":24576,"units":24,
//!                 "healthy":true,"pods":{"0f6c3a1e":4}}]"#;
//! let gpus = Gpus::from_json(text)?;
//! assert_eq!(gpus.0[0].units.0, 24);
//! assert_eq!(Gpus::from_json(&gpus.to_json())?, gpus);
//! # Ok::<(), api::gpus::GpusError>(())
//! ```

use std::collections::BTreeMap;

pub use placement::gpu::Closed;
use placement::names::limits;
use placement::units::{GpuId, MiB, PodUid, Units};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{self, JsonError};

/// The most bytes of the text. 64 GPUs with 1,024 pods between them take some 75 KiB.
pub const MAX_TEXT: usize = 128 << 10;

/// The most GPUs of a node: more than any machine has.
pub const MAX_GPUS: usize = 64;

/// The most pods on one GPU. Kubernetes supports 110 pods on a node; kubelets have been set to 500.
pub const MAX_PODS: usize = 1024;

/// The most bytes of a GPU's UUID and of its model: the sizes of NVML's buffers (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`,
/// `NVML_DEVICE_NAME_V2_BUFFER_SIZE`).
pub const MAX_NAME: usize = 96;

/// A node's GPUs, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("maxItems" = MAX_GPUS))]
pub struct Gpus(pub Vec<Gpu>);

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// NVML's UUID: the GPU's lasting name.
    #[schemars(with = "String", length(max = MAX_NAME))]
    pub uuid: GpuId,
    /// NVML's index since the node's last boot, which Aliyun's annotations name.
    pub index: u32,
    /// The product's name, as in `NVIDIA A10`.
    #[schemars(length(max = MAX_NAME))]
    pub model: String,
    /// The GPU's memory in MiB.
    #[serde(rename = "memoryMiB")]
    #[schemars(with = "u64")]
    pub memory: MiB,
    /// The units that pods can request.
    #[schemars(with = "u32")]
    pub units: Units,
    /// The NUMA node that the GPU is attached to; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Indexes of the GPUs that it reaches over NVLink; absent if there are none, or that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_GPUS))]
    pub linked: Vec<u32>,
    /// Whether it works. A GPU that does not takes no new pods.
    pub healthy: bool,
    /// Why it takes no new pods although it may work; absent if it takes some. Pods on it keep their units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
    /// The strongest isolation that the node can enforce for a container on it; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// The most clients of NVIDIA's MPS that it serves; absent if the node has no MPS, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_clients: Option<u16>,
    /// Whether its clients of MPS are terminated before their processes are killed; absent if the node has no MPS, or
    /// that is not known. Where they are not, none is evicted or moved beside others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_drain: Option<bool>,
    /// UIDs of pods with a process on it that MPS is to limit and that is no client of it, by two audits in a row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = MAX_PODS))]
    pub outside_mps: Vec<PodUid>,
    /// Pod UID → units on this GPU, by the kubelet's own records.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, u32>", extend("maxProperties" = MAX_PODS))]
    pub pods: BTreeMap<PodUid, Units>,
}

/// How a container is limited to its share of a GPU, from the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Not at all.
    None,
    /// By NVIDIA's MPS.
    Mps,
    /// By NVIDIA's driver.
    Driver,
    /// A mode of a newer writer: not known to be enforced.
    #[serde(other)]
    Other,
}

/// Why a text is refused. Readers keep the last one without an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpusError {
    /// Too long, or not JSON of the schema.
    #[error("not a list of GPUs: {0}")]
    Json(JsonError),
    /// Too many GPUs.
    #[error("{0} GPUs, where at most {MAX_GPUS} are accepted")]
    TooMany(usize),
    /// A GPU is linked with more than a node may have.
    #[error("GPU {index}: {links} in `linked`, where at most {MAX_GPUS} are accepted")]
    TooManyLinks {
        /// The GPU's index.
        index: u32,
        /// GPUs that it names.
        links: usize,
    },
    /// Too many pods on one GPU.
    #[error("{pods} pods on GPU {index}, where at most {MAX_PODS} are accepted")]
    TooManyPods {
        /// The GPU's index.
        index: u32,
        /// Pods on it.
        pods: usize,
    },
    /// A name longer than any GPU or pod has.
    #[error("GPU {index}: {field} of {length} bytes, where at most {limit} are accepted")]
    LongName {
        /// The GPU's index.
        index: u32,
        /// Which field.
        field: &'static str,
        /// Its bytes.
        length: usize,
        /// Bytes accepted.
        limit: usize,
    },
    /// A UUID with bytes that NVML's have not. JSON writes some of them longer, so that a claim would take more room
    /// than was counted for it; and a comma would divide it in the list of cordoned GPUs.
    #[error(
        "GPU {0}: its UUID has another byte than letters, digits and signs without `\"`, `\\` and `,`"
    )]
    OddUuid(u32),
    /// Two entries with one UUID.
    #[error("GPU {0} is listed twice")]
    Twice(GpuId),
    /// The Node is there, but not every field of it could be read.
    #[error("not every field of the Node can be read")]
    UnreadNode,
}

impl Gpus {
    /// Writes the annotation.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// Reads the annotation; the GPUs come sorted by index.
    ///
    /// # Errors
    ///
    /// If the text is not of the schema, or exceeds its limits.
    pub fn from_json(text: &str) -> Result<Self, GpusError> {
        let mut gpus: Self = json::read(text, MAX_TEXT).map_err(GpusError::Json)?;
        if gpus.0.len() > MAX_GPUS {
            return Err(GpusError::TooMany(gpus.0.len()));
        }
        gpus.0.iter().try_for_each(Gpu::check)?;
        gpus.0.sort_by_key(|gpu| gpu.index);
        for (at, gpu) in gpus.0.iter().enumerate() {
            if gpus.0[..at].iter().any(|other| other.uuid == gpu.uuid) {
                return Err(GpusError::Twice(gpu.uuid.clone()));
            }
        }
        Ok(gpus)
    }
}

impl Gpu {
    fn check(&self) -> Result<(), GpusError> {
        if self.linked.len() > MAX_GPUS {
            return Err(GpusError::TooManyLinks { index: self.index, links: self.linked.len() });
        }
        let pods = self.pods.len().max(self.outside_mps.len());
        if pods > MAX_PODS {
            return Err(GpusError::TooManyPods { index: self.index, pods });
        }
        self.bounded("uuid", self.uuid.as_str(), MAX_NAME)?;
        if !self.uuid.as_str().bytes().all(is_of_uuid) {
            return Err(GpusError::OddUuid(self.index));
        }
        self.bounded("model", &self.model, MAX_NAME)?;
        for pod in self.pods.keys().chain(&self.outside_mps) {
            self.bounded("pod UID", pod.as_str(), limits::UID)?;
        }
        Ok(())
    }

    fn bounded(&self, field: &'static str, text: &str, limit: usize) -> Result<(), GpusError> {
        let (index, length) = (self.index, text.len());
        if length > limit {
            return Err(GpusError::LongName { index, field, length, limit });
        }
        Ok(())
    }
}

fn is_of_uuid(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',')
}
