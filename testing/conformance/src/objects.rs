//! Reading and writing objects.

use serde_json::{Value, json};

use crate::rig::{Refuted, Rig, same, text, version};

pub(crate) async fn an_object_is_created_once_and_gets_uid_version_and_time(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let made = rig.config_map("once").await?;
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        same(field, made["metadata"][field].is_string(), true)?;
    }
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "once"}});
    let again = rig.post("configmaps", &body).await?;
    again.is_refused(409, "configmaps \"once\" already exists")?;
    rig.remove("configmaps/once").await
}

pub(crate) async fn a_missing_object_is_not_found(rig: &Rig<'_>) -> Result<(), Refuted> {
    let answer = rig.get("configmaps/nothing").await?;
    answer.is_refused(404, "configmaps \"nothing\" not found")?;
    let patch = json!({"data": {"a": "1"}});
    let answer = rig.patch("configmaps/nothing", &patch).await?;
    answer.is_refused(404, "configmaps \"nothing\" not found")
}

pub(crate) async fn a_put_from_an_older_version_conflicts(rig: &Rig<'_>) -> Result<(), Refuted> {
    let old = rig.config_map("older").await?;
    rig.patch("configmaps/older", &json!({"data": {"a": "2"}})).await?.is(200)?;
    let answer = rig.put("configmaps/older", &old).await?;
    answer.is_refused(
        409,
        "Operation cannot be fulfilled on configmaps \"older\": the object has been modified; \
         please apply your changes to the latest version and try again",
    )?;
    rig.remove("configmaps/older").await
}

pub(crate) async fn a_merge_patch_changes_the_fields_that_it_names(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let before = rig.config_map("patched").await?;
    let patch = json!({"data": {"a": "3", "b": null, "c": "4"}});
    let after = rig.patch("configmaps/patched", &patch).await?.is(200)?;
    same("the data", &after["data"], &json!({"a": "3", "c": "4"}))?;
    same("the labels", &after["metadata"]["labels"], &before["metadata"]["labels"])?;
    same("the uid", &after["metadata"]["uid"], &before["metadata"]["uid"])?;
    same("whether the version is another", version(&after) != version(&before), true)?;
    rig.remove("configmaps/patched").await
}

pub(crate) async fn a_patch_that_changes_nothing_makes_no_new_version(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let before = rig.config_map("vain").await?;
    let patch = json!({"data": {"a": "1"}});
    let after = rig.patch("configmaps/vain", &patch).await?.is(200)?;
    same("the version", version(&after), version(&before))?;
    rig.remove("configmaps/vain").await
}

pub(crate) async fn status_and_spec_are_written_apart(rig: &Rig<'_>) -> Result<(), Refuted> {
    rig.pod("apart", false).await?;
    let patch = json!({
        "metadata": {"annotations": {"claim": "new"}}, "status": {"message": "from outside"},
    });
    let main = rig.patch("pods/apart", &patch).await?.is(200)?;
    same("the status after a patch of the pod", main["status"]["message"].is_null(), true)?;
    let patch = json!({"spec": {"activeDeadlineSeconds": 5}, "status": {"message": "inside"}});
    let status = rig.patch("pods/apart/status", &patch).await?.is(200)?;
    same("the message", text(&status["status"]["message"]), "inside")?;
    same("the spec", status["spec"]["activeDeadlineSeconds"].is_null(), true)?;
    rig.remove("pods/apart").await
}

pub(crate) async fn a_delete_for_another_uid_conflicts(rig: &Rig<'_>) -> Result<(), Refuted> {
    let made = rig.config_map("another").await?;
    let wrong = json!({"preconditions": {"uid": "00000000-0000-4000-8000-00000000ffff"}});
    let refusal = rig.delete("configmaps/another", &wrong).await?.is(409)?;
    let message = format!(
        "Operation cannot be fulfilled on ConfigMap \"another\": the UID in the precondition \
         (00000000-0000-4000-8000-00000000ffff) does not match the UID in record ({}). \
         The object might have been deleted and then recreated",
        text(&made["metadata"]["uid"])
    );
    same("the message", text(&refusal["message"]), &message)?;
    rig.remove("configmaps/another").await
}

pub(crate) async fn lists_select_by_label_and_field(rig: &Rig<'_>) -> Result<(), Refuted> {
    rig.config_map("first").await?;
    rig.config_map("second").await?;
    let by_label = rig.get("configmaps?labelSelector=conformance%3Dfirst").await?.is(200)?;
    same("the selection by label", names(&by_label), vec!["first"])?;
    let by_field = rig.get("configmaps?fieldSelector=metadata.name%3Dsecond").await?.is(200)?;
    same("the selection by field", names(&by_field), vec!["second"])?;
    same("the kind", text(&by_field["kind"]), "ConfigMapList")?;
    rig.remove("configmaps/first").await?;
    rig.remove("configmaps/second").await
}

/// As `kubectl describe` asks.
pub(crate) async fn events_are_selected_by_the_object_that_they_are_about(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    const UID: &str = "00000000-0000-4000-8000-00000000eeee";
    rig.remove("events/about").await?;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "about"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": rig.namespace,
            "name": "p", "uid": UID},
        "type": "Warning", "reason": "Tried", "message": "in vain",
    });
    rig.post("events", &event).await?.is(201)?;
    for (name, expected) in [("p", vec!["about"]), ("other", vec![])] {
        let fields = format!(
            "involvedObject.name%3D{name},involvedObject.namespace%3D{},involvedObject.uid%3D{UID},\
             reason%3DTried",
            rig.namespace
        );
        let list = rig.get(&format!("events?fieldSelector={fields}")).await?.is(200)?;
        same("the selection", names(&list), expected)?;
    }
    rig.remove("events/about").await
}

/// As `kubectl cordon`, `taint` and `label` patch.
pub(crate) async fn a_strategic_patch_without_lists_that_merge_is_a_merge_patch(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let before = rig.pod("strategic", false).await?;
    // The API server adds tolerations to every pod, and those that are there must stay.
    let mut tolerations = before["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.push(json!({"key": "a", "operator": "Exists"}));
    let patch = json!({
        "metadata": {"annotations": {"claim": "new", "kept": null}},
        "spec": {"tolerations": tolerations},
    });
    let after = rig.strategic("pods/strategic", &patch).await?.is(200)?;
    same("the annotations", &after["metadata"]["annotations"], &json!({"claim": "new"}))?;
    same("the tolerations", &after["spec"]["tolerations"], &Value::from(tolerations))?;
    same("the containers", &after["spec"]["containers"], &before["spec"]["containers"])?;
    rig.remove("pods/strategic").await
}

/// As a program patches a condition of its own, which it does not find by its place.
pub(crate) async fn a_strategic_patch_finds_a_condition_by_its_type(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.pod("conditions", false).await?;
    for (kind, status) in
        [("a.example/one", "True"), ("a.example/two", "True"), ("a.example/one", "False")]
    {
        let patch = json!({"status": {"conditions": [{"type": kind, "status": status}]}});
        rig.strategic("pods/conditions/status", &patch).await?.is(200)?;
    }
    let after = rig.get("pods/conditions").await?.is(200)?;
    let mut found = Vec::new();
    for condition in after["status"]["conditions"].as_array().into_iter().flatten() {
        if text(&condition["type"]).starts_with("a.example/") {
            found.push((text(&condition["type"]), text(&condition["status"])));
        }
    }
    // A new one comes first.
    same("the conditions", found, vec![("a.example/two", "True"), ("a.example/one", "False")])?;
    rig.remove("pods/conditions").await
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().into_iter().flatten();
    items.map(|item| text(&item["metadata"]["name"])).collect()
}
