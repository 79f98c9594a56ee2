//! Tests of failures: programs that are killed, stopped or hang.

pub(crate) mod crashes;
pub(crate) mod extender_outage;
