//! The ledger of one node: how many units of which GPU each pod and ResourceClaim is charged.
//!
//! Invariants: [`NodeLedger::reserve`] never charges a GPU more units than it has free, and no annotation makes a GPU
//! look emptier than it is (see [`super::entry`]). Readers get the [`NodeGpus`] of the last change.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use super::entry::{Entry, Reservation, Stage, record};
use super::for_claims::{accounts_in_mib, given_out};
use super::node_gpus::PodStates;
use super::{
    Account, Basis, Charge, ChoiceRule, Claim, FreeGpu, GivenOut, Gpu, GpuRequest, GpuShare,
    GpuShares, NoFit, NodeGpus, PodIsolation, ResourceClaim, Sharers,
};
use crate::units::{Cores, GpuId, MiB, PodUid, ResourceClaimUid, Units};

/// The per-GPU allocation table of one node.
///
/// # Examples
///
/// ```
/// use placement::gpu::{Gpu, GpuIsolation, Topology, ChoiceRule, GpuRequest, NodeLedger};
/// use placement::units::{MiB, PodUid, Units};
///
/// let gpu = |index| Gpu {
///     uuid: format!("GPU-{index}").into(),
///     index,
///     model: "NVIDIA A10".into(),
///     memory: MiB(24576),
///     units: Units(24),
///     topology: Topology::default(),
///     healthy: true,
///     closed: None,
///     isolation: GpuIsolation::default(),
///     outside_mps: Vec::new(),
///     pods: [].into(),
/// };
/// let mut ledger = NodeLedger::default();
/// ledger.set_gpus(vec![gpu(0), gpu(1)]);
/// let request = GpuRequest::single("main", Units(20)).ok_or("asks for nothing")?;
/// let pod = PodUid::from("0f6c3a1e");
/// let rule = ChoiceRule::default();
/// let reserved = ledger.reserve(&pod, &request, &rule).map_err(|error| error.to_string())?;
/// assert_eq!(reserved.choice.gpus[0].index, 0);
/// assert_eq!(ledger.read().accounts()[0].gpu.free, Units(4));
/// // The API server refused the binding.
/// ledger.cancel(&pod);
/// assert_eq!(ledger.read().accounts()[0].gpu.free, Units(24));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct NodeLedger {
    gpus: Vec<Gpu>,
    entries: BTreeMap<PodUid, Entry>,
    /// Released pods that the kubelet's records still show: these records have units alone, and not the compute,
    /// exclusive GPUs and processes, or how a pod shares its GPUs.
    stopping: BTreeMap<PodUid, Entry>,
    /// Deleted pods that may still have processes and that the kubelet's records do not show yet.
    departed: BTreeMap<PodUid, Entry>,
    /// Pods for which kube-scheduler has evicted other pods.
    nominated: BTreeMap<PodUid, Nomination>,
    /// What kube-scheduler has allocated to ResourceClaims. Their pods have no other entry.
    claims: BTreeMap<ResourceClaimUid, Arc<ResourceClaim>>,
    /// Free CPU, in thousandths of a core; `None` where it is not known.
    cpu: Option<u64>,
    /// Units of each GPU that are in use beyond what pods hold.
    unmanaged: Vec<(GpuId, Units)>,
    /// Built by the first read after a change: one Bind makes several changes, and building takes time for each pod of
    /// the node.
    read: OnceLock<Arc<NodeGpus>>,
}

/// GPUs that are kept for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Nomination {
    /// The pod's priority.
    priority: i32,
    shares: GpuShares,
    isolation: PodIsolation,
}

/// Covers all fields but `read`, which follows from the others.
impl Hash for NodeLedger {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { gpus, entries, stopping, departed, nominated, claims, cpu, unmanaged, read: _ } =
            self;
        (gpus, entries, stopping, departed, nominated, claims, cpu, unmanaged).hash(state);
    }
}

/// Why no GPU was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// No GPUs fit.
    #[error(transparent)]
    NoFit(#[from] NoFit),
    /// The pod is already bound to the node.
    #[error("the pod is bound already")]
    Bound,
    /// The pod has a reservation here for what it asked for before.
    #[error("the pod has changed since its GPUs were reserved")]
    Changed,
}

impl NodeLedger {
    /// Sets the GPUs that the node reports; empty if the node is gone. Its machine may still run, so its departed pods
    /// stay charged.
    pub fn set_gpus(&mut self, gpus: Vec<Gpu>) {
        self.gpus = gpus;
        for (pod, entry) in std::mem::take(&mut self.entries) {
            let reported = entry.reported(&pod, &self.gpus);
            self.entries.insert(pod, reported);
        }
        let is_recorded = |pod: &PodUid| !record(pod, &self.gpus).is_empty();
        self.stopping.extend(self.departed.extract_if(.., |pod, _| is_recorded(pod)));
        self.stopping.retain(|pod, _| is_recorded(pod));
        self.invalidate();
    }

    /// The GPUs as last reported.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// How the node gives out its GPUs.
    pub fn given_out(&self) -> GivenOut {
        given_out(&self.gpus)
    }

    /// The GPUs with what is free and what each pod is charged, as of the last change.
    pub fn read(&self) -> &Arc<NodeGpus> {
        self.read.get_or_init(|| Arc::new(self.node_gpus()))
    }

    /// Chooses GPUs for the pod and reserves them. Returns an existing reservation of the same claim.
    ///
    /// # Errors
    ///
    /// If no GPUs fit, the pod is already bound, or its reservation is of another claim.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Reservation, ReserveError> {
        match self.entries.get(pod).map(|entry| (entry.stage(), entry.reservation())) {
            Some((Stage::Reserved, Some(reservation))) => {
                let claim = Claim::on_gpus(request, &reservation.choice.gpu_ids());
                let is_same = claim == reservation.claim;
                return if is_same { Ok(reservation.clone()) } else { Err(ReserveError::Changed) };
            }
            Some(_) => return Err(ReserveError::Bound),
            None => {}
        }
        let choice = self.read().fit(pod, request, rule)?;
        let reservation = Reservation::new(request, choice);
        self.insert(pod, Entry::reserved(request, reservation.clone()));
        Ok(reservation)
    }

    /// Sets the free CPU of the node, in thousandths of a core; `None` where it is not known.
    pub fn set_cpu(&mut self, cpu: Option<u64>) {
        if self.cpu != cpu {
            self.cpu = cpu;
            self.invalidate();
        }
    }

    /// Sets the units of each GPU that are in use beyond what pods hold.
    pub fn set_unmanaged(&mut self, unmanaged: Vec<(GpuId, Units)>) {
        if self.unmanaged != unmanaged {
            self.unmanaged = unmanaged;
            self.invalidate();
        }
    }

    /// Whether units are in use beyond what pods hold.
    pub fn has_unmanaged(&self) -> bool {
        !self.unmanaged.is_empty()
    }

    /// Drops a reservation after a binding that has certainly failed. Does nothing if the pod is already bound or
    /// allocated.
    pub fn cancel(&mut self, pod: &PodUid) {
        if self.stage(pod) == Some(Stage::Reserved) {
            self.release(pod);
        }
    }

    /// Records that the API server shows the pod on this node. `claim` is its annotation's claim, if that agrees with
    /// its spec.
    pub fn bind(&mut self, pod: &PodUid, request: &GpuRequest, claim: Option<&Claim>) {
        let before = self.entries.remove(pod);
        self.insert(pod, Entry::bound(before, request, claim));
    }

    /// Records that the kubelet has admitted a bound pod: it runs. Without a claim, it then runs on a GPU that nothing
    /// names.
    pub fn admit(&mut self, pod: &PodUid) {
        self.entries.get_mut(pod).into_iter().for_each(Entry::set_admitted);
        self.invalidate();
    }

    /// Records that the node's report would show the pod if it were on one of the reported GPUs. If its claim names a
    /// GPU that the node does not report, as one that has failed, it then counts on the claim's GPUs alone.
    pub fn set_overdue(&mut self, pod: &PodUid) {
        self.entries.get_mut(pod).into_iter().for_each(Entry::set_overdue);
        self.invalidate();
    }

    /// Removes a pod that has ended, is deleted, or is on another node. What the kubelet's records show of it is
    /// charged until they change; an exclusive GPU stays exclusive until then.
    pub fn release(&mut self, pod: &PodUid) {
        self.end_nomination(pod);
        let Some(entry) = self.entries.remove(pod) else { return };
        if !record(pod, &self.gpus).is_empty() {
            self.stopping.insert(pod.clone(), entry);
        }
        self.invalidate();
    }

    /// As [`NodeLedger::release`], for a deleted pod that may still have processes. If the kubelet's records have never
    /// shown it, it stays charged until they do or until [`NodeLedger::end_departure`]. Returns whether it stays
    /// charged. A pod that is bound without a claim and was not admitted does not: it is on no GPU.
    pub fn depart(&mut self, pod: &PodUid) -> bool {
        // A pod that an earlier report has shown and the last one has not has no processes.
        let never_shown = self.stage(pod).is_some_and(|stage| stage != Stage::Allocated);
        let is_on_a_gpu = self.entries.get(pod).is_some_and(|entry| !entry.is_unplaced(&self.gpus));
        let is_unreported = never_shown && is_on_a_gpu && record(pod, &self.gpus).is_empty();
        if !is_unreported {
            self.release(pod);
            return false;
        }
        self.end_nomination(pod);
        self.departed.extend(self.entries.remove_entry(pod));
        self.invalidate();
        true
    }

    /// Stops charging a departed pod that the kubelet's records have not shown.
    pub fn end_departure(&mut self, pod: &PodUid) {
        if self.departed.remove(pod).is_some() {
            self.invalidate();
        }
    }

    /// Keeps GPUs for a pod for which other pods were evicted. As in kube-scheduler, pods of higher priority take them
    /// all the same. Does nothing if it has a reservation or is bound.
    pub fn nominate(&mut self, pod: &PodUid, request: &GpuRequest, gpus: &[GpuId]) {
        if self.entries.contains_key(pod) {
            return;
        }
        let mut shares = Claim::on_gpus(request, gpus).gpus().clone();
        if request.given_out() == GivenOut::Claims {
            for gpu in &self.gpus {
                if let Some(share) = shares.get_mut(&gpu.uuid) {
                    share.units = gpu.units_of(MiB(share.units.0.into()));
                }
            }
        }
        let nomination =
            Nomination { priority: request.priority(), shares, isolation: request.isolation() };
        self.nominated.insert(pod.clone(), nomination);
        self.invalidate();
    }

    /// Stops keeping GPUs for a pod that has not been bound.
    pub fn end_nomination(&mut self, pod: &PodUid) {
        if self.nominated.remove(pod).is_some() {
            self.invalidate();
        }
    }

    /// Charges a ResourceClaim, in place of what it had before.
    pub fn set_resource_claim(&mut self, claim: ResourceClaim) {
        if self.claims.get(&claim.uid).is_none_or(|known| **known != claim) {
            self.claims.insert(claim.uid.clone(), Arc::new(claim));
            self.invalidate();
        }
    }

    /// Stops charging a ResourceClaim that is gone or has no device any more.
    pub fn release_resource_claim(&mut self, claim: &ResourceClaimUid) {
        if self.claims.remove(claim).is_some() {
            self.invalidate();
        }
    }

    /// Whether the kubelet's last records have units of the pod.
    pub fn is_recorded(&self, pod: &PodUid) -> bool {
        !record(pod, &self.gpus).is_empty()
    }

    /// The stage of a pod's claim; `None` if it has no entry.
    pub fn stage(&self, pod: &PodUid) -> Option<Stage> {
        self.entries.get(pod).map(Entry::stage)
    }

    /// The pods with an entry, and the stage of each.
    pub fn stages(&self) -> impl Iterator<Item = (&PodUid, Stage)> {
        self.entries.iter().map(|(pod, entry)| (pod, entry.stage()))
    }

    /// Whether there are neither GPUs, nor pods, nor ResourceClaims.
    pub fn is_empty(&self) -> bool {
        let pods = self.entries.is_empty() && self.departed.is_empty() && self.nominated.is_empty();
        pods && self.claims.is_empty() && self.gpus.is_empty()
    }

    fn insert(&mut self, pod: &PodUid, entry: Entry) {
        self.stopping.remove(pod);
        self.departed.remove(pod);
        self.nominated.remove(pod);
        self.entries.insert(pod.clone(), entry.reported(pod, &self.gpus));
        self.invalidate();
    }

    /// Drops the value that readers have: it is built again by the next read.
    fn invalidate(&mut self) {
        self.read.take();
    }

    fn node_gpus(&self) -> NodeGpus {
        let mut charges: Vec<Vec<Charge>> =
            self.gpus.iter().map(|gpu| self.charges_without_entry(gpu)).collect();
        for (pod, entry) in self.entries.iter().chain(&self.departed) {
            for (charges, charge) in charges.iter_mut().zip(entry.charges(pod, &self.gpus)) {
                charges.extend(charge);
            }
        }
        for (pod, Nomination { priority, shares, isolation }) in &self.nominated {
            for (charges, gpu) in charges.iter_mut().zip(&self.gpus) {
                let Some(share) = shares.get(&gpu.uuid) else { continue };
                let sharing = Some(gpu.isolation.sharing(*isolation));
                let kept = Charge::of(pod, *share, Basis::Nominated, sharing, gpu.units);
                charges.extend(kept.map(|kept| Charge { kept_at: Some(*priority), ..kept }));
            }
        }
        for claim in self.claims.values() {
            let unknown = claim.share_of_unknown(&self.gpus);
            for (charges, gpu) in charges.iter_mut().zip(&self.gpus) {
                charges.extend(Charge::of_claim(claim, gpu, unknown));
            }
        }
        for (gpu, units) in &self.unmanaged {
            let no_pod = PodUid::from("");
            for (charges, of) in charges.iter_mut().zip(&self.gpus) {
                if of.uuid == *gpu {
                    // It was measured beyond what pods hold by units, so the memory that claims use is in it.
                    let mut units = *units;
                    for charge in charges.iter().filter(|charge| charge.claim.is_some()) {
                        units = units.saturating_sub(charge.units);
                    }
                    let share = GpuShare::of(units);
                    charges.extend(Charge::of(&no_pod, share, Basis::Unmanaged, None, of.units));
                }
            }
        }
        let mut accounts = Vec::with_capacity(self.gpus.len());
        for (gpu, mut charges) in self.gpus.iter().zip(charges) {
            charges.sort_by(|one, other| one.pod.cmp(&other.pod));
            accounts.push(Account::new(&uncharged(gpu), charges));
        }
        let nominated = |(pod, kept): (&PodUid, &Nomination)| (pod.clone(), kept.priority);
        let mut pods = PodStates {
            nominated: self.nominated.iter().map(nominated).collect(),
            departed: self.departed.keys().cloned().collect(),
            reserved: self.stages().filter(|(_, stage)| *stage == Stage::Reserved).count(),
            ..PodStates::default()
        };
        for (pod, entry) in &self.entries {
            let choice = entry.reservation().map(|reservation| reservation.choice.clone());
            pods.chosen.extend(choice.map(|choice| (pod.clone(), choice)));
            let units = entry.unplaced(pod, &self.gpus);
            pods.unplaced.extend(units.map(|units| (pod.clone(), units)));
            if entry.is_on_lost_gpu(&self.gpus) {
                pods.on_lost_gpus.push(pod.clone());
            }
        }
        let in_mib = accounts_in_mib(&self.gpus, &accounts);
        NodeGpus::new(accounts, pods, self.cpu).with_claims(in_mib)
    }

    /// The charges on a GPU of pods that only the kubelet's records show: a Pod object may be gone before its
    /// processes are.
    fn charges_without_entry(&self, gpu: &Gpu) -> Vec<Charge> {
        let mut charges = Vec::new();
        for (pod, units) in &gpu.pods {
            // A claim ends that Kubernetes has not deallocated yet: it is reported under its UID.
            let is_claim = self.claims.contains_key(pod.as_str());
            if units.is_zero() || is_claim || self.entries.contains_key(pod) {
                continue;
            }
            let stopping = self.stopping.get(pod);
            // A pod of which nothing else is known may be a client of MPS.
            let unknown = GpuShare { processes: 1, ..GpuShare::default() };
            let known = stopping.map_or(unknown, |entry| entry.known_share(&gpu.uuid));
            let share = GpuShare { units: *units, ..known };
            let sharing = stopping.map(|entry| entry.sharing(gpu));
            charges.extend(Charge::of(pod, share, Basis::Recorded, sharing, gpu.units));
        }
        charges
    }
}

/// The GPU with everything free.
fn uncharged(gpu: &Gpu) -> FreeGpu {
    FreeGpu {
        uuid: gpu.uuid.clone(),
        index: gpu.index,
        model: gpu.model.clone(),
        topology: gpu.topology,
        units: gpu.units,
        free: gpu.units,
        free_cores: Cores::ALL,
        idle: true,
        healthy: gpu.healthy,
        closed: gpu.closed,
        isolation: gpu.isolation,
        sharers: Sharers::None,
        clients: 0,
    }
}
