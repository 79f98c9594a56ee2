//! Owns the life of a cluster: nodes first, then Kubernetes on them; attaching to a running one; removing it.

pub mod cgroups;
pub mod chart;
mod configs;
pub mod install;
mod kubeadm;
mod network;
mod preflight;
mod teardown;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::build::binaries;
use crate::build::go_program::go_program;
use crate::build::images::{self, Archive};
use crate::build::release::{self, Release};
use crate::command::{command, run, start, wait_for};
use crate::node::init::MOUNT_POINTS;
use crate::node::spec::{EXTRA_UPTIME, NODES, NodeSpec};
use crate::node::{CONTAINERD_SOCKET, Node, gpus};
use crate::progress::step;
use crate::settings::Settings;

/// The file in the state folder that holds the release of the running cluster.
const RELEASE: &str = "release";
/// The link in the state folder to the folder of the Kubernetes programs.
const BINARIES: &str = "bin";

/// A running cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    settings: Settings,
    release: Release,
    bin: PathBuf,
    nodes: Vec<Node>,
}

impl Cluster {
    /// Starts a cluster of the wanted release, after removing what a former run left.
    pub fn up(settings: Settings) -> Result<Self> {
        let release = wanted_release(&settings)?;
        preflight::prepare(&settings)?;
        let bin = binaries::ensure(&settings, release)?;
        step("removing what a former run left");
        teardown::remove(&settings)?;
        fs::create_dir_all(&settings.state).context("cannot create the state folder")?;
        symlink(&bin, settings.state.join(BINARIES))?;
        fs::write(settings.state.join(RELEASE), release.to_string())?;
        let archives = images::kubernetes(&settings, release, &bin)?;
        step(&format!("starting two nodes with Kubernetes {release}"));
        let cluster = Self::describe(settings, release, bin);
        cluster.start_nodes(images::sandbox_of(&archives)?)?;
        cluster.import(&archives)?;
        kubeadm::build(&cluster)?;
        Ok(cluster)
    }

    /// Builds what [`Cluster::up`] needs of the wanted release and starts nothing. Returns the folder of the programs,
    /// and the images.
    pub fn build(settings: &Settings) -> Result<(PathBuf, Vec<Archive>)> {
        let release = wanted_release(settings)?;
        preflight::prepare(settings)?;
        let bin = binaries::ensure(settings, release)?;
        let archives = images::kubernetes(settings, release, &bin)?;
        step(&format!("the programs of {release} lie in {}", bin.display()));
        Ok((bin, archives))
    }

    /// The cluster that is already up. An error where there is none, or one of another release than the wanted one.
    pub fn attach(settings: Settings) -> Result<Self> {
        let folder = settings.state.display().to_string();
        Self::running(settings)?
            .with_context(|| format!("no cluster is up in {folder}: `make cluster` starts one"))
    }

    /// The cluster that is already up; `None` where there is none, or only what an interrupted run left. An error where
    /// it is of another release than the wanted one.
    pub fn running(settings: Settings) -> Result<Option<Self>> {
        preflight::require_root()?;
        let (Ok(name), Ok(bin)) = (
            fs::read_to_string(settings.state.join(RELEASE)),
            fs::canonicalize(settings.state.join(BINARIES)),
        ) else {
            return Ok(None);
        };
        let running = release::parse(&name).with_context(|| format!("{name:?} is no release"))?;
        let wanted =
            settings.kubernetes.is_some().then(|| wanted_release(&settings)).transpose()?;
        let cluster = Self::describe(settings, running, bin);
        let complete = cluster.settings.kubeconfig().exists();
        if !complete || cluster.nodes.iter().any(|node| node.init().is_err()) {
            return Ok(None);
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != running) {
            bail!(
                "the running cluster is of {running}, not {wanted}: remove it with `make cluster-down` first"
            );
        }
        Ok(Some(cluster))
    }

    /// Removes the cluster, or what is left of one.
    pub fn down(settings: &Settings) -> Result<()> {
        preflight::require_root()?;
        teardown::remove(settings)
    }

    fn describe(settings: Settings, release: Release, bin: PathBuf) -> Self {
        let nodes = NODES
            .iter()
            .map(|spec| Node::new(*spec, settings.node(spec.name), bin.clone()))
            .collect();
        Self { settings, release, bin, nodes }
    }

    /// The Kubernetes release that the cluster runs.
    pub fn release(&self) -> Release {
        self.release
    }

    /// The nodes, the control plane first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|node| node.name() == name)
            .with_context(|| format!("no node is named {name:?}"))
    }

    /// Where everything lies, and what the caller chose.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The administrator's kubeconfig. The address in it is reachable from this host.
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

    /// Runs kubectl with these arguments and returns its standard output.
    pub fn kubectl_run(&self, words: &[&str]) -> Result<String> {
        run(self.kubectl().args(words))
    }

    /// Applies what Helm renders with values of the tests, a folder of `testing/e2e/deploy`.
    pub fn apply(&self, values: &str) -> Result<()> {
        self.kubectl_run(&["apply", "-f", &self.rendered(values)?]).map(drop)
    }

    /// Renders the chart with values of the tests, as docs/install.md does for kubectl. Returns the file.
    pub fn rendered(&self, values: &str) -> Result<String> {
        let helm = go_program(&self.settings, chart::HELM)?;
        let mut helm = command(helm);
        let version = self.release.to_string();
        helm.args(["template", chart::RELEASE]).arg(self.settings.sources.join(chart::CHART));
        helm.args(["--namespace", install::NAMESPACE, "--kube-version", &version]);
        helm.args(["--set=namespace.create=true"]);
        helm.args(chart::values(&self.settings.sources, values));
        helm.env("HOME", self.settings.state.join("helm"));
        let file = self.settings.state.join(format!("{values}.yaml"));
        fs::write(&file, run(&mut helm)?)?;
        Ok(file.display().to_string())
    }

    /// Loads images into every node.
    pub fn import(&self, archives: &[Archive]) -> Result<()> {
        step(&format!("loading {} images into each node", archives.len()));
        each(&self.nodes, |node| archives.iter().try_for_each(|archive| node.import(archive)))
    }

    fn start_nodes(&self, sandbox: &str) -> Result<()> {
        create_mount_points(&self.settings.state)?;
        network::create()?;
        for node in &self.nodes {
            prepare(node.spec(), &self.settings.node(node.name()), sandbox)?;
            launch(&self.settings, node.spec(), &self.bin)?;
        }
        each(&self.nodes, |node| {
            wait_for("containerd to answer", Duration::from_secs(300), || {
                node.run(&["ctr", "-a", CONTAINERD_SOCKET, "version"]).map(Some)
            })
            .with_context(|| {
                format!("{} did not start: see {}", node.name(), node.log("init").display())
            })
            .map(drop)
        })
    }
}

/// Creates the folders that nodes mount theirs over, and records those that the host lacked, for `down` to remove.
fn create_mount_points(state: &Path) -> Result<()> {
    let missing: Vec<&str> =
        MOUNT_POINTS.into_iter().filter(|path| !Path::new(path).exists()).collect();
    fs::write(state.join(teardown::CREATED), missing.join("\n"))?;
    missing.iter().try_for_each(|path| {
        fs::create_dir_all(path).with_context(|| format!("cannot create {path}"))
    })
}

fn prepare(node: &NodeSpec, folder: &Path, sandbox: &str) -> Result<()> {
    let own = MOUNT_POINTS.iter().map(|path| path.trim_start_matches('/'));
    for part in own.chain(["proc", "log", "control"]) {
        fs::create_dir_all(folder.join(part))?;
    }
    cgroups::create(&node.cgroup())?;
    configs::write_runtime(node, folder, sandbox)?;
    gpus::create(node, folder)
}

/// Starts the node's process 1 in namespaces of its own.
fn launch(settings: &Settings, node: &NodeSpec, bin: &Path) -> Result<()> {
    let folder = settings.node(node.name);
    let mut init = command("nsenter");
    init.arg(format!("--net=/run/netns/{}", node.network()));
    init.args([
        // Programs keep the signals that their parent ignores, and nohup ignores SIGHUP.
        "env",
        "--default-signal",
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
        &EXTRA_UPTIME.as_secs().to_string(),
        "--",
    ]);
    init.arg(&settings.program)
        .args(["node-init", node.name, "--folder"])
        .arg(&folder)
        .arg("--bin")
        .arg(bin);
    start(&mut init, &folder.join("log/init.log"))
}

/// Does the same on all nodes at once.
fn each(nodes: &[Node], work: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| work(node))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// The release of the ready binaries, or the pinned one that the caller chose, by default the newest.
fn wanted_release(settings: &Settings) -> Result<Release> {
    let wanted = settings.kubernetes.as_deref();
    match &settings.ready_binaries {
        None => Release::find(&settings.sources, wanted.unwrap_or("newest")),
        Some(folder) => {
            let ready = Release::of_binaries(folder)?;
            ensure!(
                wanted.is_none_or(|wanted| wanted == ready.to_string()),
                "the programs in {} are of {ready}, which is not KUBERNETES={}",
                folder.display(),
                wanted.unwrap_or_default()
            );
            Ok(ready)
        }
    }
}
