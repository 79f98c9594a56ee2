//! Prometheus's own programs, for tests: `promtool check metrics` for a page of metrics, and a server, over given
//! samples or with a given configuration.
//!
//! Debian's package `prometheus` has both. Tests that need it are ignored by `make test` and run by `make oracle`.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// Longer than any machine takes: a test that gets here hangs.
const HANG: Duration = Duration::from_secs(120);

/// Checks a page in the text format: its syntax, and the names, types and help texts of its metrics.
///
/// # Panics
/// When promtool finds a fault, or is not there.
pub fn check(page: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is needed: scripts/require-prometheus.sh installs it");
    let mut input = promtool.stdin.take().expect("stdin is piped");
    input.write_all(page.as_bytes()).expect("promtool reads the page");
    drop(input);
    let output = promtool.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "promtool check metrics:\n{said}\n{page}");
}

/// A Prometheus process. Dropping it ends it.
pub struct Server {
    process: Child,
    /// Where it answers over HTTP.
    pub address: SocketAddr,
    _folder: TempDir,
    _kept: Socket,
}

impl Server {
    /// Backfills `samples`, an OpenMetrics text without its end, and starts a Prometheus that serves them. It is ready
    /// for queries.
    ///
    /// # Panics
    /// When promtool refuses the samples, or the program is not there or never ready.
    #[must_use]
    pub fn over(samples: &str) -> Self {
        Self::over_with(samples, &[])
    }

    /// The same with further flags.
    ///
    /// # Panics
    /// As [`Self::over`].
    #[must_use]
    pub fn over_with(samples: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [file, config, data] =
            ["samples", "prometheus.yml", "data"].map(|name| folder.path().join(name));
        fs::write(&file, format!("{samples}# EOF\n")).expect("a file is written");
        fs::write(&config, "").expect("a file is written");
        let filled = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"])
            .args([&file, &data])
            .output()
            .expect("promtool is needed: scripts/require-prometheus.sh installs it");
        assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
        Self::start(folder, flags)
    }

    /// Starts a Prometheus with this configuration and these files of rules beside it, each with its name. It is ready
    /// for queries.
    ///
    /// # Panics
    /// When the program is not there, refuses the configuration or is never ready.
    #[must_use]
    pub fn configured(configuration: &str, rules: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in [("prometheus.yml", configuration)].iter().chain(rules) {
            fs::write(folder.path().join(name), text).expect("a file is written");
        }
        Self::start(folder, &[])
    }

    /// Starts a Prometheus with the configuration and the data of a folder.
    fn start(folder: TempDir, flags: &[&str]) -> Self {
        let [config, data] = ["prometheus.yml", "data"].map(|name| folder.path().join(name));
        let (kept, address) = keep_port().expect("a free port");
        let process = Command::new("prometheus")
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .args(["--storage.tsdb.retention.time=100y", "--log.level=error"])
            .args(flags)
            // It reaches what it scrapes itself.
            .env("NO_PROXY", "*")
            .stdout(Stdio::null())
            .spawn()
            .expect("prometheus is needed: scripts/require-prometheus.sh installs it");
        let mut server = Self { process, address, _folder: folder, _kept: kept };
        server.wait();
        server
    }

    fn wait(&mut self) {
        let began = Instant::now();
        while !self.get("/-/ready").is_some_and(|answer| answer.starts_with("HTTP/1.0 200 ")) {
            let ended = self.process.try_wait().expect("the process is ours");
            assert!(ended.is_none(), "Prometheus has ended: {ended:?}");
            assert!(began.elapsed() < HANG, "Prometheus does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Its answer to a GET of `path`: head and body. `None` where it does not answer.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(HANG)).ok()?;
        // With HTTP/1.0 the answer is not chunked, and the connection ends after it.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

/// A free port, and a socket that is bound to it and never listens. While it is there, the kernel gives the port to no
/// socket that asks for any free one, and a server that sets `SO_REUSEADDR` (socket(7)), as those of Go do, can listen
/// beside it.
fn keep_port() -> io::Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((socket, address))
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
