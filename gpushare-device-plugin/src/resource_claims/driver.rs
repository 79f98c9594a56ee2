//! Prepares and unprepares claims.
//!
//! Invariants: a claim is booked under the records' lock, and saved before the kubelet hears of it. The lock is not
//! held over an await. A call ends within the kubelet's limit.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{
    DeviceResult, MpsConflict, ResourceClaimError, ResourceClaimFacts, get_resource_claim,
};
use placement::units::{NodeName, ResourceClaimUid};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::files::ClaimFiles;
use super::wanted::{ClaimFault, ThisNode, Wanted};
use crate::container::cdi::CdiError;
use crate::gpus::Gpus;
use crate::gpus::closed::ClosedGpus;
use crate::isolation::support::Missing;
use crate::isolation::{IsolationError, NodeIsolation};
use crate::lingering::Lingering;
use crate::metrics::Metrics;
use crate::nvidia::KIND;
use crate::pods::PodCache;
use crate::records::SharedRecords;
use crate::records::checkpoint::CheckpointFile;
use crate::records::pod_resources::PodResourcesClient;
use crate::records::resource_claims::{BookedClaim, ClaimedShare, NoRoom};

/// Time in one call for what stands in a claim's way to pass, as processes of an earlier claim end. A kubelet waits 45
/// s for the call, and calls again some 67 s after a refusal (seen with v1.36.3).
const PATIENCE: Duration = Duration::from_secs(40);
/// Pause before what is held is compared again with a claim that waits: a change ends it, but for the shortest pause.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// Time after which a claim that waits is read again.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Time for one read of a claim.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A claim, as the kubelet names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: ResourceClaimUid,
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A device of a prepared claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedDevice {
    /// The request that it is for.
    pub request: String,
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub device: String,
    /// The CDI devices that a container gets with it.
    pub cdi: Vec<String>,
    /// The id of its share.
    pub share_id: Option<String>,
}

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// No claim of that name, or another one by now.
    #[error("the claim is gone: another one has its name, or none")]
    Gone,
    /// It cannot be read.
    #[error("the claim cannot be read: {0}")]
    Unread(ResourceClaimError),
    /// It has a fault, or the node cannot do what it asks for.
    #[error(transparent)]
    Fault(#[from] ClaimFault),
    /// It would be over.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// Its CDI specification cannot be written.
    #[error(transparent)]
    File(#[from] CdiError),
    /// It is not known yet which claims the node's running pods have.
    #[error("which claims the node's running pods have is not known yet")]
    NotRecovered,
}

impl PrepareError {
    /// Whether it may pass without a change of the claim.
    fn may_pass(&self) -> bool {
        match self {
            Self::Gone => false,
            Self::Unread(error) => matches!(error, ResourceClaimError::Call(_)),
            Self::Fault(fault) => matches!(
                fault,
                ClaimFault::NoSuchDevice { .. }
                    | ClaimFault::NoSuchPod(_)
                    | ClaimFault::Unhealthy { .. }
                    | ClaimFault::Closed { .. }
                    | ClaimFault::Isolation(IsolationError::NotKnown)
            ),
            Self::NoRoom(no_room) => !no_room.is_more_than_a_gpu(),
            Self::File(_) | Self::NotRecovered => true,
        }
    }

    /// The label `reason` of the metric of refusals.
    fn label(&self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Unread(_) => "unread",
            Self::Fault(_) => "fault",
            Self::NoRoom(_) => "no_room",
            Self::File(_) => "file",
            Self::NotRecovered => "not_recovered",
        }
    }
}

/// Prepares claims on this node.
pub(crate) struct Driver {
    /// The API server's client.
    pub client: cluster::Client,
    /// This node.
    pub node: NodeName,
    /// The driver's name.
    pub name: String,
    /// The node's GPUs, as they change.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Those that take no new claims.
    pub closed: watch::Receiver<Arc<ClosedGpus>>,
    /// How containers are limited to their share.
    pub isolation: NodeIsolation,
    /// What is held of the GPUs.
    pub records: Arc<SharedRecords>,
    /// Saves the records, and finds pods whose processes still run.
    pub lingering: Arc<Lingering>,
    /// The node's pods, from a watch.
    pub pods: Arc<PodCache>,
    /// The kubelet's PodResources API.
    pub kubelet: PodResourcesClient,
    /// The CDI specifications of claims.
    pub files: ClaimFiles,
    /// The kubelet's checkpoint, which tells what other plugins gave out.
    pub checkpoint: CheckpointFile,
    /// Whether the claims of the node's running pods are known.
    pub recovered: watch::Sender<bool>,
    /// Those that were booked for that alone: they are booked anew where they are prepared again, as after a boot.
    pub found: Mutex<BTreeSet<ResourceClaimUid>>,
    /// Counts refusals.
    pub metrics: Metrics,
}

impl Driver {
    /// Prepares a claim, and waits for up to [`PATIENCE`] for what stands in its way to pass. A claim that is prepared
    /// is answered alike.
    ///
    /// # Errors
    /// Why it is not prepared, for an event on its pod.
    pub(crate) async fn prepare(
        &self,
        claim: &ClaimRef,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        let deadline = Instant::now() + PATIENCE;
        let mut told = None;
        let mut read = None;
        // What has ended is free before it is looked for.
        self.lingering.update();
        loop {
            let mut changes = self.records.changes();
            let error = match self.try_to_prepare(claim, &mut read).await {
                Ok(devices) => return Ok(devices),
                Err(error) => error,
            };
            let ClaimRef { uid, namespace, name } = claim;
            if !error.may_pass() || Instant::now() + LOOK_AGAIN >= deadline {
                self.metrics.claim_refusals.with([error.label()]).inc();
                tracing::warn!(%uid, namespace, claim = name, reason = error.label(), "not prepared: {error}");
                return Err(error);
            }
            let text = error.to_string();
            if told.as_ref() != Some(&text) {
                tracing::info!(%uid, namespace, claim = name, "waits: {text}");
                told = Some(text);
            }
            sleep(SHORTEST_PAUSE).await;
            let _ = timeout_at(Instant::now() + LOOK_AGAIN, changes.changed()).await;
        }
    }

    async fn try_to_prepare(
        &self,
        claim: &ClaimRef,
        read: &mut Option<(Instant, ResourceClaimFacts)>,
    ) -> Result<Vec<PreparedDevice>, PrepareError> {
        let facts = match read {
            Some((at, facts)) if at.elapsed() < READ_AGAIN => facts.clone(),
            _ => {
                let facts = self.read(claim).await?.ok_or(PrepareError::Gone)?;
                *read = Some((Instant::now(), facts.clone()));
                facts
            }
        };
        let earlier = self.records.lock().resource_claims.prepared(&claim.uid).cloned();
        let was_found = self.found().contains(&claim.uid);
        if let Some(earlier) = earlier.filter(|_| !was_found) {
            if is_of(&earlier, &facts) {
                self.files.write(&claim.uid, &earlier)?;
                return Ok(self.devices(&claim.uid, &earlier));
            }
            // It was allocated again since, and the kubelet has lost its record of the first time.
            self.release(&claim.uid);
        }
        if !*self.recovered.borrow() {
            return Err(PrepareError::NotRecovered);
        }
        let gpus = self.gpus.borrow().clone();
        let booked = self.booking(&facts, &gpus)?;
        let support = self.isolation.support.borrow().clone();
        let clients = support.and_then(|support| support.strongest().1);
        let checkpoint = self.checkpoint.read();
        {
            let mut records = self.records.lock();
            if let Ok(checkpoint) = checkpoint {
                records.set_elsewhere(&checkpoint, &self.pods);
            }
            let ClaimRef { uid, namespace, name } = claim;
            records.resource_claims.unprepare_namesakes(uid, namespace, name);
            records.book(uid, booked.clone(), &gpus, clients)?;
            self.lingering.save(&mut records);
        }
        self.found().remove(&claim.uid);
        self.records.notify();
        if let Err(error) = self.files.write(&claim.uid, &booked) {
            self.release(&claim.uid);
            return Err(error.into());
        }
        let ClaimRef { uid, namespace, name } = claim;
        let on = crate::gpus::joined(booked.shares.iter().map(|share| &share.gpu));
        let limit = booked.limit.map(|limit| limit.to_string());
        tracing::info!(%uid, namespace, claim = name, gpus = on, limit, "prepared");
        Ok(self.devices(uid, &booked))
    }

    // Each change is one insert or removal, so a panic cannot leave a partial change.
    pub(super) fn found(&self) -> MutexGuard<'_, BTreeSet<ResourceClaimUid>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim by the API server; `None` if it is gone.
    pub(super) async fn read(
        &self,
        claim: &ClaimRef,
    ) -> Result<Option<ResourceClaimFacts>, PrepareError> {
        let ClaimRef { uid, namespace, name } = claim;
        let read =
            get_resource_claim(&self.client, namespace, name, &self.name, READ_TIMEOUT).await;
        Ok(read.map_err(PrepareError::Unread)?.filter(|facts| facts.uid == *uid))
    }

    pub(super) fn booking(
        &self,
        facts: &ResourceClaimFacts,
        gpus: &Gpus,
    ) -> Result<BookedClaim, ClaimFault> {
        let closed = self.closed.borrow().clone();
        let node = ThisNode { name: &self.node, driver: &self.name, gpus, closed: &closed };
        let wanted = Wanted::of(facts, &node)?;
        let known = self.isolation.support.borrow().clone();
        let mut support = known.ok_or(ClaimFault::Isolation(IsolationError::NotKnown))?;
        if support.mps.is_ok()
            && let Some(conflict) = self.mps_conflict(facts)?
        {
            support.mps = Err(Missing::MpsConflict(conflict));
        }
        let (limit, missing) = wanted.limit(gpus, self.isolation.policy, &support)?;
        if let Some(missing) = missing {
            self.metrics.isolation_downgrades.inc();
            tracing::warn!(uid = %facts.uid, "the claim's limit is weaker than the node's policy has it: {missing}");
        }
        Ok(wanted.booked(facts, limit))
    }

    /// Why a container of a pod with the claim cannot be a client of MPS.
    ///
    /// # Errors
    /// If the watch does not show the pod yet.
    fn mps_conflict(&self, facts: &ResourceClaimFacts) -> Result<Option<MpsConflict>, ClaimFault> {
        let pods = self.pods.by_uids();
        let mut found = None;
        for uid in &facts.reserved_for {
            let pod = pods.get(uid).ok_or_else(|| ClaimFault::NoSuchPod(uid.clone()))?;
            found = found.or(pod.mps_conflict);
        }
        Ok(found)
    }

    /// The kubelet starts no more containers with the claim: it holds its memory until its processes have ended.
    pub(crate) fn unprepare(&self, claim: &ClaimRef) {
        let ClaimRef { uid, namespace, name } = claim;
        if self.release(uid) {
            tracing::info!(%uid, namespace, claim = name, "unprepared");
        }
    }

    pub(super) fn release(&self, uid: &ResourceClaimUid) -> bool {
        let mut records = self.records.lock();
        let is_new = records.resource_claims.unprepare(uid);
        if is_new {
            self.lingering.save(&mut records);
        }
        drop(records);
        if is_new {
            self.records.notify();
        }
        is_new
    }

    /// Brings the files up to date. One that cannot be written now is tried again.
    pub(super) fn set_files(&self) {
        if let Err(error) = self.files.set(|| self.records.lock().resource_claims.clone()) {
            tracing::warn!("{error}");
        }
    }

    /// NVIDIA's device of each GPU, and once for each request ours: a container may have one request of the claim
    /// alone.
    fn devices(&self, uid: &ResourceClaimUid, claim: &BookedClaim) -> Vec<PreparedDevice> {
        let mut requests = BTreeSet::new();
        let mut devices = Vec::new();
        for share in &claim.shares {
            // A container names the request, and not the alternative of it that was allocated.
            let request = share.request.split('/').next().unwrap_or_default().to_owned();
            let mut cdi = vec![format!("{KIND}={}", share.gpu)];
            if requests.insert(request.clone()) {
                cdi.push(self.files.device(uid));
            }
            devices.push(PreparedDevice {
                request,
                pool: self.node.to_string(),
                device: share.device.clone(),
                cdi,
                share_id: share.share_id.clone(),
            });
        }
        devices
    }
}

/// Whether a claim is booked as it is allocated now.
fn is_of(booked: &BookedClaim, facts: &ResourceClaimFacts) -> bool {
    let Some(allocated) = &facts.allocated else { return false };
    let is_same = |(share, result): (&ClaimedShare, &DeviceResult)| {
        (&share.request, &share.device, &share.share_id)
            == (&result.request, &result.device, &result.share_id)
    };
    booked.shares.len() == allocated.results.len()
        && booked.shares.iter().zip(&allocated.results).all(is_same)
}
