//! What the browser asks on this machine: passes on to the port-forward what comes below a token alone.
//!
//! Every user of this machine, and every web site by a browser on it, reaches a port of 127.0.0.1; neither knows the
//! token. Invariant: nothing of a request is passed on before its path has begun with the token, and a connection has
//! one request.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// For a whole head.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at once. A browser opens six.
const MOST: usize = 64;

const REFUSED: &str = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 54\r\nConnection: close\r\n\r\n\
                       open the address that `plimsoll ui` printed in full.\r\n";

/// A port of 127.0.0.1 with a token.
pub(crate) struct Gate {
    listener: TcpListener,
    token: String,
    /// The port of the port-forward.
    forwarded: u16,
}

impl Gate {
    /// Listens at `port`, or a free one.
    ///
    /// # Errors
    ///
    /// If the port is taken, or the system gives no random numbers.
    pub(crate) fn open(port: Option<u16>, forwarded: u16) -> Result<Self> {
        let address = (Ipv4Addr::LOCALHOST, port.unwrap_or(0));
        let listener = TcpListener::bind(address).with_context(|| {
            format!("cannot listen at 127.0.0.1:{}: give another --port", address.1)
        })?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| anyhow!("no random numbers: {error}"))?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { listener, token, forwarded })
    }

    /// The address of what is at `path`.
    ///
    /// # Errors
    ///
    /// If the system does not tell the port.
    pub(crate) fn url(&self, path: &str) -> Result<String> {
        Ok(format!("http://{}/{}{path}", self.listener.local_addr()?, self.token))
    }

    /// Passes requests on, until the process ends.
    pub(crate) fn serve(self) {
        let gate = Arc::new(self);
        thread::spawn(move || {
            let busy = Arc::new(AtomicUsize::new(0));
            for client in gate.listener.incoming().map_while(Result::ok) {
                if busy.load(Relaxed) >= MOST {
                    continue;
                }
                busy.fetch_add(1, Relaxed);
                let (gate, busy) = (Arc::clone(&gate), Arc::clone(&busy));
                thread::spawn(move || {
                    // A browser that is gone is no error.
                    let _ = gate.pass(client);
                    busy.fetch_sub(1, Relaxed);
                });
            }
        });
    }

    fn pass(&self, mut client: TcpStream) -> io::Result<()> {
        let (head, rest) =
            read_head(&mut Until { stream: &client, end: Instant::now() + PATIENCE })?;
        let Some(head) = without_token(&head, &self.token) else {
            return client.write_all(REFUSED.as_bytes());
        };
        client.set_read_timeout(None)?;
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.forwarded))?;
        server.write_all(head.as_bytes())?;
        server.write_all(&rest)?;
        let (mut body, mut to) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || io::copy(&mut body, &mut to));
        let copied = io::copy(&mut server, &mut client);
        // Ends the thread too.
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
        copied.map(drop)
    }
}

/// Reads what comes before the end.
struct Until<'s> {
    stream: &'s TcpStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// A request's head, and what came behind it.
fn read_head(client: &mut impl Read) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            let head = String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData)?;
            return Ok((head, rest));
        }
        let read = client.read(&mut part)?;
        if read == 0 || bytes.len() > MAX_HEAD {
            return Err(ErrorKind::InvalidData.into());
        }
        bytes.extend_from_slice(&part[..read]);
    }
}

/// The head of the request for what is below the token, which closes its connection; `None` without the token.
fn without_token(head: &str, token: &str) -> Option<String> {
    let (line, headers) = head.split_once("\r\n")?;
    let [method, path, version] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
    let (found, rest) = path.strip_prefix('/')?.split_once('/')?;
    if !is_same(found.as_bytes(), token.as_bytes()) {
        return None;
    }
    let is_kept = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        !name.eq_ignore_ascii_case("connection") && !line.is_empty()
    };
    let kept: String =
        headers.split("\r\n").filter(is_kept).map(|line| format!("{line}\r\n")).collect();
    Some(format!("{method} /{rest} {version}\r\n{kept}Connection: close\r\n\r\n"))
}

/// Compares in a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |found, (one, other)| found | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_the_token_is_passed_on_and_closes_its_connection() {
        let head = "GET /0a1b/v1/state?since=3 HTTP/1.1\r\nHost: 127.0.0.1:5\r\nconnection: keep-alive\r\n\r\n";
        let passed =
            "GET /v1/state?since=3 HTTP/1.1\r\nHost: 127.0.0.1:5\r\nConnection: close\r\n\r\n";
        assert_eq!(without_token(head, "0a1b").as_deref(), Some(passed));
        assert_eq!(
            without_token("GET /0a1b/ HTTP/1.1\r\n\r\n", "0a1b").unwrap().lines().next(),
            Some("GET / HTTP/1.1")
        );
        for path in [
            "/",
            "/0a1b",
            "/0a1c/ui/",
            "/0a1/ui/",
            "/0a1bb/ui/",
            "//0a1b/ui/",
            "0a1b/ui/",
            "/ui/",
            "",
            "/ui/ /0a1b/",
            "http://127.0.0.1/0a1b/ui/",
            "/%30a1b/ui/",
            "/x/../0a1b/ui/",
        ] {
            let head = format!("GET {path} HTTP/1.1\r\n\r\n");
            assert_eq!(without_token(&head, "0a1b"), None, "{path}");
        }
    }

    #[test]
    fn a_head_has_an_end_and_what_comes_behind_it_is_kept() {
        let (head, rest) = read_head(&mut &b"POST / HTTP/1.1\r\n\r\nbody"[..]).unwrap();
        assert_eq!((head.as_str(), &rest[..]), ("POST / HTTP/1.1\r\n\r\n", &b"body"[..]));
        assert!(read_head(&mut &b"GET / HTTP/1.1\r\n"[..]).is_err());
        assert!(read_head(&mut io::repeat(b'a')).is_err());
    }

    #[test]
    fn a_client_that_sends_byte_by_byte_keeps_its_place_no_longer_than_one_that_is_silent() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut slow = TcpStream::connect(address).unwrap();
            while slow.write_all(b"a").is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let (client, _) = listener.accept().unwrap();
        let end = Instant::now() + Duration::from_millis(50);
        let why = read_head(&mut Until { stream: &client, end }).unwrap_err().kind();
        assert!(matches!(why, ErrorKind::TimedOut | ErrorKind::WouldBlock), "{why:?}");
    }

    #[test]
    fn the_refusal_has_the_length_that_it_says() {
        let (head, body) = REFUSED.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    }
}
