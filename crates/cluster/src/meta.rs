//! Object metadata without what nobody here reads: managed fields alone are often half a pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

/// Annotations by key.
pub type Annotations = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Slim {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    annotations: Option<Annotations>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<Owner>>,
}

/// Who owns an object; only the kind is ever asked.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Owner {
    pub(crate) kind: String,
}

/// Metadata cut down to what is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meta {
    /// kube wants its own type.
    pub(crate) object: ObjectMeta,
    pub(crate) owners: Vec<Owner>,
}

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let slim = Slim::deserialize(deserializer)?;
        let object = ObjectMeta {
            name: slim.name,
            namespace: slim.namespace,
            uid: slim.uid,
            resource_version: slim.resource_version,
            annotations: slim.annotations,
            creation_timestamp: slim.creation_timestamp,
            deletion_timestamp: slim.deletion_timestamp,
            ..ObjectMeta::default()
        };
        Ok(Self { object, owners: slim.owner_references.unwrap_or_default() })
    }
}

impl Meta {
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.object.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// Go writes an absent list or object as `null` at times.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Ties a cut-down type to its API resource.
macro_rules! core_resource {
    ($type:ident, $scope:ident, $kind:literal, $plural:literal) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                "".into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                "v1".into()
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
    };
}
pub(crate) use core_resource;
