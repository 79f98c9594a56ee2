//! The real binary with TLS and a bearer token, both of which change while it runs.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::ServerName;
use support::authority::Authority;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::node::{Answer, Procfs, answer, get};
use crate::process::{Exporter, HANG};

const NAME: &str = "node-exporter-plus";
/// How many connections the exporter serves at once on a port.
const CONNECTIONS: usize = 32;

/// A client that trusts a CA alone.
struct Client(TlsConnector);

impl Client {
    /// Sends a GET of /statistics with these headers, over a connection of its own.
    async fn ask(&self, address: SocketAddr, name: &str, headers: &str) -> io::Result<Answer> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = TcpStream::connect(address).await?;
        let mut stream = self.0.connect(name, stream).await?;
        stream.write_all(request(headers).as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(answer(&text))
    }

    /// The status of the answer with this token; 0 where TLS fails.
    async fn status(&self, address: SocketAddr, token: &str) -> u16 {
        let headers = format!("Authorization: Bearer {token}\r\n");
        self.ask(address, NAME, &headers).await.map_or(0, |answer| answer.status)
    }

    async fn until_status(&self, address: SocketAddr, token: &str, status: u16) {
        while self.status(address, token).await != status {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn request(headers: &str) -> String {
    request_of("/statistics", headers)
}

fn request_of(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n")
}

/// The folder of a mounted Secret. Its files are links through `..data`, which the kubelet replaces in one step.
struct Secret {
    folder: TempDir,
    version: u32,
}

impl Secret {
    fn new(files: &[(&str, String)]) -> Self {
        let mut secret = Self { folder: tempfile::tempdir().unwrap(), version: 0 };
        secret.swap(files);
        for (name, _) in files {
            symlink(Path::new("..data").join(name), secret.file(name)).unwrap();
        }
        secret
    }

    /// Replaces all files by these.
    fn swap(&mut self, files: &[(&str, String)]) {
        self.version += 1;
        let version = format!("..{}", self.version);
        fs::create_dir(self.file(&version)).unwrap();
        for (name, text) in files {
            fs::write(self.file(&version).join(name), text).unwrap();
        }
        symlink(&version, self.file("..data_tmp")).unwrap();
        fs::rename(self.file("..data_tmp"), self.file("..data")).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.file(name).display())
    }
}

fn token(text: &str) -> [(&'static str, String); 1] {
    [("token", format!("{text}\n"))]
}

/// An exporter with both, and the secrets that it reads.
struct Secured {
    exporter: Exporter,
    address: SocketAddr,
    tls: Secret,
    token: Secret,
    _procfs: Procfs,
}

async fn secured(authority: &Authority) -> Secured {
    let procfs = Procfs::new();
    let tls = Secret::new(&authority.sign(NAME).files());
    let token = Secret::new(&token("first"));
    let flags = [
        tls.flag("--web.tls-cert-file", "tls.crt"),
        tls.flag("--web.tls-key-file", "tls.key"),
        token.flag("--web.token-file", "token"),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let mut exporter = Exporter::start_with(procfs.host(), &flags);
    let address = exporter.address("/metrics and /statistics").await;
    Secured { exporter, address, tls, token, _procfs: procfs }
}

#[tokio::test]
async fn over_tls_only_requests_with_the_token_are_answered() {
    let life = async {
        let authority = Authority::new();
        let secured = secured(&authority).await;
        let client = Client(authority.client());
        let address = secured.address;
        for headers in ["", "Authorization: Bearer second\r\n", "Authorization: Basic first\r\n"] {
            let answer = client.ask(address, NAME, headers).await.unwrap();
            assert_eq!(answer.status, 401, "{headers}");
            assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
            assert!(!answer.body.contains('{'), "{}", answer.body);
        }
        assert_eq!(client.status(address, "first").await, 200);
        let error = client.ask(address, "elsewhere", "").await.unwrap_err().to_string();
        assert!(error.contains("not valid for name"), "{error}");
        assert_eq!(Client(Authority::new().client()).status(address, "first").await, 0);
        assert_eq!(secured.exporter.terminate().await.code(), Some(0));
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_new_token_replaces_the_old_one_and_an_empty_one_does_not() {
    let life = async {
        let authority = Authority::new();
        let mut secured = secured(&authority).await;
        let client = Client(authority.client());
        let address = secured.address;
        secured.token.swap(&token("second"));
        client.until_status(address, "second", 200).await;
        assert_eq!(client.status(address, "first").await, 401);
        secured.token.swap(&token(""));
        let file = secured.token.file("token");
        let message = "it is empty; expected a token; the token before stays in force";
        secured.exporter.line(&format!("--web.token-file {}: {message}", file.display())).await;
        assert_eq!(client.status(address, "second").await, 200);
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_new_certificate_replaces_the_old_one_and_a_faulty_one_does_not() {
    let life = async {
        let old = Authority::new();
        let new = Authority::new();
        let mut secured = secured(&old).await;
        let address = secured.address;
        let admin = secured.exporter.address("/metrics, /livez").await;
        secured.tls.swap(&new.sign_until(NAME, 2031).files());
        Client(new.client()).until_status(address, "first", 200).await;
        let end = "plimsoll_certificate_not_after_seconds{file=\"certificate\"} 1924992000\n";
        let page = get(admin, "/metrics", "*/*").await.body;
        assert!(page.contains(end), "{page}");
        assert_eq!(Client(old.client()).status(address, "first").await, 0);
        let [_, key] = new.sign(NAME).files();
        secured.tls.swap(&[("tls.crt", "none".to_owned()), key]);
        let file = secured.tls.file("tls.crt");
        let message =
            "it holds no certificate; expected PEM; the certificate before stays in force";
        secured.exporter.line(&format!("--web.tls-cert-file {}: {message}", file.display())).await;
        let refused = "plimsoll_files_refused{file=\"certificate\"} 1\n";
        while !get(admin, "/metrics", "*/*").await.body.contains(refused) {}
        assert_eq!(Client(new.client()).status(address, "first").await, 200);
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn silent_connections_are_closed_for_new_ones() {
    let life = async {
        let authority = Authority::new();
        let secured = secured(&authority).await;
        let mut silent = Vec::new();
        for _ in 0..10 * CONNECTIONS {
            silent.push(TcpStream::connect(secured.address).await.unwrap());
        }
        assert_eq!(Client(authority.client()).status(secured.address, "first").await, 200);
        for stream in &mut silent[..9 * CONNECTIONS] {
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "closed by the exporter");
        }
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_token_without_tls_works_with_a_warning() {
    let life = async {
        let procfs = Procfs::new();
        let secret = Secret::new(&token("first"));
        let flag = secret.flag("--web.token-file", "token");
        let mut exporter = Exporter::start_with(procfs.host(), &[&flag]);
        let address = exporter.address("/metrics and /statistics").await;
        let warning = "--web.token-file without TLS: anyone on the network path can read the token";
        assert_eq!(exporter.line(warning).await["level"], "WARN");
        let with = "Authorization: Bearer first\r\n";
        for (path, headers, status) in [
            ("/statistics", "", 401),
            ("/statistics", with, 200),
            ("/v1/pods", "", 401),
            ("/v1/pods", with, 404),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request_of(path, headers).as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert_eq!(answer(&text).status, status, "{path}");
        }
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn an_empty_token_file_is_a_fatal_error() {
    let procfs = Procfs::new();
    let secret = Secret::new(&token(""));
    let flag = secret.flag("--web.token-file", "token");
    let exporter = Exporter::start_with(procfs.host(), &[&flag]);
    let (code, last) = tokio::time::timeout(HANG, exporter.end()).await.unwrap();
    assert_eq!(code, Some(1));
    let file = secret.file("token");
    let expected = "it is empty; expected a token";
    assert_eq!(last, format!("{NAME}: --web.token-file {}: {expected}", file.display()));
}
