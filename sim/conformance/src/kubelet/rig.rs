//! What every fact about a kubelet needs.

/// The resource of the suite's plugin.
pub const RESOURCE: &str = "conformance.plimsoll.dev/unit";
