//! The rounds of the evictor: one pod that waits has its turn after another.

use std::future::pending;
use std::iter::zip;
use std::sync::Arc;
use std::time::Duration;

use cluster::{CallError, Pod, PodReference, Wait, applicant, get_pod};
use daemon::Shutdown;
use jiff::{SignedDuration, Timestamp};
use placement::gpu::GpuRequest;
use placement::load::Verdict;
use placement::moves::{PodNeeds, Proposal};
use placement::node_rules::NodeRules;
use placement::units::{NodeName, PodUid};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::choice::{self, ReadNodes};
use super::evictor::{CALL_TIMEOUT, Evicted, EvictionModes, Evictor, RoundOutcome};
use super::moved_for::Circumstances;
use super::reports::{GpuEvictions, Message};
use super::waiting::{PodWithoutGpu, PodsWithoutGpu};
use crate::decisions::{DecidedPod, Decision, Evaluator};
use crate::moves::MoveSearch;
use crate::node_request::CandidateNodes;
use crate::victims::{VictimSearch, rules_left};
use crate::view::{GpuPodId, Index};

/// Sets of victims that are tried in one round: in each but the last, the dry run of one eviction failed.
const MAX_TRIES: usize = 8;

/// How often waiting pods are taken from the view, with `--move-for-cards`: as long as a pod has to wait before others
/// are evicted for it, within these bounds.
const TAKEN_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(15));

impl Evictor {
    /// Handles reported pods until the shutdown.
    ///
    /// # Errors
    ///
    /// None: errors are logged, and the round is retried.
    pub(crate) async fn run(self, reports: GpuEvictions, shutdown: Shutdown) -> anyhow::Result<()> {
        let mut waiting = PodsWithoutGpu::new(reports.known);
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
                _ = taking.tick() => self.take_waiting(&mut waiting),
            }
        }
    }

    /// Adds the pods that wait for GPUs, whatever kube-scheduler has asked about them. It asks nothing about those with
    /// ResourceClaims that find no room.
    fn take_waiting(&self, waiting: &mut PodsWithoutGpu) {
        if !self.replicas.leads() || !self.view.is_complete() {
            return;
        }
        let EvictionModes { evict, moves } = self.modes;
        let by_units = moves.then(|| self.view.ask(Index::waiting_pods));
        let by_claims = evict.then(|| self.view.ask(Index::waiting_by_claims));
        for (pod, priority) in by_units.into_iter().chain(by_claims).flatten() {
            waiting.insert_waiting(pod, priority, self.limits.after);
        }
    }

    /// Handles the pod that is due.
    async fn handle_due(&self, waiting: &mut PodsWithoutGpu, evicted: &mut Evicted) {
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
            RoundOutcome::StillKept => pod.set_next_round_when_gpus_expire(),
        }
    }

    /// One round for a pod.
    async fn run_round(
        &self,
        uid: &PodUid,
        waiting: &mut PodWithoutGpu,
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
                tracing::warn!(%uid, namespace, pod = name, %error, "cannot read a pod that waits for a GPU");
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
        waiting: &mut PodWithoutGpu,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let request = match pod.request(&self.names) {
            Ok(Some(asked)) => asked.with_beyond_units(self.view.beyond_units_of(pod.namespace())),
            Ok(None) => return self.look_for_claim(uid, pod, waiting, evicted).await,
            Err(_) => return RoundOutcome::Over,
        };
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
            rules: rules_left(pod),
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

    /// As [`Evictor::look_for_room`], for a pod whose ResourceClaim asks for one share and nothing else. Where it may
    /// go, kube-scheduler has told nobody.
    async fn look_for_claim(
        &self,
        uid: &PodUid,
        pod: &Pod,
        waiting: &mut PodWithoutGpu,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let Some(request) = self.view.sole_claim_request(pod).filter(|_| self.modes.evict) else {
            return RoundOutcome::Over;
        };
        let waits = pod.is_unschedulable() && pod.nominated_node().is_none();
        if !waits || self.view.ask(|index| index.keeps_for_claim_of(uid)) {
            return RoundOutcome::Later;
        }
        let needs = applicant(&self.client, &waiting.pod, &self.names, CALL_TIMEOUT).await;
        let Ok(Some(PodNeeds { rules, .. })) = needs else { return RoundOutcome::Later };
        waiting.nodes = self.nodes_by_claims(pod, &rules);
        waiting.by_claim = Some(request.clone());
        let (view, client, names) = (&*self.view, &self.client, &*self.names);
        let search = VictimSearch { view, client, names, pod, request: &request, rules };
        self.make_room(uid, &search, waiting, evicted).await
    }

    /// The nodes whose GPUs are given out by claims, that the rules select, and that Filter accepts by their load.
    fn nodes_by_claims(&self, pod: &Pod, rules: &NodeRules) -> Vec<NodeName> {
        let current = self.view.current();
        let snapshot = &current.snapshot;
        let mut nodes = Vec::new();
        for (node, gpus) in snapshot.nodes_with_gpus() {
            let Some(load) = snapshot.load(node.as_str()) else { continue };
            if gpus.for_claims().is_some() && rules.select(node.as_str(), &load.labels) {
                nodes.push(node.clone());
            }
        }
        let estimates = current.estimates(pod, &self.names);
        let decided = DecidedPod::new(pod, estimates, SignedDuration::ZERO);
        let named = CandidateNodes::new(snapshot.names(), nodes.iter().map(NodeName::as_str));
        let decision = Decision::new(Arc::clone(snapshot), decided, None, named, Timestamp::now());
        let verdicts = Evaluator::new(&decision).verdicts().each;
        let mut accepted = zip(nodes, verdicts).collect::<Vec<_>>();
        accepted.retain(|(_, verdict)| *verdict == Verdict::Accepted);
        accepted.into_iter().map(|(node, _)| node).collect()
    }

    /// Moves the fewest pods whose successors fit elsewhere. `None` where no moves make room, or are needed.
    async fn move_others(
        &self,
        pod: &Pod,
        request: &GpuRequest,
        waiting: &mut PodWithoutGpu,
        evicted: &mut Evicted,
    ) -> Option<RoundOutcome> {
        let uid = pod.uid();
        let circumstances = Circumstances::of(pod, &self.view.read());
        if let Some(earlier) = evicted.moved_for.same(pod, &circumstances)
            && self.view.ask(|index| index.held_on(earlier).is_empty())
        {
            self.metrics.count_gpu_eviction("in-vain");
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
            let refused = waiting.left_out.len();
            let outcome = self.evict_all(&uid, waiting, proposal.into(), evicted).await;
            let Some(outcome) = outcome else { continue };
            let are_all = waiting.left_out.len() == refused;
            if are_all && matches!(outcome, RoundOutcome::Evicted) {
                evicted.moved_for.record(pod, circumstances);
            }
            return Some(outcome);
        }
        None
    }

    async fn propose(
        &self,
        pod: &Pod,
        request: &GpuRequest,
        waiting: &PodWithoutGpu,
        evicted: &mut Evicted,
    ) -> Result<Option<Proposal>, CallError> {
        let search = MoveSearch {
            view: &self.view,
            client: &self.client,
            names: &self.names,
            left_out: &waiting.left_out,
            moved: evicted.resting(),
        };
        let Some(needs) = search.needs(pod, &waiting.pod).await? else { return Ok(None) };
        let now = Timestamp::now();
        let waited = match pod.wait() {
            Wait::Since(since) => now.duration_since(since),
            Wait::None | Wait::Unknown => needs.waited,
        };
        let asks = PodNeeds { request: Some(request.clone()), waited, ..needs };
        Ok(search.run(&asks, Some(pod.priority()), now).await?.proposal)
    }

    /// Evicts the best set of victims whose dry runs all succeed.
    async fn make_room(
        &self,
        uid: &PodUid,
        search: &VictimSearch<'_>,
        waiting: &mut PodWithoutGpu,
        evicted: &mut Evicted,
    ) -> RoundOutcome {
        let nodes = choice::rank(search, &waiting.nodes, &waiting.of_no_use);
        let read = ReadNodes::read(search, nodes.clone()).await;
        for _ in 0..MAX_TRIES {
            let Some(eviction) = read.cheapest_eviction(search, waiting) else {
                let snapshot = self.view.read();
                let mut gpus = waiting.nodes.iter().filter_map(|it| snapshot.gpus(it.as_str()));
                let spares_clients = gpus.any(|gpus| !gpus.undrained_clients().is_empty());
                let outcome = if spares_clients { "mps-clients" } else { "no-victims" };
                self.metrics.count_gpu_eviction(outcome);
                waiting.left_out.clear();
                waiting.record_no_use(nodes);
                return RoundOutcome::Later;
            };
            let outcome = self.evict_all(uid, waiting, eviction.into(), evicted).await;
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        RoundOutcome::Later
    }
}

/// Whether others may still be evicted for the pod.
fn waits(pod: &Pod) -> bool {
    pod.node().is_none() && !pod.is_finished() && !pod.is_deleting() && pod.may_preempt()
}
