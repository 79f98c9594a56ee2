//! The view under watches, policies, bindings and verbs at once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use cluster::{Event, GpuPod, Node, NodeFacts, PodFacts};
use jiff::{SignedDuration, Timestamp};
use placement::demand::Rates;
use placement::gpu::{Card, CardIsolation, ChoiceRule, Claim, GpuRequest};
use placement::load::PodKind;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::resources::Amounts;
use placement::units::{MiB, NodeName, PodUid, Units};
use scheduler_extender::view::{GpuPodId, Index, View};
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
        isolation: CardIsolation::default(),
        outside_mps: Vec::new(),
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
        version: None,
        node: Some(node.into()),
        nominated_node: None,
        kind: PodKind::Ordinary,
        gpu: Ok(Some(gpu.clone())),
        admitted: false,
        finished: false,
        refused: false,
        started: false,
        stopped: false,
        deleting: false,
        waits_at: None,
        created_at: None,
        bound_at: None,
    }
}

/// The node's object with these cards.
fn with_cards(node: &str, cards: Vec<Card>) -> Event<NodeFacts> {
    Event::Applied(NodeFacts { cards: Some(Ok(cards)), ..facts(node, 0, Timestamp::UNIX_EPOCH) })
}

/// Each pod is tried on two nodes, bound to one of them where a card fits, shown there, and ends.
fn bind_pods(view: &View, worker: usize) {
    let request = GpuRequest::single("main", Units(3)).unwrap();
    for number in 0..10 * PODS {
        let (pod, first, second) = (gpu_pod(worker, number), name(number), name(number + 1));
        let reserve = |node: &str| {
            let rule = ChoiceRule::default();
            view.change(|index| index.reserve(&pod, &request, &node.into(), &rule)).ok()
        };
        let (lost, taken) = (reserve(&first), reserve(&second));
        if number % 3 == 0 && lost.is_some() {
            view.change(|index| index.cancel(&pod.uid, &first.as_str().into()));
        }
        if let Some(reservation) = taken {
            let node = NodeName::from(second.as_str());
            view.change(|index| index.confirm(&pod.uid, &node, &reservation.claim));
            let claim = Claim::on_card(&request, &format!("GPU-{first}").as_str().into());
            let gpu = GpuPod {
                request: request.clone(),
                claim: Ok(Some(claim)),
                assigned: false,
                fault: None,
                isolation: None,
                mps_conflicts: Default::default(),
            };
            view.apply_known(&shown(&pod, &second, &gpu), &gpu);
            view.change(|index| index.apply(&shown(&pod, &second, &gpu), &gpu));
        }
        view.change(|index| index.forget(&pod.uid));
    }
}

#[test]
fn ledgers_do_not_leak_when_all_changes_come_at_once() {
    let (view, now) = (empty_view(), Timestamp::UNIX_EPOCH);
    for node in 0..NODES {
        view.apply_nodes(with_cards(&name(node), vec![card(&name(node))]), now);
    }
    let done = AtomicBool::new(false);
    let repeat = |step: &dyn Fn(usize)| {
        (0..NODES).cycle().take_while(|_| !done.load(Ordering::Relaxed)).for_each(step);
    };
    scope(|scope| {
        scope.spawn(|| {
            repeat(&|node| {
                let (node, pod) = (name(node), gpu_pod(0, node));
                let held = [(pod.uid, Units(3))].into();
                view.apply_nodes(with_cards(&node, Vec::new()), now);
                view.apply_nodes(with_cards(&node, vec![Card { pods: held, ..card(&node) }]), now);
                view.apply_nodes(with_cards(&node, vec![card(&node)]), now);
            });
        });
        scope.spawn(|| {
            repeat(&|_| {
                let settled = view.ask(Index::settled);
                let doubtful = view
                    .change(|index| index.after_list(&HashSet::new(), &settled, Timestamp::now()));
                for pod in doubtful {
                    view.change(|index| index.begin_look_up(&pod.uid));
                }
            });
        });
        scope.spawn(|| {
            repeat(&|node| {
                let snapshot = view.read();
                assert!(snapshot.totals().nodes <= NODES as u64);
                for account in snapshot.cards(&name(node)).iter().flat_map(|cards| cards.accounts())
                {
                    view.ask(|index| index.pods_on(account));
                }
            });
        });
        let workers = (0..WORKERS).map(|worker| {
            let view = &view;
            scope.spawn(move || bind_pods(view, worker))
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    view.change(|index| index.end_departures(Timestamp::MAX));
    let totals = view.read().totals();
    assert_eq!((totals.used, totals.reserved), (0, 0));
    assert!(view.ask(Index::settled).is_empty());
    for node in 0..NODES {
        let gone = facts(&name(node), 0, now);
        view.apply_nodes(Event::Gone(gone), now);
    }
    assert_eq!(view.read().names().len(), 0);
}
