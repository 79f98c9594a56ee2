//! ResourceClaims and a node's own ResourceSlice, against the API stand-in.

use cluster::{
    Allocated, CallError, DeviceAttribute, DeviceOffer, Event, OfferedShare, ResourceClaimError,
    WatchHealth, WatchedResourceClaim, delete_device_slice, get_resource_claim, slice_name,
    watch_device_slices, watch_resource_claims, write_device_slice,
};
use futures::StreamExt;
use placement::units::{Cores, MiB};
use serde_json::{Value, json};
use sim::{Failure, Fault, RESOURCE_CLAIMS, RESOURCE_SLICES, Verb, stored};

use crate::api::{LIMIT, connected};

const DRIVER: &str = "gpu.plimsoll.dev";
const CLASS: &str = "gpu-share.plimsoll.dev";

fn claim(name: &str) -> Value {
    let mut claim = stored::resource_claim();
    claim["metadata"] =
        json!({ "name": name, "namespace": "default", "uid": format!("uid-{name}") });
    claim
}

#[tokio::test]
async fn a_claim_is_read_or_is_not_there_or_its_field_is_named() {
    let (sim, client) = connected().await;
    sim.put(claim("a"));
    let get = |name: &'static str| get_resource_claim(&client, "default", name, DRIVER, LIMIT);
    let found = get("a").await.unwrap().unwrap();
    assert_eq!((found.name.as_str(), found.uid.as_str(), found.deleting), ("a", "uid-a", false));
    let share = &found.allocated.unwrap().results[0];
    assert_eq!((share.memory, share.cores), (Some(MiB(4096)), Some(Cores(30))));
    assert_eq!(get("b").await, Ok(None));
    sim.change(RESOURCE_CLAIMS, "default", "a", |claim| {
        claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["cores"] =
            json!("many");
    });
    let error = get("a").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "status.allocation.devices.results[0].consumedCapacity.cores: \
         expected a whole number from 0 to 100, found `many`"
    );
    let busy = Fault::Answer(Failure::too_many_requests());
    sim.faults().next(1, Verb::Get, RESOURCE_CLAIMS, busy);
    let refused = get("a").await;
    assert!(matches!(refused, Err(ResourceClaimError::Call(CallError::Refused { .. }))));
}

#[tokio::test]
async fn claims_of_other_drivers_are_not_listed_and_one_that_lost_its_device_is_told() {
    let (sim, client) = connected().await;
    let mut other = claim("other");
    other["spec"] = json!({});
    other["status"]["allocation"]["devices"]["results"][0]["driver"] = json!("gpu.nvidia.com");
    sim.put(other);
    // By another class than ours.
    let mut own = claim("own");
    own["spec"] = json!({});
    sim.put(own);
    let mut broken = claim("broken");
    broken["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = json!(7);
    sim.put(broken);
    let mut events = watch_resource_claims(client, DRIVER, CLASS, WatchHealth::default());
    assert_eq!(events.next().await, Some(Event::Listing));
    let Some(Event::Listed(mut listed)) = events.next().await else { unreachable!("no list") };
    listed.sort_by(|a, b| b.facts.name.cmp(&a.facts.name));
    let [own, broken] = listed.as_slice() else { unreachable!("{listed:?}") };
    assert_eq!((own.facts.name.as_str(), &own.unreadable), ("own", &None));
    let Allocated { results, configs } = own.facts.allocated.as_ref().unwrap();
    assert_eq!((results[0].memory, configs.len()), (Some(MiB(4096)), 0));
    let why = broken.unreadable.as_ref().unwrap();
    assert!(why.contains("results[0].consumedCapacity: expected an object"), "{why}");
    assert_eq!(broken.facts.allocated.as_ref().unwrap().results[0].memory, None);
    sim.change(RESOURCE_CLAIMS, "default", "own", |claim| claim["status"] = json!({}));
    let Some(Event::Applied(WatchedResourceClaim { facts, unreadable, .. })) = events.next().await
    else {
        unreachable!("no change")
    };
    assert_eq!((facts.name.as_str(), facts.allocated, unreadable), ("own", None, None));
}

fn offer(node: &str) -> DeviceOffer {
    DeviceOffer {
        node: node.into(),
        node_uid: Some("u".to_owned()),
        driver: DRIVER.to_owned(),
        generation: 1,
        devices: vec![OfferedShare {
            name: "gpu-0".to_owned(),
            memory: MiB(1024),
            attributes: [("index".to_owned(), DeviceAttribute::Int(0))].into(),
            taints: Vec::new(),
        }],
    }
}

#[tokio::test]
async fn a_slice_is_made_and_changed_and_removed() {
    let (sim, client) = connected().await;
    let (mut offer, name) = (offer("n1"), slice_name(&"n1".into(), DRIVER));
    let mut events = watch_device_slices(client.clone(), "n1".into(), WatchHealth::default());
    assert_eq!(events.next().await, Some(Event::Listing));
    assert_eq!(events.next().await, Some(Event::Listed(Vec::new())));
    let made = write_device_slice(&client, &offer, LIMIT).await.unwrap();
    assert!(offer.is_in(&made));
    assert_eq!(events.next().await, Some(Event::Applied(made)));
    let stored = sim.get(RESOURCE_SLICES, "", &name).unwrap();
    assert_eq!(stored["metadata"]["ownerReferences"][0]["uid"], "u");
    // Another hand's change is seen, and written over.
    sim.change(RESOURCE_SLICES, "", &name, |slice| {
        slice["spec"]["devices"][0]["capacity"]["memory"]["value"] = json!("2048Mi");
        slice["spec"]["sharedCounters"] = json!([]);
    });
    let Some(Event::Applied(changed)) = events.next().await else { unreachable!("no change") };
    assert!(!offer.is_in(&changed));
    offer.generation = 2;
    let written = write_device_slice(&client, &offer, LIMIT).await.unwrap();
    assert!(offer.is_in(&written));
    assert_eq!(written.generation, Some(2));
    assert_eq!(sim.log().of(Verb::Create, RESOURCE_SLICES).len(), 1);
    delete_device_slice(&client, &name, LIMIT).await.unwrap();
    assert!(sim.get(RESOURCE_SLICES, "", &name).is_none());
    delete_device_slice(&client, &name, LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_slice_that_somebody_makes_meanwhile_is_changed() {
    let (sim, client) = connected().await;
    let offer = offer("n1");
    write_device_slice(&client, &offer, LIMIT).await.unwrap();
    // As if it were made between the patch and the creation.
    let missing = Fault::Answer(Failure::new(404, "NotFound", "not found"));
    sim.faults().next(1, Verb::Patch, RESOURCE_SLICES, missing);
    let written = write_device_slice(&client, &offer, LIMIT).await.unwrap();
    assert!(offer.is_in(&written));
    let verbs = |verb| sim.log().of(verb, RESOURCE_SLICES).len();
    assert_eq!((verbs(Verb::Create), verbs(Verb::Patch)), (2, 3));
}

#[tokio::test]
async fn without_slices_in_kubernetes_nothing_is_found() {
    let (sim, client) = connected().await;
    sim.stop_serving(RESOURCE_SLICES);
    let written = write_device_slice(&client, &offer("n1"), LIMIT).await;
    assert!(matches!(written, Err(CallError::NotFound(_))), "{written:?}");
}
