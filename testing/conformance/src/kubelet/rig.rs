//! What the facts about a kubelet share: the plugin, the pods, and a fresh state before each fact.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::plugin::{Behaviour, Ids, Plugin};
use super::records::{DevicesByContainer, Records};
use crate::rig::{self as api, Refuted, text};
use crate::{Later, Transport, found_within};

/// The resource of the suite's plugin.
pub const RESOURCE: &str = "conformance.plimsoll.dev/unit";
/// Number of its devices.
pub(super) const UNITS: usize = 8;
/// Longest wait for anything. A real kubelet tries a failed start again after 12 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks at the API.
const LOOK: Duration = Duration::from_millis(50);

/// A node, and a kubelet on it that can be killed.
pub trait Machine: Send + Sync {
    /// The node's name.
    fn node(&self) -> &str;
    /// The kubelet's directory of plugins, as a path of this machine.
    fn plugin_dir(&self) -> &Path;
    /// The kubelet's PodResources socket, as a path of this machine.
    fn records_socket(&self) -> &Path;
    /// An image with a shell, which is on the node.
    fn image(&self) -> &str;
    /// Kills the kubelet. It stays down until it is started.
    fn stop_kubelet(&self) -> Later<'_, Result<(), String>>;
    /// Starts the kubelet again.
    fn start_kubelet(&self) -> Later<'_, Result<(), String>>;
}

/// A node under test. Its namespace has no other pods.
pub struct KubeletRig<'w> {
    pub(super) api: api::Rig<'w>,
    pub(super) machine: &'w dyn Machine,
    pub(super) plugin: Plugin,
    /// Whether the kubelet was killed and not started again.
    kubelet_down: bool,
}

/// A container: its kind, its name, and the number of devices that it asks for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Init(&'static str, usize),
    Sidecar(&'static str, usize),
    App(&'static str, usize),
}

impl<'w> KubeletRig<'w> {
    /// With a plugin that is not started.
    #[must_use]
    pub fn new(server: &'w dyn Transport, namespace: &'w str, machine: &'w dyn Machine) -> Self {
        let records = Records::new(machine.records_socket(), namespace);
        let plugin = Plugin::new(machine.plugin_dir(), records, RESOURCE, UNITS);
        Self { api: api::Rig { server, namespace }, machine, plugin, kubelet_down: false }
    }

    /// Makes a fresh state: a running kubelet whose account holds none of the suite's pods, and a healthy plugin
    /// without calls.
    pub(super) async fn reset(&mut self) -> Result<(), Refuted> {
        if self.plugin.behaviour().no_options {
            self.plugin.kill();
        }
        self.plugin.set(Behaviour::default());
        self.plugin.mark_unhealthy(0);
        if self.kubelet_down {
            self.start_kubelet().await?;
        }
        self.register(UNITS).await?;
        self.remove_pods().await?;
        self.plugin.reset();
        Ok(())
    }

    /// Registers until the node offers so many devices. A kubelet that has just started may still delete the plugin's
    /// socket, and one may drop the list of a plugin that was started again.
    async fn register(&mut self, allocatable: usize) -> Result<(), Refuted> {
        let start = Instant::now();
        loop {
            let plugin = &self.plugin;
            let is_up = plugin.is_running() && plugin.socket().exists() && !plugin.is_dropped();
            let started = if is_up { Ok(()) } else { self.start_plugin().await };
            if started.is_ok() && self.offers().await? == offer(UNITS, allocatable) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return started.and(self.offered(UNITS, allocatable).await);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Removes the suite's pods, also from the kubelet's checkpoint, which it writes with every device list.
    async fn remove_pods(&mut self) -> Result<(), Refuted> {
        for pod in self.pods().await? {
            self.remove(text(&pod["metadata"]["name"])).await?;
        }
        self.until("no pod is left", async |rig| Ok(rig.pods().await?.is_empty().then_some(())))
            .await?;
        self.until("the records show no pod", async |rig| {
            Ok(rig.list().await?.is_empty().then_some(()))
        })
        .await?;
        self.plugin.mark_unhealthy(1);
        self.register(UNITS - 1).await?;
        self.plugin.mark_unhealthy(0);
        self.register(UNITS).await
    }

    /// Removes pods, plugin and socket. The kubelet itself keeps the resource for five minutes, with nothing
    /// allocatable.
    ///
    /// # Errors
    /// When one of them stays.
    pub async fn leave(mut self) -> Result<(), Refuted> {
        self.reset().await?;
        self.plugin.kill();
        self.offered(UNITS, 0).await?;
        let _ = std::fs::remove_file(self.plugin.socket());
        Ok(())
    }

    /// Starts the plugin.
    pub(super) async fn start_plugin(&mut self) -> Result<(), Refuted> {
        let started = self.plugin.start().await;
        started.map_err(|why| Refuted(format!("the plugin cannot register: {why}")))
    }

    pub(super) async fn stop_kubelet(&mut self) -> Result<(), Refuted> {
        self.kubelet_down = true;
        self.machine.stop_kubelet().await.map_err(Refuted)
    }

    /// Starts the kubelet and waits until it has deleted the plugin's socket and made its own.
    pub(super) async fn start_kubelet(&mut self) -> Result<(), Refuted> {
        let own = self.plugin.socket();
        let kubelet = self.machine.plugin_dir().join("kubelet.sock");
        self.machine.start_kubelet().await.map_err(Refuted)?;
        self.kubelet_down = false;
        self.until("the kubelet deletes the plugin's socket", async |_| {
            let is_new = !own.exists() && std::os::unix::net::UnixStream::connect(&kubelet).is_ok();
            Ok(is_new.then_some(()))
        })
        .await
    }

    /// Creates a pod on the node.
    pub(super) async fn run(&self, name: &str, parts: &[Part]) -> Result<(), Refuted> {
        self.run_pod(self.pod(name, parts)).await
    }

    /// Creates this pod on the node.
    pub(super) async fn run_pod(&self, mut pod: Value) -> Result<(), Refuted> {
        pod["spec"]["nodeName"] = self.machine.node().into();
        self.api.post("pods", &pod).await?.is(201).map(drop)
    }

    /// Creates a pod that no scheduler places.
    pub(super) async fn create(&self, name: &str, parts: &[Part]) -> Result<Value, Refuted> {
        self.api.post("pods", &self.pod(name, parts)).await?.is(201)
    }

    /// Binds it to the node.
    pub(super) async fn bind(&self, name: &str) -> Result<(), Refuted> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.machine.node()},
        });
        self.api.post(&format!("pods/{name}/binding"), &binding).await?.is(201).map(drop)
    }

    /// Binds pods one right after the other.
    pub(super) async fn bind_all(&self, names: &[&str]) -> Result<(), Refuted> {
        for name in names {
            self.bind(name).await?;
        }
        Ok(())
    }

    pub(super) fn pod(&self, name: &str, parts: &[Part]) -> Value {
        let mut inits = Vec::new();
        let mut apps = Vec::new();
        for part in parts {
            match *part {
                Part::Init(name, size) => inits.push(self.container(name, size, "true")),
                Part::App(name, size) => apps.push(self.container(name, size, SLEEP)),
                Part::Sidecar(name, size) => {
                    let mut container = self.container(name, size, SLEEP);
                    container["restartPolicy"] = "Always".into();
                    inits.push(container);
                }
            }
        }
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "schedulerName": "none", "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false, "initContainers": inits, "containers": apps,
            },
        })
    }

    fn container(&self, name: &str, size: usize, script: &str) -> Value {
        json!({
            "name": name, "image": self.machine.image(), "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "resources": {"limits": {RESOURCE: size.to_string()}},
        })
    }

    /// Deletes a pod, as users do.
    pub(super) async fn delete(&self, name: &str) -> Result<(), Refuted> {
        self.api.delete(&format!("pods/{name}"), &json!({})).await.map(drop)
    }

    /// Deletes a pod's object at once, without waiting for the kubelet.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Refuted> {
        self.api.remove(&format!("pods/{name}")).await
    }

    async fn pods(&self) -> Result<Vec<Value>, Refuted> {
        let list = self.api.get("pods").await?.is(200)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until a pod is in this phase. Fails if it becomes Failed instead. Returns the pod.
    pub(super) async fn phase(&self, name: &str, phase: &str) -> Result<Value, Refuted> {
        self.until(&format!("{name} is {phase}"), async |rig| {
            let pod = rig.api.get(&format!("pods/{name}")).await?.is(200)?;
            let now = text(&pod["status"]["phase"]);
            if now == "Failed" && phase != now {
                return Err(Refuted(format!("{name} failed: {}", pod["status"]["message"])));
            }
            Ok((now == phase).then(|| pod.clone()))
        })
        .await
    }

    /// Waits until a pod's condition Ready is true.
    pub(super) async fn ready(&self, name: &str) -> Result<(), Refuted> {
        self.until(&format!("{name} is ready"), async |rig| {
            let pod = rig.api.get(&format!("pods/{name}")).await?.is(200)?;
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
            Ok(ready.any(|condition| condition["status"] == "True").then_some(()))
        })
        .await
    }

    /// Waits until a pod has failed at admission, and checks that its message contains this.
    pub(super) async fn rejected(&self, name: &str, part: &str) -> Result<(), Refuted> {
        let status = &self.phase(name, "Failed").await?["status"];
        api::same("the reason", text(&status["reason"]), "UnexpectedAdmissionError")?;
        let message = text(&status["message"]);
        api::same("whether the message has the text", message.contains(part), true)
            .map_err(|why| Refuted(format!("{why}: {message}, without {part}")))
    }

    /// Waits until a pod's object is gone.
    pub(super) async fn gone(&self, name: &str) -> Result<(), Refuted> {
        self.until(&format!("{name} is gone"), async |rig| {
            Ok((rig.api.get(&format!("pods/{name}")).await?.code == 404).then_some(()))
        })
        .await
    }

    /// Waits until the Node has this capacity and this allocatable amount of the resource.
    pub(super) async fn offered(&self, capacity: usize, allocatable: usize) -> Result<(), Refuted> {
        let expected = offer(capacity, allocatable);
        let what = format!("{allocatable} of {capacity} are allocatable");
        let waited =
            self.until(&what, async |rig| Ok((rig.offers().await? == expected).then_some(())));
        let waited = waited.await;
        let now = self.offers().await?;
        waited.map_err(|why| Refuted(format!("{why}; the node has {now:?}")))
    }

    /// The Node's capacity and allocatable amount of the resource.
    async fn offers(&self) -> Result<[Value; 2], Refuted> {
        let node = self.api.node(self.machine.node()).await?;
        Ok(["capacity", "allocatable"].map(|part| node["status"][part][RESOURCE].clone()))
    }

    /// The suite's pods as PodResources' List shows them.
    pub(super) async fn list(&self) -> Result<BTreeMap<String, DevicesByContainer>, Refuted> {
        self.plugin.records().list().await.map_err(|why| Refuted(format!("List: {why}")))
    }

    /// The ids that List shows for a container.
    pub(super) async fn held(&self, pod: &str, container: &str) -> Result<Ids, Refuted> {
        let list = self.list().await?;
        let held = list.get(pod).and_then(|pod| pod.get(container)).cloned();
        held.ok_or_else(|| Refuted(format!("List shows no {container} of {pod}: {list:?}")))
    }

    pub(super) async fn until<T>(
        &self,
        what: &str,
        found: impl AsyncFn(&Self) -> Result<Option<T>, Refuted>,
    ) -> Result<T, Refuted> {
        found_within(PATIENCE, LOOK, async || found(self).await)
            .await?
            .ok_or_else(|| Refuted(format!("{what}: not within {PATIENCE:?}")))
    }
}

fn offer(capacity: usize, allocatable: usize) -> [Value; 2] {
    [capacity, allocatable].map(|count| Value::from(count.to_string()))
}

/// A script that runs until SIGKILL: SIGTERM does not end a shell that is process 1.
const SLEEP: &str = "while sleep 3600; do :; done";
