//! What the facts about a scheduler share: the extenders, the pods, and a fresh state before each fact.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::extender::{Entry, Extender, ExtenderCall, Verb};
use crate::rig::{self as api, JSON, MERGE_PATCH, Refuted, same, text};
use crate::{Transport, found_within};

/// The name of the scheduler under test.
pub const SCHEDULER: &str = "conformance";
/// The resource whose pods the extender [`Entry::Managed`] is called for. No node has any, and the scheduler does not
/// count it.
pub const RESOURCE: &str = "conformance.plimsoll.dev/managed";
/// The resource of which some facts give each node one, so that one pod fills it.
pub(super) const SLOT: &str = "conformance.plimsoll.dev/slot";
/// Weights of the two extenders. A score of 10 counts 10 times 10 times the weight: with the first more than all of
/// kube-scheduler's own scores together (1,400), with the second more than both.
const WEIGHTS: [u32; 2] = [20, 60];
/// Longest wait for anything. kube-scheduler tries a pod again after at most 10 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks at the API.
const LOOK: Duration = Duration::from_millis(50);
/// A priority class that every cluster has. Pods without a class have a lower priority.
const HIGH_PRIORITY: &str = "system-cluster-critical";

/// A scheduler under test. Its namespace has no other pods, and there are two nodes or more that may take any pod.
pub struct SchedulerRig<'w> {
    pub(super) api: api::Rig<'w>,
    pub(super) extender: Extender,
    /// The names of all nodes, sorted.
    pub(super) nodes: Vec<String>,
}

impl<'w> SchedulerRig<'w> {
    /// Starts the extenders at an address that the scheduler can reach.
    ///
    /// # Errors
    /// When no port is free there.
    pub fn new(server: &'w dyn Transport, namespace: &'w str, host: IpAddr) -> io::Result<Self> {
        let api = api::Rig { server, namespace };
        Ok(Self { api, extender: Extender::start(host)?, nodes: Vec::new() })
    }

    /// The KubeSchedulerConfiguration that the scheduler must run with: JSON, which is YAML, too.
    #[must_use]
    pub fn configuration(&self) -> Value {
        let mut all = entry(&self.extender.url(Entry::All), WEIGHTS[0]);
        let mut managed = entry(&self.extender.url(Entry::Managed), WEIGHTS[1]);
        all["preemptVerb"] = "preempt".into();
        managed["bindVerb"] = "bind".into();
        managed["managedResources"] = json!([{"name": RESOURCE, "ignoredByScheduler": true}]);
        json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "profiles": [{"schedulerName": SCHEDULER}], "extenders": [all, managed],
        })
    }

    /// Removes all pods and slots, and resets the extenders.
    pub(super) async fn reset(&mut self) -> Result<(), Refuted> {
        self.extender.reset();
        let pods = self.api.get("pods").await?.is(200)?;
        for pod in pods["items"].as_array().into_iter().flatten() {
            self.api.remove(&format!("pods/{}", text(&pod["metadata"]["name"]))).await?;
        }
        self.until("no pod is left", async |rig| {
            let pods = rig.api.get("pods").await?.is(200)?;
            Ok(pods["items"].as_array().is_none_or(Vec::is_empty).then_some(()))
        })
        .await?;
        self.extender.reset();
        let nodes = self.api.at("GET", "/api/v1/nodes", JSON, None).await?.is(200)?;
        let nodes: Vec<&Value> = nodes["items"].as_array().into_iter().flatten().collect();
        self.nodes = nodes.iter().map(|node| text(&node["metadata"]["name"]).to_owned()).collect();
        self.nodes.sort_unstable();
        for node in nodes.iter().filter(|node| !node["status"]["capacity"][SLOT].is_null()) {
            self.set_slots(text(&node["metadata"]["name"]), Value::Null).await?;
        }
        same("whether there are two nodes", self.nodes.len() >= 2, true)
    }

    /// Removes the last fact's pods and slots.
    ///
    /// # Errors
    /// When one of them stays.
    pub async fn leave(mut self) -> Result<(), Refuted> {
        self.reset().await
    }

    /// Creates a pod for the scheduler to place.
    pub(super) async fn pod(&self, name: &str) -> Result<Value, Refuted> {
        self.pod_with(name, json!({})).await
    }

    /// Creates a pod that asks for [`RESOURCE`].
    pub(super) async fn managed(&self, name: &str) -> Result<Value, Refuted> {
        self.create(name, json!({}), json!({"limits": {RESOURCE: "1"}})).await
    }

    /// Creates a pod with these fields in its spec.
    pub(super) async fn pod_with(&self, name: &str, spec: Value) -> Result<Value, Refuted> {
        self.create(name, spec, json!({})).await
    }

    /// Creates a pod that takes the slot of this node, and waits until it is bound.
    pub(super) async fn fill(&self, name: &str, node: &str) -> Result<Value, Refuted> {
        let spec = json!({"nodeSelector": {"kubernetes.io/hostname": node}});
        self.create(name, spec, json!({"limits": {SLOT: "1"}})).await?;
        self.placed(name).await?;
        self.api.get(&format!("pods/{name}")).await?.is(200)
    }

    /// Creates a pod of high priority, which asks for a slot if `slot`.
    pub(super) async fn important(&self, name: &str, slot: bool) -> Result<Value, Refuted> {
        let resources = if slot { json!({"limits": {SLOT: "1"}}) } else { json!({}) };
        self.create(name, json!({"priorityClassName": HIGH_PRIORITY}), resources).await
    }

    async fn create(
        &self,
        name: &str,
        mut spec: Value,
        resources: Value,
    ) -> Result<Value, Refuted> {
        if spec["schedulerName"].is_null() {
            spec["schedulerName"] = SCHEDULER.into();
        }
        // A pod that is deleted is gone at once, whether a kubelet runs on its node or not.
        spec["terminationGracePeriodSeconds"] = 0.into();
        spec["automountServiceAccountToken"] = false.into();
        spec["containers"] = json!([{
            "name": "main", "image": "example.com/none", "imagePullPolicy": "Never",
            "resources": resources,
        }]);
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.api.post("pods", &pod).await?.is(201)
    }

    /// Gives every node one slot.
    pub(super) async fn add_slots(&self) -> Result<(), Refuted> {
        for node in &self.nodes {
            self.set_slots(node, "1".into()).await?;
        }
        Ok(())
    }

    async fn set_slots(&self, node: &str, count: Value) -> Result<(), Refuted> {
        let patch = json!({"status": {"capacity": {SLOT: count}, "allocatable": {SLOT: count}}});
        let path = format!("/api/v1/nodes/{node}/status");
        self.api.at("PATCH", &path, MERGE_PATCH, Some(&patch)).await?.is(200).map(drop)
    }

    /// Changes an annotation of a node, as a program that measures it does.
    pub(super) async fn annotate(&self, node: &str, value: Value) -> Result<(), Refuted> {
        let patch =
            json!({"metadata": {"annotations": {"conformance.plimsoll.dev/touched": value}}});
        let path = format!("/api/v1/nodes/{node}");
        self.api.at("PATCH", &path, MERGE_PATCH, Some(&patch)).await?.is(200).map(drop)
    }

    /// Waits until a pod is bound. Returns the node's name.
    pub(super) async fn placed(&self, name: &str) -> Result<String, Refuted> {
        self.until(&format!("{name} is placed"), async |rig| {
            Ok(Some(rig.node_of(name).await?).filter(|node| !node.is_empty()))
        })
        .await
    }

    /// The name of the node that a pod is bound to, or empty.
    pub(super) async fn node_of(&self, name: &str) -> Result<String, Refuted> {
        let pod = self.api.get(&format!("pods/{name}")).await?.is(200)?;
        Ok(text(&pod["spec"]["nodeName"]).to_owned())
    }

    /// Waits until the pod's condition PodScheduled is false for this reason. Returns its message.
    pub(super) async fn unplaced(&self, name: &str, reason: &str) -> Result<String, Refuted> {
        self.until(&format!("{name} waits for {reason}"), async |rig| {
            let pod = rig.api.get(&format!("pods/{name}")).await?.is(200)?;
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut scheduled = conditions.filter(|condition| condition["type"] == "PodScheduled");
            let found =
                scheduled.find(|found| found["status"] == "False" && found["reason"] == reason);
            Ok(found.map(|found| text(&found["message"]).to_owned()))
        })
        .await
    }

    /// Waits until an object of the namespace is gone.
    pub(super) async fn gone(&self, what: &str) -> Result<(), Refuted> {
        self.until(&format!("{what} is gone"), async |rig| {
            Ok((rig.api.get(what).await?.code == 404).then_some(()))
        })
        .await
    }

    /// The calls about a pod.
    pub(super) fn calls(&self, verb: Verb, pod: &str) -> Vec<ExtenderCall> {
        let mut calls = self.extender.calls();
        calls.retain(|call| call.verb == verb && call.pod == pod);
        calls
    }

    /// Waits for the `count`th call about a pod, from 1. Returns it.
    pub(super) async fn called(
        &self,
        verb: Verb,
        pod: &str,
        count: usize,
    ) -> Result<ExtenderCall, Refuted> {
        let enough = self.extender.until_calls(|calls| {
            calls.iter().filter(|call| call.verb == verb && call.pod == pod).count() >= count
        });
        tokio::time::timeout(PATIENCE, enough).await.map_err(|_| {
            Refuted(format!("there was no call number {count} of {verb:?} for {pod}"))
        })?;
        let call = self.calls(verb, pod).into_iter().nth(count - 1);
        call.ok_or_else(|| Refuted(format!("the calls of {verb:?} for {pod} were reset")))
    }

    /// From now on Prioritize gives this node the score 10.
    pub(super) fn score(&self, entry: Entry, node: &str) {
        self.score_points(entry, node, 10);
    }

    /// From now on Prioritize gives this node that score.
    pub(super) fn score_points(&self, entry: Entry, node: &str, points: i64) {
        self.extender.set(|answers| {
            answers.scores.insert((entry, node.to_owned()), points);
        });
    }

    /// From now on Filter rejects these nodes in `FailedNodes`.
    pub(super) fn reject(&self, nodes: &[String]) {
        let failed = nodes.iter().map(|node| (node.clone(), "not today".to_owned()));
        self.extender.set(|answers| answers.failed.extend(failed));
    }

    /// Answers the waiting Bind of a pod, with this error or an empty one.
    pub(super) async fn answer_bind(&self, pod: &str, error: &str) -> Result<(), Refuted> {
        self.extender.set(|answers| {
            answers.binds.insert(pod.to_owned(), error.to_owned());
        });
        let taken = self.extender.until_answers(|answers| !answers.binds.contains_key(pod));
        tokio::time::timeout(PATIENCE, taken)
            .await
            .map_err(|_| Refuted(format!("no Bind of {pod} waits for its answer")))
    }

    /// Binds a pod as its `count`th Bind asks, and answers that. Returns the node's name.
    pub(super) async fn bind(&self, pod: &str, count: usize) -> Result<String, Refuted> {
        let node = text(&self.called(Verb::Bind, pod, count).await?.body["Node"]).to_owned();
        self.bind_to(pod, &node).await?;
        self.answer_bind(pod, "").await?;
        Ok(node)
    }

    /// Binds a pod to a node.
    pub(super) async fn bind_to(&self, pod: &str, node: &str) -> Result<(), Refuted> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.api.post(&format!("pods/{pod}/binding"), &binding).await?.is(201).map(drop)
    }

    async fn until<T>(
        &self,
        what: &str,
        found: impl AsyncFn(&Self) -> Result<Option<T>, Refuted>,
    ) -> Result<T, Refuted> {
        found_within(PATIENCE, LOOK, async || found(self).await).await?.ok_or_else(|| {
            let calls = self.extender.calls().into_iter();
            let calls: Vec<_> = calls.map(|call| (call.entry, call.verb, call.pod)).collect();
            Refuted(format!("{what}: not within {PATIENCE:?}; the calls: {calls:?}"))
        })
    }
}

/// An extender's entry in the KubeSchedulerConfiguration, with the verbs that both extenders have.
fn entry(url: &str, weight: u32) -> Value {
    json!({
        "urlPrefix": url, "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": weight,
        "nodeCacheCapable": true, "httpTimeout": "60s",
    })
}
