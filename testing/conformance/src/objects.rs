//! Reading and writing objects.

use serde_json::{Value, json};

use crate::rig::{Answer, Refuted, Rig, same, text, version};

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
    rig.done("configmaps/once").await
}

pub(crate) async fn what_is_missing_is_not_found(rig: &Rig<'_>) -> Result<(), Refuted> {
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
    rig.done("configmaps/older").await
}

pub(crate) async fn a_merge_patch_changes_what_it_names(rig: &Rig<'_>) -> Result<(), Refuted> {
    let before = rig.config_map("patched").await?;
    let patch = json!({"data": {"a": "3", "b": null, "c": "4"}});
    let after = rig.patch("configmaps/patched", &patch).await?.is(200)?;
    same("the data", &after["data"], &json!({"a": "3", "c": "4"}))?;
    same("the labels", &after["metadata"]["labels"], &before["metadata"]["labels"])?;
    same("the uid", &after["metadata"]["uid"], &before["metadata"]["uid"])?;
    same("whether the version is another", version(&after) != version(&before), true)?;
    rig.done("configmaps/patched").await
}

pub(crate) async fn a_patch_that_changes_nothing_makes_no_new_version(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let before = rig.config_map("vain").await?;
    let patch = json!({"data": {"a": "1"}});
    let after = rig.patch("configmaps/vain", &patch).await?.is(200)?;
    same("the version", version(&after), version(&before))?;
    rig.done("configmaps/vain").await
}

pub(crate) async fn status_and_the_rest_are_written_apart(rig: &Rig<'_>) -> Result<(), Refuted> {
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
    rig.done("pods/apart").await
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
    rig.done("configmaps/another").await
}

pub(crate) async fn a_dry_run_answers_as_if_and_does_nothing(rig: &Rig<'_>) -> Result<(), Refuted> {
    rig.done("configmaps/dry").await?;
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dry"}});
    let made = rig.post("configmaps?dryRun=All", &body).await?.is(201)?;
    for (field, given) in [("uid", true), ("creationTimestamp", true), ("resourceVersion", false)] {
        same(field, made["metadata"][field].is_string(), given)?;
    }
    rig.get("configmaps/dry").await?.is_refused(404, "configmaps \"dry\" not found")?;
    rig.config_map("dry").await?;
    let before = rig.get("configmaps/dry").await?.is(200)?;
    let again = rig.post("configmaps?dryRun=All", &body).await?;
    again.is_refused(409, "configmaps \"dry\" already exists")?;
    let patch = json!({"data": {"a": "3"}});
    let patched = rig.patch("configmaps/dry?dryRun=All", &patch).await?.is(200)?;
    same("the data", &patched["data"], &json!({"a": "3", "b": "2"}))?;
    same("the version", version(&patched), version(&before))?;
    let mut put = before.clone();
    put["data"] = json!({"c": "4"});
    let put = rig.put("configmaps/dry?dryRun=All", &put).await?.is(200)?;
    same("the data", &put["data"], &json!({"c": "4"}))?;
    rig.delete("configmaps/dry", &json!({"dryRun": ["All"]})).await?.is(200)?;
    same("the object", rig.get("configmaps/dry").await?.is(200)?, before)?;
    rig.done("configmaps/dry").await
}

pub(crate) async fn a_dry_run_of_another_manner_is_refused(rig: &Rig<'_>) -> Result<(), Refuted> {
    rig.config_map("wet").await?;
    let before = rig.get("configmaps/wet").await?.is(200)?;
    let refused = |answer: Answer, options: &str| {
        let words = format!(
            "{options}.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: \
             supported values: \"All\""
        );
        answer.is_refused(422, &words)
    };
    refused(rig.post("configmaps?dryRun=Some", &before).await?, "CreateOptions")?;
    refused(rig.put("configmaps/wet?dryRun=Some", &before).await?, "UpdateOptions")?;
    let patch = json!({"data": {"a": "3"}});
    refused(rig.patch("configmaps/wet?dryRun=Some", &patch).await?, "PatchOptions")?;
    let options = json!({"dryRun": ["Some"]});
    refused(rig.delete("configmaps/wet", &options).await?, "DeleteOptions")?;
    same("the object", rig.get("configmaps/wet").await?.is(200)?, before)?;
    rig.done("configmaps/wet").await
}

pub(crate) async fn lists_select_by_label_and_field(rig: &Rig<'_>) -> Result<(), Refuted> {
    rig.config_map("first").await?;
    rig.config_map("second").await?;
    let by_label = rig.get("configmaps?labelSelector=conformance%3Dfirst").await?.is(200)?;
    same("what the label selects", names(&by_label), vec!["first"])?;
    let by_field = rig.get("configmaps?fieldSelector=metadata.name%3Dsecond").await?.is(200)?;
    same("what the field selects", names(&by_field), vec!["second"])?;
    same("the kind", text(&by_field["kind"]), "ConfigMapList")?;
    rig.done("configmaps/first").await?;
    rig.done("configmaps/second").await
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().into_iter().flatten();
    items.map(|item| text(&item["metadata"]["name"])).collect()
}
