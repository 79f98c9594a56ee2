//! A node in a test: the API stand-in, the kubelet stand-in, GPUs by the NVML stand-in, and the whole
//! plugin.

pub mod admission;
mod kubelet;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use daemon::Context;
use gpushare_device_plugin::{app, args::Args};
use kubelet_api::v1beta1::ContainerAllocateResponse;
use serde_json::{Value, json};
use sim::kubelet::{AdmitError, ContainerSpec, Part, PodSpec};
use sim::{Fault, NODES, PODS, PodBuilder, Sim, Verb, WRITTEN_EVENTS};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use kubelet::{Kubelet, PATIENCE};

pub const RESOURCE: &str = "aliyun.com/gpu-mem";
pub const CLAIM: &str = "plimsoll.dev/gpu-claim";
pub const A: &str = "GPU-aaaaaaaa-1111-2222-3333-444444444444";
pub const B: &str = "GPU-bbbbbbbb-1111-2222-3333-444444444444";
pub const C: &str = "GPU-cccccccc-1111-2222-3333-444444444444";
pub const NODE: &str = "node-1";
/// The device nodes of all GPUs that CUDA needs.
pub const CUDA_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];

/// Waits until this holds.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    let reached = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, reached).await.expect(what);
}

/// A node. Dropping it ends the plugin and the stand-ins.
pub struct Rig {
    pub sim: Sim,
    pub kubelet: Kubelet,
    pub dir: tempfile::TempDir,
    pub unit_mib: u64,
    /// Further flags.
    pub flags: Vec<String>,
    context: Context,
    plugin: JoinHandle<anyhow::Result<()>>,
}

impl Rig {
    /// A node with these GPUs (UUID, units), its plugin registered.
    pub async fn new(gpus: &[(&str, u64)]) -> Self {
        let rig = Self::unregistered(gpus).await;
        rig.kubelet.registered(1).await;
        rig.kubelet.devices("devices", |devices| !devices.is_empty()).await;
        rig
    }

    /// As [`Rig::new`], without waiting for the registration.
    pub async fn unregistered(gpus: &[(&str, u64)]) -> Self {
        let mut rig = Self::without_plugin(gpus).await;
        rig.begin_plugin();
        rig
    }

    /// The node and its kubelet alone.
    pub async fn without_plugin(gpus: &[(&str, u64)]) -> Self {
        let sim = Sim::start().await.unwrap();
        sim.put(sim::node(NODE).address("127.0.0.1"));
        let dir = tempfile::tempdir().unwrap();
        sim.write_kubeconfig(&dir.path().join("kubeconfig")).unwrap();
        fs::copy(standin(), dir.path().join("libnvidia-ml.so.1")).unwrap();
        let kubelet = Kubelet::start(&dir.path().join("var/lib/kubelet"), RESOURCE);
        let rig = Self {
            sim,
            kubelet,
            dir,
            unit_mib: 1024,
            flags: Vec::new(),
            context: Context::new(daemon::program!()),
            plugin: tokio::spawn(async { Ok(()) }),
        };
        let mut scripted = Vec::new();
        for (uuid, units) in gpus {
            scripted.push(json!({"uuid": uuid, "memoryMiB": units * 1024}));
        }
        rig.script(&scripted);
        rig
    }

    /// Replaces the GPUs that the NVML stand-in shows.
    pub fn script(&self, gpus: &[Value]) {
        self.write_script(&json!({ "cards": gpus }));
    }

    /// Replaces the GPUs, all with 4 GiB, under this version of the driver.
    pub fn script_driver(&self, driver: &str, uuids: &[&str]) {
        let gpus: Vec<Value> =
            uuids.iter().map(|uuid| json!({"uuid": uuid, "memoryMiB": 4096})).collect();
        self.write_script(&json!({ "driver": driver, "cards": gpus }));
    }

    /// Replaces all that the NVML stand-in shows.
    pub fn write_script(&self, script: &Value) {
        let fresh = self.dir.path().join("fresh");
        fs::write(&fresh, script.to_string()).unwrap();
        fs::rename(fresh, self.dir.path().join("nvml-script.json")).unwrap();
    }

    /// Writes a file of the node, with its folders.
    pub fn host_file(&self, path: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    /// Makes a pipe of the node, with its folders, and returns its reader.
    pub fn host_pipe(&self, path: &str) -> fs::File {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        fs::File::options().read(true).write(true).open(path).unwrap()
    }

    /// Makes the control group of a pod, with processes or without.
    pub fn processes(&self, uid: &str, populated: bool) {
        self.host_file("sys/fs/cgroup/cgroup.controllers");
        let folder = self.dir.path().join(format!("sys/fs/cgroup/kubepods/pod{uid}"));
        fs::create_dir_all(&folder).unwrap();
        let text = format!("populated {}\nfrozen 0\n", u8::from(populated));
        fs::write(folder.join("cgroup.events"), text).unwrap();
    }

    /// Removes the control group of a pod, as the kubelet does once its containers have stopped.
    pub fn no_group(&self, uid: &str) {
        fs::remove_dir_all(self.dir.path().join(format!("sys/fs/cgroup/kubepods/pod{uid}")))
            .unwrap();
    }

    /// Cuts the kubelet's checkpoint off in the middle, and returns what it was.
    pub fn cut_off_checkpoint(&self) -> String {
        let text = fs::read_to_string(self.checkpoint()).unwrap();
        self.write_checkpoint(&text[..text.len() / 2]);
        text
    }

    /// Replaces the kubelet's checkpoint.
    pub fn write_checkpoint(&self, text: &str) {
        fs::write(self.checkpoint(), text).unwrap();
    }

    fn checkpoint(&self) -> PathBuf {
        self.kubelet.plugin_dir().join("kubelet_internal_checkpoint")
    }

    /// Our CDI specification.
    pub fn own_spec(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.own_spec_path()).unwrap()).unwrap()
    }

    /// Deletes our CDI specification.
    pub fn lose_own_spec(&self) {
        fs::remove_file(self.own_spec_path()).unwrap();
    }

    /// Deletes our CDI specification, and waits until it is there again.
    pub async fn delete_own_spec(&self) {
        self.lose_own_spec();
        until("our specification again", || self.own_spec_path().exists()).await;
    }

    /// Waits until our CDI specification has exactly these limits.
    pub async fn limits(&self, expected: &[&str]) {
        let reached = async {
            while self.limits_now() != expected {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = timeout(PATIENCE, reached).await;
        assert!(waited.is_ok(), "expected {expected:?}, found {:?}", self.limits_now());
    }

    fn limits_now(&self) -> Vec<String> {
        let spec = self.own_spec();
        let names = spec["devices"].as_array().unwrap().iter().map(|device| &device["name"]);
        let limits = names.filter_map(Value::as_str).filter(|name| !name.starts_with("GPU-"));
        limits.map(str::to_owned).collect()
    }

    fn own_spec_path(&self) -> PathBuf {
        self.dir.path().join("var/run/cdi/plimsoll.dev-gpu-mem.json")
    }

    /// Waits until the Node says how containers are held to their share.
    pub async fn isolation(&self, mode: &str) {
        let what = format!("isolation {mode} on the node");
        let reached = self.sim.until(&what, |sim| {
            let node = sim.get(NODES, "", NODE)?;
            (node["metadata"]["annotations"]["plimsoll.dev/gpu-isolation"] == mode).then_some(())
        });
        reached.await.unwrap();
    }

    /// Writes NVIDIA's CDI specification.
    pub fn nvidia_spec(&self, spec: &Value) {
        let folder = self.dir.path().join("etc-cdi");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("nvidia.json"), spec.to_string()).unwrap();
    }

    /// An event of this reason, once it is written.
    pub async fn event(&self, reason: &str) -> Value {
        let found = self.sim.until(reason, |sim| {
            let mut events = sim.list(WRITTEN_EVENTS).into_iter();
            events.find(|event| event["reason"] == reason)
        });
        found.await.unwrap()
    }

    /// Writes NVIDIA's CDI specification with a device for each of these GPUs.
    pub fn nvidia_gpus(&self, gpus: &[&str]) {
        self.nvidia_gpus_with(gpus, &CUDA_NODES);
    }

    /// Writes NVIDIA's CDI specification with a device for each of these GPUs, and these nodes for all of them.
    pub fn nvidia_gpus_with(&self, gpus: &[&str], of_all: &[&str]) {
        let nodes = json!({"deviceNodes": [{"path": "/dev/nvidia0"}]});
        let devices: Vec<Value> =
            gpus.iter().map(|uuid| json!({"name": uuid, "containerEdits": nodes})).collect();
        let of_all: Vec<Value> = of_all.iter().map(|path| json!({"path": path})).collect();
        self.nvidia_spec(&json!({
            "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices,
            "containerEdits": {"deviceNodes": of_all},
        }));
    }

    /// Waits until a metric has this value.
    pub async fn until_metric(&self, name: &str, value: f64) {
        self.metric_that(name, |now| now == value).await;
    }

    /// Waits until a metric has at least this value.
    pub async fn metric_at_least(&self, name: &str, value: f64) {
        self.metric_that(name, |now| now >= value).await;
    }

    async fn metric_that(&self, name: &str, holds: impl Fn(f64) -> bool) {
        until(name, || holds(self.metric(name))).await;
    }

    pub fn args(&self) -> Args {
        Args::parse_from(
            ["gpushare-device-plugin".to_owned()].into_iter().chain(self.flags_of_process()),
        )
    }

    /// The flags of the plugin as a process of its own.
    pub fn flags_of_process(&self) -> Vec<String> {
        let dir = self.dir.path().display();
        let flags = [
            format!("--node-name={NODE}"),
            format!("--kubeconfig={dir}/kubeconfig"),
            format!("--host-root={dir}"),
            format!("--nvidia-cdi-dirs={dir}/etc-cdi,{dir}/var/run/cdi"),
            format!("--nvml-library={dir}/libnvidia-ml.so.1"),
            "--health-interval=0.1s".to_owned(),
            format!("--unit-mib={}", self.unit_mib),
            format!("--mps-dir={dir}/mps"),
        ];
        flags.into_iter().chain(self.flags.clone()).collect()
    }

    pub fn begin_plugin(&mut self) {
        self.context = Context::new(daemon::program!());
        let context = self.context.clone();
        let args = self.args();
        self.plugin = tokio::spawn(async move {
            daemon::supervise(&context, app::run(args, context.clone()), daemon::GRACE).await
        });
    }

    /// What a boot of the node takes away: the GPUs of earlier processes.
    pub fn boot(&self) {
        fs::remove_file(self.dir.path().join("run/plimsoll-gpu/cards.json")).unwrap();
    }

    /// Stops the plugin and starts a new one.
    pub async fn restart_plugin(&mut self) {
        self.stop_plugin().await;
        self.begin_plugin();
    }

    /// Starts a new plugin with further flags, and waits until the kubelet has its devices.
    pub async fn restart_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.restart_plugin().await;
        self.kubelet.registered(2).await;
        self.kubelet
            .devices("devices again", |devices| devices.values().any(|healthy| *healthy))
            .await;
    }

    pub async fn stop_plugin(&mut self) {
        self.end_plugin();
        self.plugin_ended().await;
    }

    /// Asks the plugin to end, as SIGTERM does.
    pub fn end_plugin(&self) {
        self.context.shutdown().cancel();
    }

    pub async fn plugin_ended(&mut self) {
        (&mut self.plugin).await.unwrap().unwrap();
    }

    /// The page of the admin port, as `curl` gets it.
    pub fn page(&self) -> String {
        self.context.metrics().unwrap()
    }

    pub fn is_ready(&self) -> bool {
        self.context.health().is_ready()
    }

    /// Waits until the plugin's readiness report contains `text`.
    pub async fn not_ready(&self, text: &str) {
        until(text, || self.context.health().report().contains(text)).await;
    }

    /// What is to be done about a condition.
    pub fn remedy(&self, id: &str) -> Option<String> {
        let conditions = self.context.health().conditions();
        conditions.into_iter().find(|condition| condition.id == id)?.remedy
    }

    /// A metric's value; 0 where the page does not have it yet.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.context.metrics().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Binds a pod as the extender does: node and claim in one write.
    pub fn bind(&self, pod: PodBuilder, gpu: &str) {
        self.sim.put(claimed(Value::from(pod.on(NODE)), gpu));
    }

    /// Has the kubelet admit a pod that is bound.
    pub async fn admit(
        &self,
        pod: &str,
    ) -> Result<BTreeMap<String, ContainerAllocateResponse>, AdmitError> {
        let spec = spec(&self.sim.pod("default", pod).expect("a bound pod"));
        let admitted = self.kubelet.admit(spec).await;
        if admitted.is_ok() {
            self.report_started(pod);
        }
        admitted
    }

    /// Binds and admits.
    pub async fn run(
        &self,
        pod: PodBuilder,
        gpu: &str,
    ) -> Result<BTreeMap<String, ContainerAllocateResponse>, AdmitError> {
        let name = Value::from(pod.clone())["metadata"]["name"].as_str().unwrap().to_owned();
        self.bind(pod, gpu);
        self.admit(&name).await
    }

    /// The kubelet's first report on a pod.
    pub fn report_started(&self, pod: &str) {
        self.sim.change(PODS, "default", pod, |pod| {
            pod["status"]["startTime"] = json!("2026-11-20T09:00:00Z");
            pod["status"]["phase"] = json!("Running");
        });
    }

    /// Deletes a pod: its containers stop, then its object is removed.
    pub fn end(&self, pod: &str) {
        self.kubelet.stop(pod);
        self.sim.delete(PODS, "default", pod);
    }

    /// Waits until a pod is marked as assigned, which the plugin does for pods that its watch shows.
    pub async fn marked(&self, pod: &str) {
        let marked = self.sim.until("the mark on the pod", |sim| {
            let pod = sim.pod("default", pod)?;
            (pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true").then_some(())
        });
        marked.await.unwrap();
    }

    /// Lets the plugin's watch of pods hang from now on: it learns of nothing more by it.
    pub async fn hang_watches(&self) {
        self.sim.faults().next(usize::MAX, Verb::Watch, PODS, Fault::Hang);
        self.sim.faults().disconnect_watches();
        let hangs =
            self.sim.until("a watch that hangs", |sim| (sim.faults().hanging() > 0).then_some(()));
        hangs.await.unwrap();
    }

    /// Removes the plugin's annotation from the node.
    pub fn forget_gpus(&self) {
        self.sim.change(NODES, "", NODE, |node| {
            let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove("plimsoll.dev/gpu-cards");
        });
    }

    /// The node's annotation once it satisfies `holds`.
    pub async fn gpus(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let annotation = self.sim.until(what, |sim| {
            let node = sim.get(NODES, "", NODE)?;
            let text = node["metadata"]["annotations"]["plimsoll.dev/gpu-cards"].as_str()?;
            serde_json::from_str(text).ok().filter(&holds)
        });
        annotation.await.unwrap()
    }

    /// As [`Rig::gpus`] for GPUs that open: waits until the kubelet has their units too, so that pods can follow.
    pub async fn open_gpus(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        self.gpus(what, holds).await;
        self.kubelet.devices(what, |devices| devices.values().any(|healthy| *healthy)).await;
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.context.shutdown().cancel();
    }
}

/// Cargo puts the shared library of a dev-dependency beside the test executables.
fn standin() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libplimsoll_nvml_standin.so");
    assert!(
        library.exists(),
        "{} is missing: run `cargo build -p plimsoll-nvml-standin`",
        library.display()
    );
    library
}

/// The pod with a claim on `gpu`, and with the compute that its annotation asks for.
fn claimed(mut pod: Value, gpu: &str) -> Value {
    let cores = &pod["metadata"]["annotations"]["plimsoll.dev/gpu-cores"];
    let cores: Option<u32> = cores.as_str().map(|cores| cores.parse().unwrap());
    let share = |units: usize| match cores {
        Some(cores) => json!({ "units": units, "cores": cores }),
        None => json!(units),
    };
    let claim: BTreeMap<String, BTreeMap<&str, Value>> = spec(&pod)
        .containers
        .into_iter()
        .filter(|c| c.size > 0)
        .map(|c| (c.name, [(gpu, share(c.size))].into()))
        .collect();
    pod["metadata"]["annotations"][CLAIM] = json!(json!(claim).to_string());
    pod
}

/// What the kubelet reads of a pod.
pub fn spec(pod: &Value) -> PodSpec {
    let mut containers = Vec::new();
    for container in pod["spec"]["initContainers"].as_array().into_iter().flatten() {
        let is_sidecar = container["restartPolicy"] == "Always";
        let part = if is_sidecar { Part::Sidecar } else { Part::Init };
        containers.push(container_spec(container, part));
    }
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        containers.push(container_spec(container, Part::App));
    }
    PodSpec {
        namespace: text(&pod["metadata"]["namespace"]),
        name: text(&pod["metadata"]["name"]),
        // The API server sets it.
        uid: pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
        containers,
    }
}

fn container_spec(container: &Value, part: Part) -> ContainerSpec {
    let size = container["resources"]["limits"][RESOURCE].as_str();
    ContainerSpec {
        name: text(&container["name"]),
        part,
        size: size.map_or(0, |size| size.parse().unwrap()),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// The GPU of a container, by the two CDI devices of its response.
pub fn gpu(answer: &ContainerAllocateResponse) -> String {
    let names: Vec<&str> = answer.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    let [nvidia, ours] = names[..] else { panic!("two CDI devices: {names:?}") };
    let gpu = nvidia.strip_prefix("nvidia.com/gpu=").unwrap();
    assert_eq!(ours.strip_prefix("plimsoll.dev/gpu-mem="), Some(gpu));
    gpu.to_owned()
}

/// The items in another order, the same one for the same `seed`.
pub fn shuffled<T>(mut items: Vec<T>, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for at in (1..items.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(at, (state >> 33) as usize % (at + 1));
    }
    items
}

/// Pods `p0`, `p1`, … with GPUs A, B and C in turn.
pub fn claims(count: usize) -> Vec<(String, &'static str)> {
    (0..count).map(|at| (format!("p{at}"), [A, B, C][at % 3])).collect()
}
