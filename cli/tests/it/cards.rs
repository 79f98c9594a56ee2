//! `plimsoll gpus`, `capacity`, `defragment`, `top` and `cordon`.

use serde_json::{Value, json};

use crate::command::{assert_golden, json as parsed};
use crate::world::{Extender, World};

const CARDS: &str = include_str!("../../../crates/api/tests/golden/all-cards.json");
const NODE: &str = include_str!("../../../crates/api/tests/golden/node.json");
const STATE: &str = include_str!("../../../crates/api/tests/golden/state.json");
const MOVES: &str = include_str!("../../../crates/api/tests/golden/moves.json");
const INSPECT: &str = include_str!("../../../crates/api/tests/golden/inspect.json");

fn world() -> World {
    let extender = Extender::new(&[
        ("/v1/cards", CARDS),
        ("/v1/nodes/gpu-1", NODE),
        ("/v1/state", STATE),
        ("/gpushare-scheduler/inspect", INSPECT),
    ]);
    World::new().with_extender(&extender.url)
}

#[test]
fn cards_are_shown_with_their_pods_and_with_what_still_fits() {
    assert_golden("gpus.txt", &world().run(&["gpus"]).success());
    assert_golden("gpus-wide.txt", &world().run(&["gpus", "-o", "wide"]).success());
}

#[test]
fn one_node_is_asked_for_by_name() {
    assert_golden("gpus-node.txt", &world().run(&["gpus", "gpu-1"]).success());
    let stderr = world().run(&["gpus", "gpu/1"]);
    assert_eq!(stderr.code, Some(2));
}

#[test]
fn json_and_yaml_are_the_extenders_answer() {
    assert_eq!(parsed(&world().run(&["gpus", "-o", "json"]).success()), parsed(CARDS));
    let yaml = world().run(&["gpus", "-o", "yaml"]).success();
    assert!(yaml.starts_with("nodes:\n- cards:\n"), "{yaml}");
}

#[test]
fn inspect_is_another_name_and_its_json_stays_the_inspect_apis() {
    assert_eq!(world().run(&["inspect"]).success(), world().run(&["gpus"]).success());
    assert_eq!(parsed(&world().run(&["inspect", "--json"]).success()), parsed(INSPECT));
}

#[test]
fn nodes_are_chosen_by_their_labels() {
    let nodes = r#"{"items": [{"metadata": {"name": "other"}}]}"#;
    let world = world().answer("get nodes --selector=pool=a", nodes);
    assert_eq!(world.run(&["gpus", "-l", "pool=a"]).success(), "No node reports cards.\n");
}

#[test]
fn a_replica_that_does_not_lead_says_so() {
    let mut cards = parsed(CARDS);
    cards["replica"]["leads"] = json!(false);
    let extender = Extender::new(&[("/v1/cards", &cards.to_string())]);
    let written = World::new().with_extender(&extender.url).run(&["gpus"]).success();
    assert!(written.contains("which does not lead"), "{written}");
}

#[test]
fn a_replica_that_does_not_know_everything_says_so_in_every_report() {
    for words in [
        &["top", "nodes"][..],
        &["top", "pods", "-A"],
        &["top", "pods", "-n", "none"],
        &["top", "cards"],
        &["capacity", "--size", "1"],
    ] {
        let [mut state, mut cards] = [STATE, CARDS].map(parsed);
        state["replica"]["complete"] = json!(false);
        cards["replica"]["complete"] = json!(false);
        let [state, cards] = [state, cards].map(|value| value.to_string());
        let extender = Extender::new(&[("/v1/cards", &cards), ("/v1/state", &state)]);
        let world = World::new().with_extender(&extender.url);
        let written = world.run(words).success();
        assert!(written.contains("has not listed all nodes and pods yet"), "{words:?}: {written}");
        let json = parsed(&world.run(&[words, &["-o", "json"]].concat()).success());
        assert_eq!(json["replica"]["complete"], false, "{words:?}");
    }
}

#[test]
fn defragment_shows_what_would_have_to_be_moved() {
    let path = "/v1/moves?cards=2&units=80&priority=1000";
    let world = |answer: &str| World::new().with_extender(&Extender::new(&[(path, answer)]).url);
    let words = ["defragment", "--for", "2x80", "--priority", "1000"];
    assert_golden("defragment.txt", &world(MOVES).run(&words).success());
    let json = [&words[..], &["-o", "json"]].concat();
    assert_eq!(parsed(&world(MOVES).run(&json).success()), parsed(MOVES));
    let names = [&words[..], &["-o", "name"]].concat();
    assert_eq!(world(MOVES).run(&names).success(), "pod/chat-6d5f-x7k2p\npod/search-0\n");
    let mut moves = parsed(MOVES);
    moves["proposal"]["moves"] = json!([]);
    let written = world(&moves.to_string()).run(&words).success();
    assert!(written.contains("Nothing has to be moved."), "{written}");
    moves.as_object_mut().unwrap().remove("proposal");
    let none = world(&moves.to_string()).run(&words);
    assert_eq!(none.code, Some(1));
    assert!(
        none.stdout.starts_with("No moves make room for 2 cards with 80 units each.\n"),
        "{}",
        none.stdout
    );
}

#[test]
fn a_shape_is_cards_and_units() {
    for shape in ["", "x", "0x80", "2x0", "65x1", "2x80x1", "80GiB"] {
        let refused = World::new().run(&["defragment", "--for", shape]);
        assert_eq!(refused.code, Some(2), "{shape}");
        assert!(refused.stderr.contains("as 8x80"), "{}", refused.stderr);
    }
}

#[test]
fn capacity_tells_how_many_pods_fit_by_model_and_in_all() {
    assert_golden("capacity.txt", &world().run(&["capacity", "--size", "8"]).success());
    let two = world().run(&["capacity", "--size", "8", "--count", "2", "-o", "json"]).success();
    assert_eq!(parsed(&two)["total"]["pods"], 0);
}

#[test]
fn top_has_the_hottest_and_fullest_first() {
    assert_golden("top-nodes.txt", &world().run(&["top", "nodes"]).success());
    assert_golden("top-pods.txt", &world().run(&["top", "pods", "-A"]).success());
    assert_golden("top-cards.txt", &world().run(&["top", "cards"]).success());
    let one = world().run(&["top", "nodes", "--limit", "1"]).success();
    assert!(one.contains("worker-1") && one.contains("and 2 more (--all)"), "{one}");
}

#[test]
fn pods_are_those_of_the_contexts_namespace_unless_all_are_asked_for() {
    let shown = world().run(&["top", "pods"]).success();
    assert_eq!(shown, "No pod holds units of cards in namespace shop (-A: all).\n");
    let named = world().run(&["top", "pods", "-n", "ml", "-o", "name"]).success();
    assert!(named.starts_with("pod/"), "{named}");
}

const CARDS_OF_NODE: &str = include_str!("../../../crates/api/tests/golden/gpu-cards.json");

fn to_cordon(env: &Value) -> World {
    let node = json!({"metadata": {"name": "n", "annotations": {"plimsoll.dev/gpu-cards": CARDS_OF_NODE}}});
    let containers = json!([{"name": "gpushare-device-plugin", "env": env}]);
    let set = json!({"items": [{"spec": {"template": {"spec": {"containers": containers}}}}]});
    World::new().json("get node n", &node).json("get daemonsets", &set)
}

fn followed() -> World {
    to_cordon(&json!([{"name": "PLIMSOLL_UNHEALTHY_GPUS_NAMESPACE", "value": "kube-system"}]))
}

#[test]
fn a_card_is_cordoned_in_the_config_map_that_the_device_plugin_follows() {
    let world = followed()
        .fails(
            "get configmap unhealthy-gpu-n",
            "Error from server (NotFound): configmaps not found",
        )
        .reads("create --filename=-");
    let said = world.run(&["cordon", "n", "0"]).success();
    assert!(said.starts_with("card 0 of n cordoned\n"), "{said}");
    assert_eq!(parsed(&world.stdin())["data"], json!({"gpus": "0"}));
}

#[test]
fn a_list_that_is_there_is_patched_as_it_was_read() {
    let map = json!({"metadata": {"resourceVersion": "7"}, "data": {"gpus": "5,0"}});
    let world =
        followed().json("get configmap unhealthy-gpu-n", &map).answer("patch configmap", "");
    assert_eq!(world.run(&["uncordon", "n", "0"]).success(), "card 0 of n uncordoned\n");
    let patch = r#"--patch={"data":{"gpus":"5"},"metadata":{"resourceVersion":"7"}}"#;
    assert!(world.calls().contains(patch), "{}", world.calls());
    let dry = world.run(&["uncordon", "n", "0", "--dry-run"]).success();
    assert_eq!(
        dry,
        "card 0 of n would be uncordoned: ConfigMap kube-system/unhealthy-gpu-n, gpus: \"5\"\n"
    );
}

fn listed(gpus: &str, by_plugin: &str) -> World {
    let map = json!({
        "metadata": {"resourceVersion": "7", "annotations": {"plimsoll.dev/written-gpus": by_plugin}},
        "data": {"gpus": gpus},
    });
    followed().json("get configmap unhealthy-gpu-n", &map).answer("patch configmap", "")
}

#[test]
fn a_card_that_the_plugin_finds_unhealthy_is_cordoned_for_longer() {
    let world = listed("0", "0");
    let said = world.run(&["cordon", "n", "0"]).success();
    assert!(said.starts_with("card 0 of n cordoned\n"), "{said}");
    let patch = r#"--patch={"data":{"gpus":"0"},"metadata":{"annotations":{"plimsoll.dev/written-gpus":null},"resourceVersion":"7"}}"#;
    assert!(world.calls().contains(patch), "{}", world.calls());
}

#[test]
fn a_card_that_is_gone_is_uncordoned_and_no_empty_list_stays() {
    let world = listed("9", "");
    assert_eq!(world.run(&["uncordon", "n", "9"]).success(), "card 9 of n uncordoned\n");
    assert!(world.calls().contains(r#"--patch={"data":{"gpus":null}"#), "{}", world.calls());
    let dry = world.run(&["uncordon", "n", "9", "--dry-run"]).success();
    assert!(dry.ends_with("unhealthy-gpu-n, gpus: none\n"), "{dry}");
}

#[test]
fn a_device_plugin_that_follows_no_list_is_an_error_with_the_setting() {
    let stderr = to_cordon(&json!([])).run(&["cordon", "n", "0"]).failure();
    assert!(stderr.contains("devicePlugin.unhealthyConfigMaps=true"), "{stderr}");
    let stderr = listed("5", "").run(&["cordon", "n", "9"]).failure();
    assert!(stderr.contains("has no card 9; it has 0 (GPU-"), "{stderr}");
}
