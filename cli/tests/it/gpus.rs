//! `plimsoll gpus`, `capacity`, `defragment`, `top` and `cordon`.

use serde_json::{Value, json};

use crate::command::{assert_golden, json as parsed};
use crate::world::{Extender, World};

const GPUS: &str = include_str!("../../../crates/api/tests/golden/all-cards.json");
const NODE: &str = include_str!("../../../crates/api/tests/golden/node.json");
const STATE: &str = include_str!("../../../crates/api/tests/golden/state.json");
const CAPACITY: &str = include_str!("../../../crates/api/tests/golden/capacity.json");
const MOVES: &str = include_str!("../../../crates/api/tests/golden/moves.json");
const INSPECT: &str = include_str!("../../../crates/api/tests/golden/inspect.json");

fn world() -> World {
    let extender = Extender::new(&[
        ("/v1/cards", GPUS),
        ("/v1/nodes/gpu-1", NODE),
        ("/v1/state", STATE),
        ("/v1/capacity", CAPACITY),
        ("/gpushare-scheduler/inspect", INSPECT),
    ]);
    World::new().with_extender(&extender.url)
}

#[test]
fn gpus_are_shown_with_their_pods_and_with_what_still_fits() {
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
    assert_eq!(parsed(&world().run(&["gpus", "-o", "json"]).success()), parsed(GPUS));
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
    assert_eq!(world.run(&["gpus", "-l", "pool=a"]).success(), "No node reports GPUs.\n");
}

#[test]
fn a_replica_that_does_not_lead_says_so() {
    let mut gpus = parsed(GPUS);
    gpus["replica"]["leads"] = json!(false);
    let extender = Extender::new(&[("/v1/cards", &gpus.to_string()), ("/v1/capacity", CAPACITY)]);
    let written = World::new().with_extender(&extender.url).run(&["gpus"]).success();
    assert!(written.contains("which does not lead"), "{written}");
}

#[test]
fn a_replica_that_does_not_know_everything_says_so_in_every_report() {
    for words in [
        &["top", "nodes"][..],
        &["top", "pods", "-A"],
        &["top", "pods", "-n", "none"],
        &["top", "gpus"],
        &["capacity", "--size", "1"],
    ] {
        let [mut state, mut gpus, mut capacity] = [STATE, GPUS, CAPACITY].map(parsed);
        for replica in [&mut state, &mut gpus, &mut capacity[0]] {
            replica["replica"]["complete"] = json!(false);
        }
        let answers = [("/v1/cards", gpus), ("/v1/state", state), ("/v1/capacity", capacity)];
        let texts = answers.map(|(path, value)| (path, value.to_string()));
        let extender = Extender::new(&texts.each_ref().map(|(path, text)| (*path, &**text)));
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
        none.stdout.starts_with("No moves make room for 2 GPUs with 80 units each.\n"),
        "{}",
        none.stdout
    );
}

#[test]
fn a_shape_is_gpus_and_units() {
    for shape in ["", "x", "0x80", "2x0", "65x1", "2x80x1", "80GiB"] {
        let refused = World::new().run(&["defragment", "--for", shape]);
        assert_eq!(refused.code, Some(2), "{shape}");
        assert!(refused.stderr.contains("as 8x80"), "{}", refused.stderr);
    }
}

#[test]
fn capacity_tells_how_many_pods_fit_by_model_and_in_all() {
    assert_golden("capacity.txt", &world().run(&["capacity", "--size", "8"]).success());
    let nodes = r#"{"items": [{"metadata": {"name": "gpu-1"}}]}"#;
    let extender = Extender::new(&[("/v1/capacity", CAPACITY)]);
    let world =
        World::new().with_extender(&extender.url).answer("get nodes --selector=pool=a", nodes);
    let words = "capacity --size 8 --count 2 --cores 30 -l pool=a -o json";
    let json = world.run(&words.split(' ').collect::<Vec<_>>()).success();
    assert_eq!(parsed(&json), parsed(CAPACITY)[0]);
    let asked = r#"{"sizes":[8],"count":2,"cores":30,"nodeNames":["gpu-1"]}"#;
    assert_eq!(extender.requests(), [format!("POST /v1/capacity HTTP/1.1 {asked}")]);
}

#[test]
fn top_has_the_hottest_and_fullest_first() {
    assert_golden("top-nodes.txt", &world().run(&["top", "nodes"]).success());
    assert_golden("top-pods.txt", &world().run(&["top", "pods", "-A"]).success());
    assert_golden("top-gpus.txt", &world().run(&["top", "gpus"]).success());
    let one = world().run(&["top", "nodes", "--limit", "1"]).success();
    assert!(one.contains("worker-1") && one.contains("and 2 more (--all)"), "{one}");
}

#[test]
fn pods_are_those_of_the_contexts_namespace_unless_all_are_asked_for() {
    let shown = world().run(&["top", "pods"]).success();
    assert_eq!(shown, "No pod holds units of GPUs in namespace shop (-A: all).\n");
    let named = world().run(&["top", "pods", "-n", "ml", "-o", "name"]).success();
    assert!(named.starts_with("pod/"), "{named}");
}

const GPUS_OF_NODE: &str = include_str!("../../../crates/api/tests/golden/gpu-cards.json");

const KEY: &str = "plimsoll.dev/cordoned-gpus";

/// The UUID of the GPU with the index 0.
fn first_gpu() -> String {
    let gpus: Value = serde_json::from_str(GPUS_OF_NODE).unwrap();
    let gpus = gpus.as_array().unwrap();
    let gpu = gpus.iter().find(|gpu| gpu["index"] == 0).unwrap();
    gpu["uuid"].as_str().unwrap().to_owned()
}

fn node(cordoned: Option<&str>) -> Value {
    let annotations = json!({"plimsoll.dev/gpu-cards": GPUS_OF_NODE, KEY: cordoned});
    let mut metadata = json!({"name": "n", "resourceVersion": "7", "annotations": annotations});
    if cordoned.is_none() {
        metadata["annotations"].as_object_mut().unwrap().remove(KEY);
    }
    json!({"metadata": metadata})
}

fn patch(cordoned: &Value) -> String {
    let metadata = json!({"annotations": {KEY: cordoned}, "resourceVersion": "7"});
    format!("patch node n --type=merge --patch={}", json!({"metadata": metadata}))
}

/// Whatever is in other namespaces, nothing but the Node is read.
#[test]
fn a_gpu_is_cordoned_by_its_uuid_in_an_annotation_of_its_node() {
    let world = World::new().json("get node n", &node(None)).answer("patch node n", "");
    let said = world.run(&["cordon", "n", "0"]).success();
    assert!(said.starts_with("GPU 0 of n cordoned\n"), "{said}");
    let calls = world.calls();
    let calls: Vec<&str> =
        calls.lines().map(|call| call.split(" --request").next().unwrap()).collect();
    let expected = ["get node n --output=json".to_owned(), patch(&json!(first_gpu()))];
    assert_eq!(calls, expected);
    let dry = world.run(&["cordon", "n", &first_gpu(), "--dry-run"]).success();
    let uuid = first_gpu();
    assert_eq!(dry, format!("GPU {uuid} of n would be cordoned: Node n, {KEY}: {uuid}\n"));
}

#[test]
fn other_cordoned_gpus_stay_and_the_last_takes_the_annotation_away() {
    let uuid = first_gpu();
    let both = format!("{uuid}, GPU-gone");
    let world = World::new().json("get node n", &node(Some(&both))).answer("patch node n", "");
    assert_eq!(world.run(&["uncordon", "n", "0"]).success(), "GPU 0 of n uncordoned\n");
    assert!(world.calls().contains(&patch(&json!("GPU-gone"))), "{}", world.calls());
    // A GPU that is gone is named by its UUID.
    let gone = World::new().json("get node n", &node(Some("GPU-gone"))).answer("patch node n", "");
    gone.run(&["uncordon", "n", "GPU-gone"]).success();
    assert!(gone.calls().contains(&patch(&Value::Null)), "{}", gone.calls());
    let already = world.run(&["cordon", "n", "0"]).success();
    assert_eq!(already, "GPU 0 of n takes no new pods already\n");
    let open = gone.run(&["uncordon", "n", "0"]).success();
    assert_eq!(open, "GPU 0 of n is not cordoned already\n");
}

#[test]
fn a_node_that_changes_meanwhile_is_read_again() {
    let conflict = "Error from server (Conflict): Operation cannot be fulfilled on nodes \"n\": the object has been modified";
    let once = format!("test -e tried || {{ touch tried; echo '{conflict}' >&2; exit 1; }}");
    let world = World::new().json("get node n", &node(None)).acts("patch node n", &once);
    world.run(&["cordon", "n", "0"]).success();
    assert_eq!(world.calls().matches("patch node n").count(), 2, "{}", world.calls());
    let world = World::new().json("get node n", &node(None)).fails("patch node n", conflict);
    let stderr = world.run(&["cordon", "n", "0"]).failure();
    assert!(stderr.contains("has been modified"), "{stderr}");
    assert_eq!(world.calls().matches("patch node n").count(), 5);
}

#[test]
fn a_gpu_that_the_node_does_not_have_is_an_error_that_names_those_it_has() {
    let stderr = World::new().json("get node n", &node(None)).run(&["cordon", "n", "9"]).failure();
    assert!(stderr.contains("has no GPU 9; it has 0 (GPU-"), "{stderr}");
}
