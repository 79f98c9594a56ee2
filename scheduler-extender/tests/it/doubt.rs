//! Bindings whose fate stays unknown for long.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::Event;
use jiff::Timestamp;
use placement::names::Names;
use placement::reading::ReadingCodec;
use placement::units::NodeName;
use scheduler_extender::binder::{BindError, BindLimits, Binder, BinderParams, Target};
use scheduler_extender::metrics::Metrics;
use scheduler_extender::replicas::Replicas;
use scheduler_extender::view::{GpuPodId, View, select_pod};
use serde_json::Value;
use sim::{Fault, PODS, Sim, Verb};

use crate::rig::{empty_view, gpu_node, gpu_pod};

/// A binder over a view of one node with one GPU; no watch, so that it must find out by itself.
async fn binder(sim: &Sim, flight: Duration) -> (Arc<View>, Arc<Binder>) {
    let names = Arc::new(Names::default());
    let view = Arc::new(empty_view());
    let node: cluster::Node = serde_json::from_value(gpu_node("n1", 1).into()).unwrap();
    let facts = node.facts(&names, &ReadingCodec::default());
    view.apply_nodes(Event::Listed(vec![facts]), Timestamp::now());
    let none = view.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), Timestamp::now());
    assert_eq!(none, []);
    let files = tempfile::tempdir().unwrap();
    let kubeconfig = files.path().join("kubeconfig");
    sim.write_kubeconfig(&kubeconfig).unwrap();
    let client = cluster::client(Some(&kubeconfig)).await.unwrap();
    let limits = BindLimits { answer: Duration::from_secs(20), request_lifetime: flight };
    let clock = Arc::new(Timestamp::now);
    let replicas = Arc::new(Replicas::alone());
    let binder = Binder::new(BinderParams {
        client,
        names,
        view: Arc::clone(&view),
        metrics: Metrics::default(),
        clock,
        limits,
        replicas,
        gangs: Arc::default(),
    });
    (view, binder)
}

/// What the watch would tell.
fn show(view: &View, pod: &Value) {
    let pod: cluster::Pod = serde_json::from_value(pod.clone()).unwrap();
    let pod = select_pod(view, &Names::default(), &pod, Timestamp::now()).unwrap();
    let none = view.apply_pods(Event::Applied(pod), &mut HashSet::new(), Timestamp::now());
    assert_eq!(none, []);
}

fn target(pod: &Value) -> Target {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
    let pod =
        GpuPodId { uid: text("uid").into(), namespace: text("namespace"), name: text("name") };
    Target { pod, node: NodeName::from("n1") }
}

fn used(view: &View) -> u64 {
    view.read().totals().used
}

#[tokio::test]
async fn a_binding_that_surely_never_landed_gives_its_gpu_back() {
    let sim = Sim::start().await.unwrap();
    let (view, binder) = binder(&sim, Duration::ZERO).await;
    let train = gpu_pod(&sim, "train", 5);
    sim.faults().next_bindings(1, Fault::DropRequest);
    let outcome = binder.bind(target(&train)).await;
    assert!(matches!(outcome, Err(BindError::InDoubt(_))), "{outcome:?}");
    binder.drain().await;
    assert_eq!((used(&view), view.read().totals().reserved), (0, 0));
}

/// Its GPUs were reserved for what it was, and the version of what it is now must not bring that claim to it.
#[tokio::test]
async fn a_pod_that_changes_while_in_doubt_is_not_bound_with_the_claim_of_what_it_was() {
    for (key, text) in [("gpu-cores", "80"), ("gpu-card-count", "2"), ("gpu-mem-limit", "9")] {
        for seen_by_watch in [true, false] {
            let sim = Sim::start().await.unwrap();
            let (view, binder) = binder(&sim, Duration::from_secs(65)).await;
            let train = gpu_pod(&sim, "train", 6);
            show(&view, &train);
            sim.faults().next_bindings(1, Fault::DropRequest);
            let outcome = binder.bind(target(&train)).await;
            assert!(matches!(outcome, Err(BindError::InDoubt(_))), "{outcome:?}");
            let mut changed = train.clone();
            changed["metadata"]["annotations"][format!("plimsoll.dev/{key}")] = text.into();
            let changed = sim.put(changed);
            if seen_by_watch {
                show(&view, &changed);
            }
            let outcome = binder.bind(target(&train)).await;
            assert!(matches!(outcome, Err(BindError::Changed(_))), "{key} {outcome:?}");
            let stored = sim.pod("default", "train").unwrap();
            assert!(stored["spec"]["nodeName"].is_null() && used(&view) == 6, "{key} {stored}");
        }
    }
}

#[tokio::test]
async fn a_binding_that_landed_is_found_and_looked_up_where_a_list_lacks_its_pod() {
    let sim = Sim::start().await.unwrap();
    let (view, binder) = binder(&sim, Duration::from_secs(65)).await;
    let train = gpu_pod(&sim, "train", 5);
    show(&view, &train);
    sim.faults().next_bindings(1, Fault::DropReply);
    sim.faults().next(1, Verb::Get, PODS, Fault::DropRequest);
    sim.faults().next(1, Verb::Get, PODS, Fault::Hang);
    let outcome = binder.bind(target(&train)).await;
    assert!(matches!(outcome, Err(BindError::InDoubt(_))), "{outcome:?}");
    sim.until("the second look", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
    let mut settled = HashSet::new();
    for event in [Event::Listing, Event::Listed(Vec::new())] {
        assert_eq!(view.apply_pods(event, &mut settled, Timestamp::now()), []);
    }
    sim.faults().release();
    binder.drain().await;
    // What the second read showed may be older than the list, and then no event shows the pod's end.
    let reads = sim.log().all().iter().filter(|request| request.is(Verb::Get, PODS)).count();
    assert_eq!((reads, used(&view), view.read().totals().reserved), (3, 5, 0));
    assert_eq!(sim.log().bindings().len(), 1);
}
