//! One pod's scheduling cycle (`schedulingCycle` in `pkg/scheduler/schedule_one.go`).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::binding::{self, Trouble};
use super::cache::{Cache, is_over};
use super::config::{Extender, SchedulerConfig};
use super::eligible::eligible;
use super::event::Recorder;
use super::fit::{Amounts, Room, requests};
use super::queue::{Key, Queue, Seen, Waits};
use super::reason;
use crate::api::Api;
use crate::kind::PODS;

/// What was thought of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: String,
    /// Whether it may take the pod.
    pub verdict: Verdict,
    /// Points by kube-scheduler's own plugins, 0 to 200.
    pub score: i64,
    /// Points by the extenders.
    pub extender_score: i64,
}

/// Whether a node may take a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Fits,
    /// kube-scheduler's own filters refuse it.
    Unfit {
        /// kube-scheduler's reasons.
        reasons: Vec<String>,
        /// Whether no eviction of pods could change that.
        unresolvable: bool,
    },
    /// An extender rejects it.
    Rejected {
        /// The extender's reason, or empty.
        reason: String,
        /// Whether the extender says that no eviction of pods could change that.
        unresolvable: bool,
    },
}

/// What came of one attempt at one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The pod's UID.
    pub uid: String,
    /// The pod's name.
    pub pod: String,
    /// Where it goes, or why nowhere.
    pub outcome: Result<String, String>,
    /// What was thought of every node.
    pub candidates: Vec<Candidate>,
}

pub(super) struct Core {
    pub(super) api: Api,
    pub(super) http: reqwest::Client,
    pub(super) config: SchedulerConfig,
    pub(super) cache: Cache,
    pub(super) queue: Queue,
    pub(super) events: Recorder,
    decisions: UnboundedSender<Decision>,
    random: AtomicU64,
}

/// Why an attempt did not lead to a node.
enum Unplaced {
    Nowhere(Waits),
    Failed(String),
}

impl Core {
    pub(super) fn new(
        api: Api,
        config: SchedulerConfig,
        decisions: UnboundedSender<Decision>,
    ) -> io::Result<Self> {
        Ok(Self {
            api,
            // Extenders here are always on this machine.
            http: crate::http_client()?,
            config,
            cache: Cache::default(),
            queue: Queue::default(),
            events: Recorder::default(),
            decisions,
            random: AtomicU64::new(1),
        })
    }

    pub(super) async fn schedule_forever(self: Arc<Self>) {
        loop {
            let (key, seen) = self.queue.next().await;
            match self.to_schedule(&key) {
                Some(pod) => self.clone().schedule_one(pod, key, seen).await,
                None => self.queue.remove(&key),
            }
        }
    }

    fn to_schedule(&self, (namespace, name): &Key) -> Option<Arc<Value>> {
        self.api.store.get(PODS, namespace, name).filter(|pod| self.is_pending(pod))
    }

    /// Whether it is ours to schedule, and not scheduled yet.
    fn is_pending(&self, pod: &Value) -> bool {
        is_pending(pod) && self.config.serves(pod)
    }

    async fn schedule_one(self: Arc<Self>, pod: Arc<Value>, key: Key, seen: Seen) {
        let mut asked = requests(&pod);
        asked.retain(|resource, _| !self.config.ignores(resource));
        let mut candidates = self.by_themselves(&pod, &asked);
        let placed = self.place(&pod, &mut candidates).await;
        let outcome = match placed {
            Ok(node) => {
                self.cache.assume(&pod, &node);
                tokio::spawn(binding::bind(self.clone(), pod.clone(), node.clone(), seen));
                Ok(node)
            }
            Err(Unplaced::Nowhere(why)) => {
                let message = reason::message(&candidates);
                self.queue.failed(key, why, seen);
                binding::tell(&self, &pod, Trouble::Unschedulable, &message);
                Err(message)
            }
            Err(Unplaced::Failed(message)) => {
                self.queue.failed(key, Waits::AfterError, seen);
                binding::tell(&self, &pod, Trouble::SchedulerError, &message);
                Err(message)
            }
        };
        let meta = &pod["metadata"];
        let (uid, pod) = (text(&meta["uid"]).to_owned(), text(&meta["name"]).to_owned());
        // Nobody needs to listen.
        let _ = self.decisions.send(Decision { uid, pod, outcome, candidates });
    }

    fn by_themselves(&self, pod: &Value, asked: &Amounts) -> Vec<Candidate> {
        let rooms = self.cache.rooms(&self.api.store);
        let verdict = |room: &Room| {
            if let Err(reason) = eligible(pod, &room.object) {
                return Verdict::Unfit { reasons: vec![reason], unresolvable: true };
            }
            match room.fits(asked) {
                Ok(()) => Verdict::Fits,
                Err(reasons) => Verdict::Unfit { reasons, unresolvable: !room.could_fit(asked) },
            }
        };
        let candidate = |room: Room| Candidate {
            verdict: verdict(&room),
            score: room.score(asked),
            extender_score: 0,
            node: room.node,
        };
        rooms.into_iter().map(candidate).collect()
    }

    async fn place(&self, pod: &Value, candidates: &mut [Candidate]) -> Result<String, Unplaced> {
        if fitting(candidates).is_empty() {
            return Err(Unplaced::Nowhere(Waits::ForRoom));
        }
        for extender in self.config.extenders.iter().filter(|extender| extender.wants(pod)) {
            self.filter(extender, pod, candidates).await?;
        }
        match fitting(candidates).len() {
            0 => return Err(Unplaced::Nowhere(Waits::ForAnything)),
            // Prioritize is skipped where there is no choice.
            1 => {}
            _ => self.prioritize(pod, candidates).await,
        }
        let points = |candidate: &Candidate| candidate.score + candidate.extender_score;
        let chosen = best(candidates, points, |ties| self.draw(ties));
        chosen.ok_or(Unplaced::Nowhere(Waits::ForAnything))
    }

    async fn filter(
        &self,
        extender: &Extender,
        pod: &Value,
        candidates: &mut [Candidate],
    ) -> Result<(), Unplaced> {
        let nodes = fitting(candidates);
        if extender.filter_verb.is_empty() || nodes.is_empty() {
            return Ok(());
        }
        let result = match extender.filter(&self.http, pod, &nodes).await {
            Ok(result) => result,
            Err(_) if extender.ignorable => return Ok(()),
            Err(error) => return Err(Unplaced::Failed(error.to_string())),
        };
        let left = candidates.iter_mut().filter(|candidate| candidate.verdict == Verdict::Fits);
        for candidate in left {
            candidate.verdict = result.verdict(&candidate.node);
        }
        Ok(())
    }

    /// Errors of Prioritize are ignored, as kube-scheduler does.
    async fn prioritize(&self, pod: &Value, candidates: &mut [Candidate]) {
        let nodes = fitting(candidates);
        let with_verb = self.config.extenders.iter().filter(|e| !e.prioritize_verb.is_empty());
        let asked = with_verb.filter(|extender| extender.wants(pod));
        let calls = asked.map(|extender| extender.prioritize(&self.http, pod, &nodes));
        let answers = futures::future::join_all(calls).await;
        let answers: Vec<HashMap<String, i64>> = answers.into_iter().flatten().collect();
        for candidate in candidates {
            candidate.extender_score =
                answers.iter().filter_map(|points| points.get(&candidate.node)).sum();
        }
    }

    /// One of so many, at random (xorshift).
    fn draw(&self, of: usize) -> usize {
        let mut x = self.random.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        usize::try_from(x >> 33).unwrap_or(0) % of.max(1)
    }

    pub(super) fn pod_applied(&self, before: Option<&Value>, pod: &Value) {
        let key = key(pod);
        if self.is_pending(pod) {
            return self.queue.add(key);
        }
        self.queue.remove(&key);
        if !text(&pod["spec"]["nodeName"]).is_empty() {
            self.cache.forget(text(&pod["metadata"]["uid"]));
        }
        if is_over(pod) && before.is_some_and(|before| !is_over(before)) {
            self.queue.nodes_changed(true);
        }
    }

    pub(super) fn pod_gone(&self, pod: &Value) {
        self.queue.remove(&key(pod));
        self.cache.forget(text(&pod["metadata"]["uid"]));
        self.events.forget(text(&pod["metadata"]["uid"]));
        self.queue.nodes_changed(true);
    }
}

fn fitting(candidates: &[Candidate]) -> Vec<&str> {
    let fitting = candidates.iter().filter(|candidate| candidate.verdict == Verdict::Fits);
    fitting.map(|candidate| candidate.node.as_str()).collect()
}

/// The node with the most points; among equals the one that `draw` picks.
fn best(
    candidates: &[Candidate],
    points: impl Fn(&Candidate) -> i64,
    draw: impl Fn(usize) -> usize,
) -> Option<String> {
    let fits = || candidates.iter().filter(|candidate| candidate.verdict == Verdict::Fits);
    let most = fits().map(&points).max()?;
    let ties: Vec<&Candidate> = fits().filter(|candidate| points(candidate) == most).collect();
    ties.get(draw(ties.len())).map(|candidate| candidate.node.clone())
}

fn is_pending(pod: &Value) -> bool {
    let gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    text(&pod["spec"]["nodeName"]).is_empty()
        && !gated
        && !is_over(pod)
        && !pod["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn key(pod: &Value) -> Key {
    let meta = &pod["metadata"];
    (text(&meta["namespace"]).to_owned(), text(&meta["name"]).to_owned())
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
