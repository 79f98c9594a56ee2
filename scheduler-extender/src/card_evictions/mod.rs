//! Evicting others for a GPU pod whose nodes have units enough and no card with room, where that is wanted (`--evict-for-cards`).
//!
//! kube-scheduler knows a node's total alone. Where the totals suffice, its preemption finds no pod to remove and never begins
//! (kubernetes/kubernetes#139270), however important the pod is. Filter reports such pods; a task of their own looks at each again once it has waited for a
//! while, evicts through the Eviction API the fewest and least important pods of one card, and keeps that card for the pod.
//!
//! Invariants: only the replica that gives out cards evicts, only pods of lower priority, none whose PodDisruptionBudgets allow no eviction, and no
//! more a minute than set. For one pod, others are evicted once in [`KEPT`] at most. Filter waits for nothing of this.

mod choice;

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use cluster::{AboutPod, Client, EventWriter, EvictOutcome, Pod, Wait, Warning, evict, get_pod};
use daemon::Shutdown;
use placement::names::Names;
use placement::units::{NodeName, PodUid};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use self::choice::{Eviction, Found, Search};
use crate::decisions::DecidedPod;
use crate::field;
use crate::metrics::Metrics;
use crate::replicas::Replicas;
use crate::view::View;

/// Reports that wait to be read.
const QUEUE: usize = 256;

/// Pods that are looked at. Others are reported again when kube-scheduler tries them again.
const MAX_PODS: usize = 256;

/// For how long a card is kept for a pod: longer than the usual 30 s of grace of those that were evicted.
const KEPT: Duration = Duration::from_secs(60);

/// Between two looks at a pod for which nothing could be done: at first the time that it had to wait, in the end this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Over this time evictions are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// For one call to the API server.
const CALL: Duration = Duration::from_secs(2);

/// How evictions are bounded.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// How long a pod has to wait before others are evicted for it.
    pub after: Duration,
    /// Pods that are evicted in a minute at most; one pod's may be more where none were before.
    pub a_minute: usize,
}

/// Where Filter reports pods.
pub struct CardEvictions {
    queue: mpsc::Sender<Report>,
}

/// The pods that Filter has reported.
pub struct Queue(mpsc::Receiver<Report>);

struct Report {
    pod: AboutPod,
    nodes: Vec<NodeName>,
}

impl CardEvictions {
    /// The place to report pods, and what was reported.
    #[must_use]
    pub fn new() -> (Self, Queue) {
        let (queue, reports) = mpsc::channel(QUEUE);
        (Self { queue }, Queue(reports))
    }

    /// Every node turns the pod down, and these for want of room on a card alone.
    pub fn report(&self, pod: &DecidedPod, nodes: impl Iterator<Item = NodeName>) {
        // The names become parts of a path, and a request's author chooses them.
        let named = field::label("namespace", &pod.namespace)
            .and_then(|()| field::subdomain("name", &pod.name))
            .and_then(|()| field::uid("uid", pod.uid.as_str()));
        if named.is_err() {
            return;
        }
        // A full queue means that hundreds wait already.
        let Ok(place) = self.queue.try_reserve() else { return };
        let nodes: Vec<NodeName> = nodes.collect();
        if !nodes.is_empty() {
            let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
            place.send(Report {
                pod: AboutPod { namespace, name, uid: pod.uid.to_string() },
                nodes,
            });
        }
    }
}

/// A pod that waits for a card.
struct Waiting {
    pod: AboutPod,
    /// The nodes that lack nothing but a card, as of the last report.
    nodes: Vec<NodeName>,
    /// When it is looked at.
    due: Instant,
    /// The pause before that.
    pause: Duration,
    /// Whether a card is kept for it.
    kept: bool,
}

/// What became of a look at a pod.
enum Outcome {
    /// It is bound, gone, or not to be evicted for.
    Over,
    /// Nothing can be done now.
    Later,
    /// Others were evicted, and a card is kept for it.
    Evicted,
}

/// Evicts pods.
pub struct Evictor {
    /// The cards.
    pub view: Arc<View>,
    /// The API server.
    pub client: Client,
    /// The names on the wire.
    pub names: Arc<Names>,
    /// Whether this replica gives out cards.
    pub replicas: Arc<Replicas>,
    /// Where evictions are told.
    pub events: EventWriter,
    /// Counts them.
    pub metrics: Metrics,
    /// Their bounds.
    pub bounds: Bounds,
}

impl Evictor {
    /// Looks at reported pods until the shutdown.
    ///
    /// # Errors
    ///
    /// None: what fails is logged, and tried again.
    pub async fn run(self, mut queue: Queue, shutdown: Shutdown) -> anyhow::Result<()> {
        let mut waiting: HashMap<PodUid, Waiting> = HashMap::new();
        let mut evicted: VecDeque<Instant> = VecDeque::new();
        loop {
            let due = waiting.values().map(|pod| pod.due).min();
            let next = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                report = queue.0.recv() => match report {
                    Some(report) => self.note(&mut waiting, report),
                    None => return Ok(()),
                },
                () = next => self.look_at_due(&mut waiting, &mut evicted).await,
            }
        }
    }

    fn note(&self, waiting: &mut HashMap<PodUid, Waiting>, report: Report) {
        let Report { pod, nodes } = report;
        let uid = PodUid::from(pod.uid.as_str());
        if let Some(known) = waiting.get_mut(&uid) {
            known.nodes = nodes;
        } else if waiting.len() < MAX_PODS {
            let (due, pause) = (Instant::now() + self.bounds.after, self.bounds.after);
            waiting.insert(uid, Waiting { pod, nodes, due, pause, kept: false });
        }
    }

    async fn look_at_due(
        &self,
        waiting: &mut HashMap<PodUid, Waiting>,
        evicted: &mut VecDeque<Instant>,
    ) {
        let now = Instant::now();
        let due: Vec<PodUid> =
            waiting.iter().filter(|(_, pod)| pod.due <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            let Some(pod) = waiting.get_mut(&uid) else { continue };
            if pod.kept {
                self.view.cards.keep_no_more(&uid);
                pod.kept = false;
            }
            match self.look(&uid, pod, evicted).await {
                Outcome::Over => drop(waiting.remove(&uid)),
                Outcome::Later => {
                    pod.due = Instant::now() + pod.pause;
                    pod.pause = (pod.pause * 2).min(LONGEST_PAUSE);
                }
                Outcome::Evicted => {
                    (pod.due, pod.kept) = (Instant::now() + KEPT, true);
                    pod.pause = self.bounds.after;
                }
            }
        }
    }

    async fn look(
        &self,
        uid: &PodUid,
        waiting: &Waiting,
        evicted: &mut VecDeque<Instant>,
    ) -> Outcome {
        if !self.replicas.leads() {
            return Outcome::Over;
        }
        let AboutPod { namespace, name, .. } = &waiting.pod;
        let pod = match get_pod(&self.client, namespace, name, CALL).await {
            Ok(Some(pod)) if pod.uid() == *uid && waits(&pod) => pod,
            Ok(_) => return Outcome::Over,
            Err(error) => {
                tracing::warn!(namespace, name, %error, "cannot read a pod that waits for a card");
                return Outcome::Later;
            }
        };
        let Ok(Some(request)) = pod.request(&self.names) else { return Outcome::Over };
        // kube-scheduler has not given it up yet, or makes room for it itself.
        if pod.wait() == Wait::None || pod.nominated_node().is_some() {
            return Outcome::Later;
        }
        let search = Search {
            view: &self.view,
            client: &self.client,
            names: &self.names,
            pod: &pod,
            request: &request,
        };
        match search.among(&waiting.nodes).await {
            Found::Eviction(eviction) if self.allows(&eviction, evicted) => {
                self.carry_out(uid, &waiting.pod, &eviction, evicted).await
            }
            Found::Eviction(_) => {
                self.metrics.card_eviction("rate-limited");
                Outcome::Later
            }
            Found::Nothing => {
                self.metrics.card_eviction("no-victims");
                Outcome::Later
            }
        }
    }

    /// Whether so many may be evicted now.
    fn allows(&self, eviction: &Eviction, evicted: &mut VecDeque<Instant>) -> bool {
        while evicted.front().is_some_and(|at| at.elapsed() >= MINUTE) {
            evicted.pop_front();
        }
        evicted.is_empty() || evicted.len() + eviction.victims.len() <= self.bounds.a_minute
    }

    /// Evicts, with the card kept from before the first eviction.
    async fn carry_out(
        &self,
        uid: &PodUid,
        pod: &AboutPod,
        eviction: &Eviction,
        evicted: &mut VecDeque<Instant>,
    ) -> Outcome {
        let Eviction { node, cards, victims } = eviction;
        self.view.cards.keep(uid, node, cards.clone());
        for victim in victims {
            // What was asked before took its time.
            if !self.replicas.leads() {
                self.view.cards.keep_no_more(uid);
                return Outcome::Over;
            }
            let outcome = evict(&self.client, victim, CALL).await;
            self.metrics.card_eviction(label(&outcome));
            match outcome {
                EvictOutcome::Evicted | EvictOutcome::Unknown(_) => {
                    evicted.push_back(Instant::now());
                    self.tell(victim, &victim_warning(pod)).await;
                }
                EvictOutcome::NotNow(why) | EvictOutcome::Refused(why) => {
                    let AboutPod { namespace, name, .. } = victim;
                    tracing::warn!(namespace, name, why, "a pod is not evicted for another's card");
                    self.view.cards.keep_no_more(uid);
                    return Outcome::Later;
                }
            }
        }
        self.tell(pod, &beneficiary_warning(node, victims.len())).await;
        Outcome::Evicted
    }

    async fn tell(&self, pod: &AboutPod, warning: &Warning) {
        if let Err(error) = self.events.warn(pod, warning, CALL).await {
            let AboutPod { namespace, name, .. } = pod;
            tracing::warn!(namespace, name, %error, "no event of an eviction");
        }
    }
}

/// Whether others may still be evicted for the pod.
fn waits(pod: &Pod) -> bool {
    pod.node().is_none() && !pod.is_finished() && !pod.is_deleting() && pod.may_preempt()
}

fn label(outcome: &EvictOutcome) -> &'static str {
    match outcome {
        EvictOutcome::Evicted => "evicted",
        EvictOutcome::NotNow(_) => "not-now",
        EvictOutcome::Refused(_) => "refused",
        EvictOutcome::Unknown(_) => "unknown",
    }
}

fn victim_warning(of: &AboutPod) -> Warning {
    let AboutPod { namespace, name, .. } = of;
    Warning {
        reason: "EvictedForGPUCard",
        action: "Evict",
        note: format!(
            "Its GPU card is needed for pod {namespace}/{name}, which is more important, and finds room on no card"
        ),
    }
}

fn beneficiary_warning(node: &NodeName, count: usize) -> Warning {
    Warning {
        reason: "EvictingForGPUCard",
        action: "Evict",
        note: format!(
            "{count} less important pods of node {node} were evicted for it; their GPU card is kept for {} s",
            KEPT.as_secs()
        ),
    }
}
