//! Tests of node-exporter-plus as it is shipped.

pub(crate) mod signals;
pub(crate) mod tls;
