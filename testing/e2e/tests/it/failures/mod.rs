//! Tests of failures: programs that are killed, stopped or hang.

pub(crate) mod chaos;
pub(crate) mod extender_outage;
pub(crate) mod extender_replicas;
pub(crate) mod large_pods;
