//! Kinds of groups of their own: Leases, and Events, which two groups show.

use serde_json::{Value, json};

use crate::rig::{Refuted, Rig, same, text, version};

const LEASES: &str = "coordination.k8s.io/v1";
const EVENTS: &str = "events.k8s.io/v1";

pub(crate) async fn a_lease_is_made_read_and_renewed_and_a_stale_renewal_conflicts(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.in_group("DELETE", LEASES, "leases/held", None).await?;
    let lease = json!({
        "apiVersion": LEASES, "kind": "Lease", "metadata": {"name": "held"},
        "spec": {"holderIdentity": "first", "leaseDurationSeconds": 15},
    });
    let made = rig.in_group("POST", LEASES, "leases", Some(&lease)).await?.is(201)?;
    let read = rig.in_group("GET", LEASES, "leases/held", None).await?.is(200)?;
    same("what is read", &read["spec"], &made["spec"])?;
    let mut renewed = read.clone();
    renewed["spec"]["renewTime"] = "2026-01-02T03:04:05.000006Z".into();
    let renewed = rig.in_group("PUT", LEASES, "leases/held", Some(&renewed)).await?.is(200)?;
    let time = text(&renewed["spec"]["renewTime"]);
    same("the time of the renewal", time, "2026-01-02T03:04:05.000006Z")?;
    let stale = rig.in_group("PUT", LEASES, "leases/held", Some(&read)).await?;
    stale.is_refused(
        409,
        "Operation cannot be fulfilled on leases.coordination.k8s.io \"held\": the object has been \
         modified; please apply your changes to the latest version and try again",
    )?;
    rig.in_group("DELETE", LEASES, "leases/held", None).await.map(drop)
}

fn event(rig: &Rig<'_>) -> Value {
    json!({
        "apiVersion": EVENTS, "kind": "Event", "metadata": {"name": "told"},
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": rig.namespace, "name": "p",
            "uid": "00000000-0000-4000-8000-00000000eeee"},
        "type": "Warning", "reason": "Tried", "action": "Trying", "note": "in vain",
        "reportingController": "conformance", "reportingInstance": "conformance-1",
    })
}

pub(crate) async fn an_event_is_one_object_in_both_of_its_groups(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.done("events/told").await?;
    let made = rig.in_group("POST", EVENTS, "events", Some(&event(rig))).await?.is(201)?;
    let core = rig.get("events/told").await?.is(200)?;
    same("the message", text(&core["message"]), "in vain")?;
    same("the reporter", text(&core["reportingComponent"]), "conformance")?;
    same("what it is about", &core["involvedObject"], &made["regarding"])?;
    same("the version", version(&core), version(&made))?;
    let series = json!({"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000006Z"});
    let patch = json!({ "series": series });
    let again = rig.in_group("PATCH", EVENTS, "events/told", Some(&patch)).await?.is(200)?;
    same("the series", &again["series"], &series)?;
    same("the note", text(&again["note"]), "in vain")?;
    let core = rig.get("events/told").await?.is(200)?;
    same("the series", &core["series"], &series)?;
    rig.done("events/told").await?;
    let gone = rig.in_group("GET", EVENTS, "events/told", None).await?;
    gone.is_refused(404, "events.events.k8s.io \"told\" not found")
}

/// As `kubectl describe` asks.
pub(crate) async fn events_are_selected_by_what_they_are_about(
    rig: &Rig<'_>,
) -> Result<(), Refuted> {
    rig.done("events/told").await?;
    rig.in_group("POST", EVENTS, "events", Some(&event(rig))).await?.is(201)?;
    for (name, expected) in [("p", vec!["told"]), ("other", vec![])] {
        let fields = format!(
            "involvedObject.name%3D{name},involvedObject.namespace%3D{},\
             involvedObject.uid%3D00000000-0000-4000-8000-00000000eeee,reason%3DTried",
            rig.namespace
        );
        let list = rig.get(&format!("events?fieldSelector={fields}")).await?.is(200)?;
        let items = list["items"].as_array().into_iter().flatten();
        let names: Vec<&str> = items.map(|event| text(&event["metadata"]["name"])).collect();
        same("what is selected", names, expected)?;
    }
    rig.done("events/told").await
}
