//! `POST …/pods/NAME/eviction`: a deletion, unless a PodDisruptionBudget forbids it.
//!
//! After the API server's code (`pkg/registry/core/pod/storage/eviction.go` of 1.36): a pod that has not started, has
//! ended or is being deleted goes whatever the budgets say; one that a budget covers uses it up. A dry run is asked for
//! in the URL or in `deleteOptions`.

use serde_json::{Value, json};

use crate::json::{list, name, text};
use crate::objects::failure::Failure;

/// Checks an eviction of that name.
///
/// # Errors
/// The API server's refusal.
pub(crate) fn check(body: &Value, pod: &str) -> Result<(), Failure> {
    if name(body) == pod {
        Ok(())
    } else {
        Err(Failure::bad_request("name in URL does not match name in Eviction object"))
    }
}

/// Whether its deletion is only to be tried.
pub(crate) fn asks_dry_run(body: &Value) -> bool {
    list(&body["deleteOptions"]["dryRun"]).next().is_some()
}

/// Whether budgets do not count for the pod.
pub(crate) fn passes_budgets(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
        || matches!(text(&pod["status"]["phase"]), "Pending" | "Succeeded" | "Failed")
}

/// Whether the budget covers the pod. Of its selector the stand-in knows `matchLabels`.
pub(crate) fn covers(budget: &Value, pod: &Value) -> bool {
    let wanted = budget["spec"]["selector"]["matchLabels"].as_object();
    let labels = &pod["metadata"]["labels"];
    budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        && wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
}

/// The budget after one eviction of that pod.
///
/// # Errors
/// 429 where it allows none.
pub(crate) fn use_up(budget: &Value, pod: &str, now: &str) -> Result<Value, Failure> {
    let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
    if allowed < 1 {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        return Err(Failure::new(429, "TooManyRequests", message));
    }
    let mut budget = budget.clone();
    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
    budget["status"]["disruptedPods"][pod] = now.into();
    Ok(budget)
}
