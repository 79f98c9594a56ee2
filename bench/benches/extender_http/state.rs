//! What the page's requests cost: their size, with and without gzip, their time and the extender's CPU.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::Context as _;

use crate::Args;
use crate::client::Client;
use crate::cluster::{Cluster, Load, request_of};
use crate::load::Measured;

/// Pods that are decided about before decisions are asked for.
const PODS: usize = 100;

pub(super) fn measure(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!(
        "| nodes | GPU | answer | bytes | with gzip | ms | extender's CPU, ms |\n|---|---|---|---|---|---|---|"
    );
    for nodes in &args.nodes {
        let cluster = Cluster::new(args, *nodes, Load::Low);
        let extender = Measured::start(&runtime, args, cluster)?;
        let mut page = Page { extender: &extender, cluster: &cluster };
        let version = page.print("/v1/state, the first", "/v1/state")?;
        let unchanged = format!("/v1/state?since={version}");
        page.print("/v1/state, nothing changed", &unchanged)?;
        extender.api.change_nodes(1);
        extender.server.settle()?;
        page.print("/v1/state, all nodes changed", &unchanged)?;
        let mut client = Client::new(extender.server.address)?;
        for pod in 0..PODS {
            client.ask(&request_of("/load-aware/filter", &cluster, pod))?;
        }
        page.print("/v1/decisions, 100 new ones", "/v1/decisions?limit=100")?;
        page.print("/v1/decisions, again", "/v1/decisions?limit=100")?;
    }
    Ok(())
}

struct Page<'a> {
    extender: &'a Measured,
    cluster: &'a Cluster,
}

impl Page<'_> {
    /// Asks with gzip, which is timed, and without. Returns the version in the answer; empty where it has none.
    fn print(&mut self, what: &str, path: &str) -> anyhow::Result<String> {
        let server = &self.extender.server;
        let (before, start) = (server.cpu()?, Instant::now());
        let small = self.get(path, "gzip")?.len();
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        let cpu = (server.cpu()? - before) / 1e3;
        let plain = self.get(path, "identity")?;
        let Cluster { nodes, gpu, .. } = self.cluster;
        let bytes = plain.len();
        println!("| {nodes} | {gpu} | {what} | {bytes} | {small} | {milliseconds:.1} | {cpu:.1} |");
        let text = String::from_utf8_lossy(&plain);
        let version =
            text.split_once("\"version\":\"").and_then(|(_, rest)| rest.split('"').next());
        Ok(version.unwrap_or_default().to_owned())
    }

    /// An answer's body on a connection of its own; of one in chunks with the few bytes of their lengths.
    fn get(&self, path: &str, encoding: &str) -> anyhow::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.extender.server.address)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {encoding}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("no head")?;
        anyhow::ensure!(answer.starts_with(b"HTTP/1.1 200"), "{path}: not answered");
        Ok(answer.split_off(end + 4))
    }
}
