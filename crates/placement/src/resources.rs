//! CPU and memory: what pods request and use, and what nodes have.

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
