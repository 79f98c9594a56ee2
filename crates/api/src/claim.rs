//! The pod annotation `gpu-claim`: the GPUs of each container, and its share of each GPU.
//!
//! Any user who may edit the pod can write it, so a reader compares it with the pod's spec.

use std::collections::BTreeMap;

use std::fmt;

use placement::gpu::{GpuShare, GpuShares};
use placement::names::limits;
use placement::units::{Cores, GpuId, Units};
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::gpus::MAX_NAME;
use crate::json::{self, JsonError, Unique};

/// The most bytes of the text for each share, but for its container's name: a UUID, the share with 30 digits, and
/// signs.
pub const MAX_SHARE: usize = MAX_NAME + 30 + 54;

/// Container → GPU UUID → its share of the GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Claim {
    /// The containers that request GPU memory, by name.
    #[schemars(with = "BTreeMap<String, BTreeMap<String, Share>>")]
    pub containers: BTreeMap<String, BTreeMap<GpuId, Share>>,
}

/// A share of one GPU. If it is only units, it is written as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum Share {
    /// Units of the GPU's memory.
    Units(#[schemars(with = "u32")] Units),
    /// Units, compute and whether it is exclusive.
    Detailed(Detailed),
}

/// A share that does not consist of units only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Detailed {
    /// Units of the GPU's memory.
    #[schemars(with = "u32")]
    pub units: Units,
    /// Percent of the GPU's compute.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(with = "u32")]
    pub cores: Cores,
    /// Whether no other pod may be on the GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Units that the container may grow to on all its GPUs together; absent if that is what it requests. The same on
    /// each of its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>")]
    pub limit: Option<Units>,
}

fn is_zero(cores: &Cores) -> bool {
    *cores == Cores::ZERO
}

impl Share {
    /// The share of a container that may grow to `limit` units on all its GPUs together; `None` if that is what it
    /// requests.
    pub fn new(share: GpuShare, limit: Option<Units>) -> Self {
        let GpuShare { units, cores, exclusive, .. } = share;
        if cores == Cores::ZERO && !exclusive && limit.is_none() {
            Self::Units(units)
        } else {
            Self::Detailed(Detailed { units, cores, exclusive, limit })
        }
    }

    fn limit(self) -> Option<Units> {
        match self {
            Self::Units(_) => None,
            Self::Detailed(detailed) => detailed.limit,
        }
    }
}

impl From<Share> for GpuShare {
    fn from(share: Share) -> Self {
        match share {
            Share::Units(units) => Self::of(units),
            Share::Detailed(Detailed { units, cores, exclusive, .. }) => {
                Self { cores, exclusive, ..Self::of(units) }
            }
        }
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Units(units) => units.serialize(serializer),
            Self::Detailed(detailed) => detailed.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShareVisitor)
    }
}

struct ShareVisitor;

impl<'de> Visitor<'de> for ShareVisitor {
    type Value = Share;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a number of units, or an object with `units`, `cores`, `exclusive` and `limit`",
        )
    }

    fn visit_u64<E: Error>(self, units: u64) -> Result<Share, E> {
        let units = u32::try_from(units).map_err(|_| E::custom("more than 4294967295 units"))?;
        Ok(Share::Units(Units(units)))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Share, A::Error> {
        Detailed::deserialize(MapAccessDeserializer::new(access)).map(Share::Detailed)
    }
}

impl<'de> Deserialize<'de> for Claim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let each = Unique::<String, Unique<GpuId, Share>>::deserialize(deserializer)?.0;
        let containers = each.into_iter().map(|(name, Unique(gpus))| (name, gpus)).collect();
        Ok(Self { containers })
    }
}

impl Claim {
    /// The claimed shares, in the types of `placement`.
    pub fn shares(&self) -> BTreeMap<String, GpuShares> {
        let mut shares: BTreeMap<String, GpuShares> = BTreeMap::new();
        for (name, gpus) in &self.containers {
            let of_gpu = |(gpu, share): (&GpuId, &Share)| (gpu.clone(), GpuShare::from(*share));
            shares.insert(name.clone(), gpus.iter().map(of_gpu).collect());
        }
        shares
    }

    /// The units that containers may grow to on all their GPUs together, where that is more than they request. Of
    /// several values for one container, which Bind never writes, the smallest.
    pub fn limits(&self) -> BTreeMap<String, Units> {
        let mut limits = BTreeMap::new();
        for (name, gpus) in &self.containers {
            if let Some(limit) = gpus.values().filter_map(|share| share.limit()).min() {
                limits.insert(name.clone(), limit);
            }
        }
        limits
    }

    /// Writes the annotation.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::write(self)
    }

    /// Reads the annotation of a pod whose containers request `shares` shares of GPUs in all. A text that is longer
    /// than any that Bind writes for this number of shares is refused without parsing it.
    ///
    /// # Errors
    ///
    /// If the text is too long, not of the schema, or names a container or a GPU twice.
    ///
    /// # Examples
    ///
    /// ```
    /// use api::claim::{Claim, Share};
    /// use placement::units::{GpuId, Units};
    ///
    /// let claim = Claim::from_json(r#"{"main":{"GPU-7f2a":3}}"#, 1)?;
    /// assert_eq!(claim.containers["main"][&GpuId::from("GPU-7f2a")], Share::Units(Units(3)));
    /// assert_eq!(claim.to_json(), r#"{"main":{"GPU-7f2a":3}}"#);
    /// // A container that is named twice makes the text no claim.
    /// assert!(Claim::from_json(r#"{"main":{"GPU-7f2a":3},"main":{"GPU-0b11":1}}"#, 1).is_err());
    /// # Ok::<(), api::JsonError>(())
    /// ```
    pub fn from_json(text: &str, shares: usize) -> Result<Self, JsonError> {
        json::read(text, 2 + shares.saturating_mul(limits::LABEL + MAX_SHARE))
    }
}
