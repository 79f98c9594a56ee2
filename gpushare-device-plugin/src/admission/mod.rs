//! Answers GetPreferredAllocation, Allocate and PreStartContainer.
//!
//! [`Admission`] keeps the state between the calls of one container; [`sources`] holds its inputs. [`mod@identify`]
//! finds the pod that the kubelet is admitting, [`mod@choose`] selects its ids; [`allocate`] decides whether ids may be
//! granted, [`prestart`] whether a container may start. [`free`] makes the kubelet free ids of deleted pods,
//! [`mod@limits`] drops the devices of their limits; [`unclaimed`] is for pods that the extender did not bind, and
//! [`breaker`] withholds the node's units while too many of them come, which [`withheld`] tells.
//!
//! Invariant: no lock is held over an await, and Allocate awaits nothing.

pub(crate) mod allocate;
pub(crate) mod breaker;
pub(crate) mod choose;
pub(crate) mod downgrades;
pub(crate) mod free;
pub(crate) mod identify;
mod in_flight;
pub(crate) mod limits;
pub mod prestart;
pub mod refusal;
pub(crate) mod refused;
pub mod sources;
pub mod unclaimed;
pub(crate) mod withheld;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::PodFacts;
use placement::gpu::GpuUse;
use placement::units::Units;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::container::cdi::CdiError;
use crate::container::{ContainerResponse, ContainerShare, Responder, ResponseError};
use crate::gpus::ids::{DeviceId, Ids, first_few};
use crate::gpus::joined;
use crate::isolation::NodeIsolation;
use crate::metrics::Metrics;
use crate::pods::{PodFields, PodRef, container_requests};
use crate::records::checkpoint::CheckpointError;
use kubelet_api::v1beta1::{ContainerAllocateResponse, ContainerPreferredAllocationRequest};

use allocate::{Grant, Preference};
use breaker::Breaker;
use choose::{ChosenIds, IdSupply, choose};
use downgrades::Downgrade;
use identify::{IdRequest, identify};
use in_flight::InFlight;
use prestart::{Check, StartError};
use refusal::Refusal;
use refused::RefusedPods;
use sources::Sources;
use unclaimed::{NodeView, UnclaimedAction, place};

/// Answers the kubelet's calls.
pub struct Admission {
    sources: Sources,
    responder: Responder,
    unclaimed: UnclaimedAction,
    metrics: Metrics,
    calls: Mutex<LastCalls>,
    refused: RefusedPods,
    /// Locked from a List until its result has been used.
    listing: tokio::sync::Mutex<()>,
    resend: watch::Sender<()>,
    downgrades: broadcast::Sender<Downgrade>,
    breaker: watch::Sender<Breaker>,
}

/// The kubelet's last calls.
#[derive(Default)]
struct LastCalls {
    preference: Option<Preference>,
    in_flight: InFlight,
}

impl Admission {
    /// An admission with these inputs.
    pub fn new(
        sources: Sources,
        responder: Responder,
        unclaimed: UnclaimedAction,
        metrics: Metrics,
    ) -> Self {
        Self {
            sources,
            responder,
            unclaimed,
            metrics,
            calls: Mutex::default(),
            refused: RefusedPods::default(),
            listing: tokio::sync::Mutex::default(),
            resend: watch::Sender::new(()),
            downgrades: broadcast::Sender::new(downgrades::KEPT),
            breaker: watch::Sender::new(Breaker::default()),
        }
    }

    /// GetPreferredAllocation: ids on the claimed GPUs of the container being admitted, or none.
    ///
    /// Never an error: an error would fail the pod with a text of the kubelet's own. Without preferred ids the
    /// kubelet calls Allocate with any ids, and [`Admission::allocate`] refuses with the reason.
    pub async fn prefer(&self, request: &ContainerPreferredAllocationRequest) -> Vec<String> {
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let _listing = self.listing.lock().await;
        let mut identified = None;
        let outcome = self.pick(request, size, &mut identified).await;
        let answer = match &outcome {
            Ok(choice) => choice.ids.iter().map(ToString::to_string).collect(),
            Err(refusal) => {
                let PodFields { uid, namespace, pod } = PodFields::of(identified.as_deref());
                let reason = refusal.label();
                tracing::warn!(uid, namespace, pod, size, reason, "no ids preferred: {refusal}");
                Vec::new()
            }
        };
        let refusal = outcome.as_ref().err();
        let bypassed =
            refusal.and_then(|refusal| self.units_of_bypass(refusal, identified.as_deref(), size));
        let mut calls = self.calls();
        calls.preference = Some(Preference { size, pod: identified, bypassed, outcome });
        calls.in_flight = InFlight::Preferred(Instant::now());
        answer
    }

    /// The ids for the container being admitted. Sets `identified` to the pod once it is known.
    async fn pick(
        &self,
        request: &ContainerPreferredAllocationRequest,
        size: usize,
        identified: &mut Option<Arc<PodFacts>>,
    ) -> Result<ChosenIds, Refusal> {
        let must_include = parse(&request.must_include_device_i_ds)?;
        // Ids that do not parse are on none of our GPUs.
        let available: Ids =
            request.available_device_i_ds.iter().filter_map(|id| id.parse().ok()).collect();
        let id_request = IdRequest { size, must_include };
        self.relist().await.map_err(|status| {
            Refusal::Unidentified(format!("PodResources List: {}", status.message()))
        })?;
        self.sources.lingering.update();
        let places_unclaimed = self.unclaimed == UnclaimedAction::Place;
        let found = identify(&self.sources, &self.refused, &id_request, places_unclaimed);
        let (facts, ask) = found.await?;
        *identified = Some(facts.clone());
        let facts = self.with_claim(facts)?;
        let in_use = {
            let mut records = self.sources.records();
            records.begin_allocation(&facts, &ask.name);
            records.in_use_for(&facts.uid)
        };
        let gpus = self.sources.gpus();
        let closed = self.sources.closed.borrow().clone();
        let supply =
            IdSupply { gpus: &gpus, available: &available, in_use: &in_use, closed: &closed };
        choose(&facts, &ask, &id_request, &supply)
    }

    /// The pod, with a new claim if it has none and `--unclaimed-pods=place` is set.
    fn with_claim(&self, facts: Arc<PodFacts>) -> Result<Arc<PodFacts>, Refusal> {
        let places = self.unclaimed == UnclaimedAction::Place;
        let gpu = match facts.gpu_pod() {
            Some(gpu) if places && gpu.claim == Ok(None) => gpu,
            _ => return Ok(facts),
        };
        let placed = place(
            &facts,
            gpu,
            &NodeView {
                records: &self.sources.records(),
                gpus: &self.sources.gpus(),
                closed: &self.sources.closed.borrow().clone(),
                pods: &self.sources.pods.all(),
            },
        )
        .map_err(|why| Refusal::NoRoom { pod: PodRef::of(&facts), why })?;
        tracing::warn!(
            uid = %facts.uid,
            namespace = facts.namespace,
            pod = facts.name,
            "the scheduler-extender did not bind the pod: this plugin has chosen its GPUs"
        );
        self.metrics.unclaimed_placed.inc();
        Ok(placed)
    }

    /// Updates the records with a PodResources List. See
    /// [`PodResourcesClient::list`](crate::records::pod_resources::PodResourcesClient::list) for when that is safe.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn relist(&self) -> Result<(), tonic::Status> {
        self.sources.relist().await
    }

    /// Updates the records from the kubelet's checkpoint, after the first list of pods.
    ///
    /// # Errors
    /// When the checkpoint cannot be read.
    pub async fn restore(&self) -> Result<(), CheckpointError> {
        self.sources.pods.listed().await;
        let checkpoint = self.sources.checkpoint.read()?;
        {
            let mut records = self.sources.records();
            records.restore(checkpoint.held, &self.sources.pods);
            self.sources.lingering.save(&mut records);
        }
        self.sources.lingering.update();
        self.sources.records.notify();
        Ok(())
    }

    /// Resets the state between calls. A restarted kubelet does not continue the calls of its predecessor. It admits
    /// its pods again, and fails those whose ids are not Healthy.
    pub fn kubelet_started(&self) {
        *self.calls() = LastCalls::default();
        self.change_breaker(Breaker::reset);
    }

    /// Whether a deleted or terminating pod holds ids. The kubelet can free them once the containers have
    /// stopped, up to a second before the pod object is deleted.
    pub fn gone_pods_hold_ids(&self) -> bool {
        self.sources.records().gone_pods_hold_ids(&self.sources.pods)
    }

    /// Makes the kubelet free the ids of deleted pods, if that disturbs no allocation.
    ///
    /// The kubelet frees them by itself at the next admission, except in the first admissions after its
    /// restart, before it has seen all pods: those pods fail for lack of free ids. A List makes it free
    /// the ids now, and a device list makes it write that to its checkpoint.
    ///
    /// A List while a device plugin answers Allocate makes the kubelet forget the ids of that call.
    /// [`InFlight`] tracks our own calls. Calls of another plugin cannot be tracked, so this does nothing if
    /// the checkpoint shows another plugin or cannot be read.
    ///
    /// # Errors
    /// When the kubelet does not answer.
    pub async fn free_ids_of_gone_pods(&self) -> Result<(), tonic::Status> {
        let _listing = self.listing.lock().await;
        let other_plugins =
            self.sources.checkpoint.read().map_or(true, |checkpoint| checkpoint.other_plugins);
        if other_plugins || !self.calls().in_flight.is_over(Instant::now()) {
            return Ok(());
        }
        let before = self.sources.records().in_use();
        self.relist().await?;
        if self.sources.records().in_use() != before {
            self.resend.send_replace(());
        }
        Ok(())
    }

    /// Changes when the device list must be sent to the kubelet again.
    pub fn resends(&self) -> watch::Receiver<()> {
        self.resend.subscribe()
    }

    /// The ids that pods hold which kube-scheduler counts: those that exist and have not finished. A pod that the watch
    /// has not shown yet counts too.
    pub fn held_ids(&self) -> Ids {
        self.sources.records().counted_ids(&self.sources.pods)
    }

    /// Receivers of changes of what containers hold, and of the pods of this node.
    pub fn changes_of_holders(&self) -> (watch::Receiver<()>, watch::Receiver<u64>) {
        (self.sources.records.changes(), self.sources.pods.changes())
    }

    /// Allocate: the GPUs of these ids, if they were chosen for a claim on these GPUs.
    ///
    /// # Errors
    /// If they were not. The kubelet then fails the pod, with the refusal's text as its event.
    pub fn allocate(&self, ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
        let mut identified = None;
        let outcome = parse(ids).and_then(|ids| self.grant(&ids, &mut identified));
        match &outcome {
            Ok((grant, response)) => {
                self.count_isolation(grant, response);
                let PodFacts { uid, namespace, name: pod, .. } = &*grant.facts;
                let gpus = joined(grant.gpus.iter().map(|gpu| &gpu.uuid));
                tracing::info!(
                    %uid,
                    namespace,
                    pod,
                    container = grant.container,
                    gpus,
                    units = ids.len(),
                    isolation = %response.isolation.isolation,
                    "allocated"
                );
            }
            Err(refusal) => {
                self.metrics.refusals.with([refusal.label()]).inc();
                let PodFields { uid, namespace, pod } = PodFields::of(identified.as_deref());
                tracing::warn!(uid, namespace, pod, reason = refusal.label(), "refused: {refusal}");
            }
        }
        self.sources.records.notify();
        outcome.map(|(_, response)| response.response)
    }

    fn count_isolation(&self, grant: &Grant, response: &ContainerResponse) {
        let mode = response.isolation.isolation.name();
        self.metrics.isolated.with([mode]).inc();
        if let Some((wanted, missing)) = &response.isolation.instead_of {
            self.metrics.isolation_downgrades.inc();
            let PodFacts { uid, namespace, name: pod, .. } = &*grant.facts;
            tracing::warn!(
                %uid, namespace, pod, container = grant.container,
                "the container's isolation is {mode} in place of {wanted}: {missing}"
            );
            self.tell(Downgrade::of_memory(grant, &response.isolation, *wanted, missing));
        }
        if let Some(why) = &response.compute {
            let PodFacts { uid, namespace, name: pod, .. } = &*grant.facts;
            tracing::warn!(
                %uid, namespace, pod, container = grant.container,
                "the container's gpu-cores are not enforced: {why}"
            );
            self.tell(Downgrade::of_compute(grant, why));
        }
    }

    fn tell(&self, downgrade: Downgrade) {
        // An error only says that no task writes events yet.
        let _ = self.downgrades.send(downgrade);
    }

    /// How containers are limited to their share.
    pub fn isolation(&self) -> &NodeIsolation {
        &self.responder.isolation
    }

    /// Grants the ids. Sets `identified` to the pod being admitted, if it is known.
    fn grant(
        &self,
        ids: &Ids,
        identified: &mut Option<Arc<PodFacts>>,
    ) -> Result<(Grant, ContainerResponse), Refusal> {
        let gpus = self.sources.gpus();
        let preference = {
            let mut calls = self.calls();
            calls.in_flight = InFlight::Allocated(Instant::now());
            // A preference is used for one Allocate only.
            calls.preference.take().filter(|preference| preference.is_for(ids))
        };
        *identified = preference.as_ref().and_then(|preference| preference.pod.clone());
        let mut records = self.sources.records();
        let granted = allocate::decide(ids, preference.as_ref(), &records, &gpus)
            .and_then(|grant| allocate::beside_no_claim(grant, &records.resource_claims))
            .and_then(|grant| self.respond(grant));
        if let (Err(refusal), Some(preference)) = (&granted, &preference) {
            if let Some(pod) = &preference.pod {
                self.refused.add(&pod.uid, refusal);
            }
            if let Some(units) = preference.bypassed {
                self.count_bypass(units);
            }
        }
        let (grant, response) = granted?;
        // Every pod that is granted ids has a claim.
        self.change_breaker(Breaker::reset);
        records.grant(&grant.facts, &grant.container, ids.clone());
        self.sources.lingering.save(&mut records);
        Ok((grant, response))
    }

    fn respond(&self, grant: Grant) -> Result<(Grant, ContainerResponse), Refusal> {
        match self.responder.respond(container_share(&grant)) {
            Ok(response) => Ok((grant, response)),
            Err(cause) => Err(refusal_for(&grant, cause)),
        }
    }

    /// PreStartContainer: checks that the container about to start is on its claimed GPUs.
    ///
    /// # Errors
    /// If records and claim contradict each other, or the kubelet's record cannot be read.
    pub async fn prestart(&self, ids: &[String]) -> Result<(), StartError> {
        let Ok(ids) = parse(ids) else {
            // Ids of a plugin that served the resource before: that plugin gave the container its GPU.
            self.metrics.starts.with(["unverifiable"]).inc();
            return Ok(());
        };
        let checked = prestart::find_and_check(&self.sources, &ids).await;
        match &checked {
            Ok(Check::Verified) => self.metrics.starts.with(["verified"]).inc(),
            Ok(Check::Unverifiable) => self.metrics.starts.with(["unverifiable"]).inc(),
            Err(error) => {
                self.log_held_back(&ids, error);
                match error.label() {
                    Some(reason) => self.metrics.refusals.with([reason]).inc(),
                    None => self.metrics.starts.with(["mismatch"]).inc(),
                }
            }
        };
        checked.map(drop)
    }

    fn log_held_back(&self, ids: &Ids, error: &StartError) {
        let owner = self.sources.records().holding_container(ids);
        let name = owner.as_ref().map(|owner| &owner.pod);
        let uid = owner.as_ref().and_then(|owner| owner.uid.as_ref());
        let facts = name.and_then(|name| self.sources.pods.find(name, uid));
        let PodFields { uid, namespace, pod } =
            PodFields::named(uid.or(facts.as_ref().map(|facts| &facts.uid)), name);
        tracing::error!(uid, namespace, pod, "container held back: {error}");
    }

    // Every change is one assignment, so a panic cannot leave a partial change.
    fn calls(&self) -> MutexGuard<'_, LastCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn container_share(grant: &Grant) -> ContainerShare<'_> {
    let container = Units(u32::try_from(grant.ids.len()).unwrap_or(u32::MAX));
    let gpu = grant.facts.gpu_pod();
    let pod = gpu.map_or(container, |gpu| gpu.request.peak());
    let isolation = gpu.and_then(|gpu| gpu.isolation.as_deref());
    let ask = container_requests(&grant.facts).find(|ask| ask.name == grant.container);
    let requested = ask.map(|ask| ask.gpu_use).unwrap_or_default();
    let gpu_use = GpuUse { exclusive: is_exclusive(grant), ..requested };
    let mps_conflict = gpu.and_then(|gpu| gpu.mps_conflicts.get(&grant.container)).copied();
    ContainerShare {
        uid: &grant.facts.uid,
        gpus: &grant.gpus,
        container,
        pod,
        gpu_use,
        isolation,
        mps_conflict,
    }
}

/// Whether the container's pod has the GPUs exclusively. The claim decides: the extender keeps other pods off these
/// GPUs by the claim.
fn is_exclusive(grant: &Grant) -> bool {
    let shares = grant.facts.claim().and_then(|claim| claim.of(&grant.container));
    shares.is_some_and(|shares| shares.values().all(|share| share.exclusive))
}

fn refusal_for(grant: &Grant, cause: ResponseError) -> Refusal {
    let pod = PodRef::of(&grant.facts);
    match cause {
        ResponseError::Isolation(cause) => Refusal::Isolation { pod, cause },
        ResponseError::Limit(cause) => {
            let text = cause.to_string();
            match cause {
                CdiError::Write { .. } => Refusal::Limit { pod, cause: text },
                CdiError::TooManyLimits => Refusal::TooManyLimits { pod, cause: text },
            }
        }
    }
}

fn parse(ids: &[String]) -> Result<Ids, Refusal> {
    let parsed: Result<Ids, _> = ids.iter().map(|id| id.parse::<DeviceId>()).collect();
    parsed.map_err(|_| Refusal::NotOnClaimedGpu(first_few(ids)))
}

#[cfg(test)]
mod tests {
    use cluster::GpuPod;

    use super::*;
    use crate::fixtures::{A, gpus, ids, simple, with_use};

    fn has_gpus_for_itself(facts: PodFacts) -> bool {
        let grant = Grant {
            facts: Arc::new(facts),
            container: "main".to_owned(),
            gpus: gpus(&[(A, 4)]).iter().cloned().collect(),
            ids: ids(["aaaaaaaa-0"]),
        };
        container_share(&grant).gpu_use.exclusive
    }

    #[test]
    fn a_container_has_an_exclusive_gpu_by_its_claim_alone() {
        let whole = with_use("p", A, 1, GpuUse { exclusive: true, ..GpuUse::default() });
        let claim = simple("p", A, 1).claim().cloned();
        let gpu = whole.gpu_pod().map(|gpu| GpuPod { claim: Ok(claim), ..gpu.clone() });
        let edited = PodFacts { gpu: Ok(gpu), ..whole.clone() };
        assert!(!has_gpus_for_itself(edited));
        assert!(has_gpus_for_itself(whole));
    }
}
