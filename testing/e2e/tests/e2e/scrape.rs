//! Owns how an exporter is asked: over HTTP, at its node's address, as the annotator and Prometheus ask it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use serde_json::Value;

/// The shipped port.
const PORT: u16 = 19101;
/// An exporter that takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The body of an answer, over a connection of its own; anything but 200 is an error.
pub(crate) fn get(node: &Node, path: &str) -> Result<String> {
    let address = SocketAddr::from((node.machine().address(), PORT));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("{address}{path}"))?;
    let (head, body) =
        answer.split_once("\r\n\r\n").context("the answer has no end of its head")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{address}{path} answers {head}");
    ensure!(!body.is_empty(), "{address}{path} has nothing to say");
    Ok(body.to_owned())
}

/// Each value that an exporter tells, with its timestamp, coverage and window.
pub(crate) fn statistics(node: &Node) -> Result<BTreeMap<String, Value>> {
    let mut told: Value = serde_json::from_str(&get(node, "/v1/statistics")?)?;
    serde_json::from_value(told["values"].take()).context("no values")
}
