//! What pods declare of network and disk: each node's sum after any order of events, and the answers of the verbs.

use std::collections::{BTreeMap, HashSet};

use cluster::{Event, Node, Pod, WatchCause};
use jiff::{SignedDuration, Timestamp};
use placement::demand::{Demand, Rates};
use placement::load::{Evaluation, PodToPlace};
use placement::names::Names;
use placement::policy::LoadPolicy;
use placement::reading::ReadingCodec;
use placement::resources::Amounts;
use placement::units::NodeName;
use proptest::prelude::*;
use scheduler_extender::view::{View, select_pod};
use serde_json::{Value, json};
use sim::{PODS, Sim, node, pod};

use crate::rig::{Rig, view_under};

/// Bytes a second that each node can send, and what the pod of a number declares.
const SPEED: u64 = 1 << 30;
const NODES: usize = 3;
const PODS_IN_ALL: usize = 5;

/// Without estimates and hot values: what pods declare counts alone.
fn policy(limit: f64) -> String {
    format!(
        "{{apiVersion: plimsoll.dev/v1alpha1, kind: SchedulingPolicy, spec: {{\
         estimates: {{enabled: false}}, \
         limits: {{mode: hard, maxWait: never}}, demand: {{egress: {{limit: {limit}, weight: 1}}}}}}}}"
    )
}

fn rate(pod: usize) -> u64 {
    1 << (20 + pod)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// kube-scheduler's verbs expect the pod on a node, before it is bound.
    Expect(usize, usize),
    /// The verbs are called for the pod again.
    Again(usize),
    /// The API server binds the pod.
    Bind(usize, usize),
    /// It binds the pod while the watch is broken: the next list shows it.
    Miss(usize, usize),
    /// Its containers start.
    Start(usize),
    /// They end.
    End(usize),
    /// Its object goes.
    Delete(usize),
    /// All pods are listed anew.
    List,
    /// The Node object is deleted, or made again.
    Toggle(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (pod, node) = (0..PODS_IN_ALL, 0..NODES);
    prop_oneof![
        4 => (pod.clone(), node.clone()).prop_map(|(p, n)| Step::Expect(p, n)),
        1 => pod.clone().prop_map(Step::Again),
        4 => (pod.clone(), node.clone()).prop_map(|(p, n)| Step::Bind(p, n)),
        1 => (pod.clone(), node.clone()).prop_map(|(p, n)| Step::Miss(p, n)),
        2 => pod.clone().prop_map(Step::Start),
        2 => pod.clone().prop_map(Step::End),
        2 => pod.prop_map(Step::Delete),
        1 => Just(Step::List),
        1 => node.prop_map(Step::Toggle),
    ]
}

/// What is true of a pod: it waits, and is expected on a node, or it is bound.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// The number of its UID.
    uid: usize,
    expected: Option<usize>,
    node: Option<usize>,
    started: bool,
    ended: bool,
}

struct World {
    view: View,
    pods: BTreeMap<usize, Facts>,
    exists: [bool; NODES],
    made: usize,
    names: Names,
}

fn now() -> Timestamp {
    "2026-11-20T09:10:00Z".parse().unwrap()
}

fn name(node: usize) -> NodeName {
    format!("n{node}").into()
}

impl World {
    fn new() -> Self {
        let policy = LoadPolicy::from_yaml(&policy(1.0)).unwrap();
        let mut world = Self {
            view: view_under(policy),
            pods: BTreeMap::new(),
            exists: [false; NODES],
            made: 0,
            names: Names::default(),
        };
        (0..NODES).for_each(|node| world.take(Step::Toggle(node)));
        world.take(Step::List);
        world
    }

    fn object(&self, pod: usize, facts: &Facts) -> Pod {
        let hour_ago = (now() - SignedDuration::from_hours(1)).to_string();
        let phase = if facts.ended { "Succeeded" } else { "Running" };
        let mut object = json!({
            "metadata": {
                "name": format!("p{pod}"), "namespace": "default", "uid": format!("u{}", facts.uid),
                "annotations": {"kubernetes.io/egress-bandwidth": (8 * rate(pod)).to_string()},
            },
            "spec": {"containers": [{"name": "c", "image": "nginx"}]},
            "status": {"phase": phase, "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": hour_ago},
            ]},
        });
        if let Some(node) = facts.node {
            object["spec"]["nodeName"] = json!(name(node).as_str());
        }
        if facts.started {
            object["status"]["containerStatuses"] =
                json!([{"name": "c", "state": {"running": {"startedAt": hour_ago}}}]);
        }
        serde_json::from_value(object).unwrap()
    }

    /// An event of the pods' watch, as the extender receives it.
    fn show(&self, pod: usize, facts: &Facts, seen: WatchCause) {
        let object = self.object(pod, facts);
        self.view.count_requests(&object, &self.names, seen, now());
        if let Some(kept) = select_pod(&self.view, &self.names, &object, now()) {
            let event =
                if seen == WatchCause::Gone { Event::Gone(kept) } else { Event::Applied(kept) };
            let _ = self.view.apply_pods(event, &mut HashSet::new(), now());
        }
    }

    fn changed(&mut self, pod: usize, change: impl FnOnce(&mut Facts)) {
        let Some(facts) = self.pods.get_mut(&pod).filter(|facts| facts.node.is_some()) else {
            return;
        };
        change(facts);
        let facts = *facts;
        self.show(pod, &facts, WatchCause::Changed);
    }

    /// The pod of that number, which is made where there is none.
    fn pod(&mut self, pod: usize) -> &mut Facts {
        let made = &mut self.made;
        self.pods.entry(pod).or_insert_with(|| {
            *made += 1;
            Facts { uid: *made, ..Facts::default() }
        })
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Expect(pod, node) => {
                let exists = self.exists[node];
                let facts = self.pod(pod);
                let uid = format!("u{}", facts.uid).into();
                if facts.node.is_none() {
                    facts.expected = exists.then_some(node);
                    let declares = Rates { egress: rate(pod), ..Rates::NONE };
                    self.view.change(|index| {
                        index.not_in_flight(&uid);
                        index.count_in_flight(
                            "ns",
                            &uid,
                            &name(node),
                            now(),
                            Amounts::default(),
                            declares,
                        );
                    });
                }
            }
            Step::Again(pod) => {
                if let Some(facts) = self.pods.get_mut(&pod).filter(|facts| facts.node.is_none()) {
                    facts.expected = None;
                    let uid = format!("u{}", facts.uid).into();
                    self.view.change(|index| index.not_in_flight(&uid));
                }
            }
            Step::Bind(pod, node) => {
                let facts = self.pod(pod);
                if facts.node.is_none() {
                    (facts.node, facts.expected) = (Some(node), None);
                    self.changed(pod, |_| ());
                }
            }
            Step::Miss(pod, node) => {
                let facts = self.pod(pod);
                if facts.node.is_none() {
                    (facts.node, facts.expected) = (Some(node), None);
                }
                self.take(Step::List);
            }
            Step::Start(pod) => self.changed(pod, |facts| facts.started = true),
            Step::End(pod) => self.changed(pod, |facts| facts.ended = true),
            Step::Delete(pod) => {
                if let Some(facts) =
                    self.pods.get(&pod).copied().filter(|facts| facts.node.is_some())
                {
                    self.show(pod, &facts, WatchCause::Gone);
                    self.pods.remove(&pod);
                }
            }
            Step::List => {
                let _ = self.view.apply_pods(Event::Listing, &mut HashSet::new(), now());
                for (pod, facts) in &self.pods {
                    self.show_listed(*pod, facts);
                }
                let _ = self.view.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), now());
            }
            Step::Toggle(node) => self.toggle(node),
        }
    }

    fn show_listed(&self, pod: usize, facts: &Facts) {
        self.view.count_requests(&self.object(pod, facts), &self.names, WatchCause::Listed, now());
    }

    /// What is in flight to a node goes with it.
    fn toggle(&mut self, node: usize) {
        self.exists[node] ^= true;
        let object: Node = serde_json::from_value(json!({"metadata": {
            "name": name(node).as_str(),
            "annotations": {"plimsoll.dev/egress-bandwidth": (8 * SPEED).to_string()},
        }}))
        .unwrap();
        let facts = object.facts(&self.names, &ReadingCodec::default());
        let event = if self.exists[node] { Event::Applied(facts) } else { Event::Gone(facts) };
        self.view.apply_nodes(event, now());
        for facts in self.pods.values_mut().filter(|facts| facts.expected == Some(node)) {
            facts.expected = None;
        }
    }

    /// What pods that are bound to a node, or expected there, declare, counted anew.
    fn recounted(&self, node: usize) -> (u64, u64) {
        let sum = |counts: &dyn Fn(&Facts) -> bool| {
            let pods = self.pods.iter().filter(|(_, facts)| counts(facts));
            pods.map(|(pod, _)| rate(*pod)).sum()
        };
        let bound = sum(&|facts| facts.node == Some(node) && !facts.ended);
        (bound, sum(&|facts| facts.expected == Some(node)))
    }

    /// The same by the view: bound, and in flight. `None` for an unknown node.
    fn counted(&self, node: usize) -> Option<(u64, u64)> {
        let snapshot = self.view.read();
        let load = snapshot.load(name(node).as_str())?;
        let declared = load.declared.as_ref().unwrap().sum(Demand::Egress, 1e18);
        let pod =
            PodToPlace { declares: Rates { egress: 1, ..Rates::NONE }, ..PodToPlace::ORDINARY };
        let evaluation = Evaluation { policy: &snapshot.policy, node: load, pod, now: now() };
        let in_flight = evaluation.limits().next().unwrap().load.in_flight;
        Some((declared as u64, (in_flight * SPEED as f64) as u64))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn after_any_order_of_events_each_nodes_sum_is_what_its_pods_declare(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            for node in (0..NODES).filter(|node| world.exists[*node]) {
                prop_assert_eq!(world.counted(node), Some(world.recounted(node)), "{:?} on {}", step, node);
            }
        }
    }
}

fn sending(name: &str, egress: &str) -> Value {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("u-{name}") },
        "spec": { "containers": [{ "name": "c", "image": "nginx" }] },
        "status": { "phase": "Pending" },
    });
    pod["metadata"]["annotations"] = json!({"kubernetes.io/egress-bandwidth": egress});
    pod
}

const NAMES: [&str; 2] = ["a", "b"];
const REASON: &str =
    "Load[egress_demand] is too high, over 0.8 (see: kubectl plimsoll explain pod)";

async fn start() -> (Sim, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(node("a").annotation("plimsoll.dev/egress-bandwidth", "100M"));
    sim.put(node("b").annotation("plimsoll.dev/egress-bandwidth", "50M"));
    let rig = Rig::start_under(&sim, &policy(0.8), &[]).await;
    (sim, rig)
}

async fn passing(rig: &Rig, pod: &Value) -> Value {
    rig.filter("/load-aware", pod, &NAMES).await["NodeNames"].clone()
}

#[tokio::test]
async fn a_pod_goes_where_what_it_declares_has_room_until_another_one_ends() {
    let (sim, rig) = start().await;
    let large = sending("large", "60M");
    assert_eq!(passing(&rig, &large).await, json!(["a"]));
    // It is in flight to the only node that takes it.
    let other = sending("other", "30M");
    assert_eq!(passing(&rig, &other).await, json!(["b"]));
    let refused = rig.filter("/load-aware", &sending("third", "30M"), &NAMES).await;
    let reasons = json!({"a": REASON, "b": REASON});
    assert_eq!(refused["FailedAndUnresolvableNodes"], reasons, "{refused}");
    // A pod that declares nothing is not concerned, and one whose text cannot be read declares nothing.
    assert_eq!(passing(&rig, &sending("faulty", "fast")).await, json!(NAMES));
    for (name, node, egress) in [("large", "a", "60M"), ("other", "b", "30M")] {
        let bound = pod(name).uid(&format!("u-{name}")).on(node);
        let bound = bound.annotation("kubernetes.io/egress-bandwidth", egress);
        sim.put(bound.scheduled_at(&Timestamp::now().to_string()));
    }
    assert_eq!(passing(&rig, &sending("third", "15M")).await, json!(["a"]));
    sim.delete(PODS, "default", "large");
    rig.until("the end of the pod", async || {
        passing(&rig, &sending("third", "30M")).await == json!(["a"])
    })
    .await;
}

#[tokio::test]
async fn explain_tells_what_is_declared_and_what_cannot_be_read() {
    let (_sim, rig) = start().await;
    let mut pod = sending("p", "40M");
    pod["metadata"]["annotations"]["plimsoll.dev/disk-read"] = json!("fast");
    let told = rig.post("/explain", &json!({ "Pod": pod, "NodeNames": NAMES })).await;
    let fault = "plimsoll.dev/disk-read: expected a quantity of bytes a second from `1k` to `1P`, such as `10M`, found `fast`";
    assert_eq!(told["ignored"], json!([fault]));
    let limit = &told["nodes"][1]["load"]["limits"][0];
    assert_eq!((&limit["metric"], &limit["outcome"]), (&json!("egress_demand"), &json!("met")));
    assert_eq!((&limit["reading"]["value"], &limit["pod"]), (&json!(0.0), &json!(0.8)));
    assert_eq!(told["nodes"][0]["score"], 60);
}
