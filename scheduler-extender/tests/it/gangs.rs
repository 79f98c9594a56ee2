//! Pods of a group, as kube-scheduler asks about them: Filter of each, and then Bind of all at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::Event;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use placement::reading::ReadingCodec;
use scheduler_extender::Decider;
use scheduler_extender::binder::{BindError, BindLimits, BindResult, Binder, BinderParams, Target};
use scheduler_extender::gangs::Gangs;
use scheduler_extender::http::VERBS;
use scheduler_extender::metrics::Metrics;
use scheduler_extender::over_limits::OverLimits;
use scheduler_extender::replicas::Replicas;
use scheduler_extender::view::{GpuPodId, View, select_pod};
use serde_json::{Value, json};
use sim::{PODS, Sim, pod};

use crate::rig::{GPU, empty_view, gpu_node, gpu_pod};

/// The verbs and Bind over the nodes and pods of an API stand-in, at one time.
struct World {
    sim: Sim,
    decider: Decider,
    binder: Arc<Binder>,
}

fn now() -> Timestamp {
    Timestamp::from_second(1_795_165_200).unwrap()
}

impl World {
    /// Nodes with this number of GPUs of 16 units.
    async fn of(nodes: &[&str], gpus: u32) -> Self {
        let (sim, view, gangs) =
            (Sim::start().await.unwrap(), Arc::new(empty_view()), Arc::<Gangs>::default());
        let facts = |name: &&str| {
            let node: cluster::Node = serde_json::from_value(gpu_node(name, gpus).into()).unwrap();
            node.facts(&Default::default(), &ReadingCodec::default())
        };
        view.apply_nodes(Event::Listed(nodes.iter().map(facts).collect()), now());
        let _ = view.apply_pods(Event::Listed(Vec::new()), &mut HashSet::new(), now());
        let files = tempfile::tempdir().unwrap();
        let kubeconfig = files.path().join("kubeconfig");
        sim.write_kubeconfig(&kubeconfig).unwrap();
        let binder = Binder::new(BinderParams {
            client: cluster::client(Some(&kubeconfig)).await.unwrap(),
            names: Arc::default(),
            view: Arc::clone(&view),
            metrics: Metrics::default(),
            clock: Arc::new(now),
            limits: BindLimits::answering_within(Duration::from_secs(60)),
            replicas: Arc::new(Replicas::alone()),
            gangs: Arc::clone(&gangs),
        });
        let decider = Decider {
            view,
            names: Arc::default(),
            decisions: Arc::default(),
            waiting: Default::default(),
            nominated: Default::default(),
            gangs,
            ratings: Default::default(),
            over_limits: OverLimits::default(),
            gpu_evictions: None,
            shadow: None,
            metrics: Metrics::default(),
            clock: Arc::new(now),
        };
        Self { sim, decider, binder }
    }

    fn view(&self) -> &View {
        &self.decider.view
    }

    /// A pod that the watch has shown.
    fn put(&self, pod: impl Into<Value>) -> Value {
        let stored = self.sim.put(pod);
        let shown = serde_json::from_value(stored.clone()).unwrap();
        let shown = select_pod(self.view(), &self.decider.names, &shown, now()).unwrap();
        assert_eq!(self.view().apply_pods(Event::Applied(shown), &mut HashSet::new(), now()), []);
        stored
    }

    /// Pods of one group.
    fn group<const N: usize>(&self, names: [&str; N], units: u32) -> [Value; N] {
        names.map(|name| {
            let mut member: Value = pod(name).asking(GPU, units).into();
            // Between nodes of equal score the UID decides: for all of them in the same way.
            member["metadata"]["uid"] = format!("{name}{name}").into();
            member["spec"]["schedulingGroup"] = json!({ "podGroupName": "train" });
            self.put(member)
        })
    }

    /// The nodes that Filter leaves for the pod, or why there are none.
    fn filter(&self, pod: &Value, names: &[&str]) -> Result<Vec<String>, String> {
        let (_, filter) = VERBS.into_iter().find(|(path, _)| *path == BY_GPUS).unwrap();
        let body = json!({ "Pod": pod, "NodeNames": names }).to_string();
        let answer: Value =
            serde_json::from_slice(filter(&self.decider, body.as_bytes()).json()).unwrap();
        match answer["NodeNames"].as_array() {
            Some(nodes) if !nodes.is_empty() => {
                Ok(nodes.iter().map(|node| node.as_str().unwrap().to_owned()).collect())
            }
            _ => Err(answer.to_string()),
        }
    }

    /// The one node that each pod of a group gets.
    fn place(&self, pods: &[Value], names: &[&str]) -> Vec<String> {
        let mut nodes = Vec::new();
        for pod in pods {
            let mut left = self.filter(pod, names).unwrap();
            nodes.extend(left.pop());
            assert!(left.is_empty(), "{left:?}");
        }
        nodes
    }

    /// As [`World::filter`], by a replica that has just begun to lead.
    fn first_filter(&mut self, pod: &Value, names: &[&str]) -> Result<Vec<String>, String> {
        self.decider.gangs = Arc::default();
        self.filter(pod, names)
    }

    async fn bind(&self, pod: &Value, node: &str) -> BindResult {
        let text = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
        let pod =
            GpuPodId { uid: text("uid").into(), namespace: text("namespace"), name: text("name") };
        self.binder.bind(Target { pod, node: node.into() }).await
    }

    async fn bind_all(&self, pods: &[Value], nodes: &[String]) -> Vec<BindResult> {
        join_all(pods.iter().zip(nodes).map(|(pod, node)| self.bind(pod, node))).await
    }

    fn used(&self) -> u64 {
        self.view().read().totals().used
    }

    fn bound(&self) -> usize {
        self.sim.list(PODS).iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count()
    }
}

const BY_GPUS: &str = "gpushare-scheduler/filter";

/// The node has room for three pods of 9 units, and its two GPUs have for two.
#[tokio::test]
async fn each_pod_of_a_group_finds_the_places_of_those_before_it_taken() {
    let world = World::of(&["n1"], 2).await;
    let [a, b, c] = world.group(["a", "b", "c"], 9);
    for _ in 0..2 {
        assert_eq!(world.place(&[a.clone(), b.clone()], &["n1"]), ["n1", "n1"]);
        let refused = world.filter(&c, &["n1"]).unwrap_err();
        assert!(refused.contains("Insufficient GPU Memory in one device"), "{refused}");
    }
    // Another pod is asked about again soon: no event tells that the group is given up. A more important one need not.
    let other = world.put(gpu_pod(&world.sim, "other", 9));
    let error = world.filter(&other, &["n1"]).unwrap_err();
    assert!(error.contains("for a second for pods that are placed together"), "{error}");
    let mut urgent: Value = pod("urgent").asking(GPU, 9).into();
    urgent["spec"]["priority"] = json!(1);
    assert_eq!(world.filter(&world.put(urgent), &["n1"]), Ok(vec!["n1".to_owned()]));
    world.view().change(|index| index.tick(now() + SignedDuration::from_millis(900)));
    assert!(world.filter(&other, &["n1"]).is_err());
    world.view().change(|index| index.tick(now() + SignedDuration::from_secs(1)));
    assert_eq!(world.filter(&other, &["n1"]), Ok(vec!["n1".to_owned()]));
}

#[tokio::test]
async fn a_group_is_bound_once_all_its_pods_come() {
    let world = World::of(&["n1", "n2"], 1).await;
    let pods = world.group(["a", "b", "c", "d"], 8);
    let nodes = world.place(&pods, &["n1", "n2"]);
    assert_eq!(nodes.iter().filter(|node| *node == "n1").count(), 2, "{nodes:?}");
    let early = world.bind_all(&pods[..3], &nodes);
    let last = async {
        while world.used() < 24 {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.bound(), 0);
        world.bind(&pods[3], &nodes[3]).await
    };
    let (early, last) = futures::join!(early, last);
    assert_eq!((early, last), (vec![Ok(()); 3], Ok(())));
    assert_eq!(world.bound(), 4);
}

#[tokio::test]
async fn no_pod_of_a_group_is_bound_where_one_has_lost_its_place() {
    let world = World::of(&["n1", "n2"], 1).await;
    let pods = world.group(["a", "b"], 10);
    let nodes = world.place(&pods, &["n1", "n2"]);
    let mut urgent: Value = pod("urgent").asking(GPU, 10).into();
    urgent["spec"]["priority"] = json!(1);
    let urgent = world.put(urgent);
    assert_eq!(world.bind(&urgent, &nodes[1]).await, Ok(()));
    let outcomes = world.bind_all(&pods, &nodes).await;
    let why = outcomes[0].as_ref().unwrap_err().to_string();
    assert!(why.starts_with("the pods of its group are bound together: pod b has no"), "{why}");
    assert!(matches!(outcomes[1], Err(BindError::NoFit(..))), "{outcomes:?}");
    assert_eq!((world.bound(), world.used()), (1, 10));
    // Both are bound once there is room.
    let uid = urgent["metadata"]["uid"].as_str().unwrap().into();
    world.view().change(|index| index.forget(&uid));
    world.view().change(|index| index.tick(now() + SignedDuration::from_secs(1)));
    // kube-scheduler's nomination of the last try is still there.
    let mut nominated = world.sim.pod("default", "a").unwrap();
    nominated["status"]["nominatedNodeName"] = nodes[1].as_str().into();
    world.put(nominated);
    let error = world.filter(&pods[0], &["n1", "n2"]).unwrap_err();
    assert!(error.contains("tried again in a second"), "{error}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let nodes = world.place(&pods, &["n1", "n2"]);
    assert_ne!(nodes[0], nodes[1]);
    assert_eq!(world.bind_all(&pods, &nodes).await, [Ok(()), Ok(())]);
}

#[tokio::test]
async fn the_rest_of_a_gang_that_was_bound_by_half_comes_before_others() {
    let mut world = World::of(&["n1"], 1).await;
    let [mut a, b] = world.group(["a", "b"], 8);
    let other = world.put(gpu_pod(&world.sim, "other", 8));
    assert_eq!(world.first_filter(&other, &["n1"]), Ok(vec!["n1".to_owned()]));
    // The replica that led was killed after the first write.
    a["spec"]["nodeName"] = "n1".into();
    a["metadata"]["annotations"]["plimsoll.dev/gpu-claim"] = r#"{"main":{"GPU-n1-0":8}}"#.into();
    world.put(a);
    let error = world.first_filter(&other, &["n1"]).unwrap_err();
    assert!(error.contains("bound by half comes first"), "{error}");
    assert_eq!(world.filter(&b, &["n1"]), Ok(vec!["n1".to_owned()]));
}
