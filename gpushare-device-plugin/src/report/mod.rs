//! Reports to the API server: the cards and their pods in the node's annotation, with `--report-gpu-count` the number
//! of cards in its status, and on each pod with a claim that its card was allocated.
//!
//! A round writes what differs from the last write, so a failed write or a restart loses nothing. Everything is written
//! again every five minutes and after a registration, in case another program changed it. The number of cards is
//! written by a task of its own: its failure delays nothing else.

mod refused;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cluster::{CallError, PodFacts, Warning};
use jiff::Timestamp;
use placement::gpu::{Choice, ChosenCard, Claim, Closed, GpuRequest, Isolation, Reservation};
use placement::names::Names;
use placement::units::{CardId, NodeName, PodUid, Units};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::cards::closed::ClosedCards;
use crate::cards::ids::Ids;
use crate::cards::{Cards, units_of};
use crate::isolation::NodeIsolation;
use crate::lingering::Lingering;
use crate::metrics::Metrics;
use crate::node_events::NodeEvents;
use crate::pods::PodCache;
use crate::records::checkpoint::CheckpointFile;
use crate::records::{SharedRecords, at_peak};
use refused::RefusedWrites;

/// Pause between two rounds. Each write of a node makes kube-scheduler retry pods that an extender rejected.
const ROUND_PAUSE: Duration = Duration::from_secs(2);
/// Age at which everything is written again. An unchanged object costs the API server one read.
const REWRITE_AFTER: Duration = Duration::from_secs(300);
/// Time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks of the number of cards.
const COUNT_PAUSE: Duration = Duration::from_secs(10);

/// Reports to the API server.
pub(crate) struct Reporter {
    /// The API server's client.
    pub client: cluster::Client,
    /// The node that is reported on.
    pub node: NodeName,
    /// Resource and annotation names.
    pub names: Names,
    /// Its cards, as they change.
    pub cards: watch::Receiver<Arc<Cards>>,
    /// Its pods, from a watch.
    pub pods: Arc<PodCache>,
    /// Which container holds which ids.
    pub records: Arc<SharedRecords>,
    /// Deleted pods whose processes still run.
    pub lingering: Arc<Lingering>,
    /// How containers are limited to their share.
    pub isolation: NodeIsolation,
    /// Whether the number of cards is written into the Node's status.
    pub gpu_count: bool,
    /// The kubelet's checkpoint.
    pub checkpoint: CheckpointFile,
    /// The cards that take no new pods.
    pub closed: watch::Receiver<Arc<ClosedCards>>,
    /// Whether containers get their cards by CDI.
    pub by_cdi: bool,
    /// Writes events on the node.
    pub events: NodeEvents,
    /// Counts corrections.
    pub metrics: Metrics,
}

/// What the last rounds wrote.
#[derive(Default)]
struct LastWritten {
    cards: Option<CardsWritten>,
    /// Pods that are on another card than their claim's, already counted.
    on_other_cards: BTreeSet<PodUid>,
    refused: RefusedWrites,
    /// Whether the node's container runtime was checked for CDI, and reported if it may have none.
    runtime_checked: bool,
}

struct CardsWritten {
    cards: api::cards::Cards,
    isolation: Option<&'static str>,
    at: Instant,
    /// The number of registrations at that time. A kubelet that starts sets resources without a plugin to 0.
    registrations: u64,
}

/// The number of cards, as it was last written.
struct CountWritten {
    count: u32,
    /// The number of registrations at that time.
    registrations: u64,
    at: Instant,
}

impl Reporter {
    /// Reports until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            ((), ()) = async { tokio::join!(self.rounds(), self.counts()) } => {}
        }
    }

    /// Reports once; errors are logged.
    pub(crate) async fn report_once(&self) {
        if let Err(error) = self.round(&mut LastWritten::default()).await {
            tracing::warn!("cannot report to the API server: {error}");
        }
    }

    async fn rounds(&self) {
        let mut written = LastWritten::default();
        let mut pods = self.pods.changes();
        let mut records = self.records.changes();
        let mut cards = self.cards.clone();
        let mut support = self.isolation.support.clone();
        let mut closed = self.closed.clone();
        loop {
            let outcome = self.round(&mut written).await;
            sleep(ROUND_PAUSE).await;
            if let Err(error) = outcome {
                tracing::warn!("cannot report to the API server, trying again: {error}");
                continue;
            }
            tokio::select! {
                changed = pods.changed() => if changed.is_err() { return },
                changed = records.changed() => if changed.is_err() { return },
                changed = cards.changed() => if changed.is_err() { return },
                changed = support.changed() => if changed.is_err() { return },
                changed = closed.changed() => if changed.is_err() { return },
                () = sleep(REWRITE_AFTER) => {}
            }
        }
    }

    /// Writes the number of cards, if that is wanted, when it changes and after each registration: a kubelet that
    /// starts sets resources without a plugin to 0.
    async fn counts(&self) {
        if !self.gpu_count {
            return;
        }
        let mut cards = self.cards.clone();
        let mut written: Option<CountWritten> = None;
        let mut logged = String::new();
        loop {
            let count = u32::try_from(cards.borrow_and_update().iter().count()).unwrap_or(u32::MAX);
            let registrations = self.metrics.registrations.get();
            let is_due = written.as_ref().is_none_or(|last| {
                last.count != count
                    || last.registrations != registrations
                    || last.at.elapsed() >= REWRITE_AFTER
            });
            if count > 0 && is_due {
                match self.write_count(count).await {
                    Ok(()) => {
                        written = Some(CountWritten { count, registrations, at: Instant::now() });
                    }
                    Err(error) => self.report_count_failure(&error, &mut logged),
                }
            }
            tokio::select! {
                changed = cards.changed() => if changed.is_err() { return },
                () = sleep(COUNT_PAUSE) => {}
            }
        }
    }

    async fn write_count(&self, count: u32) -> Result<(), CallError> {
        let resource = self.names.gpu_count_resource();
        cluster::patch_node_capacity(&self.client, &self.node, resource, count, WRITE_TIMEOUT).await
    }

    /// Counts a failed write of the number of cards, and logs an error that differs from the `logged` one.
    fn report_count_failure(&self, error: &CallError, logged: &mut String) {
        self.metrics.count_failures.inc();
        let error = error.to_string();
        if error != *logged {
            tracing::warn!(
                "cannot write the number of cards into the Node's status, trying again: {error}"
            );
            *logged = error;
        }
    }

    /// One round. A write for a pod that is refused does not stop the others; after any other error the rest waits for
    /// the next round, which writes the cards first.
    async fn round(&self, written: &mut LastWritten) -> Result<(), CallError> {
        self.lingering.update();
        let pods: Vec<(Arc<PodFacts>, Ids)> = self.holders();
        let cards = self.cards.borrow().clone();
        let others = [self.lingering(&cards), self.held_elsewhere(&cards)].concat();
        self.count_corrections(&cards, &pods, &mut written.on_other_cards);
        if !cards.is_empty() {
            let closed = self.closed.borrow().clone();
            let report = report(&cards, &closed, self.isolation.strongest(), &pods, others);
            self.write_cards(report, written).await?;
        }
        written.refused.retain(&pods);
        self.record_claims(&cards, &pods, &mut written.refused).await?;
        for facts in pods.iter().map(|(facts, _)| facts).filter(|facts| is_to_be_marked(facts)) {
            if !written.refused.contains(&facts.uid) {
                let marked = self.mark(facts).await;
                written.refused.keep(facts, marked)?;
            }
        }
        Ok(())
    }

    /// Writes claims from the kubelet's records for admitted pods without a claim, and for those on other cards than
    /// their claim's if this plugin chose these cards for the pod: the claim was edited since. Else the pod may have
    /// got another pod's cards, and is held back at its start.
    async fn record_claims(
        &self,
        cards: &Cards,
        pods: &[(Arc<PodFacts>, Ids)],
        refused: &mut RefusedWrites,
    ) -> Result<(), CallError> {
        for (facts, ids) in pods.iter().filter(|(facts, _)| facts.admitted && !facts.deleting) {
            let is_anothers = facts.claim().is_some() && !self.records.lock().chose_for(&facts.uid);
            if is_anothers || refused.contains(&facts.uid) {
                continue;
            }
            let Some((request, reservation)) =
                claim_from_record(facts, &units_of(ids, cards), cards)
            else {
                continue;
            };
            let at = Timestamp::now();
            let claim = cluster::claim_annotations(&self.names, &request, &reservation, at);
            let recorded = self.record_claim(facts, claim).await;
            if recorded.is_ok() {
                self.metrics.claims_written.inc();
            }
            refused.keep(facts, recorded)?;
        }
        Ok(())
    }

    async fn record_claim(
        &self,
        facts: &PodFacts,
        claim: cluster::Annotations,
    ) -> Result<(), CallError> {
        let PodFacts { namespace, name, uid, .. } = facts;
        tracing::warn!(pod = %uid, namespace, name, "writing the pod's claim from the kubelet's record");
        cluster::record_claim(&self.client, namespace, name, uid, claim, WRITE_TIMEOUT).await
    }

    /// The pods that hold ids. A finished pod holds none.
    fn holders(&self) -> Vec<(Arc<PodFacts>, Ids)> {
        let mut holders = Vec::new();
        for facts in self.pods.all() {
            if facts.finished {
                continue;
            }
            let ids = self.records.lock().held_by(&facts);
            if !ids.is_empty() {
                holders.push((facts, ids));
            }
        }
        holders
    }

    /// The charges of pods that linger.
    fn lingering(&self, cards: &Cards) -> Vec<PodCharge> {
        let records = self.records.lock();
        records.lingering().map(|(uid, pod)| (uid.clone(), pod.charge(cards))).collect()
    }

    /// The charges of pods that hold cards through another plugin's resource: whole cards.
    fn held_elsewhere(&self, cards: &Cards) -> Vec<PodCharge> {
        // If the checkpoint cannot be read, the cards that were read last count.
        match self.checkpoint.read() {
            Ok(checkpoint) => self.records.lock().set_elsewhere(&checkpoint, &self.pods),
            Err(error) => tracing::debug!("{error}"),
        }
        let mut charges: Vec<PodCharge> = Vec::new();
        for held in self.records.lock().elsewhere() {
            let Some(card) = cards.get(&held.card) else { continue };
            // Not under the pod's own UID: what it holds by our resource is another charge.
            let holder = PodUid::from(format!("{}/{}", held.pod, held.resource));
            charges.push((holder, [(card.uuid.clone(), card.units)].into()));
        }
        charges
    }

    async fn write_cards(
        &self,
        cards: api::cards::Cards,
        written: &mut LastWritten,
    ) -> Result<(), CallError> {
        let registrations = self.metrics.registrations.get();
        let isolation = self.isolation.annotation_value();
        if let Some(last) = &written.cards
            && last.cards == cards
            && last.isolation == isolation
            && last.registrations == registrations
            && last.at.elapsed() < REWRITE_AFTER
        {
            return Ok(());
        }
        let annotations = [
            (self.names.cards(), Some(cards.to_json())),
            (self.names.isolation(), isolation.map(str::to_owned)),
        ];
        // The cards are those of this machine, also if its Node object was deleted and made again.
        let runtime =
            cluster::patch_own_node(&self.client, &self.node, annotations, WRITE_TIMEOUT).await?;
        if self.by_cdi && !written.runtime_checked && !runtime.is_empty() {
            written.runtime_checked = true;
            if let Some(note) = crate::nvidia::runtime::cdi_may_be_off(&runtime) {
                tracing::warn!("{note}");
                let reason = "CDIMayBeOff";
                self.events.warn(&Warning { reason, action: "CheckCDI", note }).await;
            }
        }
        written.cards = Some(CardsWritten { cards, isolation, at: Instant::now(), registrations });
        Ok(())
    }

    /// Marks the pod as assigned.
    async fn mark(&self, facts: &PodFacts) -> Result<(), CallError> {
        let PodFacts { namespace, name, uid, .. } = facts;
        cluster::mark_assigned(&self.client, namespace, name, uid, WRITE_TIMEOUT).await
    }

    fn count_corrections(
        &self,
        cards: &Cards,
        pods: &[(Arc<PodFacts>, Ids)],
        known: &mut BTreeSet<PodUid>,
    ) {
        let wrong =
            pods.iter().filter(|(facts, ids)| is_on_other_card(facts, &units_of(ids, cards)));
        let wrong: BTreeSet<PodUid> = wrong.map(|(facts, _)| facts.uid.clone()).collect();
        for pod in wrong.difference(known) {
            tracing::error!(
                %pod,
                "a pod is on another card than its claim's; the node's annotation shows the real one"
            );
            self.metrics.corrections.inc();
        }
        *known = wrong;
    }
}

/// The units that are counted for a pod on each card.
pub(crate) type PodCharge = (PodUid, BTreeMap<CardId, Units>);

/// The cards for the node's annotation, each with why it takes no new pods, the strongest isolation of the node, and
/// the units that pods hold on it. `pods` hold ids of ours. `others` are the charges of pods that linger, and of pods
/// that hold cards through another plugin's resource.
pub(crate) fn report(
    cards: &Cards,
    closed: &ClosedCards,
    strongest: Option<Isolation>,
    pods: &[(Arc<PodFacts>, Ids)],
    others: Vec<PodCharge>,
) -> api::cards::Cards {
    let mut charges = others;
    for (facts, ids) in pods {
        let peak = facts.gpu_pod().map(|gpu| gpu.request.peak()).unwrap_or_default();
        charges.push((facts.uid.clone(), at_peak(units_of(ids, cards), peak)));
    }
    let mut reported = Vec::new();
    for card in cards.iter() {
        reported.push(api::cards::Card {
            pods: charged_on(&card.uuid, &charges),
            uuid: card.uuid.clone(),
            index: card.index,
            model: card.model.clone(),
            memory: card.memory,
            units: card.units,
            numa_node: card.numa_node,
            healthy: card.is_healthy(),
            closed: closed.of(&card.uuid).map(wire_closed),
            isolation: strongest.map(wire_isolation),
        });
    }
    api::cards::Cards(reported)
}

/// The units that are counted for each pod on one card: the largest of its charges.
fn charged_on(card: &CardId, charges: &[PodCharge]) -> BTreeMap<PodUid, Units> {
    let mut charged: BTreeMap<PodUid, Units> = BTreeMap::new();
    for (pod, cards) in charges {
        if let Some(units) = cards.get(card) {
            let most = charged.entry(pod.clone()).or_default();
            *most = (*most).max(*units);
        }
    }
    charged
}

fn wire_closed(closed: Closed) -> api::cards::Closed {
    match closed {
        Closed::Isolation => api::cards::Closed::Isolation,
        Closed::Cdi => api::cards::Closed::Cdi,
        Closed::CdiFolder => api::cards::Closed::CdiFolder,
        Closed::Other => api::cards::Closed::Other,
    }
}

fn wire_isolation(isolation: Isolation) -> api::cards::Isolation {
    match isolation {
        Isolation::None => api::cards::Isolation::None,
        Isolation::Mps => api::cards::Isolation::Mps,
        Isolation::Driver => api::cards::Isolation::Driver,
    }
}

/// Whether a pod holds units on a card that its claim does not name.
pub(crate) fn is_on_other_card(facts: &PodFacts, units: &BTreeMap<CardId, Units>) -> bool {
    let Some(claimed) = facts.claim().map(Claim::cards) else { return false };
    units.keys().any(|card| !claimed.contains_key(card))
}

/// The claim of a pod by the kubelet's record, if the pod has no claim, or one on other cards or with fewer units on
/// one of them. `None` also while the record is incomplete: the kubelet allocates container by container.
fn claim_from_record(
    facts: &PodFacts,
    units: &BTreeMap<CardId, Units>,
    cards: &Cards,
) -> Option<(GpuRequest, Reservation)> {
    let gpu = facts.gpu_pod()?;
    if gpu.fault.is_some() || facts.claim().is_some_and(|claim| covers(claim, units)) {
        return None;
    }
    // The request follows the claim, so a claim that was edited to more or fewer cards also changed the request. With
    // several containers the record of the pod does not show the cards of each.
    let is_all_of_one = gpu.request.containers().len() == 1
        && units.values().copied().sum::<Units>() == gpu.request.peak();
    let request = if units.len() == gpu.request.shares().len() {
        gpu.request.clone()
    } else if is_all_of_one {
        gpu.request.on_cards(u32::try_from(units.len()).ok()?)?
    } else {
        return None;
    };
    // Without a claim, only annotations ask for more than units, and Bind has not checked whether the pod may have
    // that.
    let request = match facts.claim() {
        Some(_) => request,
        None => within_units(request, units, cards)?,
    };
    let shares = request.shares();
    // The shares of a request are sorted, the largest first.
    let mut on: Vec<(&CardId, Units)> = units.iter().map(|(card, units)| (card, *units)).collect();
    on.sort_by_key(|(_, units)| std::cmp::Reverse(*units));
    let is_whole =
        on.len() == 1 || on.iter().zip(shares).all(|((_, held), share)| *held == share.units);
    if !is_whole {
        return None;
    }
    let mut chosen = Vec::new();
    for (card, held) in on {
        let card = cards.get(card)?;
        let left = card.units.saturating_sub(held);
        let uuid = card.uuid.clone();
        chosen.push(ChosenCard { uuid, index: card.index, units: card.units, left });
    }
    let reservation = Reservation::new(&request, Choice { cards: chosen, cost: None });
    Some((request, reservation))
}

/// Whether a claim has each of these cards, with at least these units.
fn covers(claim: &Claim, units: &BTreeMap<CardId, Units>) -> bool {
    units.iter().all(|(card, held)| {
        claim.cards().get(card).is_some_and(|share| share.exclusive || *held <= share.units)
    })
}

/// The request, or its units alone if it would take more of a card of these sizes than its units: compute, exclusive
/// use, or memory up to a limit.
fn within_units(
    request: GpuRequest,
    units: &BTreeMap<CardId, Units>,
    cards: &Cards,
) -> Option<GpuRequest> {
    let mut sizes = units.keys().filter_map(|card| Some(cards.get(card)?.units));
    let exceeds = sizes
        .any(|size| request.shares().iter().any(|share| request.excess(*share, size).is_some()));
    if exceeds { request.of_units_alone() } else { Some(request) }
}

fn is_to_be_marked(facts: &PodFacts) -> bool {
    let assigned = facts.gpu_pod().is_some_and(|gpu| gpu.assigned);
    facts.claim().is_some() && !assigned && !facts.deleting
}

#[cfg(test)]
mod tests {
    use placement::gpu::CardUse;
    use placement::units::Cores;

    use super::*;
    use crate::fixtures::cards;
    use crate::fixtures::{A, B, ids, on_two_cards, simple, with_init, with_use};

    /// A pod that holds units of card A.
    fn charge(pod: &str, units: u32) -> PodCharge {
        (PodUid::from(pod), [(CardId::from(A), Units(units))].into())
    }

    /// The cards of the claim that is written for a pod with these ids.
    fn recorded(pod: &PodFacts, held: &Ids) -> Option<Vec<String>> {
        let cards = cards(&[(A, 4), (B, 4)]);
        let (_, reservation) = claim_from_record(pod, &units_of(held, &cards), &cards)?;
        Some(reservation.claim.cards().keys().map(CardId::to_string).collect())
    }

    fn without_claim(pod: &PodFacts) -> PodFacts {
        let mut pod = pod.clone();
        if let Ok(Some(gpu)) = &mut pod.gpu {
            gpu.claim = Ok(None);
        }
        pod
    }

    /// Units, compute, whether it is exclusive, and limit of the claim that is written for a pod without one.
    fn written(
        units: u32,
        card_use: CardUse,
        held: &Ids,
    ) -> Option<(u32, u32, bool, Option<Units>)> {
        let cards = cards(&[(A, 4), (B, 4)]);
        let pod = without_claim(&with_use("p", A, units, card_use));
        let (_, reservation) = claim_from_record(&pod, &units_of(held, &cards), &cards)?;
        let share = reservation.claim.cards().get(&CardId::from(A)).copied()?;
        let limit = reservation.claim.limit_of("main");
        Some((share.units.0, share.cores.0, share.exclusive, limit))
    }

    #[test]
    fn a_pod_counts_its_peak_on_the_card_of_the_kubelets_record() {
        let pods = [
            (with_init("init", B, 3, 1), ids(["bbbbbbbb-0"])),
            (simple("elsewhere", A, 1), ids(["bbbbbbbb-3"])),
        ];
        let others = vec![charge("gone", 2), charge("whole", 4), charge("whole", 1)];
        let report =
            report(&cards(&[(A, 4), (B, 4)]), &ClosedCards::default(), None, &pods, others).0;
        let others = [("gone".into(), Units(2)), ("whole".into(), Units(4))];
        assert_eq!(report[0].pods, others.into());
        assert_eq!(
            report[1].pods,
            [("init".into(), Units(3)), ("elsewhere".into(), Units(1))].into()
        );
    }

    #[test]
    fn a_claim_is_written_where_there_is_none_or_one_on_another_card() {
        let pod = simple("p", A, 1);
        assert_eq!(recorded(&pod, &ids(["aaaaaaaa-0"])), None, "as it claims");
        assert_eq!(recorded(&pod, &ids(["bbbbbbbb-0"])), Some(vec![B.to_owned()]));
        assert_eq!(recorded(&pod, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "no claim says that");
        let two = on_two_cards("two", 4);
        assert_eq!(recorded(&two, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "as it claims");
        let unclaimed = without_claim(&two);
        let whole = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1"]);
        assert_eq!(recorded(&unclaimed, &whole), Some(vec![A.to_owned(), B.to_owned()]));
        assert_eq!(recorded(&unclaimed, &ids(["aaaaaaaa-0", "bbbbbbbb-0"])), None, "not yet whole");
    }

    #[test]
    fn a_claim_that_is_written_for_a_pod_without_one_has_no_more_than_its_units() {
        let whole = CardUse { exclusive: true, ..CardUse::default() };
        let one = ids(["aaaaaaaa-0"]);
        assert_eq!(written(1, whole, &one), Some((1, 0, false, None)));
        let too_many_cores = CardUse { cores: Cores(26), ..CardUse::default() };
        assert_eq!(written(1, too_many_cores, &one), Some((1, 0, false, None)));
        let cores = CardUse { cores: Cores(25), ..CardUse::default() };
        assert_eq!(written(1, cores, &one), Some((1, 25, false, None)));
        let grows = CardUse { limit: Some(Units(4)), ..CardUse::default() };
        assert_eq!(written(1, grows, &one), Some((1, 0, false, None)));
        let all = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        assert_eq!(written(4, whole, &all), Some((4, 0, true, None)));
    }

    #[test]
    fn a_claim_that_was_edited_into_one_on_more_cards_or_on_fewer_is_put_right() {
        let cards = cards(&[(A, 4), (B, 4)]);
        let on_a = ids(["aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2", "aaaaaaaa-3"]);
        let on_both = ids(["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "bbbbbbbb-1"]);
        for (pod, held, wanted) in
            [(on_two_cards("p", 4), on_a, vec![A]), (simple("p", B, 4), on_both, vec![A, B])]
        {
            let (request, reservation) =
                claim_from_record(&pod, &units_of(&held, &cards), &cards).unwrap();
            let claimed: Vec<_> = reservation.claim.cards().keys().map(CardId::as_str).collect();
            assert_eq!((request.shares().len(), claimed), (wanted.len(), wanted));
        }
    }

    #[test]
    fn a_pod_on_a_card_that_it_did_not_claim_is_elsewhere() {
        let cards = cards(&[(A, 4), (B, 4)]);
        let pod = simple("p", A, 1);
        assert!(!is_on_other_card(&pod, &units_of(&ids(["aaaaaaaa-0"]), &cards)));
        assert!(is_on_other_card(&pod, &units_of(&ids(["bbbbbbbb-0"]), &cards)));
    }
}
