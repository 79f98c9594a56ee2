//! What every fact about a scheduler needs: its extenders, its pods, and a state to begin from.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::extender::{Call, Entry, Extender, Verb};
use crate::rig::{self as api, Refuted, same, text};
use crate::{Transport, found_within};

/// The name under which the scheduler under trial works.
pub const SCHEDULER: &str = "conformance";
/// The resource whose pods the second extender manages. No node has any: the scheduler must not count it.
pub const RESOURCE: &str = "conformance.plimsoll.dev/managed";
/// What the points of the two extenders count: times ten points, times ten, the lesser is more than all
/// of kube-scheduler's own plugins give together (1400), and the greater more than both.
const WEIGHTS: [u32; 2] = [20, 60];
/// How long anything is waited for. kube-scheduler tries again after at most 10 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the API is asked meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// A scheduler under trial. Its namespace must be nobody else's, and there must be two nodes or more that
/// are free for every pod.
pub struct Rig<'w> {
    pub(super) api: api::Rig<'w>,
    pub(super) extender: Extender,
    /// The names of all nodes, sorted.
    pub(super) nodes: Vec<String>,
}

impl<'w> Rig<'w> {
    /// Extenders of the suite's own at an address that the scheduler can reach.
    ///
    /// # Errors
    /// When no port can be had there.
    pub fn new(server: &'w dyn Transport, namespace: &'w str, host: IpAddr) -> io::Result<Self> {
        let api = api::Rig { server, namespace };
        Ok(Self { api, extender: Extender::begin(host)?, nodes: Vec::new() })
    }

    /// The KubeSchedulerConfiguration with which the scheduler must run: JSON, and so YAML.
    #[must_use]
    pub fn configuration(&self) -> Value {
        let entry = |entry, weight| {
            json!({
                "urlPrefix": self.extender.url(entry), "filterVerb": "filter",
                "prioritizeVerb": "prioritize", "weight": weight, "nodeCacheCapable": true,
                "httpTimeout": "60s",
            })
        };
        let (all, mut managed) = (entry(Entry::All, WEIGHTS[0]), entry(Entry::Managed, WEIGHTS[1]));
        managed["bindVerb"] = "bind".into();
        managed["managedResources"] = json!([{"name": RESOURCE, "ignoredByScheduler": true}]);
        json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "profiles": [{"schedulerName": SCHEDULER}], "extenders": [all, managed],
        })
    }

    /// No pods, and extenders that let every node pass and were asked nothing yet.
    pub(super) async fn fresh(&mut self) -> Result<(), Refuted> {
        self.extender.forget();
        let pods = self.api.get("pods").await?.is(200)?;
        for pod in pods["items"].as_array().into_iter().flatten() {
            self.api.done(&format!("pods/{}", text(&pod["metadata"]["name"]))).await?;
        }
        self.until("no pod is left", async |rig| {
            let pods = rig.api.get("pods").await?.is(200)?;
            Ok(pods["items"].as_array().is_none_or(Vec::is_empty).then_some(()))
        })
        .await?;
        self.extender.forget();
        let nodes = self.api.at("GET", "/api/v1/nodes", "application/json", None).await?.is(200)?;
        let nodes = nodes["items"].as_array().into_iter().flatten();
        self.nodes = nodes.map(|node| text(&node["metadata"]["name"]).to_owned()).collect();
        self.nodes.sort_unstable();
        same("whether there are two nodes", self.nodes.len() >= 2, true)
    }

    /// Removes the pods of the last fact.
    ///
    /// # Errors
    /// When one of them stays.
    pub async fn leave(mut self) -> Result<(), Refuted> {
        self.fresh().await
    }

    /// Creates a pod for the scheduler to place.
    pub(super) async fn pod(&self, name: &str) -> Result<Value, Refuted> {
        self.pod_with(name, json!({})).await
    }

    /// The same, of the resource that the second extender manages.
    pub(super) async fn managed(&self, name: &str) -> Result<Value, Refuted> {
        let resources = json!({"limits": {RESOURCE: "1"}});
        self.create(name, json!({}), resources).await
    }

    /// The same as [`Rig::pod`], with more in its spec.
    pub(super) async fn pod_with(&self, name: &str, spec: Value) -> Result<Value, Refuted> {
        self.create(name, spec, json!({})).await
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
        spec["terminationGracePeriodSeconds"] = 1.into();
        spec["automountServiceAccountToken"] = false.into();
        spec["containers"] = json!([{
            "name": "main", "image": "example.com/none", "imagePullPolicy": "Never",
            "resources": resources,
        }]);
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.api.post("pods", &pod).await?.is(201)
    }

    /// Waits until a pod is bound; the node's name.
    pub(super) async fn placed(&self, name: &str) -> Result<String, Refuted> {
        self.until(&format!("{name} is placed"), async |rig| {
            Ok(Some(rig.node_of(name).await?).filter(|node| !node.is_empty()))
        })
        .await
    }

    /// The node that a pod is bound to, or nothing.
    pub(super) async fn node_of(&self, name: &str) -> Result<String, Refuted> {
        let pod = self.api.get(&format!("pods/{name}")).await?.is(200)?;
        Ok(text(&pod["spec"]["nodeName"]).to_owned())
    }

    /// Waits until the pod's condition says that it has no node, for this reason; what it says.
    pub(super) async fn unplaced(&self, name: &str, reason: &str) -> Result<String, Refuted> {
        self.until(&format!("{name} waits for {reason}"), async |rig| {
            let pod = rig.api.get(&format!("pods/{name}")).await?.is(200)?;
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut told = conditions.filter(|condition| condition["type"] == "PodScheduled");
            let told = told.find(|told| told["status"] == "False" && told["reason"] == reason);
            Ok(told.map(|told| text(&told["message"]).to_owned()))
        })
        .await
    }

    /// What was asked about a pod.
    pub(super) fn asked(&self, verb: Verb, pod: &str) -> Vec<Call> {
        let mut calls = self.extender.calls();
        calls.retain(|call| call.verb == verb && call.pod == pod);
        calls
    }

    /// Waits until this was asked about a pod for the `count`th time; that call.
    pub(super) async fn called(
        &self,
        verb: Verb,
        pod: &str,
        count: usize,
    ) -> Result<Call, Refuted> {
        let is = |call: &&Call| call.verb == verb && call.pod == pod;
        let often = self.extender.called(|calls| calls.iter().filter(is).count() >= count);
        let never = |_| Refuted(format!("{verb:?} of {pod} was not asked {count} times"));
        tokio::time::timeout(PATIENCE, often).await.map_err(never)?;
        let call = self.asked(verb, pod).into_iter().nth(count - 1);
        call.ok_or_else(|| Refuted(format!("{verb:?} of {pod} is forgotten")))
    }

    /// Prioritize gives this node ten points.
    pub(super) fn score(&self, entry: Entry, node: &str) {
        self.extender.order(|orders| {
            orders.scores.insert((entry, node.to_owned()), 10);
        });
    }

    /// Filter leaves out these nodes, too.
    pub(super) fn leave_out(&self, nodes: &[String]) {
        let out = nodes.iter().map(|node| (node.clone(), "not today".to_owned()));
        self.extender.order(|orders| orders.left_out.extend(out));
    }

    /// Answers Bind for this pod, with these words of an error or none.
    pub(super) async fn answer_bind(&self, pod: &str, words: &str) -> Result<(), Refuted> {
        self.extender.order(|orders| {
            orders.binds.insert(pod.to_owned(), words.to_owned());
        });
        let taken = self.extender.ordered(|orders| !orders.binds.contains_key(pod));
        let never = |_| Refuted(format!("nobody waits for an answer about {pod}"));
        tokio::time::timeout(PATIENCE, taken).await.map_err(never)
    }

    /// Binds a pod as the `count`th Bind asks, and answers that.
    pub(super) async fn bind(&self, pod: &str, count: usize) -> Result<String, Refuted> {
        let node = text(&self.called(Verb::Bind, pod, count).await?.body["Node"]).to_owned();
        self.bind_to(pod, &node).await?;
        self.answer_bind(pod, "").await?;
        Ok(node)
    }

    /// Binds a pod.
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
            Refuted(format!("{what}: not so after {PATIENCE:?}; asked: {calls:?}"))
        })
    }
}
