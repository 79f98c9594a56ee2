//! `pods/eviction`: a deletion, unless a PodDisruptionBudget forbids it.

use serde_json::{Value, json};

use crate::rig::{Answer, JSON, Refuted, Rig, same, text};

async fn evict(rig: &Rig<'_>, name: &str, uid: &Value) -> Result<Answer, Refuted> {
    evict_with(rig, name, &json!({"preconditions": {"uid": uid}})).await
}

async fn dry_run(rig: &Rig<'_>, name: &str, uid: &Value) -> Result<Answer, Refuted> {
    evict_with(rig, name, &json!({"preconditions": {"uid": uid}, "dryRun": ["All"]})).await
}

async fn evict_with(rig: &Rig<'_>, name: &str, options: &Value) -> Result<Answer, Refuted> {
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": options,
    });
    rig.post(&format!("pods/{name}/eviction"), &body).await
}

/// A pod that is ready, and a budget that covers it and allows no eviction.
async fn guarded(rig: &Rig<'_>, name: &str) -> Result<Value, Refuted> {
    let pod = rig.pod(name, false).await?;
    rig.patch(&format!("pods/{name}"), &json!({"metadata": {"labels": {"app": name}}})).await?;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
    });
    remove_budget(rig, name).await?;
    rig.at("POST", &budgets(rig, ""), JSON, Some(&budget)).await?.is(201)?;
    Ok(pod)
}

fn budgets(rig: &Rig<'_>, name: &str) -> String {
    let path = "/apis/policy/v1/namespaces";
    let path = format!("{path}/{}/poddisruptionbudgets/{name}", rig.namespace);
    path.trim_end_matches('/').to_owned()
}

async fn remove_budget(rig: &Rig<'_>, name: &str) -> Result<(), Refuted> {
    rig.at("DELETE", &budgets(rig, name), JSON, Some(&json!({}))).await.map(drop)
}

pub(crate) async fn a_pod_that_a_budget_keeps_is_not_evicted(rig: &Rig<'_>) -> Result<(), Refuted> {
    let uid = &guarded(rig, "kept").await?["metadata"]["uid"];
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    rig.patch("pods/kept/status", &json!({"status": ready})).await?.is(200)?;
    let refusal = evict(rig, "kept", uid).await?.is(429)?;
    same("the reason", text(&refusal["reason"]), "TooManyRequests")?;
    let there = rig.get("pods/kept").await?.is(200)?;
    same("the deletion", &there["metadata"]["deletionTimestamp"], &Value::Null)?;
    remove_budget(rig, "kept").await?;
    let answer = evict(rig, "kept", uid).await?.is(201)?;
    same("the status", text(&answer["status"]), "Success")?;
    rig.get("pods/kept").await?.is_refused(404, "pods \"kept\" not found")
}

pub(crate) async fn a_pod_that_has_not_started_is_evicted_whatever_budgets_say(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let uid = &guarded(rig, "pending").await?["metadata"]["uid"];
    evict(rig, "pending", uid).await?.is(201)?;
    remove_budget(rig, "pending").await?;
    rig.get("pods/pending").await?.is_refused(404, "pods \"pending\" not found")
}

pub(crate) async fn an_eviction_of_another_uid_conflicts(rig: &Rig<'_>) -> Result<(), Refuted> {
    rig.pod("another", false).await?;
    let other = json!("00000000-0000-4000-8000-00000000ffff");
    evict(rig, "another", &other).await?.is(409)?;
    rig.get("pods/another").await?.is(200)?;
    rig.remove("pods/another").await
}

pub(crate) async fn a_dry_run_of_an_eviction_says_what_it_would_and_removes_nothing(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let uid = &guarded(rig, "tried").await?["metadata"]["uid"];
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    rig.patch("pods/tried/status", &json!({"status": ready})).await?.is(200)?;
    dry_run(rig, "tried", uid).await?.is(429)?;
    remove_budget(rig, "tried").await?;
    dry_run(rig, "tried", uid).await?.is(201)?;
    let there = rig.get("pods/tried").await?.is(200)?;
    same("the deletion", &there["metadata"]["deletionTimestamp"], &Value::Null)?;
    rig.remove("pods/tried").await
}
