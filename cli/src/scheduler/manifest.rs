//! kube-scheduler's static pod manifest, as kubeadm writes it, with and without our lines.
//!
//! Invariant: what is ours are the lines that end in `# plimsoll`, and those that kubeadm writes out of its ConfigMap;
//! all others stay byte for byte as they were.

use anyhow::{Result, bail, ensure};

use crate::cluster_access::objects::{Container, Pod, Variable};

/// The folder of what is installed on a node.
pub(super) const FOLDER: &str = "/etc/kubernetes/plimsoll";
/// A link to the configuration in force. kubeadm-config names it, since that must name the same file for ever.
pub(super) const CURRENT: &str = "/etc/kubernetes/plimsoll/kube-scheduler-config.yaml";
const MARK: &str = " # plimsoll";

const COMMAND: &str = "    - kube-scheduler";
const MOUNTS: &str = "    volumeMounts:";
const VOLUMES: &str = "  volumes:";

/// What a flag, a mount and a volume are in the manifest. The folder is mounted and not its files: a mounted file would
/// stay the former one when it is replaced.
fn flag(path: &str) -> String {
    format!("    - --config={path}\n")
}

fn mount() -> String {
    format!("    - mountPath: {FOLDER}\n      name: plimsoll\n      readOnly: true\n")
}

fn volume() -> String {
    format!("  - hostPath:\n      path: {FOLDER}\n      type: Directory\n    name: plimsoll\n")
}

/// Which configuration of ours a manifest names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The one of this path, in lines that `enable` wrote.
    Enabled(String),
    /// [`CURRENT`], in lines that kubeadm wrote.
    OfKubeadm,
    /// None.
    Without,
}

impl State {
    pub(super) fn of(manifest: &str) -> Self {
        let path_in = |line: &str| {
            let path = line.trim_start().strip_prefix("- --config=")?.strip_suffix(MARK)?;
            path.starts_with(&format!("{FOLDER}/")).then(|| path.to_owned())
        };
        let is_marked = manifest.lines().any(|line| line.ends_with(MARK));
        let is_kubeadms = !is_marked && manifest.contains(&flag(CURRENT));
        match manifest.lines().rev().find_map(path_in) {
            Some(path) => Self::Enabled(path),
            None if is_kubeadms && has_all_marks(manifest) => Self::OfKubeadm,
            None => Self::Without,
        }
    }
}

/// The manifest without our lines.
pub(super) fn without_us(manifest: &str) -> String {
    let mut text = String::new();
    for line in manifest.lines().filter(|line| !line.ends_with(MARK)) {
        text += &format!("{line}\n");
    }
    let of_kubeadm = [flag(CURRENT), mount(), volume()];
    if of_kubeadm.iter().all(|lines| text.contains(lines)) {
        for lines in &of_kubeadm {
            text = text.replacen(lines, "", 1);
        }
    }
    text
}

/// A manifest that has none of our lines, with them: the flag names this path.
pub(super) fn with_us(manifest: &str, path: &str) -> String {
    let mut text = String::new();
    for line in manifest.lines() {
        let ours = match line {
            COMMAND => flag(path),
            MOUNTS => mount(),
            VOLUMES => volume(),
            _ => String::new(),
        };
        text += &format!("{line}\n");
        text.extend(ours.lines().map(|line| format!("{line}{MARK}\n")));
    }
    text
}

/// Whether all our lines are known. A tool that rewrote the manifest may have kept them and dropped their marks.
pub(super) fn has_all_marks(manifest: &str) -> bool {
    !without_us(manifest).contains(&format!("{FOLDER}/"))
}

/// kube-scheduler's command in a manifest without our lines.
pub(super) struct CommandLine {
    containers: Vec<Container>,
}

impl CommandLine {
    /// # Errors
    ///
    /// Where the manifest is not laid out as kubeadm writes it, or kube-scheduler has a configuration.
    pub(super) fn of(manifest: &str) -> Result<Self> {
        let pod: Pod = serde_saphyr::from_str(manifest)?;
        let command = Self { containers: pod.spec.containers };
        if let Some(value) = command.flag("config") {
            bail!("kube-scheduler already has a configuration: --config {value}");
        }
        for line in ["kind: Pod", COMMAND, MOUNTS, VOLUMES] {
            let count = manifest.lines().filter(|it| *it == line).count();
            ensure!(count == 1, "the line \"{line}\" is there {count} times, not once");
        }
        Ok(command)
    }

    /// What stands behind a flag's `=`; empty where it has none.
    pub(super) fn flag(&self, name: &str) -> Option<&str> {
        let mut value = None;
        for word in self.containers.iter().flat_map(|it| it.command.iter().chain(&it.args)) {
            match word.strip_prefix("--").and_then(|word| word.strip_prefix(name)) {
                Some("") => value = Some(""),
                Some(rest) => value = rest.strip_prefix('=').or(value),
                None => {}
            }
        }
        value
    }

    /// Whether it has a proxy. kubeadm hands its own proxy settings on to the static pods.
    pub(super) fn has_proxy(&self) -> bool {
        let is_proxy = |it: &Variable| it.name.eq_ignore_ascii_case("http_proxy");
        self.containers.iter().flat_map(|container| &container.env).any(is_proxy)
    }
}
