//! A node whose procfs the test writes, and an HTTP client.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A procfs of a node with one CPU, whose counters (100 ticks a second) grow when the test says so. The node has the
/// sysfs of this machine, without control groups.
pub(crate) struct Procfs {
    /// The node's root.
    host: TempDir,
    /// The procfs below it.
    folder: PathBuf,
    busy: u64,
    idle: u64,
    /// Seconds since the boot.
    uptime: u64,
}

impl Procfs {
    pub(crate) fn new() -> Self {
        let host = tempfile::tempdir().unwrap();
        let folder = host.path().join("proc");
        let sysfs = host.path().join("sys");
        fs::create_dir(&sysfs).unwrap();
        for part in ["block", "bus", "class", "devices", "kernel"] {
            symlink(Path::new("/sys").join(part), sysfs.join(part)).unwrap();
        }
        let procfs = Self { host, folder, busy: 1_000, idle: 9_000, uptime: 3_600 };
        let random = procfs.path().join("sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        fs::write(random.join("boot_id"), "7c0b6c4e-5a53-4e9f-8ef0-1e3a2f0f8a11\n").unwrap();
        procfs.write_stat();
        procfs.write_uptime();
        procfs.use_memory(50);
        procfs
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// What `--host-root` takes.
    pub(crate) fn host(&self) -> &str {
        self.host.path().to_str().unwrap()
    }

    /// Lets `seconds` pass in which so much of the CPU is busy.
    pub(crate) fn burn(&mut self, percent: u64, seconds: u64) {
        self.busy += percent * seconds;
        self.idle += (100 - percent) * seconds;
        self.uptime += seconds;
        self.write_stat();
        self.write_uptime();
    }

    /// Has so much of the memory in use.
    pub(crate) fn use_memory(&self, percent: u64) {
        let available = 1_000 * (100 - percent);
        let text = format!("MemTotal:  100000 kB\nMemFree:  1 kB\nMemAvailable:  {available} kB\n");
        self.write("meminfo", &text);
    }

    fn write_uptime(&self) {
        self.write("uptime", &format!("{}.25 99.00\n", self.uptime));
    }

    fn write_stat(&self) {
        let Self { busy, idle, .. } = self;
        self.write("stat", &format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\nbtime 0\n"));
    }

    /// Renamed into place, so that the exporter never reads half a file.
    fn write(&self, name: &str, text: &str) {
        let draft = self.path().join("draft");
        fs::write(&draft, text).unwrap();
        fs::rename(draft, self.path().join(name)).unwrap();
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends a GET over a connection of its own.
pub(crate) async fn get(address: SocketAddr, path: &str, accept: &str) -> Answer {
    ask(address, &format!("GET {path}"), &format!("Accept: {accept}\r\n")).await
}

/// Sends a request, such as `POST /metrics`, over a connection of its own.
pub(crate) async fn ask(address: SocketAddr, what: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{what} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    answer(&text)
}

/// Parses the whole text of an answer. The head is returned in lower case.
pub(crate) fn answer(text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}
