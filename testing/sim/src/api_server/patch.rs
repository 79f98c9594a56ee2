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
