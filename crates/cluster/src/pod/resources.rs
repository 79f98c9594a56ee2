//! What a pod requests of CPU and memory, as kube-scheduler counts it.
//!
//! Invariant: a quantity that cannot be read is absent, never 0. While the pod is resized in place, the largest of what
//! its spec has, what the kubelet has admitted and what is in force counts.

use std::collections::BTreeMap;

use placement::gpu::ContainerKind;
use placement::resources::{PerResource, PodResources, Resource};

use super::{Container, ContainerStatus, Pod, Resources};
use crate::quantity::{Quantities, Quantity, amounts};

/// Amounts that the pod's object names; absent if it does not.
type Stated = PerResource<Option<f64>>;

impl Pod {
    /// Its requests and limits: those of the pod as a whole if its spec has them. Otherwise the sum over app containers
    /// and sidecars, which run together, plus the overhead of its RuntimeClass.
    pub fn resources(&self) -> PodResources {
        let running: Vec<_> = self.running().map(|container| self.container(container)).collect();
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
    pub(crate) fn scheduled_requests(&self) -> BTreeMap<String, f64> {
        let mut steady: BTreeMap<String, f64> = BTreeMap::new();
        let mut peak: BTreeMap<String, f64> = BTreeMap::new();
        for container in &self.spec.init_containers {
            let is_sidecar = container.init_kind() == ContainerKind::Sidecar;
            for (resource, amount) in readable(&container.resources.requests) {
                let beside = steady.get(&resource).copied().unwrap_or(0.0) + amount;
                if is_sidecar {
                    steady.insert(resource.clone(), beside);
                }
                let most = peak.entry(resource).or_default();
                *most = most.max(beside);
            }
        }
        for container in &self.spec.containers {
            for (resource, amount) in readable(&container.resources.requests) {
                *steady.entry(resource).or_default() += amount;
            }
        }
        for (resource, amount) in steady {
            let most = peak.entry(resource).or_default();
            *most = most.max(amount);
        }
        peak.extend(readable(&self.spec.resources.requests));
        for (resource, amount) in readable(&self.spec.overhead) {
            *peak.entry(resource).or_default() += amount;
        }
        peak
    }

    /// The CPU that it requests, in thousandths of a core, as kube-scheduler counts it: as [`Pod::scheduled_requests`],
    /// of one resource. What cannot be read is left out.
    pub fn cpu_request(&self) -> u64 {
        let mut steady = 0.0_f64;
        let mut peak = 0.0_f64;
        for container in &self.spec.init_containers {
            let beside = steady + container.cpu_request();
            if container.init_kind() == ContainerKind::Sidecar {
                steady = beside;
            }
            peak = peak.max(beside);
        }
        let steady = steady + self.spec.containers.iter().map(Container::cpu_request).sum::<f64>();
        let cores = cpu_of(&self.spec.resources.requests).unwrap_or(steady.max(peak));
        thousandths(cores + cpu_of(&self.spec.overhead).unwrap_or(0.0))
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

    fn container(&self, container: &Container) -> PodResources {
        let wanted = stated(&container.resources);
        let Some(status) = self.status_of(container) else { return wanted };
        // A resize that the node can never do does not count.
        let wanted = if self.resize_is_infeasible() { PodResources::default() } else { wanted };
        largest(wanted, &status.allocated_resources, &status.resources)
    }

    /// The container's status; `None` if it has no resources, as with older kubelets.
    fn status_of(&self, container: &Container) -> Option<&ContainerStatus> {
        let status = &self.status;
        let all = status.container_statuses.iter().chain(&status.init_container_statuses);
        let mut known = all.filter(|status| {
            let in_force = &status.resources;
            !in_force.requests.is_empty() || !in_force.limits.is_empty()
        });
        known.find(|status| status.name == container.name)
    }

    fn resize_is_infeasible(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|condition| {
            condition.kind == "PodResizePending" && condition.reason == "Infeasible"
        })
    }
}

/// Cores in thousandths, rounded up, as Kubernetes does.
pub(crate) fn thousandths(cores: f64) -> u64 {
    // A rounding error does not add a thousandth.
    (cores * 1_000.0 - 1e-6).ceil().max(0.0) as u64
}

/// The quantities that can be read.
fn readable(quantities: &Quantities) -> Vec<(String, f64)> {
    let amount =
        |(resource, quantity): (&String, &Quantity)| Some((resource.clone(), quantity.amount()?));
    quantities.iter().filter_map(amount).collect()
}

impl Container {
    /// The CPU that it requests, in cores; 0 where that is absent or cannot be read.
    fn cpu_request(&self) -> f64 {
        cpu_of(&self.resources.requests).unwrap_or(0.0)
    }
}

fn cpu_of(quantities: &Quantities) -> Option<f64> {
    quantities.get("cpu").and_then(Quantity::amount)
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
