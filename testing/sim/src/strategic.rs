//! Strategic merge patch, as `kubectl apply` and kubelets send it (`strategicpatch` in apimachinery):
//! a merge patch in which some lists merge, element by element.
//!
//! Invariant: a directive is obeyed or refused, and never stored.

use serde_json::{Map, Value};

use crate::error::Failure;

/// The lists of the kinds served that merge, each with what tells its elements apart: the API's
/// `x-kubernetes-patch-merge-key`. Every other list is replaced as a whole.
const KEYS: [(&str, &str); 20] = [
    ("addresses", "type"),
    ("allocatedResourcesStatus", "name"),
    ("conditions", "type"),
    ("containers", "name"),
    ("env", "name"),
    ("ephemeralContainers", "name"),
    ("hostAliases", "ip"),
    ("hostIPs", "ip"),
    ("imagePullSecrets", "name"),
    ("initContainers", "name"),
    ("ownerReferences", "uid"),
    ("podIPs", "ip"),
    ("ports", "containerPort"),
    ("resourceClaimStatuses", "name"),
    ("resourceClaims", "name"),
    ("schedulingGates", "name"),
    ("topologySpreadConstraints", "topologyKey"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
];
/// The lists of plain values that merge, each with the field that it is in.
const PLAIN: [(&str, &str); 2] = [("metadata", "finalizers"), ("spec", "podCIDRs")];

/// For an object or an element: merge, `replace` or `delete` it.
const PATCH: &str = "$patch";
/// The fields that an object keeps.
const RETAIN: &str = "$retainKeys";
/// In which order a list's elements come.
const ORDER: &str = "$setElementOrder/";
/// What a list of plain values loses.
const DELETE: &str = "$deleteFromPrimitiveList/";

type Fields = Map<String, Value>;

/// How a list merges.
#[derive(Clone, Copy)]
enum Merging {
    ByKey(&'static str),
    AsPlain,
}

impl Merging {
    fn of(parent: &str, list: &str) -> Option<Self> {
        let key = KEYS.iter().find(|(name, _)| *name == list);
        let plain = || PLAIN.contains(&(parent, list)).then_some(Self::AsPlain);
        key.map(|(_, key)| Self::ByKey(key)).or_else(plain)
    }

    /// What tells an element from others.
    fn identity(self, element: &Value) -> Result<&Value, Failure> {
        match self {
            Self::AsPlain => Ok(element),
            Self::ByKey(key) => element
                .get(key)
                .filter(|value| !value.is_null())
                .ok_or_else(|| refused(&format!("{element} does not contain the merge key {key}"))),
        }
    }

    fn place(self, list: &[Value], element: &Value) -> Result<Option<usize>, Failure> {
        let wanted = self.identity(element)?;
        let mut found = Ok(None);
        for (place, other) in list.iter().enumerate() {
            if self.identity(other)? == wanted {
                found = Ok(Some(place));
                break;
            }
        }
        found
    }
}

fn refused(why: &str) -> Failure {
    Failure::bad_request(format!("the strategic merge patch cannot be applied: {why}"))
}

/// Applies `patch` to the object `target`.
///
/// # Errors
/// Where the patch is not understood.
pub(crate) fn apply(target: &mut Value, patch: &Value) -> Result<(), Failure> {
    match (target, patch) {
        (Value::Object(fields), Value::Object(changes)) => merge_object("", fields, changes),
        _ => Err(refused("it is no object")),
    }
}

/// `parent` is the name of the field that holds the object.
fn merge_object(parent: &str, fields: &mut Fields, changes: &Fields) -> Result<(), Failure> {
    check_directives(changes)?;
    match changes.get(PATCH).map(|directive| directive.as_str().unwrap_or_default()) {
        None => {}
        Some("delete") => {
            fields.clear();
            return Ok(());
        }
        Some("replace") => {
            *fields = without_directives(changes)?;
            return Ok(());
        }
        Some(other) => return Err(refused(&format!("{PATCH}: {other:?} is not known"))),
    }
    retain(fields, changes)?;
    for (name, change) in changes.iter().filter(|(name, _)| !name.starts_with('$')) {
        let order = changes.get(&format!("{ORDER}{name}"));
        merge_field(parent, fields, name, change, order)?;
    }
    for (directive, names) in changes {
        if let Some(list) =
            directive.strip_prefix(ORDER).filter(|list| !changes.contains_key(*list))
        {
            reorder(parent, fields, list, names)?;
        } else if let Some(list) = directive.strip_prefix(DELETE) {
            let doomed = array(directive, names)?;
            if let Some(Value::Array(values)) = fields.get_mut(list) {
                values.retain(|value| !doomed.contains(value));
            }
        }
    }
    Ok(())
}

fn check_directives(changes: &Fields) -> Result<(), Failure> {
    let known = |name: &str| {
        name == PATCH || name == RETAIN || name.starts_with(ORDER) || name.starts_with(DELETE)
    };
    let mut directives = changes.keys().filter(|name| name.starts_with('$'));
    match directives.find(|name| !known(name)) {
        Some(unknown) => Err(refused(&format!("the directive {unknown} is not known"))),
        None => Ok(()),
    }
}

fn retain(fields: &mut Fields, changes: &Fields) -> Result<(), Failure> {
    let Some(kept) = changes.get(RETAIN) else { return Ok(()) };
    let kept = array(RETAIN, kept)?;
    let is_kept = |name: &str| kept.iter().any(|other| *other == name);
    let set = changes.iter().filter(|(name, change)| !name.starts_with('$') && !change.is_null());
    if let Some((name, _)) = set.into_iter().find(|(name, _)| !is_kept(name)) {
        return Err(refused(&format!("{RETAIN} does not name {name}, which is set")));
    }
    fields.retain(|name, _| is_kept(name));
    Ok(())
}

fn merge_field(
    parent: &str,
    fields: &mut Fields,
    name: &str,
    change: &Value,
    order: Option<&Value>,
) -> Result<(), Failure> {
    if change.is_null() && order.is_none() {
        fields.remove(name);
        return Ok(());
    }
    match (fields.get_mut(name), change, Merging::of(parent, name)) {
        (Some(Value::Object(fields)), Value::Object(changes), _) => {
            merge_object(name, fields, changes)
        }
        (there, Value::Array(elements), Some(merging)) => {
            let there = there.and_then(Value::as_array_mut).map(std::mem::take);
            let order = order.map(|order| array(ORDER, order)).transpose()?;
            let merged = merge_list(name, merging, there.unwrap_or_default(), elements, order)?;
            fields.insert(name.to_owned(), merged.into());
            Ok(())
        }
        _ if order.is_some() => {
            Err(refused(&format!("{ORDER}{name}: this is no list that merges")))
        }
        _ => {
            match plain(change)? {
                Some(value) => fields.insert(name.to_owned(), value),
                None => fields.remove(name),
            };
            Ok(())
        }
    }
}

/// Elements of the patch come in the patch's order, or in `order`, others where they were before.
fn merge_list(
    name: &str,
    merging: Merging,
    mut there: Vec<Value>,
    changes: &[Value],
    order: Option<&Vec<Value>>,
) -> Result<Vec<Value>, Failure> {
    let mut set = Vec::new();
    for change in changes {
        match change.get(PATCH).map(|directive| directive.as_str().unwrap_or_default()) {
            None => set.push(change.clone()),
            Some("delete") => {
                while let Some(place) = merging.place(&there, change)? {
                    there.remove(place);
                }
            }
            Some("replace") => {}
            Some(other) => return Err(refused(&format!("{PATCH}: {other:?} is not known"))),
        }
    }
    if changes.iter().any(|change| change.get(PATCH).is_some_and(|how| how == "replace")) {
        there.clear();
    }
    let before = there.clone();
    for change in &set {
        match (merging.place(&there, change)?, change) {
            (Some(place), Value::Object(changes)) => {
                if let Some(Value::Object(fields)) = there.get_mut(place) {
                    merge_object(name, fields, changes)?;
                }
            }
            (Some(_), _) => {}
            (None, _) => there.extend(plain(change)?),
        }
    }
    if let Some(order) = order {
        check_order(merging, &set, order)?;
    }
    arrange(merging, there, &before, order.unwrap_or(&set))
}

/// The elements set must be among the ordered ones, in that order.
fn check_order(merging: Merging, set: &[Value], order: &[Value]) -> Result<(), Failure> {
    let mut last = None;
    for element in set {
        let place = merging.place(order, element)?;
        if place.is_none() || place < last {
            return Err(refused(&format!("{element} is not where {ORDER} has it")));
        }
        last = place;
    }
    Ok(())
}

fn reorder(parent: &str, fields: &mut Fields, list: &str, order: &Value) -> Result<(), Failure> {
    let order = array(ORDER, order)?;
    match (fields.get_mut(list), Merging::of(parent, list)) {
        (None, _) => Ok(()),
        (Some(Value::Array(there)), Some(merging)) => {
            let before = there.clone();
            *there = arrange(merging, std::mem::take(there), &before, order)?;
            Ok(())
        }
        _ => Err(refused(&format!("{ORDER}{list}: this is no list that merges"))),
    }
}

/// The elements that `order` names, in its order; each other one goes before the first of those that
/// came after it in `before`.
fn arrange(
    merging: Merging,
    elements: Vec<Value>,
    before: &[Value],
    order: &[Value],
) -> Result<Vec<Value>, Failure> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for element in elements {
        match merging.place(order, &element)? {
            Some(place) => named.push((place, element)),
            None => others.push(element),
        }
    }
    named.sort_by_key(|(place, _)| *place);
    let mut others = others.into_iter().peekable();
    let mut arranged = Vec::new();
    for (_, element) in named {
        let place = merging.place(before, &element)?;
        while let Some(other) = others.peek() {
            if place.is_none() || merging.place(before, other)? >= place {
                break;
            }
            arranged.extend(others.next());
        }
        arranged.push(element);
    }
    arranged.extend(others);
    Ok(arranged)
}

/// What is put where nothing was: no directives and no nulls; nothing at all where `$patch` says how
/// to merge it.
fn plain(value: &Value) -> Result<Option<Value>, Failure> {
    Ok(match value {
        Value::Object(fields) if fields.contains_key(PATCH) => None,
        Value::Object(fields) => Some(without_directives(fields)?.into()),
        Value::Array(elements) => {
            let kept = elements.iter().filter_map(|element| plain(element).transpose());
            Some(Value::Array(kept.collect::<Result<_, _>>()?))
        }
        other => Some(other.clone()),
    })
}

fn without_directives(fields: &Fields) -> Result<Fields, Failure> {
    check_directives(fields)?;
    let set = fields.iter().filter(|(name, value)| !name.starts_with('$') && !value.is_null());
    let cleaned = set.filter_map(|(name, value)| {
        plain(value).transpose().map(|value| Ok((name.clone(), value?)))
    });
    cleaned.collect()
}

fn array<'a>(name: &str, value: &'a Value) -> Result<&'a Vec<Value>, Failure> {
    value.as_array().ok_or_else(|| refused(&format!("{name} is no list")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(target: &Value, patch: &Value) -> Result<Value, Failure> {
        let mut target = target.clone();
        apply(&mut target, patch).map(|()| target)
    }

    fn names(list: &Value) -> Vec<&str> {
        list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
    }

    fn containers(names: &[&str]) -> Value {
        names.iter().map(|name| json!({"name": name, "image": "old"})).collect()
    }

    #[test]
    fn a_second_apply_changes_what_it_names_and_keeps_the_rest_of_every_list() {
        let pod = json!({"spec": {
            "containers": [
                {"name": "a", "image": "old", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
                 "ports": [{"containerPort": 80, "name": "web"}], "volumeMounts": [{"mountPath": "/d", "name": "d"}]},
                {"name": "b", "image": "old"},
            ],
            "tolerations": [{"key": "k"}],
        }});
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
            "containers": [{
                "$setElementOrder/env": [{"name": "X"}, {"name": "Y"}], "name": "a", "image": "new",
                "env": [{"name": "Y", "value": "3"}],
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "volumeMounts": [{"mountPath": "/d", "readOnly": true}],
            }],
            "tolerations": [{"key": "l"}],
        }});
        let expected = json!({"spec": {
            "containers": [
                {"name": "a", "image": "new", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "3"}],
                 "ports": [{"containerPort": 80, "name": "web", "protocol": "TCP"}],
                 "volumeMounts": [{"mountPath": "/d", "name": "d", "readOnly": true}]},
                {"name": "b", "image": "old"},
            ],
            "tolerations": [{"key": "l"}],
        }});
        assert_eq!(patched(&pod, &patch).unwrap(), expected);
    }

    #[test]
    fn elements_come_and_go_in_the_order_that_is_set() {
        let spec = json!({"containers": containers(&["a", "b", "c"])});
        let patch = json!({
            "$setElementOrder/containers": [{"name": "d"}, {"name": "a"}],
            "containers": [{"name": "d", "image": null}, {"name": "b", "$patch": "delete"}],
        });
        let after = patched(&spec, &patch).unwrap();
        // What the order does not name keeps its place as well as it can.
        assert_eq!(names(&after["containers"]), ["d", "a", "c"]);
        assert_eq!(after["containers"][0], json!({"name": "d"}));
        let order = json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}]});
        let after = patched(&spec, &order).unwrap();
        assert_eq!(names(&after["containers"]), ["a", "c", "b"]);
        let replace = json!({"containers": [{"name": "z"}, {"$patch": "replace"}]});
        assert_eq!(names(&patched(&spec, &replace).unwrap()["containers"]), ["z"]);
    }

    #[test]
    fn objects_are_replaced_emptied_or_cut_down_to_some_fields() {
        let volume = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        let patch = json!({"volumes": [
            {"$retainKeys": ["name", "configMap"], "name": "v", "configMap": {"name": "c"}},
        ]});
        let expected = json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}]});
        assert_eq!(patched(&volume, &patch).unwrap(), expected);
        let labels = json!({"labels": {"a": "1"}});
        let replace = json!({"labels": {"$patch": "replace", "b": "2"}});
        assert_eq!(patched(&labels, &replace).unwrap(), json!({"labels": {"b": "2"}}));
        let delete = json!({"labels": {"$patch": "delete"}});
        assert_eq!(patched(&labels, &delete).unwrap(), json!({"labels": {}}));
    }

    #[test]
    fn finalizers_of_an_object_merge_and_those_of_a_namespace_are_replaced() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {"finalizers": ["a"]}});
        let patch = json!({
            "metadata": {
                "$deleteFromPrimitiveList/finalizers": ["a"],
                "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"],
            },
            "spec": {"finalizers": ["c"]},
        });
        let expected =
            json!({"metadata": {"finalizers": ["c", "b"]}, "spec": {"finalizers": ["c"]}});
        assert_eq!(patched(&object, &patch).unwrap(), expected);
    }

    #[test]
    fn what_is_put_where_nothing_was_has_no_directives_and_no_nulls() {
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "a"}],
            "containers": [{"name": "a", "image": null, "$setElementOrder/env": [{"name": "X"}], "env": [{"name": "X"}]}],
            "nodeSelector": {"$patch": "replace", "a": "b"},
        }});
        let expected = json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X"}]}]}});
        assert_eq!(patched(&json!({}), &patch).unwrap(), expected);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let spec = json!({"containers": containers(&["a"]), "tolerations": []});
        for wrong in [
            json!({"$nonsense": 1}),
            json!({"new": {"$nonsense": 1}}),
            json!({"$patch": "merge"}),
            json!({"containers": [{"image": "new"}]}),
            json!({"containers": ["a"]}),
            json!({"containers": [{"name": "a", "$patch": "merge"}]}),
            json!({"$setElementOrder/containers": [], "containers": [{"name": "a"}]}),
            json!({"$setElementOrder/containers": [], "containers": null}),
            json!({"$setElementOrder/containers": "a"}),
            json!({"$setElementOrder/tolerations": [{"key": "k"}]}),
            json!({"$retainKeys": ["containers"], "hostname": "h"}),
        ] {
            let refusal = patched(&spec, &wrong).unwrap_err();
            assert_eq!(refusal.code, 400, "{wrong}");
        }
        assert_eq!(patched(&spec, &json!([])).unwrap_err().code, 400);
    }
}
