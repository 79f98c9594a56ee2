//! Owns the mounts of a node: the paths where it has files of its own in place of the host's.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use crate::node::scripted_proc;
use crate::node::spec::NODES;

/// Folders that each node has for itself.
pub const MOUNT_POINTS: [&str; 8] = [
    "/etc/cdi",
    "/etc/cni",
    "/etc/kubernetes",
    "/var/lib/containerd",
    "/var/lib/etcd",
    "/var/lib/kubelet",
    "/var/lib/plimsoll-node",
    "/var/log",
];

/// Settings that a kubelet would change for the whole host, with the values that it wants. Files of the node stand in.
const SYSCTLS: [(&str, &str); 3] =
    [("vm/overcommit_memory", "1"), ("kernel/panic", "10"), ("kernel/panic_on_oops", "1")];

/// Mounts everything and makes it shared: containerd and the kubelet need each other's mounts.
pub(super) fn mount_all(folder: &Path) -> Result<()> {
    filesystem("proc", "/proc", "")?;
    for path in MOUNT_POINTS {
        bind(&folder.join(path.trim_start_matches('/')), Path::new(path))?;
    }
    name_resolution(folder)?;
    // Sockets and the pods' network namespaces lie in /run and go with the node.
    filesystem("tmpfs", "/run", "mode=755")?;
    for (name, value) in SYSCTLS {
        let stand_in = folder.join("sysctl").join(name);
        fs::create_dir_all(stand_in.parent().unwrap_or(folder))?;
        fs::write(&stand_in, format!("{value}\n"))?;
        bind(&stand_in, &Path::new("/proc/sys").join(name))?;
    }
    for file in scripted_proc::FILES {
        bind(&folder.join("proc").join(file), &Path::new("/proc").join(file))?;
    }
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", shared).context("cannot make the mounts shared")
}

/// Lets nodes resolve each other's names, and nothing else. No name server can be reached from here, and kubeadm would
/// wait ten seconds for each look-up.
fn name_resolution(folder: &Path) -> Result<()> {
    let known = NODES.iter().map(|node| format!("{} {}\n", node.address(), node.name));
    let hosts = known.fold("127.0.0.1 localhost\n".to_owned(), |all, line| all + &line);
    for (name, text) in [("hosts", hosts.as_str()), ("resolv.conf", "# no name server\n")] {
        let own = folder.join("etc").join(name);
        fs::write(&own, text)?;
        bind(&own, &Path::new("/etc").join(name))?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    mount_bind(source, target)
        .with_context(|| format!("cannot bind {} over {}", source.display(), target.display()))
}

fn filesystem(kind: &str, target: &str, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options)?;
    mount(kind, target, kind, MountFlags::empty(), options.as_c_str())
        .with_context(|| format!("cannot mount {kind} at {target}"))
}
