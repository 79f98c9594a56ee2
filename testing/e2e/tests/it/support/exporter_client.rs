//! Owns requests to an exporter over HTTP at its node's address, as the annotator and Prometheus make them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use serde_json::Value;

use crate::support::http;

/// The port in the shipped manifests.
const PORT: u16 = 19101;

/// The body of a response. Any status but 200 is an error, and so is an empty body.
pub(crate) fn get(node: &Node, path: &str) -> Result<String> {
    let response = http::send(SocketAddr::from((node.spec().address(), PORT)), path, None)?;
    ensure!(response.is_ok(), "{}{path} answers {}", node.name(), response.status);
    ensure!(!response.body.is_empty(), "the response of {}{path} has no body", node.name());
    Ok(response.body)
}

/// The values of `/v1/statistics` by metric, each with its timestamp, coverage and window.
pub(crate) fn statistics(node: &Node) -> Result<BTreeMap<String, Value>> {
    let mut statistics: Value = serde_json::from_str(&get(node, "/v1/statistics")?)?;
    serde_json::from_value(statistics["values"].take()).context("no values")
}
