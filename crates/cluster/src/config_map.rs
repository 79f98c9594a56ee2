//! One ConfigMap: its data, and a write that loses no other writer's change.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap as NewConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;

use crate::Annotations;
use crate::call::{CallError, within};
use crate::meta::{Meta, core_resource, null_is_default};
use crate::patch::merge;

/// The parts of a v1 ConfigMap that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigMap {
    metadata: Meta,
    #[serde(deserialize_with = "null_is_default")]
    data: BTreeMap<String, String>,
}

core_resource!(ConfigMap, NamespaceResourceScope, "ConfigMap", "configmaps");

/// What a ConfigMap says at one version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigMapFacts {
    version: String,
    /// Its texts, by key.
    pub data: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: Annotations,
}

impl ConfigMap {
    pub(crate) fn facts(self) -> ConfigMapFacts {
        let meta = self.metadata.object;
        ConfigMapFacts {
            version: meta.resource_version.unwrap_or_default(),
            data: self.data,
            annotations: meta.annotations.unwrap_or_default(),
        }
    }
}

/// Sets (`Some`) or removes (`None`) a text of a ConfigMap and an annotation, in one write. Without `found` it is
/// created.
///
/// # Errors
///
/// [`CallError::Conflict`] where it has changed since `found` was read, or is there by now: nothing was written then.
pub async fn write_config_map(
    client: &Client,
    (namespace, name): (&str, &str),
    found: Option<&ConfigMapFacts>,
    text: (&str, Option<&str>),
    annotation: (&str, Option<&str>),
    limit: Duration,
) -> Result<(), CallError> {
    let Some(found) = found else {
        let map = NewConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                annotations: text_map(annotation),
                ..ObjectMeta::default()
            },
            data: text_map(text),
            ..NewConfigMap::default()
        };
        let maps: Api<NewConfigMap> = Api::namespaced(client.clone(), namespace);
        let params = PostParams::default();
        return within(limit, maps.create(&params, &map)).await.map(drop);
    };
    // In a merge patch, null removes a key.
    let (annotation_key, annotation_text) = annotation;
    let (text_key, text) = text;
    let patch = json!({
        "metadata": {
            "resourceVersion": found.version,
            "annotations": { annotation_key: annotation_text },
        },
        "data": { text_key: text },
    });
    merge::<ConfigMap>(client, Some(namespace), name, patch, limit).await
}

/// A map of this one entry; none where the entry has no text.
fn text_map((key, text): (&str, Option<&str>)) -> Option<BTreeMap<String, String>> {
    Some([(key.to_owned(), text?.to_owned())].into())
}
