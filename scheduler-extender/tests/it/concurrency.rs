//! The board under watches, policies and verbs at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use cluster::{Node, NodeFacts};
use jiff::{SignedDuration, Timestamp};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::units::{NodeName, PodUid};
use scheduler_extender::view::LoadBoard;
use serde_json::json;

use crate::rig::POLICY;

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

fn place_pods(board: &LoadBoard, worker: usize, now: Timestamp) {
    for number in 0..PODS {
        let pod = PodUid::from(format!("{worker}-{number}"));
        board.not_in_flight(&pod);
        board.in_flight(&pod, &name(number + 1), now);
        board.record_binding(&pod, &NodeName::from(name(number)), now);
    }
}

/// Every pod is asked about, counts as in flight to one node, and is bound to another, while nodes change, come and go,
/// are listed again, and the policy changes.
fn all_at_once(board: &LoadBoard, policies: &[LoadPolicy], now: Timestamp) {
    let list = |reading| (0..NODES).map(move |node| facts(&name(node), reading, now));
    board.set_nodes(list(0), now);
    let done = AtomicBool::new(false);
    let repeat = |step: &dyn Fn(u32)| {
        (0..90_000).cycle().take_while(|_| !done.load(Ordering::Relaxed)).for_each(step);
    };
    scope(|scope| {
        scope.spawn(|| {
            repeat(&|turn| {
                board.set_policy(policies[turn as usize % policies.len()].clone());
                board.set_nodes(list(turn), now);
            });
        });
        scope.spawn(|| {
            repeat(&|turn| {
                board.set_node(&facts(&name(turn as usize), turn, now), now);
                board.set_node(&facts("short-lived", turn, now), now);
                board.remove_node(&"short-lived".into());
            });
        });
        let workers =
            (0..WORKERS).map(|worker| scope.spawn(move || place_pods(board, worker, now)));
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
        let board = LoadBoard::new(policies[0].clone(), false);
        all_at_once(&board, &policies, now);
        let read = board.read();
        for node in 0..NODES {
            let load = read.node(&name(node)).unwrap();
            let pods = load.recent.within(SignedDuration::from_mins(5), now);
            assert_eq!(pods, WORKERS * PODS / NODES, "{}", name(node));
            assert!(load.readings.get(read.policy.limits[0].id).is_some());
        }
    }
}
