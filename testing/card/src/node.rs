//! Owns the node: etcd, API server, scheduler, containerd, kubelet and Plimsoll's programs as processes of this
//! machine. Pods are on its network, so that it needs no CNI or kube-proxy.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::build::images::PAUSE;
use e2e::cluster::cgroups;
use e2e::command::{append, command, run, wait_for};
use rustix::mount::{MountFlags, mount, mount_bind};
use serde_json::{Value, json};

use crate::gpu::Gpu;
use crate::http;
use crate::parts::Parts;
use crate::place::{ADDRESS, GROUP, MOUNTED};

/// The Kubernetes node name.
pub(crate) const NODE: &str = "gpu-node";
/// How long a program may take to start on a busy machine.
pub(crate) const START: Duration = Duration::from_secs(60);

/// The exporter's page of metrics, and the device plugin's. As all ports here they are below those that the kernel
/// gives to clients, and none of a cluster's own.
pub(crate) const EXPORTER: &str = "10.88.255.1:29101";
pub(crate) const PLUGIN: &str = "127.0.0.1:29104";
const API_SERVER: &str = "https://127.0.0.1:26443";
const EXTENDER: &str = "http://127.0.0.1:29100";

/// The programs and their flags, with places that [`Node::words`] fills in.
const PROGRAMS: [(&str, &str); 11] = [
    (
        "etcd",
        "--data-dir={work}/etcd --unsafe-no-fsync --listen-client-urls=http://127.0.0.1:23790 \
         --advertise-client-urls=http://127.0.0.1:23790 --listen-peer-urls=http://127.0.0.1:23800 \
         --initial-advertise-peer-urls=http://127.0.0.1:23800 --initial-cluster=default=http://127.0.0.1:23800",
    ),
    // Nothing makes service accounts here.
    (
        "kube-apiserver",
        "--etcd-servers=http://127.0.0.1:23790 --bind-address=127.0.0.1 --secure-port=26443 --advertise-address={address} \
         --cert-dir={work}/keys --service-account-key-file={work}/keys/tokens.key \
         --service-account-signing-key-file={work}/keys/tokens.key --service-account-issuer=https://kubernetes.default.svc \
         --token-auth-file={work}/keys/tokens.csv --authorization-mode=Node,RBAC \
         --service-cluster-ip-range=10.96.0.0/16 --disable-admission-plugins=ServiceAccount",
    ),
    ("kubectl", "proxy --kubeconfig={work}/kubeconfig --unix-socket={work}/api.sock"),
    ("containerd", "--config {work}/containerd.toml"),
    (
        "kubelet",
        "--config={work}/kubelet.yaml --kubeconfig={work}/kubeconfig --hostname-override=gpu-node --node-ip={address} \
         --cgroup-root=/{group}",
    ),
    (
        "kube-scheduler",
        "--config={work}/scheduler.yaml --bind-address=127.0.0.1 --secure-port=29259",
    ),
    (
        "kube-controller-manager",
        "--kubeconfig={work}/kubeconfig --leader-elect=false --bind-address=127.0.0.1 --secure-port=29257 \
         --controllers=resourceclaim-controller",
    ),
    (
        "scheduler-extender",
        "--kubeconfig={work}/kubeconfig --policy-file={parts}/files/policy.yaml --listen-address=127.0.0.1:29100 \
         --admin-address=127.0.0.1:29102 --inspect-address=127.0.0.1:29107 --learned-use-url=http://127.0.0.1:29106 \
         --claims",
    ),
    (
        "annotator",
        "--kubeconfig={work}/kubeconfig --policy-file={parts}/files/policy.yaml --listen-address=127.0.0.1:29106 \
         --admin-address=127.0.0.1:29103 --exporter-port=29101",
    ),
    (
        "node-exporter-plus",
        "--web.listen-address={address}:29101 --admin-address=127.0.0.1:29105 --nvml-library={nvml} \
         --sample-interval=2s",
    ),
    // It looks more often than as shipped, and so do the exporter and the annotator: a run is short.
    (
        "gpushare-device-plugin",
        "--kubeconfig={work}/kubeconfig --node-name=gpu-node --admin-address=127.0.0.1:29104 --nvml-library={nvml} \
         --nvidia-cdi-dirs={work}/cdi,/var/run/cdi \
         --health-interval=1s --audit-interval=2s --claims",
    ),
];

/// The kubelet's configuration. It accepts nobody's requests.
const KUBELET: &str = r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: 29250
healthzPort: 29248
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://{work}/containerd.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: true
enforceNodeAllocatable: ["none"]
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
protectKernelDefaults: true
makeIPTablesUtilChains: false
enableControllerAttachDetach: false
resolvConf: ""
oomScoreAdj: 0
podLogsDir: {work}/pod-logs
volumePluginDir: {work}/volume-plugins
maxPods: 250
serializeImagePulls: false
nodeStatusUpdateFrequency: 1s
evictionHard: {memory.available: "1Mi"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
"#;

/// containerd's configuration.
const CONTAINERD: &str = r#"version = 3
root = "{work}/containerd"
state = "{work}/containerd-state"
[grpc]
address = "{work}/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "{snapshotter}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["{work}/cdi", "/var/run/cdi"]
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{work}/cni"]
conf_dir = "{work}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"#;

/// A runtime without a network is not ready. No pod has one of its own.
const NO_NETWORK: &str =
    r#"{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}"#;

/// Settings that a kubelet would change for the whole machine, with the values that it wants. Files of the node lie
/// over them.
const SYSCTLS: [(&str, &str); 3] =
    [("vm/overcommit_memory", "1"), ("kernel/panic", "10"), ("kernel/panic_on_oops", "1")];
/// `OVERLAYFS_SUPER_MAGIC`: on such a file system containerd can mount no overlay.
const OVERLAY: i64 = 0x794c_7630;

/// The running programs.
pub(crate) struct Node {
    parts: Parts,
    work: PathBuf,
    programs: BTreeMap<&'static str, Child>,
    /// The device plugin's flags beyond those of every start.
    pub(crate) plugin_flags: Vec<String>,
    library: PathBuf,
    snapshotter: &'static str,
}

impl Node {
    /// Joins the control groups, and mounts the node's folders over the machine's. First in the namespace.
    pub(crate) fn prepare(parts: &Parts, work: &Path) -> Result<Self> {
        cgroups::join(&format!("/{GROUP}/services"), rustix::process::getpid())?;
        for folder in ["cdi", "logs", "pod-logs", "keys"] {
            fs::create_dir_all(work.join(folder))?;
        }
        for path in MOUNTED {
            let own = work.join("mounted").join(path.trim_start_matches('/'));
            fs::create_dir_all(&own)?;
            mount_bind(&own, path).with_context(|| format!("cannot mount over {path}"))?;
        }
        for (name, value) in SYSCTLS {
            let own = work.join("sysctl").join(name);
            fs::create_dir_all(own.parent().unwrap_or(work))?;
            fs::write(&own, format!("{value}\n"))?;
            mount_bind(&own, Path::new("/proc/sys").join(name))?;
        }
        // A program that mounts for the node, as MPS's does, does so here alone.
        fs::create_dir_all(work.join("mps"))?;
        mount("tmpfs", work.join("mps"), "tmpfs", MountFlags::empty(), None)
            .context("cannot mount a folder for MPS")?;
        let on_overlay = rustix::fs::statfs(work)?.f_type as i64 == OVERLAY;
        Ok(Self {
            parts: parts.clone(),
            work: work.to_owned(),
            programs: BTreeMap::new(),
            plugin_flags: Vec::new(),
            library: PathBuf::new(),
            snapshotter: if on_overlay { "native" } else { "overlayfs" },
        })
    }

    /// Starts everything, and waits until the node is ready.
    pub(crate) fn start(&mut self, gpu: &Gpu) -> Result<()> {
        self.library = gpu.library.clone();
        self.write_files()?;
        for program in ["etcd", "kube-apiserver", "containerd"] {
            self.launch(program)?;
        }
        let socket = self.work.join("containerd.sock");
        wait_for("containerd", START, || Ok(socket.exists().then_some(())))?;
        for image in ["pause", "client"] {
            let archive = self.parts.folder.join(format!("images/{image}.tar"));
            let mut ctr = command(self.parts.bin("ctr"));
            ctr.arg("-a").arg(&socket).args(["-n", "k8s.io", "images", "import", "--local"]);
            run(ctr.arg(archive))?;
        }
        self.launch("kubectl")?;
        self.wait("the API server", |node| {
            let ready = node.call("GET", "/readyz", None)?;
            Ok(ready.to_string().contains("ok"))
        })?;
        for program in [
            "kubelet",
            "kube-scheduler",
            "kube-controller-manager",
            "node-exporter-plus",
            "scheduler-extender",
            "annotator",
        ] {
            self.launch(program)?;
        }
        let path = format!("/api/v1/nodes/{NODE}");
        self.wait("the node to be ready", |node| {
            let found = node.call("GET", &path, None)?;
            let mut conditions = found["status"]["conditions"].as_array().into_iter().flatten();
            Ok(conditions.any(|it| it["type"] == "Ready" && it["status"] == "True"))
        })?;
        self.call("PATCH", &path, Some(&json!({"metadata": {"labels": {"gpushare": "true"}}})))?;
        self.launch("gpushare-device-plugin")
    }

    /// Waits until `holds`; an error means not yet. The error of a wait has the end of each log.
    fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        wait_for(what, START, || {
            for (name, child) in &mut self.programs {
                if let Some(status) = child.try_wait()? {
                    bail!("{name} ended with {status}: see {}", self.work.join("logs").display());
                }
            }
            Ok(holds(self)?.then_some(()))
        })
    }

    /// Kills a program with SIGKILL and starts it again.
    pub(crate) fn kill_and_start(&mut self, program: &'static str) -> Result<()> {
        self.kill(program)?;
        self.launch(program)
    }

    pub(crate) fn kill(&mut self, program: &str) -> Result<()> {
        let mut child =
            self.programs.remove(program).with_context(|| format!("{program} does not run"))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    pub(crate) fn launch(&mut self, program: &'static str) -> Result<()> {
        let words = self.words(program)?;
        let mut child = self.command(self.parts.bin(program));
        if program == "containerd" {
            // runc's.
            child.env("LD_LIBRARY_PATH", self.parts.folder.join("lib"));
        }
        self.spawn(program, child.args(words))
            .map(|child| drop(self.programs.insert(program, child)))
    }

    /// A command with the parts' programs on its path, in the node's folder, and without this process's settings.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut own = command(program);
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.parts.folder.join("bin");
        own.env("PATH", format!("{}:{path}:/usr/local/nvidia/bin", bin.display()));
        own.current_dir(&self.work);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PLIMSOLL_") {
                own.env_remove(name);
            }
        }
        own
    }

    /// Starts a command whose output goes to a log of this name.
    pub(crate) fn spawn(&self, name: &str, command: &mut Command) -> Result<Child> {
        let log = append(&self.log(name))?;
        command.stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {name}"))
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.work.join("logs").join(format!("{name}.log"))
    }

    /// Calls the API server. The error of a refusal has its message.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        match self.try_call(method, path, body)? {
            (200..=299, value) => Ok(value),
            (status, value) => bail!("{method} {path}: {status} {}", value["message"]),
        }
    }

    /// Calls the API server, and returns the status with the answer: JSON, or a text as one.
    pub(crate) fn try_call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let answer = http::unix(&self.work.join("api.sock"), method, path, body)?;
        let value = serde_json::from_str(&answer.body).unwrap_or(Value::String(answer.body));
        Ok((answer.status, value))
    }

    fn words(&self, program: &str) -> Result<Vec<String>> {
        let found = PROGRAMS.iter().find(|(name, _)| *name == program);
        let (_, flags) = found.with_context(|| format!("{program} is none of the programs"))?;
        // Split before they are filled in: a path may hold spaces.
        let mut words = flags.split_whitespace().map(|word| self.filled(word)).collect::<Vec<_>>();
        if program == "gpushare-device-plugin" {
            words.extend(self.plugin_flags.clone());
        }
        Ok(words)
    }

    fn filled(&self, text: &str) -> String {
        text.replace("{work}", &self.work.display().to_string())
            .replace("{parts}", &self.parts.folder.display().to_string())
            .replace("{nvml}", &self.library.display().to_string())
            .replace("{address}", ADDRESS)
            .replace("{group}", GROUP)
            .replace("{pause}", PAUSE)
            .replace("{snapshotter}", self.snapshotter)
    }

    fn write_files(&self) -> Result<()> {
        let work = &self.work;
        let token = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let token = token.trim();
        fs::copy(self.parts.folder.join("files/tokens.key"), work.join("keys/tokens.key"))?;
        let admin = format!("{token},admin,admin,\"system:masters\"\n");
        fs::write(work.join("keys/tokens.csv"), admin)?;
        let server = json!({"server": API_SERVER, "insecure-skip-tls-verify": true});
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "node",
            "clusters": [{"name": "node", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": "admin"}}],
        });
        let scheduler = scheduler(
            self.parts.yaml("kube-scheduler-config.yaml", "KubeSchedulerConfiguration")?,
            work,
        )?;
        fs::create_dir_all(work.join("cni"))?;
        for (name, text) in [
            ("kubeconfig", kubeconfig.to_string()),
            ("scheduler.yaml", scheduler.to_string()),
            ("kubelet.yaml", self.filled(KUBELET)),
            ("containerd.toml", self.filled(CONTAINERD)),
            ("cni/10-none.conflist", NO_NETWORK.to_owned()),
        ] {
            fs::write(work.join(name), text)?;
        }
        Ok(())
    }
}

/// The shipped configuration of kube-scheduler, with the addresses of this machine.
fn scheduler(mut shipped: Value, work: &Path) -> Result<Value> {
    shipped["clientConnection"]["kubeconfig"] = json!(work.join("kubeconfig"));
    shipped["leaderElection"]["leaderElect"] = json!(false);
    let extenders = shipped["extenders"].as_array_mut().context("no extenders are shipped")?;
    ensure!(extenders.len() == 2, "{} extender entries are shipped, not 2", extenders.len());
    for extender in extenders {
        let url = extender["urlPrefix"].as_str().context("an extender without an address")?;
        let entry = url.rsplit('/').next().unwrap_or_default();
        extender["urlPrefix"] = json!(format!("{EXTENDER}/{entry}"));
    }
    Ok(shipped)
}
