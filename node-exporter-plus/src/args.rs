//! The flags. Each is an environment variable too.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use daemon::follow::NamedFile;
use daemon::tls::Identity;

use crate::collectors::Roots;
use crate::gpu::Probe;
use crate::http::Server;
use crate::series::Interval;

/// Samples this node (CPU, memory, swap, load, pressure, disks, file systems, network, GPUs) and serves the
/// aggregates that schedulers use: of CPU and memory the newest sample, the mean of 5 minutes, the highest such mean of
/// the last hour and day, and the mean and standard deviation of 15 minutes; of every other signal the newest sample;
/// and the windows of up to a day that --config.file asks for.
///
/// /statistics is flat JSON, /v1/statistics JSON with each value's timestamp, coverage and window, /metrics
/// Prometheus's text format. /v1/pods is JSON with the CPU time and memory that each pod uses. A value that is not
/// known is left out: missing data is never shown as 0, and a value disappears once its newest sample is older than
/// three sample intervals.
///
/// In a container, mount the host's /proc and /sys read-only below the folder of --host-root; for file systems, the
/// host's root as that folder.
#[derive(Debug, Clone, Parser)]
#[command(name = "node-exporter-plus", version)]
pub struct Args {
    /// Where to serve /metrics and /statistics.
    #[arg(
        long = "web.listen-address",
        env = "PLIMSOLL_WEB_LISTEN_ADDRESS",
        default_value = "[::]:19101",
        value_parser = daemon::listen_address,
        value_name = "IP:PORT"
    )]
    pub listen_address: SocketAddr,

    /// Serve /metrics and /statistics over TLS with the certificate in this file: PEM, followed by the CA's
    /// intermediate ones. Read again when it changes. /livez, /readyz and the rest of --admin-address stay plain HTTP.
    #[arg(
        long = "web.tls-cert-file",
        env = "PLIMSOLL_WEB_TLS_CERT_FILE",
        value_name = "FILE",
        requires = "tls_key_file"
    )]
    pub tls_cert_file: Option<PathBuf>,

    /// The certificate's key: PEM, not encrypted. Read again when it changes.
    #[arg(
        long = "web.tls-key-file",
        env = "PLIMSOLL_WEB_TLS_KEY_FILE",
        value_name = "FILE",
        requires = "tls_cert_file"
    )]
    pub tls_key_file: Option<PathBuf>,

    /// Answer only requests with the bearer token in this file. Read again when it changes. Use it with TLS: over plain
    /// HTTP, anyone on the network path can read the token.
    #[arg(long = "web.token-file", env = "PLIMSOLL_WEB_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// The folder that has the host's root, or what is needed of it: proc/, sys/ with sys/fs/cgroup/, and for file
    /// systems all. In a container, mount these read-only: its own /sys/fs/cgroup shows no other pod.
    #[arg(long, env = "PLIMSOLL_HOST_ROOT", default_value = "/", value_name = "DIRECTORY")]
    pub host_root: PathBuf,

    /// The kubelet's --root-dir, as the node names it. What is mounted below it is a pod's volume and does not count as
    /// a file system of the node.
    #[arg(
        long,
        env = "PLIMSOLL_KUBELET_ROOT",
        default_value = "/var/lib/kubelet",
        value_name = "DIRECTORY"
    )]
    pub kubelet_root: PathBuf,

    /// The time between two samples: whole seconds that divide a minute. A sample takes 4 bytes, so a day of a signal
    /// takes 34 KiB at 10s and 338 KiB at 1s.
    #[arg(long, env = "PLIMSOLL_SAMPLE_INTERVAL", default_value = "10s", value_name = "DURATION")]
    pub sample_interval: Interval,

    /// The aggregates to keep beside the thirty of CPU and memory, in YAML:
    /// `rules: [{signals: ["cpu_*", load1], values: [avg_5m, stddev_1h, max_1h, min_1d, max_avg_10m_1d, p95_1d]}]`.
    #[arg(long = "config.file", env = "PLIMSOLL_CONFIG_FILE", value_name = "FILE")]
    pub config_file: Option<PathBuf>,

    /// The file in which samples outlive a restart, in a writable folder of the host. Saved every 5 minutes and at the
    /// end, and read at the start if it is of the same boot. Without it a restarted exporter starts with no samples.
    #[arg(long = "storage.file", env = "PLIMSOLL_STORAGE_FILE", value_name = "FILE")]
    pub storage_file: Option<PathBuf>,

    /// Make the folder of --storage.file, give it to this user, and end. For an init container, so that the exporter
    /// itself needs no root.
    #[arg(
        long = "storage.prepare",
        env = "PLIMSOLL_STORAGE_PREPARE",
        value_name = "UID",
        requires = "storage_file"
    )]
    pub storage_prepare: Option<u32>,

    /// NVIDIA's management library, for GPU signals: a path, or a name that the dynamic loader finds. A node without it
    /// has no GPU signals, which is no error.
    #[arg(
        long,
        env = "PLIMSOLL_NVML_LIBRARY",
        default_value = "libnvidia-ml.so.1",
        value_name = "LIBRARY"
    )]
    pub nvml_library: PathBuf,

    /// Log and admin flags.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19105>,
}

impl Args {
    /// Where the node's files are.
    pub(crate) fn roots(&self) -> Roots {
        Roots::below(&self.host_root, &self.kubelet_root)
    }

    /// How to run the probe of the GPUs: gpu-probe, beside this program, loads the library and reports the GPUs.
    pub(crate) fn probe(&self) -> Probe {
        Probe {
            program: std::env::current_exe().unwrap_or_default().with_file_name("gpu-probe"),
            library: self.nvml_library.clone(),
            interval: self.sample_interval,
        }
    }

    /// How to serve.
    pub(crate) fn server(&self) -> Server {
        let certificate = NamedFile::optional("--web.tls-cert-file", self.tls_cert_file.as_ref());
        let key = NamedFile::optional("--web.tls-key-file", self.tls_key_file.as_ref());
        let identity = certificate.zip(key).map(|(certificate, key)| Identity {
            certificate,
            key,
            client_ca: None,
            client_names: Vec::new(),
            peer_name: None,
        });
        Server {
            address: self.listen_address,
            identity,
            token: NamedFile::optional("--web.token-file", self.token_file.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let args = Args::parse_from(["node-exporter-plus"]);
        assert_eq!(args.listen_address.to_string(), "[::]:19101");
        let roots = args.roots();
        assert_eq!(roots.procfs, PathBuf::from("/proc"));
        assert_eq!(roots.cgroupfs, PathBuf::from("/sys/fs/cgroup"));
        assert_eq!(roots.kubelet, PathBuf::from("/var/lib/kubelet"));
        assert_eq!(args.sample_interval.duration(), Duration::from_secs(10));
        assert_eq!(args.daemon.settings().admin.port(), 19105);
    }

    #[test]
    fn an_interval_that_does_not_divide_a_minute_is_refused_with_those_that_do() {
        let error = Args::try_parse_from(["node-exporter-plus", "--sample-interval=7s"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("--sample-interval") && error.contains("10, 12, 15"), "{error}");
    }

    #[test]
    fn a_certificate_without_its_key_is_refused_and_so_is_a_key_alone() {
        for (one, other) in [
            ("--web.tls-cert-file", "--web.tls-key-file"),
            ("--web.tls-key-file", "--web.tls-cert-file"),
        ] {
            let flags = ["node-exporter-plus", one, "/etc/tls/file"];
            let error = Args::try_parse_from(flags).unwrap_err().to_string();
            assert!(error.contains("required") && error.contains(other), "{error}");
        }
    }
}
