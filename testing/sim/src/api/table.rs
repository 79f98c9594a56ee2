//! Objects as `kubectl get` prints them: the API server makes the table, the client only lines it up.
//!
//! Columns and words are the API server's (`pkg/printers/internalversion/printers.go`), as far as the
//! objects here have something to show in them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::error::Failure;
use crate::kind::{EVENTS, Kind, NODES, PODS};
use crate::request::Request;

/// How much of its object a row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
    /// Nothing.
    None,
}

impl Include {
    /// What a request wants; nothing where it wants no table.
    ///
    /// # Errors
    /// 400 where there is no such choice.
    pub(crate) fn of(request: &Request) -> Result<Option<Self>, Failure> {
        if !request.as_table {
            return Ok(None);
        }
        match request.parameter("includeObject") {
            "" | "Metadata" => Ok(Some(Self::Metadata)),
            "Object" => Ok(Some(Self::Object)),
            "None" => Ok(Some(Self::None)),
            other => Err(Failure::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: \
                 must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }

    fn part(self, object: &Value) -> Value {
        match self {
            Self::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            }),
            Self::Object => object.clone(),
            Self::None => Value::Null,
        }
    }
}

/// A table of these objects.
pub(crate) fn table(kind: Kind, objects: &[Value], version: &str, include: Include) -> Value {
    let columns = columns(kind).iter().map(|(name, wide)| {
        json!({
            "name": name, "type": "string", "description": "", "priority": i32::from(*wide),
            "format": if *name == "Name" { "name" } else { "" },
        })
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version},
        "columnDefinitions": columns.collect::<Vec<_>>(),
        "rows": objects.iter().map(|object| row(kind, object, include)).collect::<Vec<_>>(),
    })
}

/// Each with whether only `--output wide` shows it.
fn columns(kind: Kind) -> &'static [(&'static str, bool)] {
    match kind {
        PODS => &[
            ("Name", false),
            ("Ready", false),
            ("Status", false),
            ("Restarts", false),
            ("Age", false),
            ("Node", true),
        ],
        NODES => &[("Name", false), ("Status", false), ("Age", false), ("Internal-IP", true)],
        EVENTS => &[
            ("Last Seen", false),
            ("Type", false),
            ("Reason", false),
            ("Object", false),
            ("Message", false),
            ("Name", true),
        ],
        _ => &[("Name", false), ("Age", false)],
    }
}

fn row(kind: Kind, object: &Value, include: Include) -> Value {
    let meta = &object["metadata"];
    let (name, age) = (meta["name"].clone(), age(&meta["creationTimestamp"]));
    let cells = match kind {
        PODS => {
            let node = or_none(&object["spec"]["nodeName"]);
            json!([name, ready(object), phase(object), "0", age, node])
        }
        NODES => json!([
            name,
            node_status(object),
            age,
            or_none(&object["status"]["addresses"][0]["address"])
        ]),
        EVENTS => {
            let of = &object["involvedObject"];
            let about = format!("{}/{}", text(&of["kind"]).to_lowercase(), text(&of["name"]));
            json!([age, object["type"], object["reason"], about, object["message"], name])
        }
        _ => json!([name, age]),
    };
    json!({"cells": cells, "object": include.part(object)})
}

fn ready(pod: &Value) -> String {
    let ready = list(&pod["status"]["containerStatuses"]).filter(|status| status["ready"] == true);
    format!("{}/{}", ready.count(), list(&pod["spec"]["containers"]).count())
}

/// The kubelet's reason, where it gives one; a pod that is being deleted says so.
fn phase(pod: &Value) -> String {
    let reason = [&pod["status"]["reason"], &pod["status"]["phase"]].map(text);
    match reason.iter().find(|words| !words.is_empty()) {
        _ if pod["metadata"]["deletionTimestamp"].is_string() => "Terminating".to_owned(),
        Some(words) => (*words).to_owned(),
        None => "Unknown".to_owned(),
    }
}

fn node_status(node: &Value) -> String {
    let ready = list(&node["status"]["conditions"]).find(|condition| condition["type"] == "Ready");
    let ready = match ready.map(|condition| text(&condition["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = node["spec"]["unschedulable"] == true;
    format!("{ready}{}", if cordoned { ",SchedulingDisabled" } else { "" })
}

/// As `duration.HumanDuration` has it, in its coarsest unit but for small numbers of it.
fn age(since: &Value) -> String {
    let Ok(since) = text(since).parse::<jiff::Timestamp>() else { return "<unknown>".to_owned() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = now.saturating_sub(u64::try_from(since.as_second()).unwrap_or(0));
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let both = |large: u64, unit: &str, small: u64, part: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{part}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => both(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => both(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        _ => format!("{}d", hours / 24),
    }
}

fn or_none(value: &Value) -> String {
    value.as_str().unwrap_or("<none>").to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{node, pod};

    fn cells(kind: Kind, object: impl Into<Value>) -> Vec<String> {
        let table = table(kind, &[object.into()], "7", Include::Metadata);
        let cells = table["rows"][0]["cells"].as_array().unwrap().clone();
        assert_eq!(cells.len(), table["columnDefinitions"].as_array().unwrap().len());
        cells.iter().map(|cell| text(cell).to_owned()).collect()
    }

    #[test]
    fn a_pod_shows_what_it_is_waiting_for_and_where_it_is() {
        let pod = pod("a").asking("gpu", 1).on("n").phase("Running");
        assert_eq!(cells(PODS, pod)[..4], ["a", "0/1", "Running", "0"]);
    }

    #[test]
    fn a_node_that_is_cordoned_says_so() {
        let mut node: Value = node("n").address("10.0.0.1").into();
        node["spec"]["unschedulable"] = true.into();
        assert_eq!(cells(NODES, node)[1], "Ready,SchedulingDisabled");
    }

    #[test]
    fn ages_are_told_as_kubectl_does() {
        let ago = |seconds| {
            let then = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds);
            age(&then.to_string().into())
        };
        assert_eq!(ago(300), "5m");
        assert_eq!(
            (ago(4000), ago(90_000), ago(200_000)),
            ("66m".into(), "25h".into(), "2d".into())
        );
    }
}
