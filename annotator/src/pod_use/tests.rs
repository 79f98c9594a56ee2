//! Whose word counts for which pod, and what two answers say.

use api::pods::PodUse;
use api::workloads::Workload;
use placement::estimate::LearnedUse;

use super::*;
use crate::pods::PodWorkload;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn workload(namespace: &str, name: &str) -> WorkloadId {
    WorkloadId {
        namespace: namespace.into(),
        kind: "Deployment".into(),
        name: name.into(),
        template: 1,
    }
}

fn bound(uid: &str, node: &str, workload: WorkloadId) -> BoundPod {
    let workload = Some(PodWorkload { workload, resources: PodResources::default() });
    BoundPod { uid: uid.into(), node: node.into(), bound_at: None, gpu: None, workload }
}

fn node(name: &str, cores: f64) -> NodeFacts {
    let node = serde_json::json!({
        "metadata": { "name": name }, "status": { "capacity": { "cpu": cores, "memory": "8Gi" } },
    });
    let node: cluster::Node = serde_json::from_value(node).unwrap();
    node.facts(&placement::names::Names::default(), &Default::default())
}

fn answer(second: i64, pods: &[(&str, f64)]) -> NodePods {
    let pods = pods.iter().map(|(uid, seconds)| PodUse {
        uid: (*uid).into(),
        cpu_seconds_total: Some(*seconds),
        memory_used_bytes: Some(1 << 30),
    });
    NodePods { time: at(second), omitted: 0, pods: pods.collect() }
}

/// Nodes `a` and `b` of four cores, with the pod `web-a` of shop/web and `db-b` of bank/db.
fn observer() -> Observer {
    let mut observer = Observer::default();
    observer.nodes_listed(&[node("a", 4.0), node("b", 4.0)]);
    observer.pods_listed(&[
        bound("web-a", "a", workload("shop", "web")),
        bound("db-b", "b", workload("bank", "db")),
    ]);
    observer
}

fn learned(observer: &Observer, workload: &WorkloadId) -> PerResource<Option<LearnedUse>> {
    observer.learner.lock().unwrap().learned(workload).unwrap_or_default()
}

/// Ten answers of `node`, a minute apart, in which the pod uses `cores`.
fn teach(observer: &mut Observer, node: &str, uid: &str, cores: f64) -> ObservedPods {
    let mut sum = ObservedPods::default();
    for minute in 0..10 {
        let pods = answer(minute * 60, &[(uid, cores * 60.0 * minute as f64)]);
        let outcome = observer.record_answer(&node.into(), &pods, at(minute * 60));
        sum.observed += outcome.observed;
        sum.elsewhere += outcome.elsewhere;
        sum.refused += outcome.refused;
    }
    sum
}

#[test]
fn use_is_the_difference_of_two_answers() {
    let mut observer = observer();
    let outcome = teach(&mut observer, "a", "web-a", 1.5);
    assert_eq!(outcome, ObservedPods { observed: 9, ..ObservedPods::default() });
    let learned = learned(&observer, &workload("shop", "web"));
    let cpu = learned.cpu.unwrap().amount;
    let memory = learned.memory.unwrap().amount;
    assert!((cpu.p50 - 1.5).abs() < 0.06, "{cpu:?}");
    assert!((memory.p50 / f64::from(1 << 30) - 1.0).abs() < 0.04, "{memory:?}");
}

/// Its containers run outside of its control group.
#[test]
fn a_pod_whose_counters_are_0_teaches_nothing_and_one_that_is_idle_does() {
    for (cpu, memory, observed) in [(0.0, 0, 0), (7.5, 1 << 20, 1)] {
        let mut observer = observer();
        let outcomes = [0, 60].map(|second| {
            let pod = PodUse {
                uid: "web-a".into(),
                cpu_seconds_total: Some(cpu),
                memory_used_bytes: Some(memory),
            };
            let answer = NodePods { time: at(second), omitted: 0, pods: vec![pod] };
            observer.record_answer(&"a".into(), &answer, at(second)).observed
        });
        assert_eq!(outcomes, [0, observed], "{cpu}");
    }
}

#[test]
fn a_node_that_speaks_of_another_nodes_pod_is_not_heard() {
    let mut observer = observer();
    let outcome = teach(&mut observer, "a", "db-b", 3.0);
    assert_eq!(outcome, ObservedPods { elsewhere: 10, ..ObservedPods::default() });
    assert_eq!(learned(&observer, &workload("bank", "db")), PerResource::default());
    // A pod that moved there, as one of the same UID never does, starts anew.
    observer.pod_applied(&bound("db-b", "a", workload("bank", "db")));
    let first = observer.record_answer(&"a".into(), &answer(600, &[("db-b", 9999.0)]), at(600));
    assert_eq!(first, ObservedPods::default());
}

#[test]
fn a_pod_that_is_listed_twice_counts_once() {
    let mut observer = observer();
    observer.record_answer(&"a".into(), &answer(0, &[("web-a", 0.0)]), at(0));
    let twice = answer(60, &[("web-a", 60.0), ("web-a", 60.0)]);
    let outcome = observer.record_answer(&"a".into(), &twice, at(60));
    assert_eq!((outcome.observed, outcome.elsewhere), (1, 1));
}

#[test]
fn a_counter_that_went_back_a_clock_that_was_set_and_a_long_pause_are_left_out() {
    let pairs = [
        ("restarted", answer(60, &[("web-a", 5.0)]), 60),
        ("same time", answer(0, &[("web-a", 60.0)]), 60),
        ("earlier", answer(-60, &[("web-a", 60.0)]), 60),
        ("an hour ahead", answer(3660, &[("web-a", 60.0)]), 60),
        ("faster than ours", answer(60, &[("web-a", 60.0)]), 20),
        ("long", answer(1000, &[("web-a", 60.0)]), 1000),
    ];
    for (what, second, received) in pairs {
        let mut observer = observer();
        observer.record_answer(&"a".into(), &answer(0, &[("web-a", 10.0)]), at(0));
        let outcome = observer.record_answer(&"a".into(), &second, at(received));
        assert_eq!(outcome.observed, 0, "{what}");
    }
}

#[test]
fn use_beyond_what_the_node_has_is_refused() {
    for (cores, refused) in [(4.9, 0), (5.1, 9), (1e300, 9)] {
        let mut observer = observer();
        let outcome = teach(&mut observer, "a", "web-a", cores);
        assert_eq!(outcome.refused, refused, "{cores}");
        let cpu = learned(&observer, &workload("shop", "web")).cpu;
        assert_eq!(cpu.is_none(), refused > 0, "{cores}");
    }
}

#[test]
fn counters_that_are_no_counters_teach_nothing() {
    for (before, after) in
        [(-f64::MAX, f64::MAX), (f64::MAX, -f64::MAX), (f64::NAN, 1.0), (0.0, f64::INFINITY)]
    {
        let mut observer = observer();
        observer.record_answer(&"a".into(), &answer(0, &[("web-a", before)]), at(0));
        observer.record_answer(&"a".into(), &answer(60, &[("web-a", after)]), at(60));
        assert_eq!(learned(&observer, &workload("shop", "web")).cpu, None);
    }
}

/// A pod can name any owner. Its use counts to a workload of its own namespace all the same.
#[test]
fn pods_with_a_forged_owner_teach_nothing_about_another_namespaces_workload() {
    let pod = serde_json::json!({
        "metadata": {
            "name": "x", "namespace": "mallory", "uid": "forged",
            "ownerReferences": [{ "kind": "Deployment", "name": "db", "controller": true }],
        },
        "spec": { "nodeName": "a", "containers": [] },
    });
    let pod: cluster::Pod = serde_json::from_value(pod).unwrap();
    let mut observer = observer();
    observer.pod_applied(&BoundPod::select(&pod, &placement::names::Names::default()).unwrap());
    assert_eq!(teach(&mut observer, "a", "forged", 3.9).observed, 9);
    assert_eq!(learned(&observer, &workload("bank", "db")), PerResource::default());
}

/// Airflow makes bare pods, with a name of its own for each run.
#[test]
fn the_runs_of_a_generator_teach_one_workload() {
    let mut observer = observer();
    let mut ids = Vec::new();
    for (uid, node, name) in [("run-1", "a", "load-k3jd9x2p"), ("run-2", "b", "load-0a9s8d7f")] {
        let pod = serde_json::json!({
            "metadata": { "name": name, "namespace": "etl", "uid": uid },
            "spec": { "nodeName": node, "containers": [{ "name": "base", "image": "airflow:3" }] },
        });
        let pod: cluster::Pod = serde_json::from_value(pod).unwrap();
        observer.pod_applied(&BoundPod::select(&pod, &placement::names::Names::default()).unwrap());
        assert_eq!(teach(&mut observer, node, uid, 1.5).observed, 9);
        observer.pod_gone(&uid.into());
        ids.extend(pod.workload());
    }
    assert_eq!((ids.len(), ids[0] == ids[1]), (2, true));
    let learner = observer.learner.lock().unwrap();
    assert_eq!(learner.stats().workloads, 1);
    let minutes: Vec<f64> = learner.snapshot().iter().map(|it| it.pod_minutes.round()).collect();
    assert_eq!(minutes, [18.0]);
}

#[test]
fn a_replica_that_leads_again_goes_on_from_the_others_list_and_learns_nothing_twice() {
    let mut observer = observer();
    let web = workload("shop", "web");
    teach(&mut observer, "a", "web-a", 1.5);
    let minutes = |observer: &Observer| -> Vec<f64> {
        let learner = observer.learner.lock().unwrap();
        learner.snapshot().iter().map(|it| it.pod_minutes.round()).collect()
    };
    assert_eq!(minutes(&observer), [9.0]);
    // Another has led for two minutes, and observed the pods.
    let used = learned(&observer, &web);
    *observer.list.lock().unwrap() = Some(vec![Workload::new(&web, &used, 11.0, at(660))]);
    observer.begin_to_lead(at(660));
    assert_eq!(minutes(&observer), [11.0]);
    let outcomes = [660, 720].map(|second| {
        let answer = answer(second, &[("web-a", 1.5 * second as f64)]);
        observer.record_answer(&"a".into(), &answer, at(second)).observed
    });
    assert_eq!((outcomes, minutes(&observer)), ([0, 1], vec![12.0]));
    // It lost the Lease again, and no other has led since.
    observer.begin_to_lead(at(720));
    assert_eq!(minutes(&observer), [12.0]);
}

#[test]
fn pods_and_nodes_that_are_gone_are_forgotten() {
    let mut observer = observer();
    observer.pod_applied(&bound("web-a2", "a", workload("shop", "web")));
    assert_eq!((observer.pods.len(), observer.workloads.len()), (3, 2));
    observer.pod_gone(&"web-a".into());
    assert_eq!((observer.pods.len(), observer.workloads.len()), (2, 2));
    // A pod that has ended uses nothing.
    let ended = BoundPod { workload: None, ..bound("web-a2", "a", workload("shop", "web")) };
    observer.pod_applied(&ended);
    assert_eq!((observer.pods.len(), observer.workloads.len()), (1, 1));
    // The same pod under another owner.
    observer.pod_applied(&bound("db-b", "b", workload("bank", "other")));
    observer.pod_applied(&bound("db-b", "b", workload("bank", "other")));
    assert_eq!((observer.pods.len(), observer.workloads.len()), (1, 1));
    observer.pods_listed(&[]);
    observer.nodes_listed(&[node("b", 4.0)]);
    observer.node_gone(&"b".into());
    assert!(observer.pods.is_empty() && observer.workloads.is_empty() && observer.nodes.is_empty());
}
