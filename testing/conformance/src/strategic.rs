//! Strategic merge patches, by which `kubectl apply` changes what it made.

use serde_json::{Value, json};

use crate::rig::{Refuted, Rig, same, text};

pub(crate) async fn a_strategic_patch_merges_the_lists_whose_elements_have_keys(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.done("pods/merged").await?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "merged"},
        "spec": {"schedulerName": "nobody", "tolerations": [{"key": "a", "operator": "Exists"}], "containers": [
            {"name": "main", "image": "example.com/old", "env": [{"name": "A", "value": "1"}],
             "ports": [{"containerPort": 80, "name": "web"}]},
            {"name": "beside", "image": "example.com/old"},
        ]},
    });
    let made = rig.post("pods", &pod).await?.is(201)?;
    let patch = json!({"spec": {
        "$setElementOrder/containers": [{"name": "main"}, {"name": "beside"}],
        "containers": [{"name": "main", "image": "example.com/new"}],
    }});
    let after = rig.strategic("pods/merged", &patch).await?.is(200)?;
    let mut expected = made["spec"].clone();
    expected["containers"][0]["image"] = "example.com/new".into();
    same("the spec", &after["spec"], &expected)?;
    // A list whose elements have no key is replaced, and these may only grow.
    let mut tolerations = expected["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.push(json!({"key": "b", "operator": "Exists"}));
    let patch = json!({"spec": {"tolerations": tolerations}});
    let after = rig.strategic("pods/merged", &patch).await?.is(200)?;
    same("the tolerations", &after["spec"]["tolerations"], &Value::from(tolerations))?;
    rig.done("pods/merged").await
}

pub(crate) async fn elements_of_a_list_come_go_and_are_ordered_by_directives(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.pod("directed", false).await?;
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let kinds = |pod: &Value| -> Vec<String> {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().map(|condition| text(&condition["type"]).to_owned()).collect()
    };
    let patch = async |status: Value| {
        rig.strategic("pods/directed/status", &json!({"status": status})).await?.is(200)
    };
    let first = json!({"conditions": [condition("A"), condition("B"), condition("C")]});
    same("what was put first", kinds(&patch(first).await?), names(&["A", "B", "C"]))?;
    let delete = json!({"conditions": [{"type": "B", "$patch": "delete"}, condition("D")]});
    // What the patch does not name comes after it, where the old list does not say otherwise.
    same("what one was taken from", kinds(&patch(delete).await?), names(&["D", "A", "C"]))?;
    let order = json!({
        "$setElementOrder/conditions": [{"type": "C"}, {"type": "E"}, {"type": "A"}],
        "conditions": [condition("E")],
    });
    same("what was ordered", kinds(&patch(order).await?), names(&["D", "C", "E", "A"]))?;
    let replace = json!({"conditions": [condition("F"), {"$patch": "replace"}]});
    same("what was replaced", kinds(&patch(replace).await?), names(&["F"]))?;
    let labels = json!({"metadata": {"annotations": {"$patch": "replace", "new": "1"}}});
    let after = rig.strategic("pods/directed", &labels).await?.is(200)?;
    same("the annotations", &after["metadata"]["annotations"], &json!({"new": "1"}))?;
    let finalizers = |patch: Value| json!({"metadata": patch});
    let put = finalizers(json!({"finalizers": ["example.com/a", "example.com/b"]}));
    rig.strategic("pods/directed", &put).await?.is(200)?;
    let drop = finalizers(json!({"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}));
    let after = rig.strategic("pods/directed", &drop).await?.is(200)?;
    same("the finalizers", &after["metadata"]["finalizers"], &json!(["example.com/b"]))?;
    let drop = finalizers(json!({"$deleteFromPrimitiveList/finalizers": ["example.com/b"]}));
    rig.strategic("pods/directed", &drop).await?.is(200)?;
    rig.done("pods/directed").await
}

fn names(kinds: &[&str]) -> Vec<String> {
    kinds.iter().map(|kind| (*kind).to_owned()).collect()
}
