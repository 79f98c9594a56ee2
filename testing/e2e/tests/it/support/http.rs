//! Owns plain HTTP requests from this host to a program in the cluster.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// The limit for connecting, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    /// The status line, such as `HTTP/1.1 200 OK`.
    pub(crate) status: String,
    pub(crate) body: String,
}

impl Response {
    /// Whether the status is 200.
    pub(crate) fn is_ok(&self) -> bool {
        self.status.starts_with("HTTP/1.1 200 ")
    }
}

/// Sends `GET`, or `POST` with a body of JSON, over a new connection. A response of any status is a success.
pub(crate) fn send(address: SocketAddr, path: &str, body: Option<&str>) -> Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (method, body) = body.map_or(("GET", ""), |body| ("POST", body));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A server may refuse a request, answer and close before it has read all of the body.
    let written = stream.write_all(request.as_bytes());
    let mut response = String::new();
    let read = stream.read_to_string(&mut response);
    let Some((head, body)) = response.split_once("\r\n\r\n") else {
        written.and(read).with_context(|| format!("{address}{path}"))?;
        anyhow::bail!("{address}{path}: the response has no complete head");
    };
    let status = head.lines().next().unwrap_or_default();
    Ok(Response { status: status.to_owned(), body: body.to_owned() })
}
