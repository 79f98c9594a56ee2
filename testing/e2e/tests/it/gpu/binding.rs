//! Tests of Bind: many pods at once, what it costs beside a bare binding, and no pod where a DRA driver serves the
//! units.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::progress::line;
use http::Request;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv, parse};
use crate::support::callers::{Caller, Verb};
use crate::support::certificates;
use crate::support::extender_client::{failed_binds, leaders_address, used_units};
use crate::support::fake_nodes::{self, FakeNode, on_fake_nodes};
use crate::support::gpu_audit::{CLAIM, claim};
use crate::support::pods::{
    BINDING, GPU, START, all_bound, annotation, bound, create, create_all, delete_all, evictable,
    get, gpu_container, gpu_pods, idle_container, list, name, node, pod, uid, unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("forty_pods_at_once_are_bound_to_one_node_without_a_failed_bind", one_node)
        .takes(5),
    on_our_nodes("a_bind_takes_one_write_as_a_bare_binding_does", beside_a_bare_one).takes(24),
    on_our_nodes("no_pod_goes_to_a_node_whose_units_a_dra_driver_serves", by_dra).takes(1),
];

const NODE: &str = "fake-001";

/// A node of eight GPUs, each of which takes five of the pods. It has no kubelet: that pods are bound waits for none.
fn one_node(env: &TestEnv) -> Result<()> {
    all_units_are_free(env)?;
    let before = failed_binds(env)?;
    fake_nodes::with(env, &[FakeNode::with_gpus(NODE, &[16; 8])], || {
        known_to_kube_scheduler(env)?;
        // A deleted pod of an earlier test's node of this name counts for some seconds, and its namespace waits for it.
        no_unit_is_in_use(env, &[NODE])?;
        let began = Instant::now();
        create_all(env, gpu_pods("forty", 40, 3).into_iter().map(on_fake_nodes).collect())?;
        let pods = all_bound(env, BINDING)?;
        env.figure("forty_pods_on_one_node_bound_s", seconds(began.elapsed()));
        let mut by_gpu = BTreeMap::<String, usize>::new();
        for pod in &pods {
            for gpu in claim(pod)?.into_values().flat_map(BTreeMap::into_keys) {
                *by_gpu.entry(gpu).or_default() += 1;
            }
        }
        ensure!(by_gpu.len() == 8 && by_gpu.values().all(|pods| *pods == 5), "{by_gpu:?}");
        no_retry(env, before)
    })
}

/// Waits until no unit of our nodes is in use. A device plugin reports the end of an earlier test's pods some seconds
/// after the API server; until then, the pods of their namespace wait.
fn all_units_are_free(env: &TestEnv) -> Result<()> {
    let nodes: Vec<&str> = env.cluster()?.nodes().iter().map(e2e::Node::name).collect();
    no_unit_is_in_use(env, &nodes)
}

fn no_unit_is_in_use(env: &TestEnv, nodes: &[&str]) -> Result<()> {
    wait_for("every unit to be free", START, || {
        let used = nodes.iter().map(|node| used_units(env, node));
        let used: Vec<u64> = used.collect::<Result<Vec<_>>>()?.concat();
        Ok(used.iter().all(|units| *units == 0).then_some(()))
    })
}

/// Waits until kube-scheduler knows the fake node: it has placed a pod there.
fn known_to_kube_scheduler(env: &TestEnv) -> Result<()> {
    create(env, on_fake_nodes(evictable(pod("first", &[idle_container("main")]))))?;
    bound(env, "first", BINDING)?;
    delete_all(env, ["first"])?;
    wait_for("the first pod to be gone", BINDING, || Ok(list(env)?.is_empty().then_some(())))
}

/// No Bind has failed since `before`, and kube-scheduler tried no pod of the tests twice.
fn no_retry(env: &TestEnv, before: u64) -> Result<()> {
    let failed = failed_binds(env)?.checked_sub(before).context("an extender was restarted")?;
    ensure!(failed == 0, "{failed} Binds failed");
    let events: Api<Event> = Api::namespaced(env.client(), NAMESPACE);
    let failed = ListParams::default().fields("reason=FailedScheduling");
    let uids: Vec<String> = list(env)?.iter().map(|pod| uid(pod).to_owned()).collect();
    let events = env.block_on(events.list(&failed))?.items;
    let mut told = Vec::new();
    for event in &events {
        if event.involved_object.uid.as_ref().is_some_and(|uid| uids.contains(uid)) {
            told.push(&event.message);
        }
    }
    ensure!(told.is_empty(), "kube-scheduler tried again: {told:?}");
    Ok(())
}

/// How a pod is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// The leader's Bind, as kube-scheduler calls it.
    Extender,
    /// The binding that the extender sends, with its token and a claim, and nothing before it.
    TheSameWrite,
    /// A binding without annotations.
    Bare,
}

impl By {
    const ALL: [Self; 3] = [Self::Extender, Self::TheSameWrite, Self::Bare];
    /// All orders: what comes after an expensive one pays for a part of it. The first begins with the extender's, which
    /// shows the annotations.
    const ORDERS: [[Self; 3]; 6] = {
        let [extender, same, bare] = Self::ALL;
        [
            [extender, same, bare],
            [same, bare, extender],
            [bare, extender, same],
            [extender, bare, same],
            [bare, same, extender],
            [same, extender, bare],
        ]
    };

    fn pod(self, number: usize) -> String {
        let kind = match self {
            Self::Extender => "by-extender",
            Self::TheSameWrite => "same-write",
            Self::Bare => "bare",
        };
        format!("{kind}-{number}")
    }
}

/// Connections that stay open.
struct Binders<'env> {
    env: &'env TestEnv,
    extender: Client,
    as_extender: Client,
}

/// Pods that no scheduler looks at are bound in turns, in each of the ways.
fn beside_a_bare_one(env: &TestEnv) -> Result<()> {
    // Each order as often as the others.
    const EACH: usize = 126;
    const WARM_UP: usize = 6;
    // So that 27 pods come to each.
    let token = ["-n", "plimsoll", "create", "token", "scheduler-extender"];
    let token = env.cluster()?.kubectl_run(&token)?;
    let mut config = env.config();
    config.auth_info = parse(json!({"token": token.trim()}))?;
    let binders = Binders {
        env,
        extender: certificates::client_of_kube_scheduler(env, leaders_address(env)?)?,
        as_extender: env.client_of(config)?,
    };
    // A pod that is bound barely counts on every GPU.
    let nodes: Vec<FakeNode> =
        (0..NODES).map(|number| FakeNode::with_gpus(&node_of(number), &[64; 8])).collect();
    fake_nodes::with(env, &nodes, || {
        let pods = (0..EACH).flat_map(|number| By::ALL.map(|by| by.pod(number)));
        create_all(
            env,
            pods.map(|name| {
                let mut pod = pod(&name, &[gpu_container("main", 1)]);
                pod["spec"]["schedulerName"] = json!("none");
                on_fake_nodes(pod)
            })
            .collect(),
        )?;
        let mut times = BTreeMap::<By, Vec<Duration>>::new();
        let mut annotations = Value::Null;
        for number in 0..EACH {
            let on = node_of(number);
            for by in By::ORDERS[number % By::ORDERS.len()] {
                let pod = get(env, &by.pod(number))?;
                let took = binders.bind(by, &pod, &on, &annotations)?;
                if number >= WARM_UP {
                    times.entry(by).or_default().push(took);
                }
                if by == By::Extender {
                    annotations = json!(get(env, &by.pod(number))?.metadata.annotations);
                }
            }
        }
        for pod in list(env)? {
            let (_, number) = name(&pod).rsplit_once('-').context("a pod without a number")?;
            let bound_to = node_of(number.parse()?);
            ensure!(node(&pod) == Some(&*bound_to), "{} is not on {bound_to}", name(&pod));
            let claimed = annotation(&pod, CLAIM).is_some();
            ensure!(claimed != name(&pod).starts_with("bare"), "{}: {claimed}", name(&pod));
        }
        let [ours, same, bare] =
            By::ALL.map(|by| times.remove(&by).map(median).unwrap_or_default());
        env.figure("bind_over_a_bare_binding", ratio_text(ours, bare));
        env.figure("bind_over_the_same_write", ratio_text(ours, same));
        Ok(())
    })
}

/// The fake nodes on which the pods are bound in turn.
const NODES: usize = 14;

fn node_of(number: usize) -> String {
    format!("fake-{:03}", number % NODES)
}

fn ratio_text(ours: Duration, other: Duration) -> String {
    let ratio = ours.as_secs_f64() / other.as_secs_f64();
    format!("{ratio:.2} ({:.2} and {:.2} ms)", millis(ours), millis(other))
}

impl Binders<'_> {
    /// How long it took.
    fn bind(&self, by: By, pod: &Pod, node: &str, annotations: &Value) -> Result<Duration> {
        match by {
            By::Extender => {
                let asked = json!({
                    "PodName": name(pod), "PodNamespace": NAMESPACE, "PodUID": uid(pod), "Node": node,
                });
                // For some seconds after the test before, its deleted pods may have processes, for all that the
                // extender knows.
                let (answer, took) = wait_for("a binding", BINDING, || {
                    let request = post("/gpushare-scheduler/bind", &asked)?;
                    let (answer, took) = self.timed(&self.extender, request)?;
                    let error = answer["Error"].as_str().unwrap_or_default();
                    let waits = error.contains("deleted pods");
                    Ok((!waits).then_some((answer, took)))
                })?;
                ensure!(answer["Error"] == "", "{answer}");
                Ok(took)
            }
            By::TheSameWrite => self.write(&self.as_extender, pod, node, annotations),
            By::Bare => self.write(&self.env.client(), pod, node, &Value::Null),
        }
    }

    fn write(
        &self,
        client: &Client,
        pod: &Pod,
        node: &str,
        annotations: &Value,
    ) -> Result<Duration> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}/binding", name(pod));
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {
                "name": name(pod), "namespace": NAMESPACE, "uid": uid(pod), "annotations": annotations,
            },
            "target": {"kind": "Node", "name": node},
        });
        self.timed(client, post(&path, &binding)?).map(|(_, took)| took)
    }

    fn timed(&self, client: &Client, request: Request<Vec<u8>>) -> Result<(Value, Duration)> {
        let began = Instant::now();
        let answer = self.env.block_on(client.request(request))?;
        Ok((answer, began.elapsed()))
    }
}

fn post(path: &str, body: &Value) -> Result<Request<Vec<u8>>> {
    let request = Request::post(path).header("Content-Type", "application/json");
    Ok(request.body(body.to_string().into_bytes())?)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// Of the class and of the slice.
const BY_DRA: &str = "plimsoll-e2e";
const DRIVER: &str = "dra.plimsoll-e2e.example";
const WITH_GPUS: &str = "fake-001";
const WITH_DEVICES: &str = "fake-002";

/// The resource's units are those of GPUs on one node, and devices of a DRA driver on another. kube-scheduler would
/// send pods to both, and give each of a pod's units on the other from a device of its own.
fn by_dra(env: &TestEnv) -> Result<()> {
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": BY_DRA},
        "spec": {
            "extendedResourceName": GPU,
            "selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}],
        },
    });
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": BY_DRA},
        "spec": {
            "driver": DRIVER, "nodeName": WITH_DEVICES,
            "pool": {"name": WITH_DEVICES, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "unit-0"}, {"name": "unit-1"}, {"name": "unit-2"}],
        },
    });
    let tried = beside_a_driver(env, &class, &slice);
    let removed = [CLASSES, SLICES].map(|of| env.remove(&format!("{of}/{BY_DRA}")));
    tried.context("a node whose units a DRA driver serves")?;
    let [class, _] = removed;
    class
}

fn beside_a_driver(env: &TestEnv, class: &Value, slice: &Value) -> Result<()> {
    let administrator = Caller::administrator(env)?;
    let made = administrator.done(env, Verb::Create, CLASSES, class)?;
    if made["spec"]["extendedResourceName"] != GPU {
        line("this release does not serve extended resources by DRA: not tried");
        return Ok(());
    }
    administrator.done(env, Verb::Create, SLICES, slice)?;
    let nodes = [FakeNode::with_gpus(WITH_GPUS, &[8]), FakeNode::loaded(WITH_DEVICES, 0.1)];
    fake_nodes::with(env, &nodes, || {
        for node in [WITH_GPUS, WITH_DEVICES] {
            let mut pod = on_fake_nodes(pod(&format!("on-{node}"), &[gpu_container("main", 2)]));
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
            create(env, pod)?;
        }
        let by_gpu = bound(env, "on-fake-001", BINDING)?;
        ensure!(claim(&by_gpu)?.contains_key("main"), "no claim");
        let message = unschedulable(env, "on-fake-002", BINDING)?;
        ensure!(message.contains("node reports no GPUs"), "{message}");
        Ok(())
    })
}
