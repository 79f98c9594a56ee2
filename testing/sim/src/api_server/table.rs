//! Nodes, pods and events as `kubectl get` prints them: the API server makes the table, the client aligns it. Columns
//! and words are the API server's (`pkg/printers/internalversion/printers.go`). Of other kinds kubectl prints name and
//! age by itself.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::json::{list, name, text};
use crate::objects::kind::{EVENTS, Kind, NODES, PODS};

/// A column: its name, whether only `--output wide` shows it, and its cell.
type Column = (&'static str, bool, fn(&Value) -> String);

const POD_COLUMNS: &[Column] = &[
    ("Name", false, |pod| name(pod).to_owned()),
    ("Ready", false, ready),
    ("Status", false, pod_status),
    ("Restarts", false, |_| "0".to_owned()),
    ("Age", false, age),
    ("Node", true, |pod| or_none(&pod["spec"]["nodeName"])),
];
const NODE_COLUMNS: &[Column] = &[
    ("Name", false, |node| name(node).to_owned()),
    ("Status", false, node_status),
    ("Age", false, age),
    ("Internal-IP", true, |node| or_none(&node["status"]["addresses"][0]["address"])),
];
const EVENT_COLUMNS: &[Column] = &[
    ("Last Seen", false, age),
    ("Type", false, |event| text(&event["type"]).to_owned()),
    ("Reason", false, |event| text(&event["reason"]).to_owned()),
    ("Object", false, event_object),
    ("Message", false, |event| text(&event["message"]).to_owned()),
];

fn columns(kind: Kind) -> Option<&'static [Column]> {
    match kind {
        PODS => Some(POD_COLUMNS),
        NODES => Some(NODE_COLUMNS),
        EVENTS => Some(EVENT_COLUMNS),
        _ => None,
    }
}

/// A table of these objects, each with its whole object; `None` for other kinds.
pub(super) fn table(kind: Kind, objects: &[Value], version: &str) -> Option<Value> {
    let columns = columns(kind)?;
    let definitions = columns.iter().map(|(name, wide, _)| {
        json!({
            "name": name, "type": "string", "description": "", "priority": i32::from(*wide),
            "format": if *name == "Name" { "name" } else { "" },
        })
    });
    let mut rows = Vec::new();
    for object in objects {
        let cells: Vec<String> = columns.iter().map(|(_, _, cell)| cell(object)).collect();
        rows.push(json!({"cells": cells, "object": object}));
    }
    Some(json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions.collect::<Vec<_>>(),
        "rows": rows,
    }))
}

fn ready(pod: &Value) -> String {
    let ready = list(&pod["status"]["containerStatuses"]).filter(|status| status["ready"] == true);
    format!("{}/{}", ready.count(), list(&pod["spec"]["containers"]).count())
}

/// The kubelet's reason where it gives one, otherwise the phase.
fn pod_status(pod: &Value) -> String {
    let status = &pod["status"];
    let reason = if status["reason"].is_string() { &status["reason"] } else { &status["phase"] };
    text(reason).to_owned()
}

fn node_status(node: &Value) -> String {
    let ready = list(&node["status"]["conditions"]).find(|condition| condition["type"] == "Ready");
    let is_ready = ready.is_some_and(|condition| condition["status"] == "True");
    let cordoned = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    format!("{}{cordoned}", if is_ready { "Ready" } else { "NotReady" })
}

fn event_object(event: &Value) -> String {
    let of = &event["involvedObject"];
    format!("{}/{}", text(&of["kind"]).to_lowercase(), text(&of["name"]))
}

/// The time since an object's creation, in one unit.
fn age(object: &Value) -> String {
    let Ok(created) = text(&object["metadata"]["creationTimestamp"]).parse::<Timestamp>() else {
        return "<unknown>".to_owned();
    };
    match Timestamp::now().duration_since(created).as_secs().max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..10_800 => format!("{}m", seconds / 60),
        seconds @ 10_800..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn or_none(value: &Value) -> String {
    value.as_str().unwrap_or("<none>").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{node, pod};

    fn cells(kind: Kind, object: impl Into<Value>) -> Vec<String> {
        let table = table(kind, &[object.into()], "7").unwrap();
        let cells = list(&table["rows"][0]["cells"]).map(|cell| text(cell).to_owned());
        cells.collect()
    }

    #[test]
    fn a_pod_shows_its_phase_and_its_node() {
        let pod =
            pod("a").asking("gpu", 1).on("n").phase("Running").created_at("2020-01-01T00:00:00Z");
        let cells = cells(PODS, pod);
        assert_eq!(cells[..4], ["a", "0/1", "Running", "0"]);
        assert!(cells[4].ends_with('d') && cells[5] == "n", "{cells:?}");
    }

    #[test]
    fn a_cordoned_node_is_shown_as_such() {
        let mut node: Value = node("n").address("10.0.0.1").into();
        node["spec"]["unschedulable"] = true.into();
        assert_eq!(cells(NODES, node)[1], "Ready,SchedulingDisabled");
    }
}
