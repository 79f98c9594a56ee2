//! The exporters of all nodes: one server, which knows a node by the address of 127.0.0.0/8 that it was asked at.
//!
//! They speak the older, flat format. Each value is an autoregressive one around the node's own mean; a poll a minute
//! sees a five-minute mean of a load with a deviation of 1.5 points.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use serde_json::json;

use crate::server;

/// In percent.
const DEVIATION: f64 = 1.5;
const LIMIT: f64 = 80.0;

pub(crate) struct Exporters {
    pub(crate) port: u16,
    polls: Arc<AtomicU64>,
}

#[derive(Default)]
struct Load {
    /// By node: the deviations of CPU and memory from their means.
    now: HashMap<usize, [f64; 2]>,
    random: u64,
}

/// The address of a node, from 127.1.0.0 on.
pub(crate) fn address(node: usize) -> Ipv4Addr {
    let [_, high, low, _] = u32::try_from(node << 8).unwrap_or(0).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// Starts the server. The first `hovering` nodes hover around the limit.
pub(crate) async fn start(hovering: usize) -> Result<Exporters> {
    let polls = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&polls);
    let load = Mutex::new(Load { random: 0x2545_f491_4f6c_dd1d, ..Load::default() });
    let port = server::start(Arc::new(move |local, path, _| {
        let IpAddr::V4(local) = local.ip() else { return ("404 Not Found", String::new()) };
        if path != "/statistics" {
            return ("404 Not Found", String::new());
        }
        counted.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = local.octets();
        let node = usize::from(u16::from_be_bytes([high, low]));
        let [cpu, mem] = load.lock().unwrap_or_else(PoisonError::into_inner).next(node);
        let mean = if node < hovering { LIMIT } else { 20.0 + (node % 50) as f64 };
        let body = json!({"cpu_shared_busy_avg_5m": mean + cpu, "mem_usage_avg_5m": 40.0 + mem});
        ("200 OK", body.to_string())
    }));
    Ok(Exporters { port: port.await?, polls })
}

impl Exporters {
    /// Polls that were answered since the start.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }
}

impl Load {
    /// The next value of a node: four fifths of a five-minute mean are in the one a minute later.
    fn next(&mut self, node: usize) -> [f64; 2] {
        let normal = [self.normal(), self.normal()];
        let values = self.now.entry(node).or_default();
        for (value, normal) in values.iter_mut().zip(normal) {
            *value = 0.8 * *value + 0.6 * DEVIATION * normal;
        }
        *values
    }

    /// The sum of 12 uniform numbers less 6 is nearly normal, with a deviation of 1.
    fn normal(&mut self) -> f64 {
        (0..12)
            .map(|_| {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                (self.random >> 11) as f64 / (1_u64 << 53) as f64
            })
            .sum::<f64>()
            - 6.0
    }
}
