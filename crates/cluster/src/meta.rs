//! The fields of object metadata that are read here. Managed fields alone are often half of a pod's JSON.

use std::collections::BTreeMap;

use api::stored::Moment;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

/// Annotations by key.
pub type Annotations = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    name: Option<String>,
    generate_name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    annotations: Option<Annotations>,
    labels: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Moment>,
    deletion_timestamp: Option<Moment>,
    deletion_grace_period_seconds: Option<i64>,
    owner_references: Option<Vec<Owner>>,
}

/// An owner reference.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Owner {
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) kind: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) uid: String,
    /// Whether the owner manages the object; at most one of its owners does.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) controller: bool,
}

/// The metadata of an object, without what is not read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meta {
    /// In the type that `kube::Resource` returns.
    pub(crate) object: ObjectMeta,
    pub(crate) owners: Vec<Owner>,
    /// The fields of the object that could not be read, as `spec.containers`. What they say is unknown, not absent.
    pub(crate) lost: Vec<String>,
}

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        let object = ObjectMeta {
            name: fields.name,
            generate_name: fields.generate_name,
            namespace: fields.namespace,
            uid: fields.uid,
            resource_version: fields.resource_version,
            generation: fields.generation,
            annotations: fields.annotations,
            labels: fields.labels,
            creation_timestamp: fields.creation_timestamp.and_then(|moment| moment.at).map(Time),
            // A deletion has begun, whenever it was to.
            deletion_timestamp: fields
                .deletion_timestamp
                .map(|moment| Time(moment.at.unwrap_or(Timestamp::MAX))),
            deletion_grace_period_seconds: fields.deletion_grace_period_seconds,
            ..ObjectMeta::default()
        };
        let owners = fields.owner_references.unwrap_or_default();
        Ok(Self { object, owners, lost: Vec::new() })
    }
}

impl Meta {
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.object.annotations.as_ref()?.get(key).map(String::as_str)
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.object.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// Reads `null` as the default: Go clients write an absent list or object as `null` at times.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Implements `kube::Resource` for a type that holds a few fields of a core/v1 object.
macro_rules! core_resource {
    ($type:ident, $scope:ident, $kind:literal, $plural:literal) => {
        $crate::meta::resource!($type, $scope, "", $kind, $plural);
    };
}
pub(crate) use core_resource;

/// As [`core_resource`], for an API group: its version v1, or the one that is named.
macro_rules! resource {
    ($type:ident, $scope:ident, $group:expr, $kind:expr, $plural:expr) => {
        $crate::meta::resource!($type, $scope, $group, "v1", $kind, $plural);
    };
    ($type:ident, $scope:ident, $group:expr, $version:expr, $kind:expr, $plural:expr) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &kube::core::ObjectMeta {
                &self.metadata.object
            }
            fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
                &mut self.metadata.object
            }
        }

        impl $crate::object::Object for $type {
            const KIND: &'static str = $kind;

            fn about(&self) -> &kube::core::ObjectMeta {
                &self.metadata.object
            }

            fn set_lost(&mut self, lost: Vec<String>) {
                self.metadata.lost = lost;
            }
        }
    };
}
pub(crate) use resource;
