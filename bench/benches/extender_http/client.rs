//! One kept HTTP/1.1 connection that asks and waits.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, bail};

pub(super) struct Client {
    stream: TcpStream,
    /// Of the last answer: its head, and what was read of its body.
    buffer: Vec<u8>,
}

impl Client {
    pub(super) fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 4 << 20] })
    }

    /// Sends a request as [`request`] made it. Returns the answer's body.
    pub(super) fn ask(&mut self, request: &[u8]) -> anyhow::Result<&[u8]> {
        self.stream.write_all(request)?;
        let mut filled = 0;
        let mut wanted = None;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..])?;
            if read == 0 {
                bail!("the connection ended within an answer");
            }
            filled += read;
            if wanted.is_none() {
                wanted = head(&self.buffer[..filled])?;
            }
            if let Some((head, length)) = wanted
                && filled >= head + length
            {
                return Ok(&self.buffer[head..head + length]);
            }
        }
    }
}

/// A POST of `body`, with the headers that Go sends.
pub(super) fn request(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\n\
         Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n",
        body.len()
    );
    request.reserve_exact(body.len());
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    request
}

/// The length of an answer's head and of its body, once the head is whole.
fn head(bytes: &[u8]) -> anyhow::Result<Option<(usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = str::from_utf8(&bytes[..end])?.to_ascii_lowercase();
    if !text.starts_with("http/1.1 200") {
        bail!("not answered: {text}");
    }
    let mut lines = text.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let length = length.context("an answer without its length")?.trim().parse()?;
    Ok(Some((end + 4, length)))
}
