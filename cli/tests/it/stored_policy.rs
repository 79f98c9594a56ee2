//! `plimsoll policy show`, `apply` and `rollback`.

use serde_json::{Value, json};

use crate::command::json as parsed;
use crate::world::{BINDINGS, Extender, World};

const SHIPPED: &str = include_str!("../../../deploy/chart/policies/shipped.yaml");

fn stored(policy: &str, annotations: &Value) -> World {
    let map = json!({
        "metadata": {"name": "policy", "resourceVersion": "41", "annotations": annotations},
        "data": {"policy.yaml": policy},
    });
    World::new()
        .answer(BINDINGS, "")
        .json("get deployments", &json!({"items": []}))
        .json("get configmap policy --namespace=plimsoll", &map)
        .reads("patch configmap policy --namespace=plimsoll --type=merge --patch-file=/dev/stdin")
}

fn cooler() -> String {
    SHIPPED.replace("limit: 0.80", "limit: 0.70")
}

#[test]
fn the_policy_is_shown_as_it_is() {
    assert_eq!(stored(SHIPPED, &json!({})).run(&["policy", "show"]).success(), SHIPPED);
    let world = World::new();
    let report = world.run_with(&["policy", "check", "-", "--json"], SHIPPED).success();
    let extender = Extender::new(&[("/v1/policy", &report)]);
    let effective = ["policy", "show", "--effective", "--extender", &extender.url];
    let shown = world.run(&effective).success();
    assert_eq!(shown, world.run_with(&["policy", "check", "-"], SHIPPED).success());
}

#[test]
fn what_is_shown_is_a_copy_of_the_policy() {
    let lines = SHIPPED.replace('\n', "\r\n");
    let shown = stored(&lines, &json!({})).run(&["policy", "show"]).success();
    assert_eq!(shown, lines);
    let world = World::new();
    world.run_with(&["policy", "check", "-"], &shown).success();
}

#[test]
fn the_policy_is_that_of_the_config_map_that_the_programs_read() {
    let args = json!([{"args": ["--policy-config-map=plimsoll/mine"]}]);
    let deployment = json!({
        "metadata": {
            "name": "scheduler-extender", "namespace": "plimsoll",
            "labels": {"app.kubernetes.io/name": "scheduler-extender"},
        },
        "spec": {"template": {"spec": {"containers": args}}},
    });
    let map = json!({"metadata": {"resourceVersion": "41"}, "data": {"policy.yaml": SHIPPED}});
    let world = World::new()
        .answer(BINDINGS, "")
        .json("get deployments", &json!({"items": [deployment]}))
        .json("get configmap mine --namespace=plimsoll", &map)
        .reads("patch configmap mine --namespace=plimsoll");
    assert_eq!(world.run(&["policy", "show"]).success(), SHIPPED);
    world.run_with(&["policy", "apply", "--yes", "-"], &cooler()).success();
    assert_eq!(parsed(&world.stdin())["data"]["policy.yaml"], cooler());
}

#[test]
fn where_kubectl_apply_has_the_policy_that_is_told() {
    let applied = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
    let world = stored(SHIPPED, &applied);
    let said = world.run_with(&["policy", "apply", "--dry-run", "-"], &cooler()).success();
    assert!(said.contains("Warning: `kubectl apply` has it"), "{said}");
}

#[test]
fn a_policy_that_is_applied_is_rolled_back_to_the_one_before() {
    let world = stored(SHIPPED, &json!({}));
    let said = world.run_with(&["policy", "apply", "--yes", "-"], &cooler()).success();
    assert!(said.starts_with("-    limit: 0.80\n+    limit: 0.70\nChanged."), "{said}");
    let patch = parsed(&world.stdin());
    assert_eq!(patch["data"]["policy.yaml"], cooler());
    assert_eq!(patch["metadata"]["resourceVersion"], "41");
    // The same annotations, as they are then in the cluster.
    let world = stored(&cooler(), &patch["metadata"]["annotations"]);
    assert_eq!(world.run(&["policy", "show", "--previous"]).success(), SHIPPED);
    let dry = world.run(&["policy", "rollback", "--dry-run"]).success();
    assert!(dry.contains("+    limit: 0.80\nNothing was changed"), "{dry}");
    assert_eq!(world.stdin(), "");
    world.run(&["policy", "rollback", "--yes"]).success();
    let patch = parsed(&world.stdin());
    assert_eq!(patch["data"]["policy.yaml"], SHIPPED);
    // A second rollback takes the first one back.
    let world = stored(SHIPPED, &patch["metadata"]["annotations"]);
    assert_eq!(world.run(&["policy", "show", "--previous"]).success(), cooler());
}

#[test]
fn without_a_record_a_rollback_says_how_to_go_back_otherwise() {
    let helm = json!({"meta.helm.sh/release-name": "plimsoll"});
    let stderr = stored(SHIPPED, &helm).run(&["policy", "rollback", "--yes"]).failure();
    assert!(stderr.contains("no former policy is recorded"), "{stderr}");
    assert!(stderr.contains("helm rollback plimsoll"), "{stderr}");
}

#[test]
fn a_faulty_policy_is_not_applied_and_nothing_is_changed_without_a_yes() {
    let world = stored(SHIPPED, &json!({}));
    let faulty = SHIPPED.replace("limit: 0.80", "limit: [80]");
    let stderr = world.run_with(&["policy", "apply", "--yes", "-"], &faulty).failure();
    assert!(stderr.contains("line "), "{stderr}");
    let asked = world.run_with(&["policy", "apply", "-"], &cooler());
    assert_eq!(asked.code, Some(1));
    assert!(asked.stderr.contains("give --yes"), "{}", asked.stderr);
    assert_eq!(world.stdin(), "");
}
