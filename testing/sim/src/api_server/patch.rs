//! Strategic merge patches, as far as they are merge patches. `kubectl cordon`, `taint` and `label` send such ones, and
//! `kubectl apply` does for metadata. Of the lists that merge element by element, conditions do; what needs the rules
//! for others is refused.

use serde_json::Value;

use crate::objects::failure::Failure;
use crate::objects::merge::merge;

/// Lists of objects that strategic merge patches replace as a whole. Of all other lists of objects in nodes and pods,
/// most merge element by element.
const REPLACED: [&str; 2] = ["taints", "tolerations"];
/// The list in the status of nodes and pods whose elements are found by their `type`.
const CONDITIONS: &str = "conditions";

/// Applies a strategic merge patch.
///
/// # Errors
/// 400 where it has a directive or a list that must be merged.
pub(super) fn apply_strategic(target: &mut Value, patch: &Value) -> Result<(), Failure> {
    check(patch)?;
    let mut patch = patch.clone();
    if let Some(changed) = patch.pointer_mut("/status/conditions") {
        *changed = merged_by_type(&target["status"][CONDITIONS], changed);
    }
    merge(target, &patch);
    Ok(())
}

/// The conditions in their order, those that change merged into them, and new ones before them.
fn merged_by_type(conditions: &Value, changed: &Value) -> Value {
    let mut all: Vec<Value> = conditions.as_array().cloned().unwrap_or_default();
    for change in changed.as_array().into_iter().flatten() {
        match all.iter_mut().find(|condition| condition["type"] == change["type"]) {
            Some(condition) => merge(condition, change),
            None => all.insert(0, change.clone()),
        }
    }
    all.into()
}

fn check(patch: &Value) -> Result<(), Failure> {
    for (field, value) in patch.as_object().into_iter().flatten() {
        let is_known = REPLACED.contains(&field.as_str()) || field == CONDITIONS;
        let is_merged = value.is_array() && !is_known;
        if field.starts_with('$') || is_merged {
            return Err(Failure::bad_request(format!(
                "{field}: this stand-in merges no lists: use `kubectl replace`"
            )));
        }
        check(value)?;
        value.as_array().into_iter().flatten().try_for_each(check)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_without_lists_that_merge_is_a_merge_patch() {
        let mut node = json!({"spec": {"taints": [{"key": "a"}]}});
        let patch = json!({"spec": {"unschedulable": true, "taints": [{"key": "b"}]}});
        apply_strategic(&mut node, &patch).unwrap();
        assert_eq!(node, patch);
    }

    #[test]
    fn a_condition_is_found_by_its_type() {
        let ready = json!({"type": "Ready", "status": "True"});
        let mut node = json!({"status": {"phase": "Running", "conditions": [ready]}});
        for status in ["True", "False"] {
            let patch = json!({"status": {"conditions": [{"type": "Own", "status": status}]}});
            apply_strategic(&mut node, &patch).unwrap();
            let own = json!({"type": "Own", "status": status});
            let expected = json!({"phase": "Running", "conditions": [own, ready]});
            assert_eq!(node["status"], expected);
        }
    }

    #[test]
    fn directives_and_lists_that_merge_are_refused() {
        for patch in [
            json!({"spec": {"$setElementOrder/taints": []}}),
            json!({"metadata": {"labels": {"$patch": "replace"}}}),
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"metadata": {"finalizers": ["a"]}}),
            json!({"status": {"conditions": [{"$patch": "delete", "type": "Ready"}]}}),
        ] {
            let mut pod = json!({});
            let failure = apply_strategic(&mut pod, &patch).unwrap_err();
            assert_eq!((failure.code, pod), (400, json!({})), "{patch}");
        }
    }
}
