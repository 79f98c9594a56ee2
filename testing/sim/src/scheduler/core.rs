//! What all parts of the scheduler share.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::cache::Cache;
use super::config::SchedulerConfig;
use super::decision::Decision;
use super::pod::{has_ended, key};
use super::queue::Queue;
use crate::api_server::Api;
use crate::json::{list, text, uid};

pub(super) struct Core {
    pub(super) api: Api,
    pub(super) http: reqwest::Client,
    pub(super) config: SchedulerConfig,
    pub(super) cache: Cache,
    pub(super) queue: Queue,
    pub(super) decisions: UnboundedSender<Decision>,
    random: AtomicU64,
}

impl Core {
    pub(super) fn new(
        api: Api,
        config: SchedulerConfig,
        decisions: UnboundedSender<Decision>,
    ) -> io::Result<Self> {
        Ok(Self {
            api,
            http: crate::http_client()?,
            config,
            cache: Cache::default(),
            queue: Queue::default(),
            decisions,
            random: AtomicU64::new(1),
        })
    }

    /// Whether the pod is this scheduler's to place, and not placed yet.
    pub(super) fn is_pending(&self, pod: &Value) -> bool {
        let gates = list(&pod["spec"]["schedulingGates"]);
        text(&pod["spec"]["nodeName"]).is_empty()
            && gates.count() == 0
            && !has_ended(pod)
            && !pod["metadata"]["deletionTimestamp"].is_string()
            && self.config.serves(pod)
    }

    /// Takes note of a pod that was created or changed.
    pub(super) fn pod_applied(&self, before: Option<&Value>, pod: &Value) {
        let key = key(pod);
        if self.is_pending(pod) {
            return match before {
                None => self.queue.add(key),
                Some(_) => self.queue.updated(key),
            };
        }
        self.queue.remove(&key);
        if !text(&pod["spec"]["nodeName"]).is_empty() {
            self.cache.forget(uid(pod));
        }
        if has_ended(pod) && before.is_some_and(|before| !has_ended(before)) {
            self.queue.nodes_changed(true);
        }
    }

    /// Takes note of a pod that was deleted.
    pub(super) fn pod_deleted(&self, pod: &Value) {
        self.queue.remove(&key(pod));
        self.cache.forget(uid(pod));
        self.queue.nodes_changed(true);
    }

    /// A number below `count` (0 where that is 0), by a generator that begins alike in each run (xorshift).
    pub(super) fn draw(&self, count: usize) -> usize {
        let mut x = self.random.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        usize::try_from(x >> 33).unwrap_or(0) % count.max(1)
    }
}
