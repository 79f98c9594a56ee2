//! The desk where the kubelet's questions are answered: facts gathered here, decisions made in the
//! pure modules.
//!
//! Invariant: the lock is held for a decision, never across an await; Allocate waits for nothing at
//! all.

mod flight;
mod start;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::PodFacts;
use futures::future::join_all;
use placement::units::PodUid;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::allocate::{self, Grant, Intent};
use crate::cards::Cards;
use crate::identify::{FactsOf, Found, Wanted, candidate, open_pods};
use crate::ids::DeviceId;
use crate::kubelet::KubeletRecords;
use crate::metrics::{Metrics, Reason};
use crate::pods::{PodCache, PodRef, ReadPod};
use crate::prefer::{Choice, choose};
use crate::records::{Ids, Records};
use crate::refusal::{Refusal, list};
use crate::response::Responder;
use kubelet_api::v1beta1::{ContainerAllocateResponse, ContainerPreferredAllocationRequest};

use flight::Flight;
pub use start::StartError;

/// The kubelet admits nothing else while it waits for us, so reading pods afresh has to come to an
/// end.
const READS: Duration = Duration::from_secs(3);

/// Where facts come from.
#[derive(Clone)]
pub struct Sources {
    /// This node's cards.
    pub cards: watch::Receiver<Arc<Cards>>,
    /// This node's pods, by watch.
    pub pods: Arc<PodCache>,
    /// A pod, afresh.
    pub api: Arc<dyn ReadPod>,
    /// The kubelet's record.
    pub kubelet: KubeletRecords,
}

/// The desk.
pub struct Admission {
    sources: Sources,
    responder: Responder,
    metrics: Metrics,
    state: Mutex<State>,
    /// Held while the kubelet's whole record is read and acted upon.
    listing: tokio::sync::Mutex<()>,
    changed: Notify,
    resend: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    records: Records,
    intent: Option<Intent>,
    flight: Flight,
}

impl Admission {
    /// A desk that knows nothing yet.
    pub fn new(sources: Sources, responder: Responder, metrics: Metrics) -> Self {
        Self {
            sources,
            responder,
            metrics,
            state: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            resend: watch::Sender::new(()),
        }
    }

    /// GetPreferredAllocation: ids on the claimed card of the container being admitted, or none.
    /// Never an error, which would fail the pod without a word of ours; Allocate then refuses what
    /// the kubelet picks, and says why.
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
        state.flight = Flight::Preferred(Instant::now());
        answer
    }

    async fn pick(
        &self,
        request: &ContainerPreferredAllocationRequest,
        size: usize,
    ) -> Result<Choice, Refusal> {
        let must_include = parse(&request.must_include_device_i_ds)?;
        // What is not ours cannot be on a card of ours.
        let available: Ids =
            request.available_device_i_ds.iter().filter_map(|id| id.parse().ok()).collect();
        let wanted = Wanted { size, must_include };
        self.relist()
            .await
            .map_err(|status| Refusal::Blind(format!("PodResources List: {}", status.message())))?;
        let (facts, ask) = self.identify(&wanted).await?;
        let in_use = self.state().records.in_use();
        choose(&facts, &ask, &self.cards(), &available, &in_use, &wanted)
    }

    /// Reads the kubelet's whole record.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn relist(&self) -> Result<(), tonic::Status> {
        let list = self.sources.kubelet.list().await?;
        let uid = |pod: &PodRef| self.sources.pods.get(pod).map(|facts| facts.uid.clone());
        self.state().records.relist(list, uid);
        self.changed.notify_one();
        Ok(())
    }

    /// Whether the records show ids in the hands of a pod that is gone or going. The kubelet frees
    /// them when the containers have stopped, up to a second before the object is gone.
    pub fn has_leftovers(&self) -> bool {
        let stays = |facts: &Arc<PodFacts>| !facts.finished && !facts.deleting;
        let is_there = |pod: &PodRef, uid: Option<&PodUid>| {
            let facts = self.sources.pods.get(pod).filter(stays);
            facts.is_some_and(|facts| uid.is_none_or(|uid| *uid == facts.uid))
        };
        self.state().records.has_leftovers(is_there)
    }

    /// Makes the kubelet free the ids of pods that are gone, unless others are on their way.
    ///
    /// By itself it frees them at the next admission only, and not at all in the first ones after
    /// a restart, when it has not yet seen all pods: those pods then fail for want of free ids. A
    /// List has it free them now; a device list has it write that down.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn free_leftovers(&self) -> Result<(), tonic::Status> {
        let _listing = self.listing.lock().await;
        let in_use = {
            let state = self.state();
            state.flight.is_over(Instant::now()).then(|| state.records.in_use())
        };
        let Some(before) = in_use else { return Ok(()) };
        self.relist().await?;
        if self.state().records.in_use() != before {
            self.resend.send_replace(());
        }
        Ok(())
    }

    /// Tells when the device list is to be sent again.
    pub fn resends(&self) -> watch::Receiver<()> {
        self.resend.subscribe()
    }

    /// The watch may lag behind the kubelet's own, so what it leaves open is asked of the API
    /// server itself.
    async fn identify(
        &self,
        wanted: &Wanted,
    ) -> Result<(Arc<PodFacts>, placement::gpu::ContainerAsk), Refusal> {
        let open = open_pods(&self.state().records);
        let (mut facts, unknown) = self.cached(&open);
        self.read(&unknown, &mut facts).await?;
        let mut found = self.candidate(&facts, wanted);
        if !matches!(found, Found::One(..)) {
            self.read(&open, &mut facts).await?;
            found = self.candidate(&facts, wanted);
        }
        match found {
            Found::One(facts, ask) => Ok((facts, ask)),
            Found::Nobody => Err(Refusal::NobodyAsks { size: wanted.size }),
            Found::Several(pods) => Err(Refusal::Ambiguous { size: wanted.size, pods }),
        }
    }

    fn candidate(&self, facts: &FactsOf, wanted: &Wanted) -> Found {
        candidate(&self.state().records, facts, wanted)
    }

    fn cached(&self, pods: &[PodRef]) -> (FactsOf, Vec<PodRef>) {
        let mut known = FactsOf::new();
        let mut unknown = Vec::new();
        for pod in pods {
            match self.sources.pods.get(pod) {
                Some(facts) => drop(known.insert(pod.clone(), facts)),
                None => unknown.push(pod.clone()),
            }
        }
        (known, unknown)
    }

    /// Reads pods from the API server. One that cannot be read could be the one, so nothing is
    /// concluded without it.
    async fn read(&self, pods: &[PodRef], into: &mut FactsOf) -> Result<(), Refusal> {
        let reads = join_all(pods.iter().map(|pod| self.sources.api.read(pod)));
        let late = |_| Refusal::Blind(format!("the API server did not answer within {READS:?}"));
        let answers = tokio::time::timeout(READS, reads).await.map_err(late)?;
        for (pod, answer) in pods.iter().zip(answers) {
            match answer.map_err(|error| Refusal::Blind(format!("read pod {pod}: {error}")))? {
                Some(facts) => into.insert(pod.clone(), Arc::new(facts)),
                None => into.remove(pod),
            };
        }
        Ok(())
    }

    /// Allocate: the card of these ids, if they were chosen for a claim on it.
    ///
    /// # Errors
    /// Where they were not; the kubelet then fails the pod, and its text is the event that people
    /// read.
    pub fn allocate(&self, ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
        let outcome = parse(ids).and_then(|ids| self.grant(&ids));
        match &outcome {
            Ok(grant) => {
                self.metrics.allocations.inc();
                let pod = PodRef::of(&grant.facts);
                tracing::info!(%pod, container = grant.container, card = %grant.card.uuid, units = ids.len(), "allocated");
            }
            Err(refusal) => {
                self.metrics.refusals.get_or_create(&Reason { reason: refusal.label() }).inc();
                tracing::warn!(reason = refusal.label(), "refused: {refusal}");
            }
        }
        self.changed.notify_one();
        outcome.map(|grant| self.responder.response(&grant))
    }

    fn grant(&self, ids: &Ids) -> Result<Grant, Refusal> {
        let cards = self.cards();
        let mut state = self.state();
        state.flight = Flight::Allocated(Instant::now());
        // An intent serves once: the same ids again are the next container's, or a repeated question.
        let intent = state.intent.take();
        let grant = allocate::decide(ids, intent.as_ref(), &state.records, &cards)?;
        state.records.give(&grant.facts, &grant.container, ids.clone());
        Ok(grant)
    }

    /// The ids that a pod holds by the records.
    pub fn held_by(&self, facts: &PodFacts) -> Ids {
        self.state().records.held_by(facts)
    }

    /// Waits until the pods of this node are known.
    pub async fn pods_listed(&self) {
        self.sources.pods.listed().await;
    }

    /// Waits until the records may have changed since this last returned.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn cards(&self) -> Arc<Cards> {
        self.sources.cards.borrow().clone()
    }

    // Every change is one assignment or insert: a panic inside leaves whole records.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(ids: &[String]) -> Result<Ids, Refusal> {
    let parsed: Result<Ids, _> = ids.iter().map(|id| id.parse::<DeviceId>()).collect();
    parsed.map_err(|_| Refusal::NotOnOneCard(list(ids)))
}
