//! The demo's two policies, as far as the checker and the log need them.
//!
//! The programs read the files of [`cluster::policy`](crate::cluster). What stands here is a second implementation,
//! which a test there compares with the files.

/// A policy of the demo.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The shipped one, with windows of seconds.
    #[default]
    Shipped,
    /// One of crane's kind, with hot values.
    Crane,
}

impl Policy {
    /// Above them a node is overloaded.
    pub(crate) const fn limits(self) -> Limits {
        match self {
            Self::Shipped => Limits { cpu: 0.80, memory: 0.90 },
            Self::Crane => Limits { cpu: 0.65, memory: 0.65 },
        }
    }

    /// The annotation with the reading of a node's CPU.
    pub(crate) const fn cpu_metric(self) -> &'static str {
        match self {
            Self::Shipped => "cpu_shared_busy_active",
            Self::Crane => "cpu_usage_active",
        }
    }
}

/// The annotation with the reading of a node's memory, under both policies.
pub(crate) const MEMORY_METRIC: &str = "mem_usage_active";

/// The largest loads with which a node takes pods, as fractions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    pub(crate) cpu: f64,
    pub(crate) memory: f64,
}

impl Limits {
    /// Which of the limits a node's load is over. A load that is not known is over none.
    pub(crate) fn exceeded_by(self, cpu: Option<f64>, memory: Option<f64>) -> Overload {
        Overload {
            cpu: cpu.is_some_and(|cpu| cpu > self.cpu),
            memory: memory.is_some_and(|memory| memory > self.memory),
        }
    }
}

/// Which limits a node is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Overload {
    pub(crate) cpu: bool,
    pub(crate) memory: bool,
}

impl Overload {
    /// Whether it is over any.
    pub(crate) fn is_any(self) -> bool {
        self.cpu || self.memory
    }
}
