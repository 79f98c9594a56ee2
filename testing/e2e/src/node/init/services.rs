//! Owns the long-running programs of a node. Each is started once the files that it needs exist, and again after it
//! ends, unless `hold-NAME` exists.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{NodeInit, control_file};
use crate::command::append;

/// Keeps a program that fails at once from taking a whole processor.
const PAUSE_AFTER_EXIT: Duration = Duration::from_millis(500);

/// The names of the services.
pub(crate) const SERVICES: [&str; 3] = ["containerd", "kubelet", "kube-proxy"];

/// One service and its process.
pub(super) struct Service {
    name: &'static str,
    shell: String,
    needs: Vec<&'static str>,
    pid: Option<i32>,
    not_before: Instant,
}

/// The services of a node, not started yet.
pub(super) fn all(init: &NodeInit) -> Vec<Service> {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let exec = format!("PATH={}:{path} exec", init.bin.display());
    let config = init.folder.join("containerd.toml");
    vec![
        service(SERVICES[0], format!("{exec} containerd -c {}", config.display()), &[]),
        service(
            SERVICES[1],
            format!(". {KUBELET_FLAGS}; {exec} {KUBELET}"),
            &["/var/lib/kubelet/config.yaml", KUBELET_FLAGS],
        ),
        service(SERVICES[2], format!("{exec} {KUBE_PROXY}"), &["/etc/kubernetes/kube-proxy.yaml"]),
    ]
}

const KUBELET_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
/// The command line of kubeadm's systemd drop-in.
const KUBELET: &str = "kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
     --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS";
const KUBE_PROXY: &str = "kube-proxy --config=/etc/kubernetes/kube-proxy.yaml";

fn service(name: &'static str, shell: String, needs: &[&'static str]) -> Service {
    Service { name, shell, needs: needs.to_vec(), pid: None, not_before: Instant::now() }
}

impl Service {
    /// Starts the program if it is down, not held, and its files exist.
    pub(super) fn start_if_due(&mut self, folder: &Path) -> Result<()> {
        let held = control_file(folder, &format!("hold-{}", self.name)).exists();
        let ready =
            self.needs.iter().all(|file| fs::metadata(file).is_ok_and(|file| file.len() > 0));
        if self.pid.is_none() && !held && ready && Instant::now() >= self.not_before {
            self.start(folder)?;
        }
        Ok(())
    }

    /// Notes that a process of the node has ended, which need not be this service's.
    pub(super) fn ended(&mut self, pid: i32) {
        if self.pid == Some(pid) {
            self.pid = None;
            self.not_before = Instant::now() + PAUSE_AFTER_EXIT;
        }
    }

    fn start(&mut self, folder: &Path) -> Result<()> {
        let log = append(&folder.join("log").join(format!("{}.log", self.name)))?;
        let child = Command::new("/bin/sh")
            .args(["-c", &self.shell])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        let pid = i32::try_from(child.id())?;
        fs::write(control_file(folder, &format!("pid-{}", self.name)), pid.to_string())?;
        self.pid = Some(pid);
        Ok(())
    }
}
