//! Watches. Each is opened after the changes that it shows, and ends by its own time limit of some seconds.

use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{Refuted, Rig, same, text, version};

/// An event's type and its object's name.
type Event = (String, String);

async fn watch(rig: &Rig<'_>, what: &str) -> Result<Vec<Value>, Refuted> {
    watch_for(rig, what, 1).await
}

async fn watch_for(rig: &Rig<'_>, what: &str, seconds: u8) -> Result<Vec<Value>, Refuted> {
    let answer = rig.get(&format!("{what}&watch=1&timeoutSeconds={seconds}")).await?;
    same("the status", answer.code, 200)?;
    answer
        .text
        .lines()
        .map(|line| {
            serde_json::from_str(line).map_err(|error| Refuted(format!("{error} in {line}")))
        })
        .collect()
}

fn events_of(events: &[Value]) -> Vec<Event> {
    let mut names = Vec::new();
    for event in events.iter().filter(|event| event["type"] != "BOOKMARK") {
        let name = text(&event["object"]["metadata"]["name"]);
        names.push((text(&event["type"]).to_owned(), name.to_owned()));
    }
    names
}

fn expected(events: &[(&str, &str)]) -> Vec<Event> {
    events.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

async fn newest(rig: &Rig<'_>, plural: &str) -> Result<String, Refuted> {
    let list = rig.get(plural).await?.is(200)?;
    Ok(version(&list).to_owned())
}

pub(crate) async fn a_watch_from_a_list_shows_every_later_change_in_order(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.config_map("old").await?;
    rig.remove("configmaps/late").await?;
    let from = newest(rig, "configmaps").await?;
    rig.config_map("late").await?;
    rig.patch("configmaps/old", &json!({"data": {"a": "2"}})).await?.is(200)?;
    rig.remove("configmaps/old").await?;
    let events = watch(rig, &format!("configmaps?resourceVersion={from}")).await?;
    let order = [("ADDED", "late"), ("MODIFIED", "old"), ("DELETED", "old")];
    same("the events", events_of(&events), expected(&order))?;
    rig.remove("configmaps/late").await
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
    same("the events", events_of(&events), expected(&order))?;
    rig.remove("configmaps/changing").await
}

/// The event has the object as it was before the change, so it does not show what the object has become.
pub(crate) async fn an_object_that_ceases_to_match_is_deleted_as_it_was_with_the_version_of_the_change(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.config_map("leaving").await?;
    rig.patch("configmaps/leaving", &change("inside", "before")).await?.is(200)?;
    let from = newest(rig, "configmaps").await?;
    let change = rig.patch("configmaps/leaving", &change("outside", "after")).await?.is(200)?;
    let path = format!("configmaps?labelSelector=conformance%3Dinside&resourceVersion={from}");
    let events = watch(rig, &path).await?;
    same("the events", events_of(&events), expected(&[("DELETED", "leaving")]))?;
    let object = &events[0]["object"];
    same("its data", text(&object["data"]["a"]), "before")?;
    same("its label", text(&object["metadata"]["labels"]["conformance"]), "inside")?;
    same("its version", version(object), version(&change))?;
    rig.remove("configmaps/leaving").await
}

fn change(label: &str, data: &str) -> Value {
    json!({"metadata": {"labels": {"conformance": label}}, "data": {"a": data}})
}

pub(crate) async fn a_time_limit_that_is_no_number_is_refused(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    for (limit, why) in
        [(u64::MAX.to_string(), "value out of range"), ("x".to_owned(), "invalid syntax")]
    {
        let answer = rig.get(&format!("configmaps?watch=1&timeoutSeconds={limit}")).await?;
        answer.is_refused(400, &format!("strconv.ParseInt: parsing \"{limit}\": {why}"))?;
    }
    Ok(())
}

/// A list that comes as a watch: with a bookmark after the last object, and every later change after that.
pub(crate) async fn a_streamed_list_shows_all_objects_a_bookmark_and_then_changes(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    let labels = "labelSelector=streamed";
    for name in ["streamed-a", "streamed-b"] {
        rig.config_map(name).await?;
        let patch = json!({"metadata": {"labels": {"streamed": "yes"}}});
        rig.patch(&format!("configmaps/{name}"), &patch).await?.is(200)?;
    }
    let parameters =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let path = format!("configmaps?{labels}&resourceVersion=&{parameters}");
    let change = async {
        // The change must come after the whole list. When the list has ended is not seen while the watch runs.
        tokio::time::sleep(Duration::from_secs(2)).await;
        rig.patch("configmaps/streamed-a", &json!({"data": {"a": "2"}})).await?.is(200)
    };
    let (events, changed) = tokio::join!(watch_for(rig, &path, 4), change);
    let events = events?;
    let changed = changed?;
    let end = events.iter().position(|event| {
        let mark = &event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"];
        event["type"] == "BOOKMARK" && mark == "true"
    });
    let end = end.ok_or_else(|| Refuted(format!("no bookmark ends the list: {events:?}")))?;
    let listed = [("ADDED", "streamed-a"), ("ADDED", "streamed-b")];
    same("the list", events_of(&events[..end]), expected(&listed))?;
    same("the changes", events_of(&events[end..]), expected(&[("MODIFIED", "streamed-a")]))?;
    let [list, change] =
        [&events[end]["object"], &changed].map(|object| version(object).parse::<u64>().ok());
    same("whether the change is newer than the list", change > list && list.is_some(), true)?;
    // What the bookmark says is where a watch can go on.
    let from = version(&events[end]["object"]);
    let events = watch(rig, &format!("configmaps?{labels}&resourceVersion={from}")).await?;
    same("the events from there", events_of(&events), expected(&[("MODIFIED", "streamed-a")]))?;
    rig.remove("configmaps/streamed-a").await?;
    rig.remove("configmaps/streamed-b").await
}

/// `sendInitialEvents` and `resourceVersionMatch` are accepted only together.
pub(crate) async fn a_streamed_list_that_is_asked_for_wrongly_is_refused(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    for (parameters, why) in [
        (
            "watch=1&sendInitialEvents=true&allowWatchBookmarks=true",
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (
            "watch=1&resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (
            "sendInitialEvents=true",
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        ),
    ] {
        let answer = rig.get(&format!("configmaps?{parameters}")).await?;
        answer.is_refused(422, &format!("ListOptions.meta.k8s.io \"\" is invalid: {why}"))?;
    }
    Ok(())
}

pub(crate) async fn a_list_in_pages_shows_each_object_once(rig: &Rig<'_>) -> Result<(), Refuted> {
    let names = ["page-a", "page-b", "page-c"];
    for name in names {
        rig.config_map(name).await?;
        let patch = json!({"metadata": {"labels": {"paged": "yes"}}});
        rig.patch(&format!("configmaps/{name}"), &patch).await?.is(200)?;
    }
    let mut found = Vec::new();
    let mut token = String::new();
    let mut versions = Vec::new();
    for page in 0..names.len() {
        let path = format!("configmaps?labelSelector=paged&limit=1&continue={token}");
        let list = rig.get(&path).await?.is(200)?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        same("the number of objects of a page", items.len(), 1)?;
        found.extend(items.iter().map(|item| text(&item["metadata"]["name"]).to_owned()));
        versions.push(version(&list).to_owned());
        text(&list["metadata"]["continue"]).clone_into(&mut token);
        same("whether another page follows", !token.is_empty(), page + 1 < names.len())?;
    }
    same("the objects", found, names.map(str::to_owned).into())?;
    versions.dedup();
    same("the number of versions", versions.len(), 1)?;
    for name in names {
        rig.remove(&format!("configmaps/{name}")).await?;
    }
    Ok(())
}

/// A real server sends a bookmark about once a minute, and one two seconds before a watch's end; none where no object
/// of the kind has changed since the watch began.
pub(crate) async fn a_watch_with_bookmarks_ends_with_one_that_has_the_newest_version(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.remove("configmaps/marked").await?;
    rig.config_map("other").await?;
    let from = newest(rig, "configmaps").await?;
    let made = rig.config_map("marked").await?;
    let path = format!("configmaps?labelSelector=conformance%3Dmarked&resourceVersion={from}");
    let with_bookmarks = format!("{path}&allowWatchBookmarks=true");
    let watches =
        async { tokio::join!(watch_for(rig, &path, 4), watch_for(rig, &with_bookmarks, 4)) };
    let (without, events) = tokio::select! {
        both = watches => both,
        failed = keep_changing(rig, "other") => return Err(failed),
    };
    same("the number of events without bookmarks", without?.len(), 1)?;
    let events = events?;
    same("the events", events_of(&events), expected(&[("ADDED", "marked")]))?;
    let last = events.last().filter(|event| event["type"] == "BOOKMARK");
    let last = last.ok_or_else(|| Refuted(format!("the last event is no bookmark: {events:?}")))?;
    // Versions of one kind can be compared since v1.35.
    let [bookmark, change] =
        [&last["object"], &made].map(|object| version(object).parse::<u64>().ok());
    same(
        "whether the bookmark is newer than the change",
        bookmark > change && change.is_some(),
        true,
    )?;
    rig.remove("configmaps/marked").await?;
    rig.remove("configmaps/other").await
}

/// Changes a config map again and again. Returns when a change fails.
async fn keep_changing(rig: &Rig<'_>, name: &str) -> Refuted {
    for turn in 0_u64.. {
        let patch = json!({"data": {"a": format!("turn {turn}")}});
        let patched = rig.patch(&format!("configmaps/{name}"), &patch).await;
        if let Err(why) = patched.and_then(|answer| answer.is(200)) {
            return why;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Refuted("no number is left".to_owned())
}
