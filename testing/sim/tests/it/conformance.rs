//! The facts of `conformance` hold of the stand-ins.
//!
//! `CONFORMANCE_URL` names another API server to try, such as that of a `kubectl proxy`, and `CONFORMANCE_FACT` the
//! facts to try, by a part of their names.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use conformance::kubelet::{self, KubeletRig, Machine, RESOURCE};
use conformance::{FACTS, Later, Transport, scheduler};
use reqwest::{Client, Method};
use sim::kubelet::{Kubelet, KubeletSettings};
use sim::scheduler::{Scheduler, SchedulerConfig};
use sim::{Sim, node};
use tokio::sync::mpsc;

struct Http {
    client: Client,
    url: String,
}

impl Transport for Http {
    fn call<'a>(
        &'a self,
        method: &'static str,
        path: &'a str,
        content_type: &'static str,
        body: Option<String>,
    ) -> Later<'a, Result<(u16, String), String>> {
        let method: Method = method.parse().unwrap();
        let request = self.client.request(method, format!("{}{path}", self.url));
        let request = request.header("content-type", content_type).body(body.unwrap_or_default());
        Box::pin(async {
            let answer = request.send().await.map_err(|error| error.to_string())?;
            let code = answer.status().as_u16();
            Ok((code, answer.text().await.map_err(|error| error.to_string())?))
        })
    }
}

impl Http {
    fn to(url: String) -> Self {
        Self { client: sim::http_client().unwrap(), url }
    }
}

#[tokio::test]
async fn every_fact_of_an_api_server_holds() {
    let sim = Sim::start().await.unwrap();
    let url = std::env::var("CONFORMANCE_URL").unwrap_or_else(|_| sim.url());
    let server = Http::to(url);
    let mut refuted = Vec::new();
    for fact in FACTS {
        if let Err(why) = fact.check(&server, "default").await {
            refuted.push(format!("{}: {why}", fact.name));
        }
    }
    assert!(refuted.is_empty(), "{}", refuted.join("\n"));
}

const NODE: &str = "only";

impl Machine for Standin {
    fn node(&self) -> &str {
        NODE
    }

    fn plugin_dir(&self) -> &Path {
        self.0.devices().plugin_dir()
    }

    fn records_socket(&self) -> &Path {
        self.0.devices().records_socket()
    }

    fn image(&self) -> &str {
        "example.com/none"
    }

    fn stop_kubelet(&self) -> Later<'_, Result<(), String>> {
        Box::pin(async {
            self.0.kill().await;
            Ok(())
        })
    }

    fn start_kubelet(&self) -> Later<'_, Result<(), String>> {
        Box::pin(async { self.0.begin().map_err(|error| error.to_string()) })
    }
}

struct Standin(Kubelet);

#[tokio::test(flavor = "multi_thread")]
async fn every_fact_of_a_kubelet_holds() {
    let sim = Sim::start().await.unwrap();
    let root = tempfile::tempdir().unwrap();
    sim.put(node(NODE));
    let settings = KubeletSettings {
        node: NODE.to_owned(),
        root: root.path().to_owned(),
        cdi_dir: root.path().join("cdi"),
        resource: RESOURCE.to_owned(),
    };
    let machine = Standin(Kubelet::start(&sim, settings, mpsc::unbounded_channel().0).unwrap());
    let server = Http::to(sim.url());
    let mut rig = KubeletRig::new(&server, "default", &machine);
    let only = std::env::var("CONFORMANCE_FACT").unwrap_or_default();
    let mut refuted = Vec::new();
    for fact in kubelet::FACTS.iter().filter(|fact| fact.name.contains(&only)) {
        println!("{}", fact.name);
        if let Err(why) = fact.check(&mut rig).await {
            refuted.push(format!("{}: {why}", fact.name));
        }
    }
    refuted.extend(rig.leave().await.err().map(|why| format!("leaving: {why}")));
    assert!(refuted.is_empty(), "{}", refuted.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fact_of_a_scheduler_holds() {
    let sim = Sim::start().await.unwrap();
    for name in ["a", "b", "c"] {
        sim.put(node(name).with("cpu", 8).with("pods", 110).label("kubernetes.io/hostname", name));
    }
    let server = Http::to(sim.url());
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut rig = scheduler::SchedulerRig::new(&server, "default", host).unwrap();
    let config = SchedulerConfig::from_yaml(&rig.configuration().to_string()).unwrap();
    let _scheduler = Scheduler::start(&sim, config).unwrap();
    let only = std::env::var("CONFORMANCE_FACT").unwrap_or_default();
    let mut refuted = Vec::new();
    for fact in scheduler::FACTS.iter().filter(|fact| fact.name.contains(&only)) {
        println!("{}", fact.name);
        if let Err(why) = fact.check(&mut rig).await {
            refuted.push(format!("{}: {why}", fact.name));
        }
    }
    refuted.extend(rig.leave().await.err().map(|why| format!("leaving: {why}")));
    assert!(refuted.is_empty(), "{}", refuted.join("\n"));
}
