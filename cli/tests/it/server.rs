//! An extender that gives one fixed answer.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

/// Answers one request with `status` and `body`; gives its URL, and at the end the request's first line, and its body
/// after a blank.
pub(crate) fn extender(status: &str, body: &str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let server = thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let headers = head.lines().filter_map(|line| line.split_once(": "));
        let mut lengths = headers.filter(|(key, _)| key.eq_ignore_ascii_case("content-length"));
        let length = lengths.next().map(|(_, length)| length);
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        connection.read_exact(&mut body).unwrap();
        connection.write_all(answer.as_bytes()).unwrap();
        let first = head.lines().next().unwrap_or_default().to_owned();
        format!("{first} {}", String::from_utf8(body).unwrap()).trim_end().to_owned()
    });
    (url, server)
}
