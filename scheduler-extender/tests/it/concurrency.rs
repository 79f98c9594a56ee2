//! The view under watches, policies and verbs at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use cluster::{Event, Node, NodeFacts};
use jiff::{SignedDuration, Timestamp};
use placement::demand::Rates;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::resources::Amounts;
use placement::units::{NodeName, PodUid};
use scheduler_extender::view::View;
use serde_json::json;

use crate::rig::{POLICY, empty_view};

const NODES: usize = 4;
const WORKERS: usize = 3;
const PODS: usize = 100;

fn facts(name: &str, reading: u32, now: Timestamp) -> NodeFacts {
    let text = format!("0.{reading:05},{now:.0}");
    let metadata = json!({ "name": name, "annotations": { "cpu_usage_avg_5m": text } });
    let node: Node = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default())
}

fn name(node: usize) -> String {
    format!("n{}", node % NODES)
}

fn place_pods(view: &View, worker: usize, now: Timestamp) {
    for number in 0..PODS {
        let pod = PodUid::from(format!("{worker}-{number}"));
        let (first, last) = (NodeName::from(name(number + 1)), NodeName::from(name(number)));
        view.change(|index| index.not_in_flight(&pod));
        view.change(|index| {
            index.count_in_flight("ns", &pod, &first, now, Amounts::default(), Rates::NONE)
        });
        view.change(|index| index.record_binding(&pod, &last, now, None));
    }
}

/// Every pod is asked about, counts as in flight to one node, and is bound to another, while nodes change, come and go,
/// are listed again, and the policy changes.
fn all_at_once(view: &View, policies: &[LoadPolicy], now: Timestamp) {
    let list = |reading| (0..NODES).map(|node| facts(&name(node), reading, now)).collect();
    view.apply_nodes(Event::Listed(list(0)), now);
    let done = AtomicBool::new(false);
    let repeat = |step: &dyn Fn(u32)| {
        (0..90_000).cycle().take_while(|_| !done.load(Ordering::Relaxed)).for_each(step);
    };
    scope(|scope| {
        scope.spawn(|| {
            repeat(&|turn| {
                let policy = policies[turn as usize % policies.len()].clone();
                view.change(|index| index.set_policy(policy));
                view.apply_nodes(Event::Listed(list(turn)), now);
            });
        });
        scope.spawn(|| {
            repeat(&|turn| {
                view.apply_nodes(Event::Applied(facts(&name(turn as usize), turn, now)), now);
                view.apply_nodes(Event::Applied(facts("short-lived", turn, now)), now);
                view.apply_nodes(Event::Gone(facts("short-lived", turn, now)), now);
            });
        });
        let workers = (0..WORKERS).map(|worker| scope.spawn(move || place_pods(view, worker, now)));
        let workers: Vec<_> = workers.collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn no_pod_and_no_reading_is_lost_or_counted_twice_when_all_changes_come_at_once() {
    let now = Timestamp::from_second(1_000_000).unwrap();
    let policies = ["3m", "4m"].map(|period| POLICY.replace("3m", period));
    let policies = policies.map(|text| LoadPolicy::from_yaml(&text).unwrap());
    for _ in 0..8 {
        let view = empty_view();
        all_at_once(&view, &policies, now);
        let snapshot = view.read();
        for node in 0..NODES {
            let load = snapshot.load(&name(node)).unwrap();
            let pods = load.recent.within(SignedDuration::from_mins(5), now);
            assert_eq!(pods, WORKERS * PODS / NODES, "{}", name(node));
            let limits = &snapshot.policy.rules(&load.labels).limits;
            assert!(load.readings.get(limits[0].metric.id).is_some());
        }
    }
}
