//! Evicts pods for a GPU pod that no card has room for (`--evict-for-cards`, `--move-for-cards`).
//!
//! kube-scheduler sees a node's total only. Where the totals suffice, its preemption finds no pod to evict and never
//! begins (kubernetes/kubernetes#139270), whatever the pod's priority. Filter reports such pods to a task of their own.
//! After a pod has waited for a while, the task evicts the fewest and least important pods of one card through the
//! Eviction API, and keeps that card for the pod.
//!
//! With `--move-for-cards` it first looks for pods whose successors fit elsewhere ([`crate::moves`]). That also helps
//! pods that no node has enough units for in total. kube-scheduler does not call Filter for these, so the task takes
//! them from the view.
//!
//! Invariants: only the leader evicts; only pods of lower priority, and by moves those as important that are marked as
//! safe to evict; none whose PodDisruptionBudgets allow no eviction; and not more a minute than the limit. Before the
//! first eviction, a dry run of each has succeeded. For one pod, others are evicted once in [`waiting::KEEP_FOR`] at
//! most, and with growing pauses; after moves that did not help it, none are moved for it ([`moved_for`]). Each
//! namespace has its turn. Filter does not wait for any of this.

mod choice;
mod events;
mod moved_for;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use cluster::{
    CallError, Client, EventText, EventWriter, EvictOutcome, Pod, PodReference, Wait, applicant,
    evict, get_pod, try_evict,
};
use daemon::Shutdown;
use dashmap::DashSet;
use jiff::{SignedDuration, Timestamp};
use placement::gpu::GpuRequest;
use placement::names::Names;
use placement::units::{CardId, NodeName, PodUid};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::choice::ReadNodes;
use self::events::{beneficiary_warning, moved_warning, moves_warning, victim_warning};
use self::moved_for::Circumstances;
pub(crate) use self::moved_for::MovedFor;
pub(crate) use self::waiting::PodsWithoutCard;
use self::waiting::{KeptCards, PodWithoutCard, Report};
use crate::decisions::DecidedPod;
use crate::metrics::Metrics;
use crate::moves::{MoveSearch, MovesFor, Proposal, ProposedMove, Workload};
use crate::replicas::Replicas;
use crate::tables::{Table, TurnQueue};
use crate::victims::{Eviction, VictimSearch};
use crate::view::{GpuPodId, Index, View};

/// Nodes of a report at most.
const MAX_NODES: usize = 5_000;

/// Sets of victims that are tried in one round: in each but the last, the dry run of one eviction failed.
const MAX_TRIES: usize = 8;

/// A workload of which a pod was moved has none moved for so long: its successor has to start, and may itself be what
/// would be moved next.
const REST: Duration = Duration::from_secs(600);

/// The period of the eviction limit.
const MINUTE: Duration = Duration::from_secs(60);

/// How often waiting pods are taken from the view, with `--move-for-cards`: as long as a pod has to wait before others
/// are evicted for it, within these bounds.
const TAKEN_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(15));

/// The timeout of one call to the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Limits of evictions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvictionLimits {
    /// How long a pod has to wait before others are evicted for it.
    pub(crate) after: Duration,
    /// Evictions in a minute at most. A single set of victims may be larger if there was no eviction in the last
    /// minute.
    pub(crate) a_minute: usize,
}

/// What the evictor may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionModes {
    /// Evict less important pods of one card.
    pub(crate) evict: bool,
    /// Move pods whose successors fit elsewhere.
    pub(crate) moves: bool,
}

/// Pods to evict, and the cards that are kept then.
struct Victims {
    node: NodeName,
    cards: Vec<CardId>,
    pods: Vec<Victim>,
}

/// A pod to evict.
struct Victim {
    pod: PodReference,
    /// `None` where it is evicted because it is less important.
    moved: Option<Moved>,
}

/// What is known of a pod that is moved.
struct Moved {
    /// Where its successor fits.
    to: NodeName,
    workload: Option<Workload>,
}

impl Victim {
    fn less_important(pod: PodReference) -> Self {
        Self { pod, moved: None }
    }

    fn moved(one: ProposedMove) -> Self {
        Self { pod: one.pod, moved: Some(Moved { to: one.to, workload: one.workload }) }
    }
}

/// Filter's reports to the evictor.
#[derive(Clone)]
pub struct CardEvictions {
    /// The last message about each pod.
    queue: Arc<TurnQueue<PodUid, Message>>,
    /// Pods with a report that the evictor holds or has not read yet.
    known: Arc<DashSet<PodUid>>,
}

enum Message {
    /// No node passed Filter.
    Report(Report),
    /// A node passed Filter.
    Withdrawal,
}

impl CardEvictions {
    /// An empty queue of reports.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { queue: Arc::new(TurnQueue::new(Table::CardReports)), known: Arc::default() }
    }

    /// Reports a pod that every node rejects, with the nodes that reject it only because no card has room.
    pub(crate) fn report(
        &self,
        pod: &DecidedPod,
        priority: i32,
        nodes: impl Iterator<Item = NodeName>,
    ) {
        let Some(reference) = pod.reference() else { return };
        let nodes = distinct(nodes);
        if !nodes.is_empty() {
            // Inserted before sending: a withdrawal may come before the report is read.
            self.known.insert(pod.uid.clone());
            self.send(pod, Message::Report(Report { pod: reference, priority, nodes }));
        }
    }

    /// Withdraws the report of a pod for which a node has passed.
    pub(crate) fn withdraw(&self, pod: &DecidedPod) {
        if self.known.contains(&pod.uid) {
            self.send(pod, Message::Withdrawal);
        }
    }

    /// If the queue is full, another message is lost: kube-scheduler makes Filter report the pod again, and a report
    /// that is not withdrawn expires.
    fn send(&self, pod: &DecidedPod, message: Message) {
        let lost = self.queue.push(&pod.namespace, pod.uid.clone(), message);
        if let Some((uid, Message::Report(_))) = lost.filter(|(uid, _)| *uid != pod.uid) {
            self.known.remove(&uid);
        }
    }
}

/// Each node once, [`MAX_NODES`] at most.
fn distinct(nodes: impl Iterator<Item = NodeName>) -> Vec<NodeName> {
    let mut all = BTreeSet::new();
    for node in nodes {
        all.insert(node);
        if all.len() >= MAX_NODES {
            break;
        }
    }
    all.into_iter().collect()
}

/// The outcome of one round for a pod.
enum RoundOutcome {
    /// The pod is bound, deleted, or no longer eligible.
    Over,
    /// Nothing can be done now.
    Later,
    /// Other pods were evicted, and a card is kept for the pod.
    Evicted,
    /// Earlier victims are still ending: the card stays kept.
    StillKept,
}

/// What was evicted lately.
#[derive(Default)]
struct Evicted {
    /// When pods were evicted, in the last minute.
    times: VecDeque<Instant>,
    /// Workloads of which pods were moved, and when. As many as were moved in [`REST`] at most.
    moved: BTreeMap<Workload, Instant>,
    /// The pods that others were moved for.
    moved_for: MovedFor,
}

impl Evicted {
    /// The workloads of which no pod is moved now.
    fn resting(&mut self) -> BTreeSet<Workload> {
        self.moved.retain(|_, at| at.elapsed() < REST);
        self.moved.keys().cloned().collect()
    }
}

/// Evicts pods.
pub(crate) struct Evictor {
    /// The cards.
    pub(crate) view: Arc<View>,
    /// The API server's client.
    pub(crate) client: Client,
    /// Resource names and annotation keys.
    pub(crate) names: Arc<Names>,
    /// Whether this replica leads.
    pub(crate) replicas: Arc<Replicas>,
    /// Writes events about evictions.
    pub(crate) events: EventWriter,
    /// Counts evictions.
    pub(crate) metrics: Metrics,
    /// The limits.
    pub(crate) limits: EvictionLimits,
    /// What it may do.
    pub(crate) modes: EvictionModes,
}

impl Evictor {
    /// Handles reported pods until the shutdown.
    ///
    /// # Errors
    ///
    /// None: errors are logged, and the round is retried.
    pub(crate) async fn run(
        self,
        reports: CardEvictions,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        let mut waiting = PodsWithoutCard::new(reports.known);
        let mut evicted = Evicted::default();
        let mut taking = interval(self.limits.after.clamp(TAKEN_EVERY.0, TAKEN_EVERY.1));
        taking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = waiting.next_due();
            let next = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                (pod, message) = reports.queue.next() => match message {
                    Message::Report(report) => waiting.insert(report, self.limits.after),
                    Message::Withdrawal => waiting.withdraw(&pod),
                },
                () = next => self.handle_due(&mut waiting, &mut evicted).await,
                _ = taking.tick(), if self.modes.moves => self.take_waiting(&mut waiting),
            }
        }
    }

    /// Adds the pods that wait for cards, whatever kube-scheduler has asked about them.
    fn take_waiting(&self, waiting: &mut PodsWithoutCard) {
        if !self.replicas.leads() || !self.view.is_complete() {
            return;
        }
        for (pod, priority) in self.view.ask(Index::waiting_pods) {
            waiting.insert_waiting(pod, priority, self.limits.after);
        }
    }

    /// Handles the pod that is due.
    async fn handle_due(&self, waiting: &mut PodsWithoutCard, evicted: &mut Evicted) {
        let Some((uid, pod)) = waiting.due() else { return };
        let outcome = self.run_round(&uid, pod, evicted).await;
        if matches!(outcome, RoundOutcome::Over | RoundOutcome::Later) && pod.kept.take().is_some()
        {
            self.view.change(|index| index.release_kept(&uid));
        }
        match outcome {
            RoundOutcome::Over => waiting.remove(&uid),
            RoundOutcome::Later => pod.set_next_round(),
            RoundOutcome::Evicted => pod.set_next_round_after_keeping(),
            RoundOutcome::StillKept => pod.set_next_round_when_cards_expire(),
        }
    }

    /// One round for a pod.
    async fn run_round(
        &self,
        uid: &PodUid,
        waiting: &mut PodWithoutCard,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let stays_kept = waiting.kept.as_mut().map(|kept| kept.check_stays(&self.view));
        if !self.replicas.leads() || (stays_kept.is_none() && waiting.is_over()) {
            return RoundOutcome::Over;
        }
        let PodReference { namespace, name, .. } = &waiting.pod;
        let pod = match get_pod(&self.client, namespace, name, CALL_TIMEOUT).await {
            Ok(Some(pod)) if pod.uid() == *uid && waits(&pod) => Some(pod),
            Ok(Some(pod)) if pod.uid() == *uid && pod.node().is_some() => {
                evicted.moved_for.remove(&pod);
                return RoundOutcome::Over;
            }
            Ok(_) => return RoundOutcome::Over,
            Err(error) => {
                tracing::warn!(%uid, namespace, pod = name, %error, "cannot read a pod that waits for a card");
                None
            }
        };
        match (stays_kept, pod) {
            (Some(true), _) => RoundOutcome::StillKept,
            (None, Some(pod)) => self.look_for_room(uid, &pod, waiting, evicted).await,
            // The next round may evict others.
            (Some(false), _) | (None, None) => RoundOutcome::Later,
        }
    }

    async fn look_for_room(
        &self,
        uid: &PodUid,
        pod: &Pod,
        waiting: &mut PodWithoutCard,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let Ok(Some(asked)) = pod.request(&self.names) else { return RoundOutcome::Over };
        let request = asked.with_beyond_units(self.view.beyond_units_of(pod.namespace()));
        // kube-scheduler has not marked it unschedulable yet, or preempts for it.
        if !pod.is_unschedulable() || pod.nominated_node().is_some() {
            return RoundOutcome::Later;
        }
        // Filter and Bind would refuse it, whatever was evicted.
        let id = GpuPodId::of(pod);
        if self.view.ask(|index| index.waits_for_deleted(&id, &request)).is_some() {
            return RoundOutcome::Later;
        }
        let snapshot = self.view.read();
        let now = Timestamp::now();
        waiting.nodes.retain(|node| !snapshot.is_backed_off(node, pod.namespace(), now));
        let search = VictimSearch {
            view: &self.view,
            client: &self.client,
            names: &self.names,
            pod,
            request: &request,
        };
        if self.modes.moves
            && let Some(outcome) = self.move_others(pod, &request, waiting, evicted).await
        {
            return outcome;
        }
        if !self.modes.evict || waiting.nodes.is_empty() {
            return RoundOutcome::Later;
        }
        self.make_room(uid, &search, waiting, evicted).await
    }

    /// Moves the fewest pods whose successors fit elsewhere. `None` where no moves make room, or are needed.
    async fn move_others(
        &self,
        pod: &Pod,
        request: &GpuRequest,
        waiting: &mut PodWithoutCard,
        evicted: &mut Evicted,
    ) -> Option<RoundOutcome> {
        let uid = pod.uid();
        let circumstances = Circumstances::of(pod, &self.view.read());
        if let Some(earlier) = evicted.moved_for.same(pod, &circumstances)
            && self.view.ask(|index| index.held_on(earlier).is_empty())
        {
            self.metrics.count_card_eviction("in-vain");
            return None;
        }
        for _ in 0..MAX_TRIES {
            let proposal = match self.propose(pod, request, waiting, evicted).await {
                Ok(Some(proposal)) if !proposal.moves.is_empty() => proposal,
                Ok(_) => {
                    // Those whose eviction was refused may go by the next round.
                    waiting.left_out.clear();
                    return None;
                }
                Err(error) => {
                    let (namespace, name) = (pod.namespace(), pod.name());
                    tracing::warn!(%uid, namespace, pod = name, %error, "no pods are moved for a GPU pod: not all can be read");
                    return None;
                }
            };
            let Proposal { node, cards, moves, .. } = proposal;
            let pods = moves.into_iter().map(Victim::moved).collect();
            let victims = Victims { node, cards, pods };
            if !self.allows(victims.pods.len(), evicted) {
                self.metrics.count_card_eviction("rate-limited");
                return Some(RoundOutcome::Later);
            }
            match self.first_refused(&victims.pods).await {
                Some(victim) => waiting.leave_out(victim),
                None => {
                    let refused = waiting.left_out.len();
                    let outcome = self.carry_out(&uid, waiting, victims, evicted).await;
                    let are_all = waiting.left_out.len() == refused;
                    if are_all && matches!(outcome, RoundOutcome::Evicted) {
                        evicted.moved_for.record(pod, circumstances);
                    }
                    return Some(outcome);
                }
            }
        }
        None
    }

    async fn propose(
        &self,
        pod: &Pod,
        request: &GpuRequest,
        waiting: &PodWithoutCard,
        evicted: &mut Evicted,
    ) -> Result<Option<Proposal>, CallError> {
        let applicant = applicant(&self.client, &waiting.pod, CALL_TIMEOUT).await?;
        let Some(applicant) = applicant else { return Ok(None) };
        let search = MoveSearch {
            view: &self.view,
            client: &self.client,
            names: &self.names,
            left_out: &waiting.left_out,
            moved: &evicted.resting(),
        };
        let now = Timestamp::now();
        let waited = match pod.wait() {
            Wait::Since(since) => now.duration_since(since),
            Wait::None | Wait::Unknown => SignedDuration::ZERO,
        };
        let estimates = self.view.current().estimates(pod, &self.names);
        let decided = DecidedPod::new(pod, estimates, waited);
        let moves_for = MovesFor {
            decided: &decided.with_declared(pod.declared(&self.names)),
            request,
            applicant: &applicant,
            priority: Some(pod.priority()),
        };
        Ok(search.run(&moves_for, now).await?.proposal)
    }

    /// Evicts the best set of victims whose dry runs all succeed.
    async fn make_room(
        &self,
        uid: &PodUid,
        search: &VictimSearch<'_>,
        waiting: &mut PodWithoutCard,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let nodes = choice::rank(search, &waiting.nodes, &waiting.of_no_use);
        let read = ReadNodes::read(search, nodes.clone()).await;
        for _ in 0..MAX_TRIES {
            let Some(eviction) = read.cheapest_eviction(search, &waiting.left_out) else {
                let snapshot = self.view.read();
                let mut cards = waiting.nodes.iter().filter_map(|it| snapshot.cards(it.as_str()));
                let spares_clients = cards.any(|cards| !cards.undrained_clients().is_empty());
                let outcome = if spares_clients { "mps-clients" } else { "no-victims" };
                self.metrics.count_card_eviction(outcome);
                waiting.left_out.clear();
                waiting.record_no_use(nodes);
                return RoundOutcome::Later;
            };
            let Eviction { node, cards, victims, .. } = eviction;
            let pods = victims.into_iter().map(Victim::less_important).collect();
            let victims = Victims { node, cards, pods };
            if !self.allows(victims.pods.len(), evicted) {
                self.metrics.count_card_eviction("rate-limited");
                return RoundOutcome::Later;
            }
            match self.first_refused(&victims.pods).await {
                Some(victim) => waiting.leave_out(victim),
                None => return self.carry_out(uid, waiting, victims, evicted).await,
            }
        }
        RoundOutcome::Later
    }

    /// Whether the limit allows so many evictions now.
    fn allows(&self, pods: usize, evicted: &mut Evicted) -> bool {
        let times = &mut evicted.times;
        while times.front().is_some_and(|at| at.elapsed() >= MINUTE) {
            times.pop_front();
        }
        times.is_empty() || times.len() + pods <= self.limits.a_minute
    }

    /// The first of these pods whose dry run of the eviction fails.
    async fn first_refused(&self, victims: &[Victim]) -> Option<PodUid> {
        for Victim { pod: victim, .. } in victims {
            let outcome = try_evict(&self.client, victim, CALL_TIMEOUT).await;
            if let Some(why) = refusal(&outcome) {
                self.record_refusal(victim, &outcome, why);
                return Some(PodUid::from(victim.uid.as_str()));
            }
        }
        None
    }

    fn record_refusal(&self, victim: &PodReference, outcome: &EvictOutcome, why: &str) {
        let PodReference { namespace, name: pod, uid } = victim;
        tracing::warn!(uid, namespace, pod, why, "this pod cannot be evicted for a GPU pod");
        self.metrics.count_card_eviction(label(outcome));
    }

    /// Keeps the cards for the waiting pod, then evicts the victims.
    async fn carry_out(
        &self,
        uid: &PodUid,
        waiting: &mut PodWithoutCard,
        victims: Victims,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let Victims { node, cards, pods } = victims;
        for moved in pods.iter().filter_map(|victim| victim.moved.as_ref()) {
            evicted.moved.extend(moved.workload.clone().map(|workload| (workload, Instant::now())));
        }
        self.view.change(|index| index.keep(uid, &node, cards.clone()));
        waiting.kept = Some(KeptCards::new(node.clone(), cards));
        let mut gone = 0;
        for Victim { pod: victim, moved } in &pods {
            // The calls before took time, in which another replica may have taken over.
            if !self.replicas.leads() {
                return RoundOutcome::Over;
            }
            let outcome = self.evict(victim).await;
            if matches!(outcome, EvictOutcome::Evicted | EvictOutcome::Unknown(_)) {
                evicted.times.push_back(Instant::now());
            }
            if let Some(why) = refusal(&outcome) {
                self.record_refusal(victim, &outcome, why);
                waiting.leave_out(PodUid::from(victim.uid.as_str()));
                break;
            }
            gone += 1;
            self.metrics.count_card_eviction(label(&outcome));
            let warning = match moved {
                Some(moved) => moved_warning(&waiting.pod, &moved.to),
                None => victim_warning(&waiting.pod),
            };
            self.write_event(victim, &warning).await;
        }
        if gone == 0 {
            return RoundOutcome::Later;
        }
        let are_moved = pods.iter().any(|victim| victim.moved.is_some());
        let warning =
            if are_moved { moves_warning(&node, gone) } else { beneficiary_warning(&node, gone) };
        self.write_event(&waiting.pod, &warning).await;
        RoundOutcome::Evicted
    }

    /// Evicts a pod. If the answer is unclear, as after a webhook's failure, reads the pod to find out.
    async fn evict(&self, victim: &PodReference) -> EvictOutcome {
        let outcome = evict(&self.client, victim, CALL_TIMEOUT).await;
        let EvictOutcome::Unknown(why) = outcome else { return outcome };
        match get_pod(&self.client, &victim.namespace, &victim.name, CALL_TIMEOUT).await {
            Ok(Some(pod)) if pod.uid().as_str() == victim.uid && !pod.is_deleting() => {
                EvictOutcome::Refused(why)
            }
            Ok(_) => EvictOutcome::Evicted,
            Err(_) => EvictOutcome::Unknown(why),
        }
    }

    async fn write_event(&self, pod: &PodReference, warning: &EventText) {
        if let Err(error) = self.events.warn(pod, warning, CALL_TIMEOUT).await {
            let PodReference { namespace, name: pod, uid } = pod;
            tracing::warn!(uid, namespace, pod, %error, "cannot write the event about an eviction");
        }
    }
}

/// Whether others may still be evicted for the pod.
fn waits(pod: &Pod) -> bool {
    pod.node().is_none() && !pod.is_finished() && !pod.is_deleting() && pod.may_preempt()
}

/// Why a pod was not evicted; `None` if it was.
fn refusal(outcome: &EvictOutcome) -> Option<&str> {
    match outcome {
        EvictOutcome::Evicted => None,
        EvictOutcome::NotNow(why) | EvictOutcome::Refused(why) | EvictOutcome::Unknown(why) => {
            Some(why)
        }
    }
}

fn label(outcome: &EvictOutcome) -> &'static str {
    match outcome {
        EvictOutcome::Evicted => "evicted",
        EvictOutcome::NotNow(_) => "not-now",
        EvictOutcome::Refused(_) => "refused",
        EvictOutcome::Unknown(_) => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::*;
    use crate::view::PodEstimates;

    #[test]
    fn a_report_keeps_each_node_once_and_not_more_than_a_cluster_has() {
        for (nodes, kept) in [(3, 3), (2 * MAX_NODES, MAX_NODES)] {
            let each_twice = (0..2 * nodes).map(|at| (at % nodes).to_string().as_str().into());
            assert_eq!(distinct(each_twice).len(), kept);
        }
    }

    fn decided(uid: &str) -> DecidedPod {
        let meta = json!({ "name": uid, "namespace": "default", "uid": uid });
        let pod: Pod = serde_json::from_value(json!({ "metadata": meta })).unwrap();
        DecidedPod::new(&pod, PodEstimates::default(), SignedDuration::ZERO)
    }

    #[test]
    fn a_pod_that_finds_a_node_before_its_report_is_read_is_withdrawn() {
        let evictions = CardEvictions::new();
        let mut waiting = PodsWithoutCard::new(Arc::clone(&evictions.known));
        let pod = decided("p");
        evictions.withdraw(&pod);
        assert!(evictions.queue.try_next().is_none());
        evictions.report(&pod, 7, ["n1".into()].into_iter());
        evictions.withdraw(&pod);
        let Some((uid, Message::Withdrawal)) = evictions.queue.try_next() else { panic!() };
        waiting.withdraw(&uid);
        assert!(evictions.queue.try_next().is_none());
        assert!(waiting.due().is_none() && evictions.known.is_empty());
    }
}
