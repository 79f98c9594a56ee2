//! Pods that never run change no answer about pods of other namespaces.

use std::collections::HashSet;

use cluster::{Event, Node, Pod, WatchCause};
use jiff::Timestamp;
use placement::gpu::Claim;
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::VERBS;
use crate::Decider;
use crate::view::{fixtures, select_pod};

const POLICY: &str = "
apiVersion: plimsoll.dev/v1alpha1
kind: SchedulingPolicy
spec:
  metrics: [{name: cpu_usage_avg_5m, period: 3m, limit: 0.6, weight: 1}]
  limits: {mode: hard}
";

const NODES: [&str; 4] = ["a", "b", "c", "d"];

/// What a pod that never runs asks for, and how often it comes.
#[derive(Debug, Clone)]
struct NeverRuns {
    units: u32,
    gpus: u32,
    cpu: &'static str,
    priority: i32,
    annotation: Option<(&'static str, &'static str)>,
    /// kube-scheduler asks about these nodes, of which the pod's own rules leave no other.
    nodes: Vec<&'static str>,
    times: usize,
}

fn never_runs() -> impl Strategy<Value = NeverRuns> {
    let annotation = prop_oneof![
        Just(None),
        Just(Some(("plimsoll.dev/gpu-placement", "spread"))),
        Just(Some(("plimsoll.dev/gpu-cores", "70"))),
        Just(Some(("plimsoll.dev/expected-use", "{\"cpu\": \"64\"}"))),
        Just(Some(("plimsoll.dev/gpu-placement", "?"))),
    ];
    let nodes = prop::collection::vec(prop::sample::select(&NODES[..]), 0..3);
    let asks = (1..40_u32, 1..9_u32, prop::sample::select(vec!["1m", "40", "1000", "9E"]));
    (asks, any::<i32>(), annotation, nodes, 1..40_usize).prop_map(
        |((units, gpus, cpu), priority, annotation, nodes, times)| NeverRuns {
            units,
            gpus,
            cpu,
            priority,
            annotation,
            nodes,
            times,
        },
    )
}

struct Cluster {
    decider: Decider,
    now: Timestamp,
    settled: HashSet<placement::units::PodUid>,
}

fn pod(namespace: &str, name: &str, units: u32, cpu: &str, priority: i32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}") },
        "spec": { "priority": priority, "containers": [{ "name": "c", "resources": {
            "requests": { "cpu": cpu }, "limits": { "aliyun.com/gpu-mem": units.to_string() },
        } }] },
    })
}

impl Cluster {
    /// Nodes of eight GPUs and 96 cores, and pods that have run there.
    fn new() -> Self {
        let now = Timestamp::from_second(1_795_165_200).unwrap();
        let view = fixtures::view_under(LoadPolicy::from_yaml(POLICY).unwrap());
        let nodes = NODES.iter().enumerate().map(|(number, name)| {
            let reading = format!("0.{},{now}", 2 + number);
            let gpu = |index| {
                json!({
                    "uuid": format!("GPU-{name}-{index}"), "index": index, "model": "A10",
                    "memoryMiB": 16384, "units": 16, "healthy": true, "pods": {},
                })
            };
            let gpus: Vec<Value> = (0..8).map(gpu).collect();
            let node = json!({
                "metadata": { "name": name, "annotations": {
                    "cpu_usage_avg_5m": reading, "plimsoll.dev/gpu-cards": json!(gpus).to_string(),
                } },
                "status": { "allocatable": { "cpu": "96" }, "capacity": { "cpu": "96" } },
            });
            let node: Node = serde_json::from_value(node).unwrap();
            node.facts(&Names::default(), &ReadingCodec::default())
        });
        view.apply_nodes(Event::Listed(nodes.collect()), now);
        let mut settled = HashSet::new();
        let _ = view.apply_pods(Event::Listed(Vec::new()), &mut settled, now);
        let decider = Decider::of_view(view, now);
        let mut cluster = Self { decider, now, settled };
        for number in 0..40 {
            let units = [128, 4, 8, 16][number % 4];
            cluster.run(&pod("ml", &format!("earlier-{number}"), units, "4", 0), number);
        }
        cluster.decider.view.renew_measure();
        cluster
    }

    fn show(&mut self, pod: &Value, cause: WatchCause) {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let view = &self.decider.view;
        view.count_requests(&pod, &Names::default(), cause, self.now);
        let Some(pod) = select_pod(view, &Names::default(), &pod, self.now) else { return };
        let event = if cause == WatchCause::Gone { Event::Gone(pod) } else { Event::Applied(pod) };
        let _ = view.apply_pods(event, &mut self.settled, self.now);
    }

    /// The pod is bound; every second one stays.
    fn run(&mut self, pod: &Value, number: usize) {
        self.show(pod, WatchCause::Changed);
        let facts = serde_json::from_value::<Pod>(pod.clone()).unwrap().facts(&Names::default());
        let node = NODES[number % 3];
        let gpu = format!("GPU-{node}-{}", number % 5);
        let claim = Claim::on_gpus(&facts.gpu.unwrap().unwrap().request, &[gpu.as_str().into()]);
        self.decider.view.change(|index| {
            index.confirm(&facts.uid, &node.into(), &claim);
            if number.is_multiple_of(2) {
                index.forget(&facts.uid);
            }
        });
    }

    fn ask(&self, pod: &Value, nodes: &[&str]) -> Vec<String> {
        let candidates = json!({ "Pod": pod, "Nodes": null, "NodeNames": nodes }).to_string();
        let victims: serde_json::Map<String, Value> =
            nodes.iter().map(|node| ((*node).to_owned(), json!({ "Pods": [] }))).collect();
        let preemption = json!({ "Pod": pod, "NodeNameToMetaVictims": victims }).to_string();
        let ask = |(path, verb): &(&str, super::Verb)| {
            let body = if path.ends_with("preempt") { &preemption } else { &candidates };
            String::from_utf8(verb(&self.decider, body.as_bytes()).json().to_vec()).unwrap()
        };
        VERBS.iter().map(ask).collect()
    }

    /// What is answered about pods of others, in this order.
    fn answers(&mut self) -> Vec<Vec<String>> {
        self.decider.view.renew_measure();
        let mut answers = Vec::new();
        for (number, (units, cpu)) in
            [(4, "2"), (16, "30"), (16, "4"), (8, "1"), (0, "20")].into_iter().enumerate()
        {
            let next = pod("ml", &format!("next-{number}"), units, cpu, 7);
            answers.push(self.ask(&next, &NODES));
            if units > 0 {
                self.run(&next, 2 * number + 1);
            }
            self.decider.view.renew_measure();
            // Scores are ranks, so they seldom show what places cost.
            answers.push(vec![format!("{:?}", self.decider.view.read().measures)]);
        }
        answers
    }

    /// The pod comes, is asked about where kube-scheduler finds nodes for it, and goes.
    fn try_in_vain(&mut self, it: &NeverRuns, number: usize) {
        for time in 0..it.times {
            let name = format!("idle-{number}-{time}");
            let mut pod = pod("idle", &name, it.units * it.gpus, it.cpu, it.priority);
            let mut annotations = json!({ "plimsoll.dev/gpu-card-count": it.gpus.to_string() });
            if !it.nodes.is_empty() {
                // No node has GPUs of this model.
                annotations["plimsoll.dev/gpu-model"] = "none".into();
            }
            if let Some((key, value)) = it.annotation {
                annotations[key] = value.into();
            }
            pod["metadata"]["annotations"] = annotations;
            self.show(&pod, WatchCause::Changed);
            if !it.nodes.is_empty() {
                // kube-scheduler ends with the first verb that leaves no node.
                let asked = json!({ "Pod": pod, "NodeNames": it.nodes }).to_string();
                for path in ["load-aware/filter", "gpushare-scheduler/filter"] {
                    let verb = VERBS.iter().find(|(known, _)| *known == path).unwrap().1;
                    verb(&self.decider, asked.as_bytes());
                }
            }
            if time % 3 != 0 {
                self.show(&pod, WatchCause::Gone);
            }
        }
        self.decider.view.renew_measure();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pods_that_never_run_change_no_answer_about_those_of_others(
        idle in prop::collection::vec(never_runs(), 1..6),
    ) {
        let expected = Cluster::new().answers();
        let mut cluster = Cluster::new();
        for (number, idle) in idle.iter().enumerate() {
            cluster.try_in_vain(idle, number);
        }
        prop_assert_eq!(cluster.answers(), expected);
    }
}
