//! The flags, each also an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use daemon::follow::NamedFile;

use crate::series::Interval;
use crate::web::Web;

/// Samples this node (CPU, memory, swap, load, pressure, disks, file systems, network) and serves what a scheduler
/// wants to know: of CPU and memory the use now, its mean over 5 minutes, and the highest such mean of the last
/// hour and day; of every other signal its newest sample; and any window up to a day that --config.file asks for.
///
/// /statistics answers in flat JSON, /v1/statistics with each value's timestamp, coverage and window, /metrics in
/// the Prometheus or OpenMetrics text format. A value that
/// is not known is left out: nothing is shown as 0 for want of data, and nothing outlives three sample
/// intervals.
///
/// In a container, mount the host's /proc read-only and name it with --path.procfs; likewise its root, for file
/// systems, with --path.rootfs.
#[derive(Debug, Clone, Parser)]
#[command(name = "node-exporter-plus", version)]
pub struct Args {
    /// Where to serve /metrics and /statistics.
    #[arg(
        long = "web.listen-address",
        env = "PLIMSOLL_WEB_LISTEN_ADDRESS",
        default_value = "[::]:19101",
        value_name = "IP:PORT"
    )]
    pub listen_address: SocketAddr,

    /// Serve /metrics and /statistics over TLS with the certificate in this file: PEM, the CA's intermediate ones after
    /// it. Read again when it changes. /livez, /readyz and the rest of --admin-address stay plain.
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

    /// Answer those alone who show the bearer token in this file. Read again when it changes. Use it with TLS: plain
    /// HTTP shows the token to whoever can read the network.
    #[arg(long = "web.token-file", env = "PLIMSOLL_WEB_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// The host's procfs.
    #[arg(
        long = "path.procfs",
        env = "PLIMSOLL_PATH_PROCFS",
        default_value = "/proc",
        value_name = "DIRECTORY"
    )]
    pub procfs: PathBuf,

    /// The host's sysfs: which disks and links there are, and the links' speeds.
    #[arg(
        long = "path.sysfs",
        env = "PLIMSOLL_PATH_SYSFS",
        default_value = "/sys",
        value_name = "DIRECTORY"
    )]
    pub sysfs: PathBuf,

    /// Where the host's file systems are mounted.
    #[arg(
        long = "path.rootfs",
        env = "PLIMSOLL_PATH_ROOTFS",
        default_value = "/",
        value_name = "DIRECTORY"
    )]
    pub rootfs: PathBuf,

    /// The kubelet's --root-dir, as the node names it. What is mounted below it are volumes of pods, which do not count as
    /// file systems of the node.
    #[arg(
        long = "path.kubelet-root",
        env = "PLIMSOLL_PATH_KUBELET_ROOT",
        default_value = "/var/lib/kubelet",
        value_name = "DIRECTORY"
    )]
    pub kubelet_root: PathBuf,

    /// How often to sample: whole seconds that divide a minute. A day of samples takes 4 bytes each, so 10s
    /// takes 34 KiB for each signal and 1s takes 338 KiB.
    #[arg(long, env = "PLIMSOLL_SAMPLE_INTERVAL", default_value = "10s", value_name = "DURATION")]
    pub sample_interval: Interval,

    /// Which values to keep beside the eight of CPU and memory, in YAML:
    /// `rules: [{signals: ["cpu_*", load1], values: [avg_5m, max_1h, min_1d, max_avg_10m_1d, p95_1d]}]`.
    #[arg(long = "config.file", env = "PLIMSOLL_CONFIG_FILE", value_name = "FILE")]
    pub config_file: Option<PathBuf>,

    /// Where to keep the day's samples, so that a restart on the same boot loses none: a file in a writable folder
    /// of the host. Saved every 5 minutes and at the end. Without it a restarted exporter starts with nothing.
    #[arg(long = "storage.file", env = "PLIMSOLL_STORAGE_FILE", value_name = "FILE")]
    pub storage_file: Option<PathBuf>,

    /// Make the folder of --storage.file, give it to this user, and end: for an init container, so that the exporter
    /// itself need not be root.
    #[arg(
        long = "storage.prepare",
        env = "PLIMSOLL_STORAGE_PREPARE",
        value_name = "UID",
        requires = "storage_file"
    )]
    pub storage_prepare: Option<u32>,

    /// NVIDIA's management library, for GPU signals: a path, or a name that the loader finds. A node without it has
    /// no such signals, which is no error.
    #[arg(
        long,
        env = "PLIMSOLL_NVML_LIBRARY",
        default_value = "libnvidia-ml.so.1",
        value_name = "LIBRARY"
    )]
    pub nvml_library: PathBuf,

    /// The program that loads that library and reports the cards [default: gpu-probe beside this program].
    #[arg(long, env = "PLIMSOLL_GPU_PROBE", value_name = "FILE")]
    pub gpu_probe: Option<PathBuf>,

    /// Log and admin flags.
    #[command(flatten)]
    pub daemon: daemon::DaemonArgs<19105>,
}

impl Args {
    pub(crate) fn web(&self) -> Web {
        let named =
            |flag, path: &Option<PathBuf>| path.clone().map(|path| NamedFile { flag, path });
        let certificate = named("--web.tls-cert-file", &self.tls_cert_file);
        let key = named("--web.tls-key-file", &self.tls_key_file);
        let token = named("--web.token-file", &self.token_file);
        Web { address: self.listen_address, identity: certificate.zip(key), token }
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
        assert_eq!(args.procfs, PathBuf::from("/proc"));
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
