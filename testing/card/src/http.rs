//! Owns calls over HTTP without TLS: to the API server through `kubectl proxy` on a Unix socket, and to ports of this
//! machine. HTTP/1.0, so that an answer ends with its connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A status and a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Calls the server behind a Unix socket. A body is JSON; that of PATCH is merged.
pub(crate) fn unix(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Answer> {
    let stream = UnixStream::connect(socket)
        .with_context(|| format!("nothing listens on {}", socket.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    exchange(stream, method, path, body)
}

/// The page of a port of this machine.
pub(crate) fn page(address: &str, path: &str) -> Result<String> {
    let stream =
        TcpStream::connect(address).with_context(|| format!("nothing listens on {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let answer = exchange(stream, "GET", path, None)?;
    ensure!(answer.status == 200, "{address}{path} answers {}", answer.status);
    Ok(answer.body)
}

fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Answer> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer))
}

fn parse(answer: &str) -> Result<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without an end of head")?;
    let status = head.split_whitespace().nth(1).context("an answer without a status")?;
    Ok(Answer { status: status.parse()?, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body_and_half_of_one_is_an_error() {
        let whole = parse("HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n{}\n").unwrap();
        assert_eq!(whole, Answer { status: 404, body: "{}\n".to_owned() });
        parse("HTTP/1.0 200 OK\r\n").unwrap_err();
        parse("").unwrap_err();
    }
}
