//! A small HTTP server: one answer a request, connections kept.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Answers a request by the address that it came to, its path and its body: a status line and a body.
pub(crate) type Answer =
    Arc<dyn Fn(SocketAddr, &str, &[u8]) -> (&'static str, String) + Send + Sync>;

/// Serves on all addresses. Returns the port.
pub(crate) async fn start(answer: Answer) -> Result<u16> {
    let listener = TcpListener::bind(("0.0.0.0", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            // A client that goes away ends its connection.
            tokio::spawn(async move { serve(stream, answer).await });
        }
    });
    Ok(port)
}

async fn serve(stream: TcpStream, answer: Answer) -> Result<()> {
    stream.set_nodelay(true)?;
    let local = stream.local_addr()?;
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let length = body_length(&mut stream).await?;
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let (status, body) = answer(local, &path, &body);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.get_mut().write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
    }
}

/// Reads the headers. Returns the length of the body.
async fn body_length(stream: &mut BufReader<TcpStream>) -> Result<usize> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if line.trim_end().is_empty() {
            return Ok(length);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
}
