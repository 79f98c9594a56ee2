//! Which bodies are accepted as objects.

use serde_json::{Value, json};

use crate::rig::{Refuted, Rig};

/// A config map with this metadata.
fn config_map(metadata: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

pub(crate) async fn a_name_must_be_given_and_legal(rig: &Rig<'_>) -> Result<(), Refuted> {
    for nameless in [json!({}), json!({"name": ""})] {
        let message = "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName \
                     is required";
        rig.post("configmaps", &config_map(&nameless)).await?.is_refused(422, message)?;
    }
    for illegal in ["A b", "a/b", "a.", "-a"] {
        let message = format!(
            "ConfigMap \"{illegal}\" is invalid: metadata.name: Invalid value: \"{illegal}\": a \
             lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
             '.', and must start and end with an alphanumeric character"
        );
        let made = rig.post("configmaps", &config_map(&json!({"name": illegal}))).await?;
        made.is_refused_beginning(422, &message)?;
    }
    let long = "a".repeat(254);
    let message = format!(
        "ConfigMap \"{long}\" is invalid: metadata.name: Invalid value: \"{long}\": must be no more \
         than 253 characters"
    );
    rig.post("configmaps", &config_map(&json!({"name": long}))).await?.is_refused(422, &message)
}

pub(crate) async fn an_object_must_be_of_the_kind_and_in_the_namespace_of_its_path(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.config_map("addressed").await?;
    let mut pod = config_map(&json!({"name": "addressed"}));
    pod["kind"] = "Pod".into();
    let message = "Pod in version \"v1\" cannot be handled as a ConfigMap: ";
    rig.post("configmaps", &pod).await?.is_refused_beginning(400, message)?;
    rig.put("configmaps/addressed", &pod).await?.is_refused_beginning(400, message)?;
    let elsewhere = config_map(&json!({"name": "addressed", "namespace": "elsewhere"}));
    let message =
        "the namespace of the provided object does not match the namespace sent on the request";
    rig.post("configmaps", &elsewhere).await?.is_refused(400, message)?;
    rig.put("configmaps/addressed", &elsewhere).await?.is_refused(400, message)?;
    let other = config_map(&json!({"name": "other"}));
    let message = "the name of the object (other) does not match the name on the URL (addressed)";
    rig.put("configmaps/addressed", &other).await?.is_refused(400, message)?;
    rig.patch("configmaps/addressed", &other).await?.is_refused(400, message)?;
    let message =
        "the name of the object (addressed based on URL) was undeterminable: name must be provided";
    rig.put("configmaps/addressed", &config_map(&json!({}))).await?.is_refused(400, message)?;
    rig.remove("configmaps/addressed").await
}

pub(crate) async fn labels_and_annotations_are_maps_of_texts(rig: &Rig<'_>) -> Result<(), Refuted> {
    rig.config_map("labelled").await?;
    for (field, wrong) in [
        ("labels", json!({"a": 1})),
        ("labels", json!(["a"])),
        ("annotations", json!({"a": true})),
        ("annotations", json!("a")),
    ] {
        let message = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: ";
        let mut body = config_map(&json!({"name": "labelled"}));
        body["metadata"][field] = wrong.clone();
        rig.post("configmaps", &body).await?.is_refused_beginning(400, message)?;
        rig.put("configmaps/labelled", &body).await?.is_refused_beginning(400, message)?;
        let patch = json!({"metadata": {field: wrong}});
        let message = " \"\" is invalid: patch: Invalid value: ";
        rig.patch("configmaps/labelled", &patch).await?.is_refused_beginning(422, message)?;
    }
    rig.remove("configmaps/labelled").await
}

pub(crate) async fn annotations_have_256_kib_together(rig: &Rig<'_>) -> Result<(), Refuted> {
    let with = |bytes: usize| json!({"name": "long", "annotations": {"a": "x".repeat(bytes - 1)}});
    let longest = config_map(&with(256 << 10));
    let message = "ConfigMap \"long\" is invalid: metadata.annotations: Too long: \
                 may not be more than 262144 bytes";
    let longer = config_map(&with((256 << 10) + 1));
    rig.post("configmaps", &longer).await?.is_refused(422, message)?;
    rig.post("configmaps", &longest).await?.is(201)?;
    let more = json!({"metadata": {"annotations": {"b": ""}}});
    rig.patch("configmaps/long", &more).await?.is_refused(422, message)?;
    let other = json!({"data": {"a": "b"}});
    rig.patch("configmaps/long", &other).await?.is(200)?;
    rig.remove("configmaps/long").await
}

pub(crate) async fn a_body_of_an_unknown_type_is_not_read(rig: &Rig<'_>) -> Result<(), Refuted> {
    let body = config_map(&json!({"name": "unknown"}));
    let message = "the body of the request was in an unknown format - accepted media types include: \
                 application/json";
    let made = rig.post_as("configmaps", "application/x-nonsense", &body).await?;
    made.is_refused_beginning(415, message)
}
