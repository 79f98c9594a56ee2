//! Answers GetPreferredAllocation, Allocate and PreStartContainer.
//!
//! [`Admission`] keeps the state between the calls of one container; [`sources`] has the facts.
//! [`mod@identify`] finds the pod that the kubelet is admitting, [`mod@choose`] its ids; [`allocate`] decides
//! whether ids may be granted, [`prestart`] whether a container may start. [`free`] has the kubelet free ids
//! of pods that are gone; [`unclaimed`] is for pods that the extender did not bind.
//!
//! Invariant: no lock is held over an await, and Allocate awaits nothing.

pub mod allocate;
pub mod choose;
pub mod free;
pub mod identify;
mod in_flight;
pub mod prestart;
pub mod refusal;
pub mod sources;
pub mod unclaimed;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::PodFacts;
use placement::gpu::CardUse;
use placement::units::{PodUid, Units};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cards::ids::{DeviceId, Ids, first_few};
use crate::cards::joined;
use crate::container::{CannotGive, Given, Responder, Share};
use crate::isolation::NodeIsolation;
use crate::metrics::{Metrics, ModeLabel, Reason};
use crate::pods::{PodRef, asks};
use crate::records::checkpoint::CheckpointError;
use kubelet_api::v1beta1::{ContainerAllocateResponse, ContainerPreferredAllocationRequest};

use allocate::{Grant, Intent};
use choose::{Choice, choose};
use identify::{Wanted, identify};
use in_flight::InFlight;
use prestart::{Check, StartError};
use refusal::Refusal;
use sources::Sources;
use unclaimed::{Neighbours, Unclaimed, placed};

/// Answers the kubelet's calls.
pub struct Admission {
    sources: Sources,
    responder: Responder,
    unclaimed: Unclaimed,
    metrics: Metrics,
    state: Mutex<State>,
    /// Held from a List until its result has been used.
    listing: tokio::sync::Mutex<()>,
    resend: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    intent: Option<Intent>,
    in_flight: InFlight,
}

impl Admission {
    /// Answers from these sources.
    pub fn new(
        sources: Sources,
        responder: Responder,
        unclaimed: Unclaimed,
        metrics: Metrics,
    ) -> Self {
        Self {
            sources,
            responder,
            unclaimed,
            metrics,
            state: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            resend: watch::Sender::new(()),
        }
    }

    /// GetPreferredAllocation: ids on the claimed cards of the container being admitted, or none.
    ///
    /// Never an error: that would fail the pod with a text of the kubelet's. Without preferred ids the
    /// kubelet calls Allocate with any, and [`Admission::allocate`] refuses with the reason.
    pub async fn prefer(&self, request: &ContainerPreferredAllocationRequest) -> Vec<String> {
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let _listing = self.listing.lock().await;
        let outcome = self.pick(request, size).await;
        let answer = match &outcome {
            Ok(choice) => choice.ids.iter().map(ToString::to_string).collect(),
            Err(refusal) => {
                tracing::warn!(size, reason = refusal.label(), "no ids preferred: {refusal}");
                Vec::new()
            }
        };
        let mut state = self.state();
        state.intent = Some(Intent { size, outcome });
        state.in_flight = InFlight::Preferred(Instant::now());
        answer
    }

    async fn pick(
        &self,
        request: &ContainerPreferredAllocationRequest,
        size: usize,
    ) -> Result<Choice, Refusal> {
        let must_include = parse(&request.must_include_device_i_ds)?;
        // Ids of another form are on none of our cards.
        let available: Ids =
            request.available_device_i_ds.iter().filter_map(|id| id.parse().ok()).collect();
        let wanted = Wanted { size, must_include };
        self.relist().await.map_err(|status| {
            Refusal::Unidentified(format!("PodResources List: {}", status.message()))
        })?;
        self.sources.lingering.look();
        let (facts, ask) = identify(&self.sources, &wanted).await?;
        let facts = self.with_claim(facts)?;
        let in_use = {
            let mut records = self.sources.records();
            records.allocating(&facts, &ask.name);
            records.in_use_beside(&facts.uid)
        };
        choose(&facts, &ask, &self.sources.cards(), &available, &in_use, &wanted)
    }

    /// The pod as it is, or with a claim where it has none and is to be placed all the same.
    fn with_claim(&self, facts: Arc<PodFacts>) -> Result<Arc<PodFacts>, Refusal> {
        let without_claim = facts.gpu_pod().filter(|gpu| gpu.claim == Ok(None));
        let Some(gpu) = without_claim.filter(|_| self.unclaimed == Unclaimed::Place) else {
            return Ok(facts);
        };
        let pods = self.sources.pods.all();
        let records = self.sources.records();
        let neighbours = Neighbours::of(&facts, pods, &records);
        let placed = placed(&facts, gpu, &records, &self.sources.cards(), &neighbours);
        let placed = placed.map_err(|why| Refusal::NoRoom { pod: PodRef::of(&facts), why })?;
        tracing::warn!(pod = %PodRef::of(&facts), "not bound by the scheduler-extender: placed here");
        self.metrics.unclaimed_placed.inc();
        Ok(placed)
    }

    /// Brings the records up to date with a List. See
    /// [`PodResourcesClient::list`](crate::records::pod_resources::PodResourcesClient::list) for when that may be.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn relist(&self) -> Result<(), tonic::Status> {
        self.sources.relist().await
    }

    /// Brings the records up to date with the kubelet's checkpoint, once the pods of this node are known.
    ///
    /// # Errors
    /// When the checkpoint cannot be read.
    pub async fn restore(&self) -> Result<(), CheckpointError> {
        self.sources.pods.listed().await;
        let checkpoint = self.sources.checkpoint.read()?;
        {
            let mut records = self.sources.records();
            records.restore(checkpoint.held, |uid| self.sources.pods.by_uid(uid));
            self.sources.lingering.save(&mut records);
        }
        self.sources.lingering.look();
        self.sources.records.notify();
        Ok(())
    }

    /// Takes in that a kubelet begins anew: it does not continue the calls of the one before.
    pub fn kubelet_started(&self) {
        *self.state() = State::default();
    }

    /// Whether a pod that is gone or being deleted holds ids. The kubelet can free them once the
    /// containers have stopped, up to a second before the object is gone.
    pub fn gone_pods_hold_ids(&self) -> bool {
        let stays = |facts: &Arc<PodFacts>| !facts.finished && !facts.deleting;
        let is_there = |pod: &PodRef, uid: Option<&PodUid>| {
            let facts = self.sources.pods.get(pod).filter(stays);
            facts.is_some_and(|facts| uid.is_none_or(|uid| *uid == facts.uid))
        };
        self.sources.records().gone_pods_hold_ids(is_there)
    }

    /// Makes the kubelet free the ids of pods that are gone, where that disturbs no allocation.
    ///
    /// By itself the kubelet frees them at the next admission. Only in the first admissions after its
    /// restart, before it has seen all pods, it does not, and those pods fail for want of free ids. A
    /// List makes it free them now, and a device list makes it write that to its checkpoint.
    ///
    /// A List while a device plugin answers Allocate makes the kubelet forget the ids of that call. Of
    /// our own calls [`InFlight`] knows. Of another plugin's nothing does, so that nothing is done where
    /// there is another one, or where the checkpoint cannot be read.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn free_ids_of_gone_pods(&self) -> Result<(), tonic::Status> {
        let _listing = self.listing.lock().await;
        let others =
            self.sources.checkpoint.read().map_or(true, |checkpoint| checkpoint.other_plugins);
        if others || !self.state().in_flight.is_over(Instant::now()) {
            return Ok(());
        }
        let before = self.sources.records().in_use();
        self.relist().await?;
        if self.sources.records().in_use() != before {
            self.resend.send_replace(());
        }
        Ok(())
    }

    /// Changes when the device list is to be sent to the kubelet again.
    pub fn resends(&self) -> watch::Receiver<()> {
        self.resend.subscribe()
    }

    /// Allocate: the cards of these ids, if they were chosen for a claim on them.
    ///
    /// # Errors
    /// If not. The kubelet then fails the pod, with the refusal's text as its event.
    pub fn allocate(&self, ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
        let outcome = parse(ids).and_then(|ids| self.grant(&ids));
        match &outcome {
            Ok((grant, given)) => {
                self.metrics.allocations.inc();
                self.count_isolation(given);
                let pod = PodRef::of(&grant.facts);
                let cards = joined(grant.cards.iter().map(|card| &card.uuid));
                tracing::info!(%pod, container = grant.container, cards, units = ids.len(), isolation = %given.isolation.isolation, "allocated");
            }
            Err(refusal) => {
                self.metrics.refusals.get_or_create(&Reason { reason: refusal.label() }).inc();
                tracing::warn!(reason = refusal.label(), "refused: {refusal}");
            }
        }
        self.sources.records.notify();
        outcome.map(|(_, given)| given.response)
    }

    fn count_isolation(&self, given: &Given) {
        let mode = given.isolation.isolation.name();
        self.metrics.isolated.get_or_create(&ModeLabel { mode }).inc();
        if let Some((wanted, missing)) = &given.isolation.instead_of {
            self.metrics.isolation_downgrades.inc();
            tracing::warn!("isolation: {mode} in place of {wanted}: {missing}");
        }
    }

    /// How containers are held to their share.
    pub fn isolation(&self) -> &NodeIsolation {
        &self.responder.isolation
    }

    fn grant(&self, ids: &Ids) -> Result<(Grant, Given), Refusal> {
        let cards = self.sources.cards();
        let intent = {
            let mut state = self.state();
            state.in_flight = InFlight::Allocated(Instant::now());
            // An intent serves one Allocate.
            state.intent.take()
        };
        let mut records = self.sources.records();
        let grant = allocate::decide(ids, intent.as_ref(), &records, &cards)?;
        let given = self.responder.give(share(&grant)).map_err(|cause| not_given(&grant, cause))?;
        records.grant(&grant.facts, &grant.container, ids.clone());
        self.sources.lingering.save(&mut records);
        Ok((grant, given))
    }

    /// PreStartContainer: checks that the container about to start is on its claimed cards.
    ///
    /// # Errors
    /// Where records and claim contradict each other, or the kubelet's record cannot be read.
    pub async fn prestart(&self, ids: &[String]) -> Result<(), StartError> {
        let Ok(ids) = parse(ids) else {
            // Ids of another plugin that served the resource before: the container got its card then.
            self.metrics.unverifiable.inc();
            return Ok(());
        };
        let checked = prestart::checked(&self.sources, &ids).await;
        match &checked {
            Ok(Check::Verified) => self.metrics.verified.inc(),
            Ok(Check::Unverifiable) => self.metrics.unverifiable.inc(),
            Err(error) => {
                tracing::error!("container held back: {error}");
                self.metrics.mismatches.inc()
            }
        };
        checked.map(drop)
    }

    // Every change is one assignment, so that a panic leaves nothing half done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn share(grant: &Grant) -> Share<'_> {
    let container = Units(u32::try_from(grant.ids.len()).unwrap_or(u32::MAX));
    let gpu = grant.facts.gpu_pod();
    let pod = gpu.map_or(container, |gpu| gpu.request.peak());
    let isolation = gpu.and_then(|gpu| gpu.isolation.as_deref());
    let ask = asks(&grant.facts).find(|ask| ask.name == grant.container);
    let card_use = ask.map(|ask| ask.card_use).unwrap_or_default();
    let card_use = CardUse { exclusive: is_exclusive(grant), ..card_use };
    Share { cards: &grant.cards, container, pod, card_use, isolation }
}

/// Whether a container has its cards for its pod alone: by the claim, for that is what other pods are kept off these cards by.
fn is_exclusive(grant: &Grant) -> bool {
    let shares = grant.facts.claim().and_then(|claim| claim.of(&grant.container));
    shares.is_some_and(|shares| shares.values().all(|share| share.exclusive))
}

fn not_given(grant: &Grant, cause: CannotGive) -> Refusal {
    let pod = PodRef::of(&grant.facts);
    match cause {
        CannotGive::Isolation(cause) => Refusal::Isolation { pod, cause },
        CannotGive::Limit(cause) => Refusal::Limit { pod, cause: cause.to_string() },
    }
}

fn parse(ids: &[String]) -> Result<Ids, Refusal> {
    let parsed: Result<Ids, _> = ids.iter().map(|id| id.parse::<DeviceId>()).collect();
    parsed.map_err(|_| Refusal::NotOnClaimedCard(first_few(ids)))
}

#[cfg(test)]
mod tests {
    use cluster::GpuPod;

    use super::*;
    use crate::fixtures::{A, cards, ids, simple, with_use};

    #[test]
    fn a_container_has_its_card_for_itself_by_the_claim_and_not_by_what_its_pod_says_later() {
        let whole = with_use("p", A, 1, CardUse { exclusive: true, ..CardUse::default() });
        let claim = simple("p", A, 1).claim().cloned();
        let gpu = whole.gpu_pod().map(|gpu| GpuPod { claim: Ok(claim), ..gpu.clone() });
        let edited = PodFacts { gpu: Ok(gpu), ..whole.clone() };
        let is_exclusive = |facts| {
            let (container, ids) = ("main".to_owned(), ids(["aaaaaaaa-0"]));
            let cards = cards(&[(A, 4)]).iter().cloned().collect();
            share(&Grant { facts: Arc::new(facts), container, cards, ids }).card_use.exclusive
        };
        assert!(!is_exclusive(edited));
        assert!(is_exclusive(whole));
    }
}
