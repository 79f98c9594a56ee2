//! What every fact about a kubelet needs: its plugin, its pods, and a state to begin from.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::plugin::{Ids, Orders, Plugin};
use super::records::{Held, Records};
use crate::rig::{self as api, Refuted, text};
use crate::{Later, Transport, found_within};

/// The resource of the suite's plugin.
pub const RESOURCE: &str = "conformance.plimsoll.dev/unit";
/// So many devices it has.
pub(super) const UNITS: usize = 8;
/// How long anything is waited for. A real kubelet tries a failed start again after 12 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the API is asked meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// A node, and a kubelet on it that can be killed.
pub trait Machine: Send + Sync {
    /// The node's name.
    fn node(&self) -> &str;
    /// The kubelet's folder of device plugins, as seen from here.
    fn plugin_dir(&self) -> &Path;
    /// The kubelet's PodResources socket, as seen from here.
    fn records_socket(&self) -> &Path;
    /// An image with a shell that the node has.
    fn image(&self) -> &str;
    /// Kills the kubelet and keeps it down.
    fn stop_kubelet(&self) -> Later<'_, Result<(), String>>;
    /// Lets it run again.
    fn start_kubelet(&self) -> Later<'_, Result<(), String>>;
}

/// A node under trial. Its namespace must be nobody else's.
pub struct Rig<'w> {
    pub(super) api: api::Rig<'w>,
    pub(super) machine: &'w dyn Machine,
    pub(super) plugin: Plugin,
    down: bool,
}

/// One container of a pod in the making.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Init(&'static str, usize),
    Sidecar(&'static str, usize),
    App(&'static str, usize),
}

impl<'w> Rig<'w> {
    /// A plugin of the suite's own on this machine, not begun yet.
    #[must_use]
    pub fn new(server: &'w dyn Transport, namespace: &'w str, machine: &'w dyn Machine) -> Self {
        let records = Records::new(machine.records_socket(), namespace);
        let plugin = Plugin::new(machine.plugin_dir(), records, RESOURCE, UNITS);
        Self { api: api::Rig { server, namespace }, machine, plugin, down: false }
    }

    /// A kubelet that runs, no pods, a healthy plugin that was not called yet, and books that hold nothing
    /// of ours.
    pub(super) async fn fresh(&mut self) -> Result<(), Refuted> {
        if self.plugin.orders().no_hooks {
            self.plugin.end();
        }
        self.plugin.order(Orders::default());
        self.plugin.sicken(0);
        if self.down {
            self.start_kubelet().await?;
        }
        self.registered().await?;
        self.tidy().await?;
        self.plugin.forget();
        Ok(())
    }

    /// Registers until the node offers everything: somebody else may just have started the kubelet, which
    /// then still deletes the plugin's socket.
    async fn registered(&mut self) -> Result<(), Refuted> {
        let start = Instant::now();
        loop {
            let stands = self.plugin.lives() && self.plugin.socket().exists();
            let begun = if stands { Ok(()) } else { self.begin().await };
            if begun.is_ok() && self.offers().await? == offer(UNITS, UNITS) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return begun.and(self.offered(UNITS, UNITS).await);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Removes the suite's pods, and what the kubelet has written down of them: it writes with every list
    /// of devices.
    async fn tidy(&mut self) -> Result<(), Refuted> {
        for pod in self.pods().await? {
            self.remove(text(&pod["metadata"]["name"])).await?;
        }
        self.until("no pod is left", async |rig| Ok(rig.pods().await?.is_empty().then_some(())))
            .await?;
        self.until("the records show no pod", async |rig| {
            Ok(rig.list().await?.is_empty().then_some(()))
        })
        .await?;
        self.plugin.sicken(1);
        self.offered(UNITS, UNITS - 1).await?;
        self.plugin.sicken(0);
        self.offered(UNITS, UNITS).await
    }

    /// Leaves the machine: no pods, no plugin, no socket. The kubelet itself keeps the resource, empty,
    /// for five minutes.
    ///
    /// # Errors
    /// When something of it stays.
    pub async fn leave(mut self) -> Result<(), Refuted> {
        self.fresh().await?;
        self.plugin.end();
        self.offered(UNITS, 0).await?;
        let _ = std::fs::remove_file(self.plugin.socket());
        Ok(())
    }

    /// Begins the plugin's life.
    pub(super) async fn begin(&mut self) -> Result<(), Refuted> {
        let begun = self.plugin.begin().await;
        begun.map_err(|why| Refuted(format!("the plugin cannot register: {why}")))
    }

    pub(super) async fn stop_kubelet(&mut self) -> Result<(), Refuted> {
        self.down = true;
        self.machine.stop_kubelet().await.map_err(Refuted)
    }

    /// Starts the kubelet and waits until it has deleted the plugin's socket and made its own.
    pub(super) async fn start_kubelet(&mut self) -> Result<(), Refuted> {
        let (own, kubelet) = (self.plugin.socket(), self.machine.plugin_dir().join("kubelet.sock"));
        self.machine.start_kubelet().await.map_err(Refuted)?;
        self.down = false;
        self.until("the kubelet deletes the plugin's socket", async |_| {
            let anew = !own.exists() && std::os::unix::net::UnixStream::connect(&kubelet).is_ok();
            Ok(anew.then_some(()))
        })
        .await
    }

    /// Creates a pod on the node.
    pub(super) async fn run(&self, name: &str, parts: &[Part]) -> Result<(), Refuted> {
        self.run_as_written(self.pod(name, parts)).await
    }

    /// Creates this pod on the node.
    pub(super) async fn run_as_written(&self, mut pod: Value) -> Result<(), Refuted> {
        pod["spec"]["nodeName"] = self.machine.node().into();
        self.api.post("pods", &pod).await?.is(201).map(drop)
    }

    /// Creates a pod that nobody schedules.
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

    /// Binds pods one right after the other, without waiting for what comes of it.
    pub(super) async fn bind_all(&self, names: &[&str]) -> Result<(), Refuted> {
        for name in names {
            self.bind(name).await?;
        }
        Ok(())
    }

    pub(super) fn pod(&self, name: &str, parts: &[Part]) -> Value {
        let (mut inits, mut apps) = (Vec::new(), Vec::new());
        for part in parts {
            match *part {
                Part::Init(name, size) => inits.push(self.container(name, size, "true")),
                Part::App(name, size) => apps.push(self.container(name, size, FOREVER)),
                Part::Sidecar(name, size) => {
                    let mut container = self.container(name, size, FOREVER);
                    container["restartPolicy"] = "Always".into();
                    inits.push(container);
                }
            }
        }
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "schedulerName": "nobody", "terminationGracePeriodSeconds": 1,
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

    /// Removes a pod's object at once, whatever the kubelet thinks of it.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Refuted> {
        self.api.done(&format!("pods/{name}")).await
    }

    async fn pods(&self) -> Result<Vec<Value>, Refuted> {
        let list = self.api.get("pods").await?.is(200)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until a pod is in this phase; another that is final refutes.
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

    /// Waits until a pod's condition says that it is ready.
    pub(super) async fn ready(&self, name: &str) -> Result<(), Refuted> {
        self.until(&format!("{name} is ready"), async |rig| {
            let pod = rig.api.get(&format!("pods/{name}")).await?.is(200)?;
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
            Ok(ready.any(|condition| condition["status"] == "True").then_some(()))
        })
        .await
    }

    /// Waits until a pod has failed at admission, with these words.
    pub(super) async fn rejected(&self, name: &str, words: &str) -> Result<(), Refuted> {
        let status = &self.phase(name, "Failed").await?["status"];
        api::same("the reason", text(&status["reason"]), "UnexpectedAdmissionError")?;
        let message = text(&status["message"]);
        api::same("whether it says so", message.contains(words), true)
            .map_err(|why| Refuted(format!("{why}: {message}, not {words}")))
    }

    /// Waits until a pod's object is gone.
    pub(super) async fn gone(&self, name: &str) -> Result<(), Refuted> {
        self.until(&format!("{name} is gone"), async |rig| {
            Ok((rig.api.get(&format!("pods/{name}")).await?.code == 404).then_some(()))
        })
        .await
    }

    /// Waits until the Node offers so much of the resource.
    pub(super) async fn offered(&self, capacity: usize, allocatable: usize) -> Result<(), Refuted> {
        let expected = offer(capacity, allocatable);
        let met = async |rig: &Self| Ok((rig.offers().await? == expected).then_some(()));
        let waited = self.until(&format!("{allocatable} of {capacity} can be had"), met).await;
        let now = self.offers().await?;
        waited.map_err(|why| Refuted(format!("{why}; the node says {now:?}")))
    }

    /// Capacity and allocatable of the resource.
    async fn offers(&self) -> Result<[Value; 2], Refuted> {
        let node = self.api.node(self.machine.node()).await?;
        Ok(["capacity", "allocatable"].map(|part| node["status"][part][RESOURCE].clone()))
    }

    /// What PodResources' List shows of the suite's pods.
    pub(super) async fn list(&self) -> Result<BTreeMap<String, Held>, Refuted> {
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
            .ok_or_else(|| Refuted(format!("{what}: not so after {PATIENCE:?}")))
    }
}

fn offer(capacity: usize, allocatable: usize) -> [Value; 2] {
    [capacity, allocatable].map(|count| Value::from(count.to_string()))
}

/// Sleeps until it is killed, which a shell as process 1 is not by SIGTERM.
const FOREVER: &str = "while sleep 3600; do :; done";
