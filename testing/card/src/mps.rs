//! Owns MPS on the node: the commands of deploy/chart/templates/mps-control-daemon.yaml, run as they are shipped,
//! with the folder of this node in place of theirs. Where there is no GPU, a stand-in answers for NVIDIA's program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result};
use e2e::command::{run, wait_for};
use serde_json::Value;

use crate::node::{Node, START};
use crate::parts::Parts;

/// The shipped manifest.
const MANIFEST: &str = "mps-control-daemon.yaml";
/// The shipped folder of MPS.
const SHIPPED: &str = "/run/plimsoll-mps";
/// NVIDIA's program as far as the shipped commands use it: the daemon's pipe, and one server, whose clients are the
/// lines of the file `clients` beside it. It notes in `told` what it was told.
const STAND_IN: &str = r#"#!/bin/sh
own=${0%/*}
cd "$CUDA_MPS_PIPE_DIRECTORY"
if [ $# = 0 ]; then
    read -r command
    echo "$command" >>"$own/told"
    case "$command" in
    get_server_list) echo 42 ;;
    get_client_list*) cat "$own/clients" ;;
    esac
    exit 0
fi
mkfifo control && exec sleep 1000000 <>control
"#;

/// Words before a container's command: it has no capabilities.
const WITHOUT_CAPABILITIES: [&str; 4] =
    ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];

/// The running daemon.
pub(crate) struct Mps {
    daemon: Child,
    drain: Option<Child>,
}

/// A container of the manifest.
struct Container {
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

/// The node's folder of MPS.
pub(crate) fn folder(work: &Path) -> PathBuf {
    work.join("mps")
}

/// The folder of the stand-in, with what it is told.
pub(crate) fn stand_in(work: &Path) -> PathBuf {
    work.join("mps-bin")
}

impl Mps {
    /// Makes the folders and starts the daemon with its drain, by the shipped commands.
    pub(crate) fn start(node: &Node, parts: &Parts, work: &Path, fake: bool) -> Result<Self> {
        let pod = parts.yaml(MANIFEST, "DaemonSet")?["spec"]["template"]["spec"].take();
        if fake {
            let program = stand_in(work).join("nvidia-cuda-mps-control");
            fs::create_dir_all(stand_in(work))?;
            fs::write(stand_in(work).join("clients"), "")?;
            fs::write(&program, STAND_IN)?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        }
        let made = Container::of(&pod, "initContainers", "shared-memory", work)?;
        run(&mut made.command(node, work, &[]))?;
        let daemon = Container::of(&pod, "containers", "mps-control-daemon", work)?;
        // Its `/dev/shm` is the one that clients have, in a mount namespace of its own.
        let shared = format!("mount --bind '{}/shm' /dev/shm; exec \"$@\"", folder(work).display());
        let unshared = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec"];
        let before = [&unshared[..], &[&shared, "sh"], &WITHOUT_CAPABILITIES].concat();
        let daemon = node.spawn("mps-control-daemon", &mut daemon.command(node, work, &before))?;
        let mut mps = Self { daemon, drain: None };
        mps.start_drain(node, parts, work)?;
        let control = folder(work).join("pipe/control");
        wait_for("the control daemon of MPS", START, || Ok(control.exists().then_some(())))?;
        Ok(mps)
    }

    /// Starts the container that terminates clients before they are killed.
    pub(crate) fn start_drain(&mut self, node: &Node, parts: &Parts, work: &Path) -> Result<()> {
        let pod = parts.yaml(MANIFEST, "DaemonSet")?["spec"]["template"]["spec"].take();
        let drain = Container::of(&pod, "containers", "drain", work)?;
        self.drain =
            Some(node.spawn("drain", &mut drain.command(node, work, &WITHOUT_CAPABILITIES))?);
        Ok(())
    }

    /// Ends the drain, and leaves the daemon.
    pub(crate) fn stop_drain(&mut self) -> Result<()> {
        if let Some(mut drain) = self.drain.take() {
            drain.kill()?;
            drain.wait()?;
        }
        Ok(())
    }

    /// Kills the daemon as a node that runs out of memory does: its shell, and the program with its servers.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.stop_drain()?;
        let shell = i32::try_from(self.daemon.id())?;
        for pid in descendants(shell) {
            let _ = e2e::kernel::processes::signal(pid, e2e::kernel::processes::Signal::KILL);
        }
        self.daemon.kill()?;
        self.daemon.wait()?;
        Ok(())
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

impl Container {
    fn of(pod: &Value, list: &str, name: &str, work: &Path) -> Result<Self> {
        let all = pod[list].as_array().into_iter().flatten();
        let found = all.into_iter().find(|container| container["name"] == name);
        let found = found.with_context(|| format!("{MANIFEST} has no container {name}"))?;
        let words = found["command"].as_array().context("a container without a command")?;
        let own = folder(work).display().to_string();
        let text = |value: &Value| value.as_str().unwrap_or_default().replace(SHIPPED, &own);
        let variables = found["env"].as_array().into_iter().flatten();
        Ok(Self {
            words: words.iter().map(text).collect(),
            variables: variables.map(|it| (text(&it["name"]), text(&it["value"]))).collect(),
        })
    }

    /// The container's command as a process of this machine, with words before it.
    fn command(&self, node: &Node, work: &Path, before: &[&str]) -> Command {
        let own = self.words.iter().map(String::as_str);
        let mut words = before.iter().copied().chain(own);
        let mut command = node.command(words.next().unwrap_or_default());
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = stand_in(work);
        command.env("PATH", format!("{}:{path}:/usr/local/nvidia/bin", bin.display()));
        command.args(words).envs(self.variables.clone());
        command
    }
}

/// The processes that this one has started, and those of these.
fn descendants(of: i32) -> Vec<e2e::kernel::processes::Pid> {
    let mut found = Vec::new();
    let mut open = vec![of];
    while let Some(pid) = open.pop() {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()) {
            open.push(child);
            found.extend(e2e::kernel::processes::Pid::from_raw(child));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_commands_get_the_folder_of_this_node() {
        let manifest =
            e2e::settings::sources().unwrap().join("deploy/tests/rendered").join(MANIFEST);
        let manifest = fs::read_to_string(manifest).unwrap();
        let daemon = crate::parts::first_of("DaemonSet", &manifest).unwrap();
        let pod = &daemon["spec"]["template"]["spec"];
        for (list, name) in [
            ("initContainers", "shared-memory"),
            ("containers", "mps-control-daemon"),
            ("containers", "drain"),
        ] {
            let container = Container::of(pod, list, name, Path::new("/w")).unwrap();
            assert_eq!(container.words[0], "sh");
            assert!(
                container.variables.iter().any(|(_, value)| value.starts_with("/w/mps")),
                "{name}"
            );
            assert!(
                container.variables.iter().all(|(_, value)| !value.contains(SHIPPED)),
                "{name}"
            );
        }
    }
}
