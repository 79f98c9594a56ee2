//! The board and the ledgers under watches, policies, bindings and verbs at once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use cluster::{GpuPod, Node, NodeFacts, PodFacts};
use jiff::{SignedDuration, Timestamp};
use placement::gpu::{Card, ChoiceRule, Claim, GpuRequest};
use placement::load::PodKind;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::resources::Amounts;
use placement::units::{MiB, NodeName, PodUid, Units};
use scheduler_extender::view::{CardBook, GpuPodId, LoadBoard};
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
        board.in_flight(&pod, &name(number + 1), now, Amounts::default(), 0.0);
        board.record_binding(&pod, &NodeName::from(name(number)), now, None);
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
            assert!(
                load.readings.get(read.policy.rules(&load.labels).limits[0].metric.id).is_some()
            );
        }
    }
}

fn card(node: &str) -> Card {
    Card {
        uuid: format!("GPU-{node}").as_str().into(),
        index: 0,
        model: "".into(),
        memory: MiB(16384),
        units: Units(16),
        numa_node: None,
        healthy: true,
        closed: None,
        isolation: None,
        pods: [].into(),
    }
}

fn gpu_pod(worker: usize, number: usize) -> GpuPodId {
    let name = format!("{worker}-{number}");
    GpuPodId { uid: name.as_str().into(), namespace: "ml".to_owned(), name }
}

/// The pod as a watch shows it on the node, with this claim.
fn shown(pod: &GpuPodId, node: &str, gpu: &GpuPod) -> PodFacts {
    PodFacts {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        node: Some(node.into()),
        nominated_node: None,
        kind: PodKind::Ordinary,
        gpu: Ok(Some(gpu.clone())),
        admitted: false,
        finished: false,
        refused: false,
        stopped: false,
        deleting: false,
        created_at: None,
        bound_at: None,
    }
}

/// Each pod is tried on two nodes, bound to one of them where a card fits, shown there, and ends.
fn bind_pods(book: &CardBook, worker: usize) {
    let request = GpuRequest::single("main", Units(3)).unwrap();
    for number in 0..10 * PODS {
        let (pod, first, second) = (gpu_pod(worker, number), name(number), name(number + 1));
        let reserve =
            |node: &str| book.reserve(&pod, &request, &node.into(), &ChoiceRule::default()).ok();
        let (lost, taken) = (reserve(&first), reserve(&second));
        if number % 3 == 0 && lost.is_some() {
            book.cancel(&pod.uid, &first.as_str().into());
        }
        if let Some(reservation) = taken {
            book.confirm(&pod.uid, &second.as_str().into(), &reservation.claim);
            let claim = Claim::on_card(&request, &format!("GPU-{first}").as_str().into());
            let gpu = GpuPod {
                request: request.clone(),
                claim: Ok(Some(claim)),
                assigned: false,
                fault: None,
                isolation: None,
                mps_conflicts: Default::default(),
            };
            book.apply_known(&shown(&pod, &second, &gpu), &gpu);
            book.apply(&shown(&pod, &second, &gpu), &gpu);
        }
        book.forget(&pod.uid);
    }
}

#[test]
fn ledgers_neither_block_nor_leak_when_all_changes_come_at_once() {
    let book = CardBook::default();
    (0..NODES)
        .for_each(|node| book.set_cards(&name(node).as_str().into(), vec![card(&name(node))]));
    let done = AtomicBool::new(false);
    let repeat = |step: &dyn Fn(usize)| {
        (0..NODES).cycle().take_while(|_| !done.load(Ordering::Relaxed)).for_each(step);
    };
    scope(|scope| {
        scope.spawn(|| {
            repeat(&|node| {
                let (node, pod) = (name(node), gpu_pod(0, node));
                book.set_cards(&node.as_str().into(), Vec::new());
                let held = [(pod.uid, Units(3))].into();
                book.set_cards(&node.as_str().into(), vec![Card { pods: held, ..card(&node) }]);
                book.set_cards(&node.as_str().into(), vec![card(&node)]);
            });
        });
        scope.spawn(|| {
            repeat(&|_| {
                let settled = book.settled();
                let doubtful = book.after_list(&HashSet::new(), &settled, Timestamp::now());
                doubtful.iter().for_each(|pod| book.begin_look_up(&pod.uid));
            });
        });
        scope.spawn(|| {
            repeat(&|node| {
                book.totals();
                let index = book.read();
                let cards = index.node(&name(node)).map(|cards| cards.accounts().to_vec());
                cards.iter().flatten().for_each(|account| drop(book.pods_on(account)));
            });
        });
        let workers = (0..WORKERS).map(|worker| {
            scope.spawn({
                let book = &book;
                move || bind_pods(book, worker)
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    book.end_departures(Timestamp::MAX);
    let totals = book.totals();
    assert_eq!((totals.used, totals.reserved), (0, 0));
    assert!(book.settled().is_empty());
    (0..NODES).for_each(|node| book.set_cards(&name(node).as_str().into(), Vec::new()));
    assert_eq!(book.nodes(), []);
}
