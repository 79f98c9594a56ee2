//! Tests of failures: programs that are killed, stopped or hang, and a configuration that is lost.

pub(crate) mod chaos;
pub(crate) mod extender_outage;
pub(crate) mod extender_replicas;
pub(crate) mod large_pods;
pub(crate) mod lost_configuration;
