//! Owns the life of a cluster: machines first, then Kubernetes on them; attaching to a running one; removing it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::command::{command, run, start, wait_for};
use crate::images::Archive;
use crate::network;
use crate::node::Node;
use crate::node_init::MOUNT_POINTS;
use crate::progress::step;
use crate::settings::{MACHINES, Machine, Settings, UPTIME};
use crate::{binaries, cards, cgroups, configs, images, kubeadm, preflight, teardown};

/// A running cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    settings: Settings,
    bin: PathBuf,
    nodes: Vec<Node>,
}

impl Cluster {
    /// Brings up a cluster of two machines, after removing what a former run left.
    pub fn up(settings: Settings) -> Result<Self> {
        preflight::prepare()?;
        let bin = binaries::ensure(&settings)?;
        let archives = images::kubernetes(&settings, &bin)?;
        step("removing what a former run left");
        teardown::remove(&settings)?;
        step("starting two machines");
        let cluster = Self::describe(settings, bin);
        cluster.start_machines(images::pause_of(&archives)?)?;
        cluster.import(&archives)?;
        kubeadm::build(&cluster.settings, &cluster.nodes, &cluster.bin)?;
        Ok(cluster)
    }

    /// The cluster that is already up.
    pub fn attach(settings: Settings) -> Result<Self> {
        preflight::require_root()?;
        if !settings.kubeconfig().exists() {
            bail!("no cluster is up in {}: `make cluster` starts one", settings.state.display());
        }
        let bin = match &settings.ready_binaries {
            Some(ready) => ready.clone(),
            None => binaries::kept_in(&settings)?.join("bin"),
        };
        let cluster = Self::describe(settings, bin);
        cluster.nodes.iter().try_for_each(|node| node.init().map(drop))?;
        Ok(cluster)
    }

    /// Removes the cluster, or what is left of one.
    pub fn down(settings: &Settings) -> Result<()> {
        preflight::require_root()?;
        teardown::remove(settings)
    }

    fn describe(settings: Settings, bin: PathBuf) -> Self {
        let node =
            |machine: &Machine| Node::new(*machine, settings.machine(machine.name), bin.clone());
        let nodes = MACHINES.iter().map(node).collect();
        Self { settings, bin, nodes }
    }

    /// The machines, the control plane first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The machine of this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.name() == name)
            .with_context(|| format!("no machine is named {name:?}"))
    }

    /// Where everything lies.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The administrator's kubeconfig; the address in it is reachable from this host.
    pub fn kubeconfig(&self) -> PathBuf {
        self.settings.kubeconfig()
    }

    /// The folder of kubectl, ctr and the other programs of Kubernetes.
    pub fn binaries(&self) -> &Path {
        &self.bin
    }

    /// `kubectl` as the administrator.
    pub fn kubectl(&self) -> Command {
        let mut kubectl = command(self.bin.join("kubectl"));
        kubectl.env("KUBECONFIG", self.kubeconfig());
        kubectl.env("KUBECACHEDIR", self.settings.state.join("kubectl-cache"));
        kubectl
    }

    /// Runs kubectl with these words and returns what it printed.
    pub fn kubectl_run(&self, words: &[&str]) -> Result<String> {
        run(self.kubectl().args(words))
    }

    /// Loads images into every machine.
    pub fn import(&self, archives: &[Archive]) -> Result<()> {
        step(&format!("loading {} images into each machine", archives.len()));
        each(&self.nodes, |node| archives.iter().try_for_each(|archive| node.import(archive)))
    }

    fn start_machines(&self, pause_image: &str) -> Result<()> {
        fs::create_dir_all(&self.settings.state).context("cannot create the state folder")?;
        create_mount_points(&self.settings.state)?;
        network::create()?;
        for node in &self.nodes {
            prepare(node.machine(), &self.settings.machine(node.name()), pause_image)?;
            launch(&self.settings, node.machine(), &self.bin)?;
        }
        each(&self.nodes, |node| {
            wait_for("containerd to answer", Duration::from_secs(30), || {
                node.run(&["ctr", "-a", configs::SOCKET, "version"]).map(Some)
            })
            .with_context(|| {
                format!("{} did not start: see {}", node.name(), node.log("init").display())
            })
            .map(drop)
        })
    }
}

/// A bind needs something to bind over; what the host lacked is noted, so that `down` can remove it.
fn create_mount_points(state: &Path) -> Result<()> {
    let missing: Vec<&str> =
        MOUNT_POINTS.into_iter().filter(|path| !Path::new(path).exists()).collect();
    fs::write(state.join(teardown::CREATED), missing.join("\n"))?;
    missing.iter().try_for_each(|path| {
        fs::create_dir_all(path).with_context(|| format!("cannot create {path}"))
    })
}

fn prepare(machine: &Machine, folder: &Path, pause_image: &str) -> Result<()> {
    let own = MOUNT_POINTS.iter().map(|path| path.trim_start_matches('/'));
    for part in own.chain(["proc", "log", "control"]) {
        fs::create_dir_all(folder.join(part))?;
    }
    cgroups::create(&machine.cgroup())?;
    configs::write_runtime(machine, folder, pause_image)?;
    cards::create(machine, folder)
}

fn launch(settings: &Settings, machine: &Machine, bin: &Path) -> Result<()> {
    let folder = settings.machine(machine.name);
    let mut init = command("nsenter");
    init.arg(format!("--net=/run/netns/{}", machine.network()));
    init.args([
        "setsid",
        "unshare",
        "--mount",
        "--uts",
        "--pid",
        "--fork",
        "--propagation",
        "slave",
        "--time",
        "--boottime",
        &UPTIME.as_secs().to_string(),
        "--",
    ]);
    init.arg(&settings.program)
        .args(["node-init", machine.name, "--folder"])
        .arg(&folder)
        .arg("--bin")
        .arg(bin);
    start(&mut init, &folder.join("log/init.log"))
}

/// Does the same on every machine at once.
fn each(nodes: &[Node], work: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| work(node))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}
