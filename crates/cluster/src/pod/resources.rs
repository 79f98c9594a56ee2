//! What a pod requests of CPU and memory, as kube-scheduler counts it.
//!
//! Invariants: a quantity that cannot be read is absent, never 0. While the pod is resized in place, the largest of
//! what its spec has, what the kubelet has admitted and what is in force counts, wherever room is counted.

use std::collections::BTreeMap;

use placement::gpu::ContainerKind;
use placement::resources::{PerResource, PodResources, Requests, Resource, add, peak_requests};

use super::{Container, ContainerStatus, Pod, Resources, Status};
use crate::quantity::{Quantities, amounts};

/// Amounts that the pod's object names; absent if it does not.
type Stated = PerResource<Option<f64>>;

impl Pod {
    /// Its requests and limits: those of the pod as a whole if its spec has them. Otherwise the sum over app containers
    /// and sidecars, which run together, plus the overhead of its RuntimeClass.
    pub fn resources(&self) -> PodResources {
        let reported = self.reported();
        let running: Vec<_> = self.running().map(|it| reported.resources_of(it)).collect();
        let of_pod = self.of_pod();
        let overhead = amounts(&self.spec.overhead);
        PodResources {
            requests: finite(|resource| {
                let parts = running.iter().filter_map(|each| *each.requests.get(resource));
                let requested =
                    of_pod.requests.get(resource).or_else(|| parts.reduce(|a, b| a + b));
                requested.map(|amount| amount + overhead.get(resource).unwrap_or(0.0))
            }),
            limits: finite(|resource| {
                let parts = running.iter().map(|each| *each.limits.get(resource));
                let all = parts.reduce(|a, b| Some(a? + b?)).flatten();
                let limit = of_pod.limits.get(resource).or(all)?;
                Some(limit + overhead.get(resource).unwrap_or(0.0))
            }),
        }
    }

    /// Its requests of every resource as kube-scheduler counts them: those of the pod as a whole if its spec has them.
    /// Otherwise the larger of the sum over its containers, and of an init container plus the sidecars before it. Its
    /// overhead is added.
    pub(crate) fn scheduled_requests(&self) -> Requests {
        // Init containers that end before the others start are not resized.
        let (reported, not_resized) = (self.reported(), Reported::default());
        let init = self.spec.init_containers.iter().map(|container| {
            let is_sidecar = container.init_kind() == ContainerKind::Sidecar;
            let reported = if is_sidecar { &reported } else { &not_resized };
            (largest_of_each(reported.requests_of(container)), is_sidecar)
        });
        let apps = self.spec.containers.iter();
        let mut peak = peak_requests(
            init,
            apps.map(|container| largest_of_each(reported.requests_of(container))),
        );
        let named = &self.spec.resources.requests;
        let of_pod = largest_of_each(self.requests_of_pod().into_iter());
        peak.extend(of_pod.into_iter().filter(|(resource, _)| named.contains_key(resource)));
        add(&mut peak, &largest_of_each([&self.spec.overhead].into_iter()));
        peak
    }

    /// The CPU that it requests, in thousandths of a core, as kube-scheduler counts it. What cannot be read is left
    /// out.
    pub fn cpu_request(&self) -> u64 {
        thousandths(self.scheduled_requests().get("cpu").copied().unwrap_or(0.0))
    }

    /// The containers that run together, in the order of the spec.
    pub(super) fn running(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .init_containers
            .iter()
            .filter(|container| container.init_kind() == ContainerKind::Sidecar)
            .chain(&self.spec.containers)
    }

    /// Requests and limits of the pod as a whole. During a resize, only those that the spec names.
    fn of_pod(&self) -> PodResources {
        let status = &self.status;
        let wanted = stated(&self.spec.resources);
        let known = largest(wanted, &status.allocated_resources, &status.resources);
        PodResources {
            requests: where_stated(wanted.requests, known.requests),
            limits: where_stated(wanted.limits, known.limits),
        }
    }

    /// The requests of the pod as a whole: wanted, admitted and in force. They count for resources that its spec names.
    fn requests_of_pod(&self) -> [&Quantities; 3] {
        let status = &self.status;
        [&self.spec.resources.requests, &status.allocated_resources, &status.resources.requests]
    }

    /// The kubelet's report of its containers' resources. Older kubelets report none.
    fn reported(&self) -> Reported<'_> {
        let Status { container_statuses, init_container_statuses, .. } = &self.status;
        let mut statuses = BTreeMap::new();
        for status in container_statuses.iter().chain(init_container_statuses) {
            let in_force = &status.resources;
            if !in_force.requests.is_empty() || !in_force.limits.is_empty() {
                statuses.insert(status.name.as_str(), status);
            }
        }
        Reported { statuses, resize_is_infeasible: self.resize_is_infeasible() }
    }

    fn resize_is_infeasible(&self) -> bool {
        self.status.conditions.iter().any(|condition| {
            condition.kind == "PodResizePending" && condition.reason == "Infeasible"
        })
    }
}

/// What a pod's containers have by their kubelet's report.
#[derive(Default)]
struct Reported<'p> {
    /// By the container's name.
    statuses: BTreeMap<&'p str, &'p ContainerStatus>,
    /// Whether the node can never do the resize that the spec wants, so that it does not count.
    resize_is_infeasible: bool,
}

impl<'p> Reported<'p> {
    fn of(&self, container: &Container) -> Option<&'p ContainerStatus> {
        self.statuses.get(container.name.as_str()).copied()
    }

    /// The requests of a container: wanted, admitted and in force. The largest of each resource counts, as in
    /// `determineContainerReqs` of k8s.io/component-helpers.
    fn requests_of<'c>(&self, container: &'c Container) -> impl Iterator<Item = &'c Quantities>
    where
        'p: 'c,
    {
        let status = self.of(container);
        let wants = status.is_none() || !self.resize_is_infeasible;
        let wanted = wants.then_some(&container.resources.requests);
        let admitted = status.map(|status| &status.allocated_resources);
        let in_force = status.map(|status| &status.resources.requests);
        [wanted, admitted, in_force].into_iter().flatten()
    }

    /// The requests and limits of a container that goes on running.
    fn resources_of(&self, container: &Container) -> PodResources {
        let wanted = stated(&container.resources);
        let Some(status) = self.of(container) else { return wanted };
        let wanted = if self.resize_is_infeasible { PodResources::default() } else { wanted };
        largest(wanted, &status.allocated_resources, &status.resources)
    }
}

/// More than the CPU of any node, in thousandths of a core: sums over all nodes of a cluster stay far from the end of
/// the type, whatever a kubelet reports.
const MOST_THOUSANDTHS: u64 = 1 << 40;

/// Cores in thousandths, rounded up, as Kubernetes does.
pub(crate) fn thousandths(cores: f64) -> u64 {
    // A rounding error does not add a thousandth.
    ((cores * 1_000.0 - 1e-6).ceil().max(0.0) as u64).min(MOST_THOUSANDTHS)
}

/// The largest quantity of each resource in several lists, of those that can be read.
fn largest_of_each<'p>(lists: impl Iterator<Item = &'p Quantities>) -> Requests {
    let mut largest = Requests::new();
    for (resource, quantity) in lists.flatten() {
        let Some(amount) = quantity.amount() else { continue };
        let most = largest.entry(resource.clone()).or_default();
        *most = most.max(amount);
    }
    largest
}

/// The known amounts of the resources that are stated.
fn where_stated(stated: Stated, known: Stated) -> Stated {
    PerResource::of(|resource| stated.get(resource).and(*known.get(resource)))
}

/// A limit of 0 counts as absent: the kubelet then sets no limit.
fn stated(resources: &Resources) -> PodResources {
    let limits = amounts(&resources.limits);
    PodResources {
        requests: amounts(&resources.requests),
        limits: PerResource::of(|resource| limits.get(resource).filter(|limit| *limit > 0.0)),
    }
}

fn largest(wanted: PodResources, admitted: &Quantities, in_force: &Resources) -> PodResources {
    let in_force = stated(in_force);
    let admitted = amounts(admitted);
    PodResources {
        requests: larger(larger(wanted.requests, admitted), in_force.requests),
        limits: larger(wanted.limits, in_force.limits),
    }
}

fn larger(one: Stated, other: Stated) -> Stated {
    PerResource::of(|r| (*one.get(r)).into_iter().chain(*other.get(r)).reduce(f64::max))
}

/// A sum that is not finite is absent, like a quantity that cannot be read.
fn finite(amount: impl Fn(Resource) -> Option<f64>) -> Stated {
    PerResource::of(|resource| amount(resource).filter(|amount| amount.is_finite()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value, status: &Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec, "status": status })).unwrap()
    }

    fn held(pod: &Pod, resource: &str) -> f64 {
        pod.scheduled_requests().get(resource).copied().unwrap_or(0.0)
    }

    fn requests(cpu: &str, memory: &str) -> Value {
        json!({ "requests": { "cpu": cpu, "memory": memory } })
    }

    #[test]
    fn a_pod_that_is_made_smaller_holds_what_its_kubelet_has_not_given_back() {
        let spec = json!({ "containers": [{ "name": "a", "resources": requests("1", "2Gi") }] });
        let reported = |name: &str, conditions: Value| {
            json!({ "conditions": conditions, "containerStatuses": [{
                "name": name, "allocatedResources": { "cpu": "4", "memory": "1Gi" },
                "resources": requests("3", "8Gi"),
            }] })
        };
        let pod_of = |name: &str, conditions: Value| pod(&spec, &reported(name, conditions));
        for (name, conditions, cpu, gib) in [
            ("a", json!([]), 4.0, 8.0),
            ("a", json!([{ "type": "PodResizePending", "reason": "Deferred" }]), 4.0, 8.0),
            ("a", json!([{ "type": "PodResizeInProgress" }]), 4.0, 8.0),
            ("other", json!([]), 1.0, 2.0),
        ] {
            let pod = pod_of(name, conditions);
            let gibibytes = held(&pod, "memory") / f64::from(1 << 30);
            assert_eq!((held(&pod, "cpu"), gibibytes), (cpu, gib));
            assert_eq!(pod.cpu_request(), thousandths(cpu));
        }
    }

    #[test]
    fn a_resize_that_the_node_can_never_do_does_not_count() {
        let spec = json!({ "containers": [{ "name": "a", "resources": requests("64", "1Gi") }] });
        let status = json!({
            "conditions": [{ "type": "PodResizePending", "reason": "Infeasible" }],
            "containerStatuses": [{ "name": "a", "resources": requests("2", "1Gi") }],
        });
        let pod = pod(&spec, &status);
        assert_eq!((held(&pod, "cpu"), pod.cpu_request()), (2.0, 2_000));
    }

    #[test]
    fn sidecars_and_whole_pods_are_resized_and_init_containers_that_end_are_not() {
        let spec = json!({
            "initContainers": [
                { "name": "once", "resources": requests("1", "1") },
                { "name": "beside", "restartPolicy": "Always", "resources": requests("1", "1") },
            ],
            "containers": [{ "name": "main", "resources": requests("1", "1") }],
        });
        let report = |name: &str| json!({ "name": name, "resources": requests("5", "5") });
        let status = json!({ "initContainerStatuses": [report("once"), report("beside")] });
        let by_container = pod(&spec, &status);
        assert_eq!((held(&by_container, "cpu"), by_container.cpu_request()), (6.0, 6_000));
        let mut of_pod = spec;
        of_pod["resources"] = json!({ "requests": { "cpu": "3" } });
        let whole = pod(&of_pod, &json!({ "allocatedResources": { "cpu": "7", "memory": "9" } }));
        assert_eq!((held(&whole, "cpu"), held(&whole, "memory")), (7.0, 2.0));
        assert_eq!(whole.cpu_request(), 7_000);
    }

    fn quantity() -> impl Strategy<Value = Value> {
        let odd = ["9E", "1n", "-1", "", "x", "1e400", "12345678901234567890"].map(Value::from);
        prop_oneof![
            (0_u32..9_000).prop_map(|milli| json!(format!("{milli}m"))),
            prop::sample::select(odd.to_vec())
        ]
    }

    fn container(name: &'static str) -> impl Strategy<Value = (Value, Value)> {
        let parts = (quantity(), quantity(), quantity(), any::<bool>(), any::<bool>());
        parts.prop_map(move |(wanted, admitted, in_force, is_sidecar, is_reported)| {
            let policy = if is_sidecar { json!("Always") } else { Value::Null };
            let spec = json!({ "name": name, "restartPolicy": policy, "resources": { "requests": { "cpu": wanted } } });
            let status = json!({
                "name": if is_reported { name } else { "" }, "allocatedResources": { "cpu": admitted },
                "resources": { "requests": { "cpu": in_force } },
            });
            (spec, status)
        })
    }

    proptest! {
        #[test]
        fn the_request_of_cpu_is_that_of_all_resources_and_ends_below_what_sums_can_hold(
            (init, init_status) in container("i"), (main, status) in container("a"),
            whole in prop::option::of(quantity()), overhead in quantity(), infeasible in any::<bool>(),
        ) {
            let reason = if infeasible { "Infeasible" } else { "Deferred" };
            let of_pod = whole.map_or(json!({}), |cpu| json!({ "requests": { "cpu": cpu } }));
            let pod = pod(
                &json!({ "initContainers": [init], "containers": [main], "resources": of_pod, "overhead": { "cpu": overhead } }),
                &json!({
                    "conditions": [{ "type": "PodResizePending", "reason": reason }],
                    "initContainerStatuses": [init_status], "containerStatuses": [status],
                }),
            );
            prop_assert_eq!(pod.cpu_request(), thousandths(held(&pod, "cpu")));
            prop_assert!(pod.cpu_request().checked_mul(1_000_000).is_some());
        }
    }
}
