//! Watches. Each is opened after the changes that it is to tell, and ends by itself a second later.

use serde_json::{Value, json};

use crate::rig::{Refuted, Rig, same, text, version};

/// Type of event and name of object.
type Event = (String, String);

async fn watch(rig: &Rig<'_>, what: &str) -> Result<Vec<Value>, Refuted> {
    let answer = rig.get(&format!("{what}&watch=1&timeoutSeconds=1")).await?;
    same("the status", answer.code, 200)?;
    let parse = |line: &str| {
        serde_json::from_str(line).map_err(|error| Refuted(format!("{error} in {line}")))
    };
    answer.text.lines().map(parse).collect()
}

fn told(events: &[Value]) -> Vec<Event> {
    let name = |event: &Value| {
        let object = &event["object"]["metadata"]["name"];
        (text(&event["type"]).to_owned(), text(object).to_owned())
    };
    events.iter().filter(|event| event["type"] != "BOOKMARK").map(name).collect()
}

fn expected(events: &[(&str, &str)]) -> Vec<Event> {
    events.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

async fn newest(rig: &Rig<'_>, plural: &str) -> Result<String, Refuted> {
    let list = rig.get(plural).await?.is(200)?;
    Ok(version(&list).to_owned())
}

pub(crate) async fn a_watch_from_a_list_tells_every_later_change_in_order(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.config_map("old").await?;
    rig.done("configmaps/late").await?;
    let from = newest(rig, "configmaps").await?;
    rig.config_map("late").await?;
    rig.patch("configmaps/old", &json!({"data": {"a": "2"}})).await?.is(200)?;
    rig.done("configmaps/old").await?;
    let events = watch(rig, &format!("configmaps?resourceVersion={from}")).await?;
    let order = [("ADDED", "late"), ("MODIFIED", "old"), ("DELETED", "old")];
    same("what is told", told(&events), expected(&order))?;
    rig.done("configmaps/late").await
}

pub(crate) async fn an_object_that_begins_to_match_is_added_and_one_that_ceases_is_deleted(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.config_map("changing").await?;
    let from = newest(rig, "configmaps").await?;
    for value in ["seen", "unseen"] {
        let patch = json!({"metadata": {"labels": {"conformance": value}}});
        rig.patch("configmaps/changing", &patch).await?.is(200)?;
    }
    let path = format!("configmaps?labelSelector=conformance%3Dseen&resourceVersion={from}");
    let events = watch(rig, &path).await?;
    let order = [("ADDED", "changing"), ("DELETED", "changing")];
    same("what is told", told(&events), expected(&order))?;
    rig.done("configmaps/changing").await
}

pub(crate) async fn initial_events_end_with_a_marked_bookmark(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.config_map("present").await?;
    let path = "configmaps?labelSelector=conformance%3Dpresent&sendInitialEvents=true\
                &allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let events = watch(rig, path).await?;
    same("what is told", told(&events), expected(&[("ADDED", "present")]))?;
    let mark = |event: &Value| {
        let annotations = &event["object"]["metadata"]["annotations"];
        event["type"] == "BOOKMARK" && annotations["k8s.io/initial-events-end"] == "true"
    };
    same("where the marked bookmark is", events.iter().position(mark), Some(1))?;
    rig.done("configmaps/present").await
}
