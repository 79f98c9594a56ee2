//! What events are written, against the API stand-in.

use cluster::{Client, ConfigMapReference, EventKind, EventText, EventWriter, PodReference};
use serde_json::{Value, json};
use sim::{Sim, WRITTEN_EVENTS};

use crate::api::{LIMIT, connected};

fn writer(client: Client) -> EventWriter {
    EventWriter::new(client, "plimsoll-tests")
}

fn fault(note: &str) -> EventText {
    EventText { reason: "PolicyRefused", action: "ReadPolicy", note: note.to_owned() }
}

/// The notes of all events and how many each counts, in the order of their names.
fn notes(sim: &Sim) -> Vec<(String, i64)> {
    let mut events = sim.list(WRITTEN_EVENTS);
    events.sort_by_key(|event| event["metadata"]["name"].as_str().unwrap().to_owned());
    let note = |event: &Value| {
        (event["note"].as_str().unwrap().to_owned(), event["series"]["count"].as_i64().unwrap_or(1))
    };
    events.iter().map(note).collect()
}

#[tokio::test]
async fn two_notes_of_one_reason_are_two_events_and_equal_ones_are_counted() {
    let (sim, client) = connected().await;
    let writer = writer(client);
    let node = "n1".into();
    for note in ["one", "two", "one", "one"] {
        // A clone counts together with the others.
        let writer = writer.clone();
        writer.write_of_node(&node, EventKind::Warning, &fault(note), LIMIT).await.unwrap();
    }
    assert_eq!(notes(&sim), [("one".to_owned(), 3), ("two".to_owned(), 1)]);
    writer.write_of_node(&node, EventKind::Normal, &fault("two"), LIMIT).await.unwrap();
    assert_eq!(notes(&sim).len(), 3, "a fault and its end are two events");
}

#[tokio::test]
async fn an_event_says_what_it_is_about_and_who_wrote_it() {
    let (sim, client) = connected().await;
    let pod = PodReference {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: "u-1".to_owned(),
    };
    writer(client).warn(&pod, &fault("one"), LIMIT).await.unwrap();
    let event = sim.list(WRITTEN_EVENTS).remove(0);
    let regarding = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-0",
        "uid": "u-1" });
    assert_eq!(event["regarding"], regarding);
    assert_eq!(event["metadata"]["namespace"], "shop");
    let written = ["type", "reason", "action", "note", "reportingController"].map(|at| &event[at]);
    assert_eq!(written, ["Warning", "PolicyRefused", "ReadPolicy", "one", "plimsoll-tests"]);
    // The API server refuses an event without them.
    for field in ["eventTime", "reportingInstance"] {
        assert!(!event[field].as_str().unwrap().is_empty(), "{event}");
    }
}

#[tokio::test]
async fn an_event_of_a_config_map_has_its_uid_and_the_second_fault_is_shown_too() {
    let (sim, client) = connected().await;
    sim.put(json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "policy", "namespace": "plimsoll", "uid": "u-policy" } }));
    let writer = writer(client);
    let map = ConfigMapReference { namespace: "plimsoll".to_owned(), name: "policy".to_owned() };
    for note in ["line 38: mode", "line 26: limit"] {
        writer.warn_of_config_map(&map, &fault(note), LIMIT).await.unwrap();
    }
    let expected = [("line 38: mode".to_owned(), 1), ("line 26: limit".to_owned(), 1)];
    assert_eq!(notes(&sim), expected);
    assert_eq!(sim.list(WRITTEN_EVENTS)[0]["regarding"]["uid"], "u-policy");
}

#[tokio::test]
async fn an_event_that_was_deleted_is_written_anew() {
    let (sim, client) = connected().await;
    let writer = writer(client);
    let node = "n1".into();
    let fault = fault("one");
    let write = || writer.write_of_node(&node, EventKind::Warning, &fault, LIMIT);
    write().await.unwrap();
    let name = sim.list(WRITTEN_EVENTS)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    sim.delete(WRITTEN_EVENTS, "default", &name);
    write().await.unwrap();
    write().await.unwrap();
    assert_eq!(notes(&sim), [("one".to_owned(), 2)]);
}

#[tokio::test]
async fn a_note_is_cut_by_bytes_and_between_characters() {
    let (sim, client) = connected().await;
    let writer = writer(client);
    let node = "n1".into();
    for note in ["é".repeat(1000), format!("x{}", "é".repeat(1000)), "é".repeat(512)] {
        writer.write_of_node(&node, EventKind::Warning, &fault(&note), LIMIT).await.unwrap();
    }
    let ends: Vec<(usize, bool)> =
        notes(&sim).iter().map(|(note, _)| (note.len(), note.ends_with('…'))).collect();
    assert_eq!(ends, [(1023, true), (1024, true), (1024, false)]);
}
