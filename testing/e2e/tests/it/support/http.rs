//! Owns HTTP requests from this host to a program in the cluster, plain or over TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// The limit for connecting, and for each read and write. A Bind may take the extender some seconds on a busy host.
const TIMEOUT: Duration = Duration::from_secs(30);

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
    let mut stream = connect(address)?;
    // A server may refuse a request, answer and close before it has read all of the body.
    let written = stream.write_all(request(address, path, body).as_bytes());
    let mut response = Vec::new();
    let read = stream.read_to_end(&mut response).map(drop);
    parse(&response, written.and(read)).with_context(|| format!("{address}{path}"))
}

/// What a client shows and expects of a server's certificate.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    /// The name in the server's certificate.
    pub(crate) name: ServerName<'static>,
}

/// As [`send`], over TLS.
pub(crate) fn send_over(
    tls: &Tls,
    address: SocketAddr,
    path: &str,
    body: Option<&str>,
) -> Result<Response> {
    let mut stream = connect(address)?;
    let mut session = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone())?;
    let request = request(address, path, body);
    let written = rustls::Stream::new(&mut session, &mut stream).write_all(request.as_bytes());
    let mut response = Vec::new();
    let read = read_rest(&mut session, &mut stream, &mut response);
    parse(&response, written.and(read)).with_context(|| format!("{address}{path}"))
}

/// Reads until the server closes, also where it has read no more of what was written.
fn read_rest(
    session: &mut ClientConnection,
    stream: &mut TcpStream,
    response: &mut Vec<u8>,
) -> io::Result<()> {
    loop {
        let received = session.read_tls(stream)?;
        session.process_new_packets().map_err(io::Error::other)?;
        match session.reader().read_to_end(response) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The server has said that it closes, or has closed.
            ended => return ended.map(drop),
        }
        if received == 0 {
            return Ok(());
        }
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn request(address: SocketAddr, path: &str, body: Option<&str>) -> String {
    let (method, body) = body.map_or(("GET", ""), |body| ("POST", body));
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn parse(response: &[u8], exchange: io::Result<()>) -> Result<Response> {
    let response = String::from_utf8_lossy(response);
    let Some((head, body)) = response.split_once("\r\n\r\n") else {
        exchange?;
        anyhow::bail!("the response has no complete head");
    };
    let status = head.lines().next().unwrap_or_default();
    Ok(Response { status: status.to_owned(), body: body.to_owned() })
}
