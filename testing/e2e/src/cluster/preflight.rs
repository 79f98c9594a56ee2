//! Owns what this host must offer before anything starts. Each error says what to do.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::statvfs;

use crate::command::{command, run};
use crate::progress::step;
use crate::settings::Settings;

/// The files that must exist, each with its Debian package.
const NEEDED: [(&str, &str); 9] = [
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/ptp", "containernetworking-plugins"),
    ("/usr/bin/buildah", "buildah"),
    ("/usr/sbin/ip", "iproute2"),
    ("/usr/sbin/nft", "nftables"),
    ("/usr/bin/busybox", "busybox-static"),
    ("/usr/bin/nsenter", "util-linux"),
    ("/usr/sbin/sysctl", "procps"),
    ("/usr/bin/openssl", "openssl"),
];

/// What must be free in each folder that a cluster writes, in bytes: twice the 2.8 GiB of one that had run the smoke
/// set eight times.
const NEEDED_SPACE: u64 = 6 << 30;

/// Fails unless this is root on Linux with room for the folders that the cluster writes; installs what is missing.
pub(crate) fn prepare(settings: &Settings) -> Result<()> {
    require_root()?;
    require_time_namespaces()?;
    require_space(&settings.state)?;
    require_space(&settings.cache)?;
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(file, _)| !present(file)).map(|(_, package)| *package).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Fails unless this is root on Linux, which namespaces, mounts and device nodes need.
pub(crate) fn require_root() -> Result<()> {
    if cfg!(not(target_os = "linux")) {
        bail!("the cluster needs Linux: its nodes are mount, network and PID namespaces");
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the cluster needs root (it makes namespaces, mounts and device nodes): run it again with sudo"
        );
    }
    Ok(())
}

/// Fails on a kernel without time namespaces: one before 5.6, or built without them.
fn require_time_namespaces() -> Result<()> {
    if !Path::new("/proc/self/ns/time").exists() {
        bail!(
            "this kernel has no time namespaces, by which the nodes have been up for days: the cluster needs Linux 5.6 or newer \
             with CONFIG_TIME_NS"
        );
    }
    Ok(())
}

/// Fails where the file system is nearly full. etcd would say so in a log alone, and kubeadm that its calls have no
/// answer.
fn require_space(folder: &Path) -> Result<()> {
    let existing = folder.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(folder);
    let system = statvfs(existing)
        .with_context(|| format!("cannot tell how much room is left in {}", existing.display()))?;
    enough_space(folder, system.f_bavail * system.f_frsize)
}

fn enough_space(folder: &Path, free: u64) -> Result<()> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    ensure!(
        free >= NEEDED_SPACE,
        "{:.1} GiB are free for {}, and the cluster needs {:.0}: delete what is not needed, or name another folder by \
         PLIMSOLL_CLUSTER_DIR or PLIMSOLL_CACHE",
        gib(free),
        folder.display(),
        gib(NEEDED_SPACE)
    );
    Ok(())
}

/// Whether the file exists there or in another folder of programs: distributions differ in whether /usr/sbin is apart.
fn present(file: &str) -> bool {
    let name = Path::new(file).file_name().unwrap_or_default();
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    Path::new(file).exists() || folders.iter().any(|folder| Path::new(folder).join(name).exists())
}

fn install(packages: &[&str]) -> Result<()> {
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("missing on this host: {}. Install them and run this again", packages.join(", "));
    }
    step(&format!("installing {}", packages.join(", ")));
    apt_get(&["update", "-q"])?;
    let fixed = ["install", "-y", "-q", "--no-install-recommends"];
    apt_get(&[&fixed, packages].concat())
        .with_context(|| format!("cannot install {}", packages.join(", ")))
        .map(drop)
}

fn apt_get(arguments: &[&str]) -> Result<String> {
    run(command("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments))
}
