//! Owns one running node, controlled from this host: commands inside it, its services, its load and its GPUs.

pub mod gpus;
pub mod init;
pub mod scripted_proc;
pub mod spec;

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::build::images::Archive;
use crate::command::{command, run, wait_for};
use crate::kernel::processes::{self, Pid};
use init::{BOOT, SERVICES, control_file, unix_time};
use scripted_proc::Load;
use spec::NodeSpec;

/// Where containerd listens, inside a node.
pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// A node of the running cluster.
#[derive(Debug, Clone)]
pub struct Node {
    spec: NodeSpec,
    folder: PathBuf,
    bin: PathBuf,
}

impl Node {
    /// The node whose files lie in `folder`, with the Kubernetes programs in `bin`.
    pub fn new(spec: NodeSpec, folder: PathBuf, bin: PathBuf) -> Self {
        Self { spec, folder, bin }
    }

    /// The Kubernetes node name.
    pub fn name(&self) -> &'static str {
        self.spec.name
    }

    /// The node's fixed properties, such as its address.
    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// The GPUs of this node, in the driver's order.
    pub fn gpus(&self) -> Vec<gpus::Gpu> {
        gpus::of(&self.spec)
    }

    /// The path on this host of a path inside the node. Holds for [`init::MOUNT_POINTS`] and what lies below them.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.folder.join(inside.trim_start_matches('/'))
    }

    /// The log of `containerd`, `kubelet` or `kube-proxy`.
    pub fn log(&self, service: &str) -> PathBuf {
        self.folder.join("log").join(format!("{service}.log"))
    }

    /// The node's process 1, or an error where the node does not run.
    pub fn init(&self) -> Result<Pid> {
        let file = control_file(&self.folder, "pid");
        let number = read_number(&file).with_context(|| format!("{} does not run", self.name()))?;
        let pid = Pid::from_raw(number).context("no process has the number 0")?;
        if !processes::alive(pid) {
            bail!("{} does not run any more: see {}", self.name(), self.log("init").display());
        }
        Ok(pid)
    }

    /// A command inside the node's namespaces: mounts, network, host name, processes and time since boot.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut inside = command("nsenter");
        inside.args([
            "-t",
            &self.init()?.as_raw_nonzero().to_string(),
            "-m",
            "-n",
            "-u",
            "-p",
            "-T",
            "--",
        ]);
        let path = std::env::var("PATH").unwrap_or_default();
        inside.env("PATH", format!("{}:{path}", self.bin.display())).arg(program);
        inside.env("KUBECACHEDIR", self.folder.join("kubectl-cache"));
        Ok(inside)
    }

    /// Runs a command inside the node and returns its standard output.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let (program, arguments) = words.split_first().context("no command given")?;
        run(self.command(program)?.args(arguments))
    }

    /// Loads an image into the node's containerd.
    pub fn import(&self, archive: &Archive) -> Result<()> {
        let mut ctr = self.command("ctr")?;
        ctr.args(["-a", CONTAINERD_SOCKET, "-n", "k8s.io", "images", "import", "--local"])
            .arg(&archive.file);
        run(&mut ctr)
            .map(drop)
            .with_context(|| format!("cannot load {} into {}", archive.name, self.name()))
    }

    /// Gives an image in the node's containerd a second name.
    pub fn name_image_again(&self, image: &str, other: &str) -> Result<()> {
        let images = ["ctr", "-a", CONTAINERD_SOCKET, "-n", "k8s.io", "images"];
        self.run(&[&images[..], &["tag", "--force", image, other]].concat()).map(drop)
    }

    /// The running process of `containerd`, `kubelet` or `kube-proxy`; `None` while it is down.
    pub fn service(&self, service: &str) -> Result<Option<Pid>> {
        if !SERVICES.contains(&service) {
            bail!("{service:?} is no service of a node: {}", SERVICES.join(", "));
        }
        match read_number(&control_file(&self.folder, &format!("pid-{service}"))) {
            Some(inner) => processes::in_namespace(self.init()?, inner),
            None => Ok(None),
        }
    }

    /// Kills a service and keeps it down until [`Node::release`].
    pub fn hold(&self, service: &str) -> Result<()> {
        fs::write(self.hold_file(service), "")?;
        // It may end by itself meanwhile.
        processes::kill_all(self.service(service)?.as_slice())?;
        let limit = Duration::from_secs(120);
        wait_for("a killed service to be gone", limit, || {
            Ok(self.service(service)?.is_none().then_some(()))
        })
    }

    /// Lets a service start again that [`Node::hold`] keeps down.
    pub fn release(&self, service: &str) -> Result<()> {
        fs::remove_file(self.hold_file(service))
            .with_context(|| format!("{service} was not held on {}", self.name()))
    }

    fn hold_file(&self, service: &str) -> PathBuf {
        control_file(&self.folder, &format!("hold-{service}"))
    }

    /// From now on the node's `/proc` counters express this load.
    pub fn set_load(&self, load: Load) -> Result<()> {
        load.write(&control_file(&self.folder, "load"))
    }

    /// From now on `/proc/uptime` and `/proc/stat` of the node show a boot at this moment. Processes keep running.
    pub fn pretend_boot(&self) -> Result<()> {
        fs::write(control_file(&self.folder, BOOT), unix_time().to_string())
            .context("cannot set the boot time")
    }

    /// Takes [`Node::pretend_boot`] back.
    pub fn forget_boot(&self) -> Result<()> {
        match fs::remove_file(control_file(&self.folder, BOOT)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).context("cannot reset the boot time")
            }
            _ => Ok(()),
        }
    }

    /// Changes what the stand-in driver reports, for instance a GPU's health.
    pub fn edit_driver(&self, edit: impl FnOnce(&mut Value)) -> Result<()> {
        let mut script = gpus::read_script(&self.folder)?;
        edit(&mut script);
        gpus::write_script(&self.folder, &script)
    }

    /// Has the node limit containers' GPU memory, as far as the device plugin can tell, or not.
    pub fn set_memory_limits(&self, can: bool) -> Result<()> {
        gpus::set_memory_limits(&self.spec, &self.folder, can)
    }

    /// Has NVIDIA's CDI specification on the node, or not. Without it the container runtime can start no GPU pod.
    pub fn set_cdi(&self, present: bool) -> Result<()> {
        gpus::set_cdi(&self.spec, &self.folder, present)
    }

    /// What the hook that limits memory was called with for a container: its arguments, then the variables of the
    /// limit.
    pub fn hook_calls(&self, container: &str) -> Result<Vec<String>> {
        gpus::hook_calls(&self.folder, container)
    }

    /// The OCI specification that runc got for a container.
    pub fn oci_spec(&self, container: &str) -> Result<Value> {
        let folder = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
        let text = self.run(&["cat", &format!("{folder}/{container}/config.json")])?;
        serde_json::from_str(&text).context("the OCI specification is no JSON")
    }

    /// Sets the memory of each GPU, in MiB. A device plugin that runs keeps the sizes that it knows.
    pub fn set_gpu_memory(&self, mib: u64) -> Result<()> {
        self.edit_driver(|script| {
            for gpu in script["cards"].as_array_mut().into_iter().flatten() {
                gpu["memoryMiB"] = mib.into();
            }
        })
    }

    /// Sets a GPU's health. The driver reports the change as an event.
    pub fn set_gpu_health(&self, uuid: &str, healthy: bool) -> Result<()> {
        self.edit_driver(|script| {
            let gpus = script["cards"].as_array_mut().into_iter().flatten();
            for gpu in gpus.filter(|gpu| gpu["uuid"] == uuid) {
                gpu["healthy"] = Value::Bool(healthy);
            }
        })
    }

    /// Has CUDA refuse calls on a GPU with this error, or none of them.
    pub fn set_gpu_cuda(&self, uuid: &str, error: Option<i32>) -> Result<()> {
        self.edit_driver(|script| {
            let gpus = script["cards"].as_array_mut().into_iter().flatten();
            for gpu in gpus.filter(|gpu| gpu["uuid"] == uuid) {
                gpu["cuda"] =
                    error.map_or(Value::Null, |code| json!({"call": "cuInit", "code": code}));
            }
        })
    }
}

fn read_number(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
