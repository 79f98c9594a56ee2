//! `pods/binding`: one atomic write, and its refusals. The nodes named here need not exist.

use serde_json::{Value, json};

use crate::rig::{Answer, Refuted, Rig, same, text, version};

async fn bind(rig: &Rig<'_>, name: &str, uid: &Value, node: &str) -> Result<Answer, Refuted> {
    let body = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "uid": uid, "annotations": {"claim": "new"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    rig.post(&format!("pods/{name}/binding"), &body).await
}

pub(crate) async fn node_and_annotations_come_in_one_version(rig: &Rig<'_>) -> Result<(), Refuted> {
    let before = rig.pod("atomic", false).await?;
    let answer = bind(rig, "atomic", &before["metadata"]["uid"], "nowhere-1").await?.is(201)?;
    same("the kind of the answer", text(&answer["kind"]), "Status")?;
    same("the status", text(&answer["status"]), "Success")?;
    let from = version(&before);
    let path = format!(
        "pods?watch=1&timeoutSeconds=1&resourceVersion={from}&fieldSelector=metadata.name%3Datomic"
    );
    let events = rig.get(&path).await?.text;
    // The first change of the pod after its creation is the whole binding.
    let first = events.lines().next().unwrap_or_default();
    let first: Value = serde_json::from_str(first)
        .map_err(|error| Refuted(format!("the watch shows {first:?}: {error}")))?;
    let pod = &first["object"];
    same("the node", text(&pod["spec"]["nodeName"]), "nowhere-1")?;
    let annotations = &pod["metadata"]["annotations"];
    same("the claim", text(&annotations["claim"]), "new")?;
    same("the other annotation", text(&annotations["kept"]), "yes")?;
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let scheduled = conditions
        .filter(|condition| condition["type"] == "PodScheduled" && condition["status"] == "True");
    same("the conditions PodScheduled", scheduled.count(), 1)?;
    rig.remove("pods/atomic").await
}

pub(crate) async fn a_bound_pod_is_not_bound_again(rig: &Rig<'_>) -> Result<(), Refuted> {
    let pod = rig.pod("bound", false).await?;
    let uid = &pod["metadata"]["uid"];
    bind(rig, "bound", uid, "nowhere-1").await?.is(201)?;
    let answer = bind(rig, "bound", uid, "nowhere-2").await?;
    answer.is_refused(
        409,
        "Operation cannot be fulfilled on pods/binding \"bound\": \
         pod bound is already assigned to node \"nowhere-1\"",
    )?;
    rig.remove("pods/bound").await
}

pub(crate) async fn a_pod_of_the_same_name_is_another_pod(rig: &Rig<'_>) -> Result<(), Refuted> {
    let pod = rig.pod("namesake", false).await?;
    let other = json!("00000000-0000-4000-8000-00000000ffff");
    let refusal = bind(rig, "namesake", &other, "nowhere-1").await?.is(409)?;
    let found = text(&pod["metadata"]["uid"]);
    let says = format!(
        "Precondition failed: UID in precondition: {}, UID in object meta: {found}",
        text(&other)
    );
    let message = text(&refusal["message"]);
    same("whether the message names both", message.contains(&says), true)
        .map_err(|why| Refuted(format!("{why}: {message}")))?;
    rig.remove("pods/namesake").await
}

pub(crate) async fn a_missing_pod_is_not_bound(rig: &Rig<'_>) -> Result<(), Refuted> {
    let uid = json!("00000000-0000-4000-8000-00000000ffff");
    let answer = bind(rig, "missing", &uid, "nowhere-1").await?;
    answer.is_refused(404, "pods \"missing\" not found")
}

pub(crate) async fn a_gated_pod_is_not_bound(rig: &Rig<'_>) -> Result<(), Refuted> {
    let pod = rig.pod("gated", true).await?;
    let answer = bind(rig, "gated", &pod["metadata"]["uid"], "nowhere-1").await?;
    answer.is_refused(
        409,
        "Operation cannot be fulfilled on pods/binding \"gated\": \
         pod gated has non-empty .spec.schedulingGates",
    )?;
    rig.remove("pods/gated").await
}
