//! Objects as others can have them stored: no list, watch or Lease depends on what is in them.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cluster::{
    Budgets, Client, Elector, Event, Events, LeaseSettings, PodReference, Scope, ServicePort,
    WatchHealth, applicant, get_pod, list_endpoints, list_node_uses, node_pods,
    objects_read_in_part, read_node, watch_config_map, watch_device_slices, watch_nodes,
    watch_pods, watch_resource_claims, watch_service,
};
use futures::StreamExt;
use http::{Method, Request, Response};
use jiff::Timestamp;
use kube::client::Body;
use placement::names::Names;
use placement::node_rules::NodeRules;
use placement::reading::ReadingCodec;
use placement::resources::Amounts;
use placement::units::Units;
use serde_json::{Value, json};
use sim::stored;

use crate::api::LIMIT;

/// A client of a server that answers with these texts; `None`: never.
pub(crate) fn client(
    answer: impl Fn(&Request<Body>) -> Option<String> + Send + Sync + 'static,
) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let text = answer(&request);
        async move {
            match text {
                Some(text) => Ok::<_, Infallible>(Response::new(Body::from(text.into_bytes()))),
                None => pending().await,
            }
        }
    });
    Client::new(service, "default")
}

/// A list of these objects.
pub(crate) fn list(objects: &[Value]) -> String {
    json!({ "kind": "List", "metadata": { "resourceVersion": "1" }, "items": objects }).to_string()
}

fn lines(kind: &str, objects: &[Value]) -> String {
    objects
        .iter()
        .map(|object| format!("{}\n", json!({ "type": kind, "object": object })))
        .collect()
}

/// A server that has these objects. After the list, each changes and then goes. Its watches end at once.
fn following(objects: &[Value]) -> Client {
    let end = json!({ "type": "BOOKMARK", "object": { "apiVersion": "v1", "kind": "X", "metadata": {
        "resourceVersion": "0", "annotations": { "k8s.io/initial-events-end": "true" },
    } } });
    let first = format!("{}{end}\n", lines("ADDED", objects));
    let next = lines("MODIFIED", objects) + &lines_at(objects, 1_000_000);
    let watches = AtomicUsize::new(0);
    client(move |_| match watches.fetch_add(1, Ordering::Relaxed) {
        0 => Some(first.clone()),
        1 => Some(next.clone()),
        _ => None,
    })
}

/// The objects as deleted, at later versions.
fn lines_at(objects: &[Value], version: usize) -> String {
    let gone = objects.iter().enumerate().map(|(number, object)| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.insert("resourceVersion".to_owned(), json!((version + number).to_string()));
        }
        object
    });
    lines("DELETED", &gone.collect::<Vec<_>>())
}

/// Reads a watch's list and its changes, which are all there.
async fn check<T: Send + 'static>(
    objects: &[Value],
    watch: impl FnOnce(Client, WatchHealth) -> Events<T>,
) {
    let health = WatchHealth::default();
    let mut events = watch(following(objects), health.clone());
    assert!(matches!(events.next().await, Some(Event::Listing)));
    let Some(Event::Listed(all)) = events.next().await else { unreachable!("no list") };
    assert_eq!(all.len(), objects.len());
    for _ in objects {
        assert!(matches!(events.next().await, Some(Event::Applied(_))));
    }
    for _ in objects {
        assert!(matches!(events.next().await, Some(Event::Gone(_))));
    }
    assert_eq!((health.lists(), health.errors()), (1, 0));
}

async fn check_watches(of: fn(&Value) -> Vec<Value>) {
    let (names, codec) = (Names::default(), ReadingCodec::default());
    let now: Timestamp = "2026-11-20T09:00:00Z".parse().unwrap();
    check(&of(&stored::pod()), |client, health| {
        watch_pods(client, Scope::All, health, move |pod, _| {
            let use_of = (pod.resources(), pod.cpu_request(), pod.container_runs(now));
            let about = (pod.workload(), pod.wait(), pod.ended_at(now), pod.declared(&names));
            Some((pod.facts(&names), pod.expected_use(&names), use_of, about))
        })
    })
    .await;
    check(&of(&stored::node()), |client, health| {
        let names = Names::default();
        watch_nodes(client, Scope::All, health, move |node| Some(node.facts(&names, &codec)))
    })
    .await;
    check(&of(&stored::device_slice()), |client, health| {
        watch_device_slices(client, "a".into(), health)
    })
    .await;
    check(&of(&stored::resource_claim()), |client, health| {
        watch_resource_claims(client, "gpu.plimsoll.dev", "gpu-share.plimsoll.dev", health)
    })
    .await;
    let service = ServicePort::parse("default/exporters").unwrap();
    check(&of(&stored::endpoint_slice()), |client, health| watch_service(client, service, health))
        .await;
    check(&of(&stored::config_map()), |client, health| {
        watch_config_map(client, "default", "a", health)
    })
    .await;
}

/// Lists that are read once. Single objects are read as well.
async fn check_lists(of: fn(&Value) -> Vec<Value>) {
    let names = Names::default();
    let mut budgets = Budgets::default();
    for (number, budget) in of(&stored::budget()).iter().enumerate() {
        let (text, namespace) = (list(std::slice::from_ref(budget)), format!("team-{number}"));
        let client = client(move |_| Some(text.clone()));
        budgets.read(&client, [namespace.clone()].into(), LIMIT).await;
        assert!(budgets.is_known(&namespace), "{budget}");
    }
    let pods = of(&stored::pod());
    let preemptor = serde_json::from_value(stored::pod()).unwrap();
    // A longer list than is read for a question is refused.
    for some in pods.chunks(16) {
        let (list, node) = (list(some), stored::node().to_string());
        let on_node = client(move |request| {
            let is_list = request.uri().path().ends_with("/pods");
            Some(if is_list { list.clone() } else { node.clone() })
        });
        let read = node_pods(&on_node, "a", &preemptor, &names, LIMIT).await.unwrap();
        read.occupants(&budgets, &NodeRules::default());
        let read = read_node(&on_node, "a", &names, |_| Amounts::default(), LIMIT).await.unwrap();
        assert!(!read.residents.is_empty());
    }
    for pod in &pods {
        let text = pod.to_string();
        let client = client(move |_| Some(text.clone()));
        assert!(get_pod(&client, "default", "a", LIMIT).await.unwrap().is_some());
        let (namespace, name) = ("default".to_owned(), "a".to_owned());
        let about = PodReference { namespace, name, uid: "u".to_owned() };
        applicant(&client, &about, &names, LIMIT).await.unwrap();
    }
    let service = ServicePort::parse("default/exporters").unwrap();
    let mut found = 0;
    for some in of(&stored::endpoint_slice()).chunks(16) {
        let client = client({
            let slices = list(some);
            move |_| Some(slices.clone())
        });
        found += list_endpoints(&client, &service, LIMIT).await.unwrap().len();
    }
    assert!(found > 0);
    let uses = list(&of(&stored::node_metrics()));
    let found = list_node_uses(&client(move |_| Some(uses.clone())), LIMIT).await;
    assert!(!found.unwrap().is_empty());
}

#[tokio::test]
async fn nothing_that_the_api_server_can_store_ends_a_list_or_a_watch() {
    check_watches(stored::variants).await;
    check_lists(stored::variants).await;
}

#[tokio::test]
async fn a_field_of_another_type_ends_no_watch_either() {
    check_watches(stored::mistyped).await;
}

/// What a watch tells of one pod.
async fn facts_of(pod: &Value) -> cluster::PodFacts {
    let names = Names::default();
    let client = following(std::slice::from_ref(pod));
    let mut events = watch_pods(client, Scope::All, WatchHealth::default(), move |pod, _| {
        Some(pod.facts(&names))
    });
    events.next().await.unwrap();
    let Some(Event::Listed(mut all)) = events.next().await else { unreachable!("no list") };
    all.remove(0)
}

#[tokio::test]
async fn a_pod_with_a_time_out_of_range_holds_what_it_holds() {
    let whole = facts_of(&stored::pod()).await;
    for path in ["/status/startTime", "/status/conditions/0/lastTransitionTime"] {
        let mut pod = stored::pod();
        *pod.pointer_mut(path).unwrap() = json!("9999-12-31T23:59:59Z");
        let facts = facts_of(&pod).await;
        assert_eq!((&facts.gpu, facts.admitted), (&whole.gpu, true), "{path}");
    }
    let mut pod = stored::pod();
    pod["metadata"]["deletionTimestamp"] = json!("10000-01-01T00:00:00Z");
    assert!(facts_of(&pod).await.deleting);
}

#[tokio::test]
async fn a_pod_whose_spec_cannot_be_read_holds_what_its_claim_says() {
    let before = objects_read_in_part();
    let whole = facts_of(&stored::pod()).await;
    let mut pod = stored::pod();
    pod["spec"]["containers"][0]["resources"] = json!(7);
    let facts = facts_of(&pod).await;
    assert!(objects_read_in_part() > before);
    assert_eq!((&facts.node, &facts.uid), (&whole.node, &whole.uid));
    let (claim, of_whole) = (facts.claim().unwrap(), whole.claim().unwrap());
    assert_eq!(claim.containers(), of_whole.containers());
    // When each container runs is not known, so all count together.
    assert_eq!(of_whole.gpus().values().map(|share| share.units).sum::<Units>(), Units(6));
    assert_eq!(claim.gpus().values().map(|share| share.units).sum::<Units>(), Units(9));
    assert!(facts.gpu_pod().unwrap().fault.is_some());
    // Without a claim, nothing is known of it.
    pod["metadata"]["annotations"]["plimsoll.dev/gpu-claim"] = json!("{}");
    assert!(facts_of(&pod).await.gpu.is_err());
}

#[tokio::test]
async fn a_node_of_which_not_everything_can_be_read_has_no_gpus_that_count() {
    let mut node = stored::node();
    node["status"]["conditions"] = json!({ "Ready": true });
    let (names, codec) = (Names::default(), ReadingCodec::default());
    let mut events =
        watch_nodes(following(&[node]), Scope::All, WatchHealth::default(), move |node| {
            Some(node.facts(&names, &codec))
        });
    events.next().await.unwrap();
    let Some(Event::Listed(all)) = events.next().await else { unreachable!("no list") };
    assert_eq!(all[0].name.as_str(), "a");
    assert!(matches!(all[0].gpus, Some(Err(_))));
}

/// Whatever a Lease says, it is taken once its holder no longer renews it.
#[tokio::test(start_paused = true)]
async fn no_lease_that_others_wrote_keeps_every_replica_from_leading() {
    for lease in stored::variants(&stored::lease()) {
        let stored = std::sync::Mutex::new(lease.clone());
        let client = client(move |request| {
            let mut lease = stored.lock().unwrap();
            if request.method() == Method::PUT {
                lease["spec"]["holderIdentity"] = json!("self");
                lease["metadata"]["resourceVersion"] = json!("9999999");
            }
            Some(lease.to_string())
        });
        let duration = std::time::Duration::from_secs(15);
        let settings = LeaseSettings::new("l".to_owned(), "self".to_owned(), duration);
        let (elector, mut leadership) = Elector::new(&client, settings);
        let led = leadership.until_not(false);
        let ended = tokio::time::timeout(std::time::Duration::from_secs(400), async {
            tokio::select! { () = elector.run(pending()) => {}, () = led => {} }
        });
        assert!(ended.await.is_ok(), "{lease}");
    }
}
