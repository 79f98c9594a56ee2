//! The node annotation `gpu-share`: what is allocated and used on each GPU, for dashboards and users.
//!
//! A value that is not known is absent, never 0.

use jiff::Timestamp;
use placement::units::{GpuId, MiB, Units};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gpus::MAX_GPUS;
use crate::json::{self, JsonError};

/// The most bytes of the text. 64 GPUs take some 10 KiB.
pub const MAX_TEXT: usize = 32 << 10;

/// A node's GPUs at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeShare {
    /// The time of these values, RFC 3339.
    pub time: Timestamp,
    /// The GPUs, by index.
    #[schemars(length(max = MAX_GPUS))]
    #[serde(rename = "cards")]
    pub gpus: Vec<GpuShare>,
}

/// One GPU's allocation and use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuShare {
    /// NVML's UUID.
    #[schemars(with = "String")]
    pub uuid: GpuId,
    /// The units that pods can request.
    #[schemars(with = "u32")]
    pub units: Units,
    /// The units that pods hold.
    #[schemars(with = "u32")]
    pub allocated: Units,
    /// Memory in use in MiB, as measured.
    #[serde(rename = "usedMiB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>")]
    pub used: Option<MiB>,
    /// The measured part of the time in which the GPU was busy, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
}

impl NodeShare {
    /// Writes the annotation.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// If the text is too long, or not of the schema.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        json::read(text, MAX_TEXT)
    }
}
