//! The answer of an exporter's `GET /v1/pods`: what each pod of a node uses.
//!
//! A node reports only its own pods. The answer is bounded and checked. A value that is absent is not known, never 0.
//!
//! # Examples
//!
//! ```
//! use api::pods::NodePods;
//!
//! let text = r#"{"time":"2026-11-22T07:00:00.000Z","omitted":0,"pods":[
//!     {"uid":"8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55","cpu_seconds_total":123.45}]}"#;
//! let pods = NodePods::from_json(text)?;
//! assert_eq!(pods.pods[0].cpu_seconds_total, Some(123.45));
//! assert_eq!(pods.pods[0].memory_used_bytes, None);
//! # Ok::<(), api::pods::PodsError>(())
//! ```

use jiff::Timestamp;
use placement::names::limits;
use placement::units::PodUid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{self, JsonError};

/// The most bytes of the text. [`MAX_PODS`] take some 140 KiB.
pub const MAX_TEXT: usize = 256 << 10;

/// The most pods of a node. Kubernetes supports 110; kubelets have been set to 500.
pub const MAX_PODS: usize = 1024;

/// What the pods of a node use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodePods {
    /// When it was read, by the node's clock, RFC 3339.
    pub time: Timestamp,
    /// How many pods were left out because there are too many.
    #[serde(default)]
    pub omitted: u64,
    /// The pods, in no order.
    #[schemars(length(max = MAX_PODS))]
    pub pods: Vec<PodUse>,
}

/// What one pod uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodUse {
    /// The pod's UID, as the kubelet names its cgroup.
    #[schemars(with = "String", length(max = limits::UID))]
    pub uid: PodUid,
    /// CPU time since the pod started, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds_total: Option<f64>,
    /// Memory in use in bytes, without caches that can be reclaimed (page cache, reclaimable slab): what MemAvailable
    /// of the node lacks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
}

/// Why an answer is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodsError {
    /// Too long, or not JSON of the schema.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Too many pods.
    #[error("{0} pods, where at most {MAX_PODS} are accepted")]
    TooMany(usize),
    /// A UID that no pod has.
    #[error("a UID of {0} bytes, where 1 to {limit} are accepted", limit = limits::UID)]
    Uid(usize),
}

impl NodePods {
    /// Writes the answer.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// Reads the answer.
    ///
    /// # Errors
    ///
    /// If the text is not of the schema, or exceeds its limits.
    pub fn from_json(text: &str) -> Result<Self, PodsError> {
        let answer: Self = json::read(text, MAX_TEXT)?;
        if answer.pods.len() > MAX_PODS {
            return Err(PodsError::TooMany(answer.pods.len()));
        }
        for pod in &answer.pods {
            let length = pod.uid.as_str().len();
            if !(1..=limits::UID).contains(&length) {
                return Err(PodsError::Uid(length));
            }
        }
        Ok(answer)
    }
}
