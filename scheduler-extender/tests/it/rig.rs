//! The real extender on a free port, against the API stand-in.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use daemon::Context;
use jiff::{SignedDuration, Timestamp};
use placement::policy::LoadPolicy;
use placement::reading::{Reading, ReadingCodec};
use placement::units::Ratio;
use reqwest::header::CONTENT_TYPE;
use scheduler_extender::view::{View, WatchState};
use scheduler_extender::{Args, app};
use serde_json::{Value, json};
use sim::{Sim, node, pod};

pub(crate) const GPU: &str = "aliyun.com/gpu-mem";

pub(crate) const POLICY: &str = "
apiVersion: scheduler.policy.crane.io/v1alpha1
kind: DynamicSchedulerPolicy
spec:
  syncPolicy:
    - {name: cpu_usage_avg_5m, period: 3m}
  predicate:
    - {name: cpu_usage_avg_5m, maxLimitPecent: 0.65}
  priority:
    - {name: cpu_usage_avg_5m, weight: 1}
  hotValue:
    - {timeRange: 5m, count: 1}
";

pub(crate) struct Rig {
    pub(crate) context: Context,
    pub(crate) address: SocketAddr,
    client: reqwest::Client,
    files: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.context.shutdown().cancel();
    }
}

/// A view by [`POLICY`] that has seen nothing.
pub(crate) fn empty_view() -> View {
    view_under(LoadPolicy::from_yaml(POLICY).unwrap())
}

/// As [`empty_view`], under another policy.
pub(crate) fn view_under(policy: LoadPolicy) -> View {
    let source = |name| WatchState::new(daemon::Health::default().gate(name));
    View::new(policy, false, source("nodes"), source("pods"))
}

impl Rig {
    /// Starts an extender that has seen everything in `sim`.
    pub(crate) async fn start(sim: &Sim) -> Self {
        Self::start_with(sim, &[]).await
    }

    /// As [`Rig::start`], with more flags.
    pub(crate) async fn start_with(sim: &Sim, flags: &[&str]) -> Self {
        Self::start_under(sim, POLICY, flags).await
    }

    /// As [`Rig::start_with`], under another policy.
    pub(crate) async fn start_under(sim: &Sim, policy: &str, flags: &[&str]) -> Self {
        let rig = Self::launch(sim, "127.0.0.1:0", policy, flags).await;
        rig.ready().await;
        rig
    }

    /// Starts an extender that listens on this address.
    pub(crate) async fn start_at(sim: &Sim, address: &str) -> Self {
        let rig = Self::launch(sim, address, POLICY, &[]).await;
        rig.ready().await;
        rig
    }

    /// Starts an extender that may still be reading the cluster.
    pub(crate) async fn start_unready(sim: &Sim) -> Self {
        Self::launch(sim, "127.0.0.1:0", POLICY, &[]).await
    }

    /// As [`Rig::start_with`], with other changes of the settings.
    pub(crate) async fn start_changed(
        sim: &Sim,
        flags: &[&str],
        change: impl FnOnce(&mut Args),
    ) -> Self {
        let rig = Self::launch_changed(sim, "127.0.0.1:0", POLICY, flags, change).await;
        rig.ready().await;
        rig
    }

    async fn launch(sim: &Sim, address: &str, policy_text: &str, flags: &[&str]) -> Self {
        Self::launch_changed(sim, address, policy_text, flags, |_| ()).await
    }

    async fn launch_changed(
        sim: &Sim,
        address: &str,
        policy_text: &str,
        flags: &[&str],
        change: impl FnOnce(&mut Args),
    ) -> Self {
        let files = tempfile::tempdir().unwrap();
        let (kubeconfig, policy) = (files.path().join("kubeconfig"), files.path().join("policy"));
        sim.write_kubeconfig(&kubeconfig).unwrap();
        std::fs::write(&policy, policy_text).unwrap();
        let own = ["scheduler-extender", "--listen-address", address];
        let mut args = Args::parse_from([&own, flags].concat());
        args.api.kubeconfig = Some(kubeconfig);
        args.load.policy_file = policy;
        args.evict_after = Duration::from_millis(50);
        change(&mut args);
        let context = Context::new(daemon::program!());
        let address = app::start(args, &context).await.unwrap();
        Self { context, address, client: sim::http_client().unwrap(), files }
    }

    /// Changes the policy's file.
    pub(crate) fn write_policy(&self, text: &str) {
        std::fs::write(self.files.path().join("policy"), text).unwrap();
    }

    pub(crate) async fn ready(&self) {
        self.until("readiness", async || self.context.health().is_ready()).await;
    }

    /// Waits until `condition` holds; what the watch brings cannot be awaited otherwise.
    pub(crate) async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let waiting = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        // Only a failing test waits this long.
        let ended = tokio::time::timeout(Duration::from_secs(120), waiting).await;
        assert!(ended.is_ok(), "{what} did not come about");
    }

    /// Where it answers.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn post_text(&self, path: &str, body: String) -> (u16, String) {
        let answer = self.client.post(self.url(path)).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    pub(crate) async fn post_form(&self, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.client.post(self.url(path)).body(form);
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.post_text(path, body.to_string()).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        let answer = self.client.get(self.url(path)).send().await.unwrap();
        answer.text().await.unwrap()
    }

    pub(crate) async fn get_status(&self, path: &str) -> (u16, String) {
        let answer = self.client.get(self.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Asks over the given host, as `[::1]`.
    pub(crate) async fn get_at(&self, host: &str, path: &str) -> String {
        let url = format!("http://{host}:{}{path}", self.address.port());
        self.client.get(url).send().await.unwrap().text().await.unwrap()
    }

    pub(crate) async fn inspect(&self) -> Value {
        serde_json::from_str(&self.get("/gpushare-scheduler/inspect").await).unwrap()
    }

    /// Units that the ledgers say are held.
    pub(crate) async fn used(&self) -> u64 {
        let inspected = self.inspect().await;
        let nodes = inspected["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["usedGPU"].as_u64().unwrap()).sum()
    }

    pub(crate) async fn filter(&self, path: &str, pod: &Value, names: &[&str]) -> Value {
        let body = json!({ "Pod": pod, "Nodes": null, "NodeNames": names });
        self.post(&format!("{path}/filter"), &body).await
    }

    pub(crate) async fn scores(&self, pod: &Value, names: &[&str]) -> Vec<i64> {
        let body = json!({ "Pod": pod, "Nodes": null, "NodeNames": names });
        let scores = self.post("/load-aware/prioritize", &body).await;
        let scores = scores.as_array().unwrap().iter();
        scores.map(|score| score["Score"].as_i64().unwrap()).collect()
    }

    /// Binds, and returns the error; empty where it went well.
    pub(crate) async fn bind(&self, pod: &Value, node: &str) -> String {
        let answer = self.post("/gpushare-scheduler/bind", &binding(pod, node)).await;
        answer["Error"].as_str().unwrap().to_owned()
    }
}

/// What kube-scheduler sends to have `pod` bound.
pub(crate) fn binding(pod: &Value, node: &str) -> Value {
    let meta = &pod["metadata"];
    json!({ "PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node })
}

/// A node with GPUs of 16 units each.
pub(crate) fn gpu_node(name: &str, gpus: u32) -> sim::NodeBuilder {
    let gpu = |index: u32| {
        json!({
            "uuid": format!("GPU-{name}-{index}"), "index": index, "model": "NVIDIA A10",
            "memoryMiB": 16384, "units": 16, "healthy": true, "pods": {},
        })
    };
    let gpus: Vec<Value> = (0..gpus).map(gpu).collect();
    node(name).annotation("plimsoll.dev/gpu-cards", Value::from(gpus).to_string())
}

/// A node whose processors were so busy, so long ago.
pub(crate) fn loaded_node(name: &str, cpu: f64, age: SignedDuration) -> sim::NodeBuilder {
    let at = Timestamp::now() - age;
    let reading = Reading::new(Ratio::new(cpu).unwrap(), at);
    node(name).annotation("cpu_usage_avg_5m", ReadingCodec::default().encode(&reading))
}

/// A pending pod that asks for GPU memory, as stored.
pub(crate) fn gpu_pod(sim: &Sim, name: &str, units: u32) -> Value {
    sim.put(pod(name).asking(GPU, units))
}

/// An annotation of a stored pod.
pub(crate) fn annotation(sim: &Sim, pod: &Value, key: &str) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let pod = sim.pod("default", name).unwrap();
    pod["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned()
}
