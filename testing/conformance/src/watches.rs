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
    let parse = |line: &str| {
        serde_json::from_str(line).map_err(|error| Refuted(format!("{error} in {line}")))
    };
    answer.text.lines().map(parse).collect()
}

fn events_of(events: &[Value]) -> Vec<Event> {
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

/// A real server sends a bookmark about once a minute, and one two seconds before a watch's end; none where no object of the
/// kind has changed since the watch began.
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
