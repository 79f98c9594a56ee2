//! What pods request and use, and what nodes have: CPU and memory, and all resources by name.

use std::collections::BTreeMap;

/// Amounts by the resource's name: cores, bytes or numbers.
pub type Requests = BTreeMap<String, f64>;

/// A node's places for pods, as a resource. Each pod takes one.
pub const PODS: &str = "pods";

/// The part of an amount by which sums of decimal fractions may be off.
const ROUNDING: f64 = 1e-9;

/// What a pod requests at its peak, as kube-scheduler counts it: the larger of the sum over app containers and
/// sidecars, and of an init container plus the sidecars before it. `init` says of each whether it is a sidecar.
pub fn peak_requests(
    init: impl IntoIterator<Item = (Requests, bool)>,
    apps: impl IntoIterator<Item = Requests>,
) -> Requests {
    let mut steady = Requests::new();
    let mut peak = Requests::new();
    // Each container costs as much as it names: a pod may have thousands, and a sidecar of thousands of resources.
    for (requests, is_sidecar) in init {
        for (resource, amount) in requests {
            let beside = steady.get(&resource).copied().unwrap_or_default() + amount;
            if is_sidecar {
                steady.insert(resource.clone(), beside);
            }
            let most = peak.entry(resource).or_default();
            *most = most.max(beside);
        }
    }
    for requests in apps {
        add(&mut steady, &requests);
    }
    for (resource, steady) in steady {
        let most = peak.entry(resource).or_default();
        *most = most.max(steady);
    }
    peak
}

/// Adds `more` to amounts.
pub fn add(amounts: &mut Requests, more: &Requests) {
    for (resource, more) in more {
        *amounts.entry(resource.clone()).or_default() += more;
    }
}

/// Takes `less` off amounts, which may become negative.
pub fn subtract(amounts: &mut Requests, less: &Requests) {
    for (resource, less) in less {
        *amounts.entry(resource.clone()).or_default() -= less;
    }
}

/// What of `wanted` is not free, of each resource of which too little is. A resource that is not named has nothing
/// free; one that is not wanted may be overdrawn.
pub fn missing(wanted: &Requests, free: &Requests) -> Requests {
    let mut missing = Requests::new();
    for (resource, wanted) in wanted {
        let free = free.get(resource).copied().unwrap_or_default();
        // Less by what rounding can add.
        let lacks = wanted - free - ROUNDING * (wanted + free.abs());
        if *wanted > 0.0 && lacks > 0.0 {
            missing.insert(resource.clone(), lacks);
        }
    }
    missing
}

/// A resource whose load is measured and whose use by a pod is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    /// CPU, in cores.
    Cpu,
    /// Memory, in bytes.
    Memory,
}

/// One value for CPU and one for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerResource<T> {
    /// For CPU.
    pub cpu: T,
    /// For memory.
    pub memory: T,
}

/// An amount of both: cores of CPU and bytes of memory. Finite and not negative.
pub type Amounts = PerResource<f64>;

impl<T> PerResource<T> {
    /// The value of each resource.
    pub fn of(value: impl Fn(Resource) -> T) -> Self {
        Self { cpu: value(Resource::Cpu), memory: value(Resource::Memory) }
    }

    /// The value for `resource`.
    pub fn get(&self, resource: Resource) -> &T {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
        }
    }
}

/// What a pod's spec requests; `None` where it names nothing. Containers that run together are added up; init
/// containers that end before them are left out, since they use nothing later.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PodResources {
    /// Requests.
    pub requests: PerResource<Option<f64>>,
    /// Limits; `None` where any container has none, so that the pod as a whole is unlimited.
    pub limits: PerResource<Option<f64>>,
}
