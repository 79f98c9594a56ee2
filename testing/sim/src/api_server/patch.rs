//! Strategic merge patches, as far as they are merge patches. `kubectl cordon`, `taint` and `label` send such ones, and
//! `kubectl apply` does for metadata. What needs the rules for lists is refused.

use serde_json::Value;

use crate::objects::failure::Failure;
use crate::objects::merge::merge;

/// Lists of objects that strategic merge patches replace as a whole. Of all other lists of objects in nodes and pods,
/// most merge element by element.
const REPLACED: [&str; 2] = ["taints", "tolerations"];

/// Applies a strategic merge patch.
///
/// # Errors
/// 400 where it has a directive or a list that must be merged.
pub(super) fn apply_strategic(target: &mut Value, patch: &Value) -> Result<(), Failure> {
    check(patch)?;
    merge(target, patch);
    Ok(())
}

fn check(patch: &Value) -> Result<(), Failure> {
    for (field, value) in patch.as_object().into_iter().flatten() {
        let is_merged = value.is_array() && !REPLACED.contains(&field.as_str());
        if field.starts_with('$') || is_merged {
            return Err(Failure::bad_request(format!(
                "{field}: this stand-in merges no lists: use `kubectl replace`"
            )));
        }
        check(value)?;
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
    fn directives_and_lists_that_merge_are_refused() {
        for patch in [
            json!({"spec": {"$setElementOrder/taints": []}}),
            json!({"metadata": {"labels": {"$patch": "replace"}}}),
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"metadata": {"finalizers": ["a"]}}),
        ] {
            let mut pod = json!({});
            let failure = apply_strategic(&mut pod, &patch).unwrap_err();
            assert_eq!((failure.code, pod), (400, json!({})), "{patch}");
        }
    }
}
