//! A namespace with a quota against a model: its pods are bound, started, deleted in order or by force, and reported,
//! in every order. Its GPUs, those of pods deleted by force included, never have more units than the quota, which
//! counts pods with an object alone.

use std::collections::{BTreeMap, HashSet};

use cluster::{Event, NodeFacts, PodFacts};
use jiff::{SignedDuration, Timestamp};
use placement::gpu::{Claim, Gpu};
use placement::names::Names;
use placement::reading::ReadingCodec;
use placement::units::{NodeName, PodUid, Units};
use proptest::prelude::*;
use scheduler_extender::view::{GpuPodId, PodUse, ReservationError, View, WatchedPod};
use serde_json::{Value, json};
use sim::Sim;

use crate::rig::{GPU, Rig, empty_view, gpu_node, gpu_pod};

const QUOTA: u32 = 12;
const NODES: usize = 2;
const SLOTS: usize = 5;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A pod is created, if the quota allows it, and bound, if the extender allows that.
    Bind {
        slot: usize,
        node: usize,
        units: u32,
    },
    /// Its kubelet starts it.
    Start(usize),
    /// It is deleted by force: its object goes, its processes stay.
    Force(usize),
    /// Its processes end, and with an object it goes, too.
    End(usize),
    Report(usize),
    /// A pod of another namespace asks for a GPU.
    Other {
        node: usize,
        units: u32,
    },
    /// Seconds pass.
    Tick(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let (slot, node, units) = (0..SLOTS, 0..NODES, 1..9_u32);
    prop_oneof![
        6 => (slot.clone(), node.clone(), units.clone())
            .prop_map(|(slot, node, units)| Step::Bind { slot, node, units }),
        3 => slot.clone().prop_map(Step::Start),
        4 => slot.clone().prop_map(Step::Force),
        2 => slot.prop_map(Step::End),
        3 => node.clone().prop_map(Step::Report),
        2 => (node, units).prop_map(|(node, units)| Step::Other { node, units }),
        2 => (1..12_i64).prop_map(Step::Tick),
    ]
}

#[derive(Debug, Clone)]
struct Pod {
    uid: String,
    node: usize,
    units: u32,
    claim: Claim,
    runs: bool,
}

struct World {
    view: View,
    settled: HashSet<PodUid>,
    now: Timestamp,
    pods: BTreeMap<usize, Pod>,
    /// Deleted pods whose processes run.
    lingering: Vec<Pod>,
    /// Pods whose processes had ended before their objects went: they hold nothing, and the next report says so.
    ended: HashSet<PodUid>,
    made: usize,
}

fn name(node: usize) -> NodeName {
    format!("n{node}").into()
}

fn id(namespace: &str, uid: &str) -> GpuPodId {
    GpuPodId { uid: uid.into(), namespace: namespace.to_owned(), name: uid.to_owned() }
}

fn pod(uid: &str, units: u32) -> PodFacts {
    let pod: cluster::Pod = serde_json::from_value(json!({
        "metadata": { "name": uid, "namespace": "ml", "uid": uid },
        "spec": { "containers": [{ "name": "c", "resources": { "limits": { GPU: units } } }] },
    }))
    .unwrap();
    pod.facts(&Names::default())
}

fn node_facts(node: usize) -> NodeFacts {
    let built = gpu_node(name(node).as_str(), 1);
    let node: cluster::Node = serde_json::from_value(built.into()).unwrap();
    node.facts(&Names::default(), &ReadingCodec::default())
}

impl Pod {
    fn facts(&self, stopped: bool) -> PodFacts {
        let mut facts = pod(&self.uid, self.units);
        if let Ok(Some(gpu)) = &mut facts.gpu {
            gpu.claim = Ok(Some(self.claim.clone()));
        }
        PodFacts { node: Some(name(self.node)), admitted: self.runs, stopped, ..facts }
    }

    fn watched(&self, stopped: bool) -> WatchedPod {
        WatchedPod::Gpu(Box::new(self.facts(stopped)), PodUse::default())
    }
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            view: empty_view(),
            settled: HashSet::new(),
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            pods: BTreeMap::new(),
            lingering: Vec::new(),
            ended: HashSet::new(),
            made: 0,
        };
        (0..NODES).for_each(|node| world.report(node));
        world
    }

    fn apply(&mut self, event: Event<WatchedPod>) {
        assert!(self.view.apply_pods(event, &mut self.settled, self.now).is_empty());
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Bind { slot, node, units } => self.bind(slot, node, units),
            Step::Start(slot) => {
                if let Some(pod) = self.pods.get_mut(&slot) {
                    pod.runs = true;
                }
            }
            Step::Force(slot) => {
                if let Some(pod) = self.pods.remove(&slot) {
                    self.apply(Event::Gone(pod.watched(false)));
                    self.lingering.extend(Some(pod).filter(|pod| pod.runs));
                }
            }
            Step::End(slot) => {
                if let Some(pod) = self.pods.remove(&slot) {
                    self.apply(Event::Gone(pod.watched(true)));
                    self.ended.insert(pod.uid.as_str().into());
                } else if !self.lingering.is_empty() {
                    self.lingering.remove(slot % self.lingering.len());
                }
            }
            Step::Report(node) => self.report(node),
            Step::Other { node, units } => self.other(node, units),
            Step::Tick(seconds) => {
                // A report is never later than the time for it.
                (0..NODES).for_each(|node| self.report(node));
                self.now += SignedDuration::from_secs(seconds);
                self.view.change(|index| index.end_departures(self.now));
            }
        }
    }

    fn bind(&mut self, slot: usize, node: usize, units: u32) {
        let counted: u32 = self.pods.values().map(|pod| pod.units).sum();
        if self.pods.contains_key(&slot) || counted + units > QUOTA {
            return;
        }
        self.made += 1;
        let uid = format!("ml-{}", self.made);
        let facts = pod(&uid, units);
        let request = facts.gpu_pod().unwrap().request.clone();
        self.apply(Event::Applied(WatchedPod::Gpu(Box::new(facts), PodUse::default())));
        let (pod, rule) = (id("ml", &uid), self.view.choice_rule());
        let Ok(reserved) =
            self.view.change(|index| index.reserve(&pod, &request, &name(node), &rule))
        else {
            // It is deleted while it waits.
            return self.view.change(|index| index.forget(&pod.uid));
        };
        let claim = reserved.claim;
        self.view.change(|index| index.confirm(&pod.uid, &name(node), &claim));
        let pod = Pod { uid, node, units, claim, runs: false };
        self.apply(Event::Applied(pod.watched(false)));
        self.pods.insert(slot, pod);
    }

    fn other(&mut self, node: usize, units: u32) {
        let facts = pod("other", units);
        let request = &facts.gpu_pod().unwrap().request;
        let (pod, rule) = (id("other", "other"), self.view.choice_rule());
        match self.view.change(|index| index.reserve(&pod, request, &name(node), &rule)) {
            Ok(_) => self.view.change(|index| index.cancel(&pod.uid, &name(node))),
            Err(error) => {
                assert!(!matches!(error, ReservationError::HeldByDeleted(_)), "{error:?}")
            }
        }
        self.view.change(|index| index.forget(&pod.uid));
    }

    /// The node's GPUs, with every pod that runs.
    fn report(&mut self, node: usize) {
        let here = self.pods.values().chain(&self.lingering);
        let runs = here.filter(|pod| pod.node == node && pod.runs);
        let pods: BTreeMap<PodUid, Units> =
            runs.map(|pod| (pod.uid.as_str().into(), Units(pod.units))).collect();
        let mut facts = node_facts(node);
        let gpus = facts.gpus.take().unwrap().unwrap();
        let gpus = gpus.into_iter().map(|gpu| Gpu { pods: pods.clone(), ..gpu }).collect();
        facts.gpus = Some(Ok(gpus));
        self.view.apply_nodes(Event::Applied(facts), self.now);
    }

    /// The units that GPUs are charged for pods of the namespace.
    fn held(&self) -> u32 {
        let index = self.view.read();
        let accounts = index.nodes_with_gpus().flat_map(|(_, gpus)| gpus.accounts());
        let charges = accounts.flat_map(|account| &account.charges);
        let is_ours = |pod: &PodUid| pod.as_str().starts_with("ml-") && !self.ended.contains(pod);
        charges.filter(|charge| is_ours(&charge.pod)).map(|charge| charge.units.0).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_history_of_deletions_gives_a_namespace_more_than_its_quota(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            let shown = format!("{step:?}");
            world.take(step);
            prop_assert!(world.held() <= QUOTA, "{shown}: {} units", world.held());
        }
        // Once all processes have ended, nothing waits.
        world.pods.clear();
        world.lingering.clear();
        let uids: Vec<PodUid> = (0..=world.made).map(|number| format!("ml-{number}").into()).collect();
        uids.iter().for_each(|uid| world.view.change(|index| index.forget(uid)));
        world.take(Step::Tick(11));
        prop_assert_eq!(world.held(), 0);
        world.bind(0, 0, QUOTA);
        prop_assert_eq!(world.held(), QUOTA);
    }
}

/// Has the node report that the pod, of 16 units, has its GPU; or that none has.
fn report(sim: &Sim, pod: Option<&Value>) {
    let uid = pod.map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned());
    let pods: BTreeMap<_, _> = uid.map(|uid| (uid, 16)).into_iter().collect();
    let gpu = json!({
        "uuid": "GPU-n-0", "index": 0, "model": "NVIDIA A10", "memoryMiB": 16384, "units": 16, "healthy": true,
        "pods": pods,
    });
    sim.change(sim::NODES, "", "n", |node| {
        node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"] = json!([gpu]).to_string().into();
    });
}

/// No event follows when an unreported pod is charged no more. Of the others kube-scheduler may see the last event
/// before the extender does. So it has to try again by itself.
#[tokio::test]
async fn a_pod_is_tried_again_for_units_that_are_free_in_seconds() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n", 1));
    let rig = Rig::start(&sim).await;
    let next: Value = sim::pod("next").in_namespace("other").asking(GPU, 8).into();
    let next = sim.put(next);
    let error = async || {
        let answer = rig.filter("/gpushare-scheduler", &next, &["n"]).await;
        answer["Error"].as_str().unwrap_or_default().to_owned()
    };
    let retries = async || error().await.contains("free in seconds");
    // Deleted by force before a report had it.
    let gone = gpu_pod(&sim, "gone", 16);
    assert_eq!(rig.bind(&gone, "n").await, "");
    assert_eq!(error().await, "");
    sim.delete(sim::PODS, "default", "gone");
    rig.until("the error", retries).await;
    report(&sim, Some(&gone));
    report(&sim, None);
    rig.until("room", async || rig.used().await == 0).await;
    // Deleted with grace: its containers run for as long as they like, and kube-scheduler waits for the end.
    let ends = gpu_pod(&sim, "ends", 16);
    assert_eq!(rig.bind(&ends, "n").await, "");
    report(&sim, Some(&ends));
    sim.change(sim::PODS, "default", "ends", |pod| {
        pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z".into();
    });
    rig.until("no error yet", async || error().await.is_empty()).await;
    // They have ended, and its object goes next.
    report(&sim, None);
    rig.until("the error", retries).await;
    // Its object went first.
    report(&sim, Some(&ends));
    rig.until("no error", async || error().await.is_empty()).await;
    sim.delete(sim::PODS, "default", "ends");
    rig.until("the error", retries).await;
    report(&sim, None);
    rig.until("room", async || rig.used().await == 0).await;
    assert_eq!(error().await, "");
    // It ended by itself.
    let done = gpu_pod(&sim, "done", 16);
    assert_eq!(rig.bind(&done, "n").await, "");
    report(&sim, Some(&done));
    rig.until("the report", async || error().await.is_empty()).await;
    sim.change(sim::PODS, "default", "done", |pod| pod["status"]["phase"] = "Succeeded".into());
    rig.until("the error", retries).await;
    report(&sim, None);
    rig.until("room", async || rig.used().await == 0).await;
    assert_eq!(error().await, "");
}
