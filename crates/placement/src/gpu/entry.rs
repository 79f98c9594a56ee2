//! One pod's entry in the ledger of one node: the stage of its claim, and the GPUs on which it is charged.
//!
//! ```text
//!                reserve             bound             the kubelet's records place it
//! (no entry) ──────────────> Reserved ─────> Bound ──────────────────────────────> Allocated
//!     └────────── bound ─────────┼────────────^ └─ release ─┐ ┌──── release ───────────┘
//!                                └─ cancel, release ──> (no entry)
//! ```
//!
//! Invariant: an annotation can only add to what a pod is charged. What Bind chose counts until the kubelet's records
//! place the pod. Until then each GPU that the annotation has claimed counts too: the device plugin follows the
//! annotation, and may have done so before it changed again. After that the last record that placed the pod counts
//! alone, whatever claims and later reports leave out. The kubelet's records have units only. Whether a pod is
//! exclusive, and its part of the compute, come from what Bind chose and from claims, never from the annotations by
//! which its author requests GPUs.
//!
//! A pod that is bound without a claim has no GPU: its author or another scheduler has set its node. Until the kubelet
//! has admitted it, it counts as in kube-scheduler, its units once on the whole node, so that it takes no GPU from
//! others. The device plugin refuses it, or puts it on a GPU with room.

use std::collections::BTreeMap;

use super::{
    Basis, Charge, Choice, Claim, Gpu, GpuRequest, GpuShare, GpuShares, PodIsolation, Sharing,
};
use crate::units::{GpuId, PodUid, Units};

/// The most GPUs that are kept of those that a pod's annotation names over time. A node reports at most 64 GPUs; a
/// pod whose annotation has named more is of unknown place.
const MAX_CLAIMED: usize = 65;

/// The stage of a pod's claim on a node. A pod that was released has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Chosen at Bind; the API server has not confirmed it.
    Reserved,
    /// The API server shows the pod on the node.
    Bound,
    /// The kubelet's records show its units.
    Allocated,
}

/// What Bind decided for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reservation {
    /// The claim that Bind writes on the pod.
    pub claim: Claim,
    /// The claim's GPUs, as they were when they were chosen.
    pub choice: Choice,
}

impl Reservation {
    /// The reservation of these GPUs for a request.
    pub fn new(request: &GpuRequest, choice: Choice) -> Self {
        Self { claim: Claim::on_gpus(request, &choice.gpu_ids()), choice }
    }
}

/// A pod's units on each GPU, by the kubelet's records.
pub(super) type Record = BTreeMap<GpuId, Units>;

/// One pod's entry in a node's ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    /// The most that the pod holds of each of its GPUs at one time, the largest share first; never empty.
    shares: Vec<GpuShare>,
    /// As it was when the entry was made: a later change of its annotations does not change how the pod runs.
    isolation: PodIsolation,
    /// What Bind chose; `None` if that was before this process started.
    reservation: Option<Reservation>,
    /// The GPUs that the claim annotation has named while it agreed with the pod's spec. Some may not be among the
    /// GPUs that the node reports.
    claimed: GpuShares,
    state: State,
    /// The kubelet has admitted the pod, so it runs.
    admitted: bool,
    /// The node's report would show the pod if it were on one of the reported GPUs.
    is_overdue: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Reserved,
    Bound,
    /// The last record that placed the pod.
    Allocated(Record),
}

/// The source of the pod's GPUs.
enum Place<'a> {
    /// A record of the kubelet, the current one or an earlier one.
    Recorded(&'a Record),
    /// Bind, since this process started, and annotations since then.
    Chosen(&'a Claim),
    /// Annotations only, which do not prove that the pod is on no other GPU.
    Claimed,
    /// Annotations only, and the pod is on no reported GPU that they do not name.
    ClaimedAlone,
    /// The GPUs are not known.
    Unknown,
    /// There is no GPU yet.
    None,
}

impl Entry {
    pub(super) fn reserved(request: &GpuRequest, reservation: Reservation) -> Self {
        Self {
            shares: request.shares().to_vec(),
            isolation: request.isolation(),
            reservation: Some(reservation),
            claimed: GpuShares::new(),
            state: State::Reserved,
            admitted: false,
            is_overdue: false,
        }
    }

    /// The entry once the API server shows the pod on the node.
    pub(super) fn bound(before: Option<Self>, request: &GpuRequest, claim: Option<&Claim>) -> Self {
        let shares = request.shares().to_vec();
        let mut entry = before.unwrap_or_else(|| Self {
            shares: shares.clone(),
            isolation: request.isolation(),
            reservation: None,
            claimed: GpuShares::new(),
            state: State::Bound,
            admitted: false,
            is_overdue: false,
        });
        entry.shares = shares;
        if entry.state == State::Reserved {
            entry.state = State::Bound;
        }
        for (gpu, share) in claim.into_iter().flat_map(Claim::gpus) {
            if entry.claimed.len() < MAX_CLAIMED {
                let known = entry.claimed.entry(gpu.clone()).or_default();
                *known = known.larger(*share);
            }
        }
        entry
    }

    /// The kubelet has admitted the pod.
    pub(super) fn set_admitted(&mut self) {
        self.admitted = true;
    }

    /// The node's report would show the pod on any reported GPU.
    pub(super) fn set_overdue(&mut self) {
        self.is_overdue = true;
    }

    /// The entry once the node has reported these GPUs.
    pub(super) fn reported(self, pod: &PodUid, gpus: &[Gpu]) -> Self {
        match self.complete_record(record(pod, gpus), gpus) {
            Some(record) => Self { state: State::Allocated(record), ..self },
            None => self,
        }
    }

    /// The record, if it accounts for all units of the pod. The kubelet does not list init containers. A pod with one
    /// GPU has all containers there, so a record of that GPU places the whole pod. A pod on several GPUs has no init
    /// container that requests units. A record that has all that was claimed of the reported GPUs is complete with the
    /// claim's other GPUs: a container gets its units on all its GPUs at once.
    fn complete_record(&self, mut record: Record, gpus: &[Gpu]) -> Option<Record> {
        if let (1, 1, Some(units)) = (self.shares.len(), record.len(), record.values_mut().next()) {
            *units = self.peak().max(*units);
        }
        if record.is_empty() {
            return None;
        }
        if !self.has_all_units(&record) && self.claimed.len() < MAX_CLAIMED {
            record.extend(self.on_lost_gpus(&record, gpus));
        }
        self.has_all_units(&record).then_some(record)
    }

    fn has_all_units(&self, record: &Record) -> bool {
        record.values().copied().sum::<Units>() >= self.peak()
    }

    /// The units that were claimed of GPUs that the node does not report, if the record has all that was claimed of
    /// the others.
    fn on_lost_gpus(&self, record: &Record, gpus: &[Gpu]) -> Record {
        let mut lost = Record::new();
        for (gpu, share) in &self.claimed {
            if !is_reported(gpu, gpus) {
                lost.insert(gpu.clone(), share.units);
            } else if record.get(gpu).is_none_or(|units| *units < share.units) {
                return Record::new();
            }
        }
        lost
    }

    fn peak(&self) -> Units {
        self.shares.iter().map(|share| share.units).sum()
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Reserved => Stage::Reserved,
            State::Bound => Stage::Bound,
            State::Allocated(_) => Stage::Allocated,
        }
    }

    pub(super) fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// The units that the pod still needs of the node, if it is not on a GPU yet.
    pub(super) fn unplaced(&self, pod: &PodUid, gpus: &[Gpu]) -> Option<Units> {
        let recorded: Units = record(pod, gpus).into_values().sum();
        let units = self.peak().saturating_sub(recorded);
        (matches!(self.place(gpus), Place::None) && !units.is_zero()).then_some(units)
    }

    /// Whether nothing but a claim is known, and that names a GPU that the node does not report.
    pub(super) fn is_on_lost_gpu(&self, gpus: &[Gpu]) -> bool {
        matches!(self.place(gpus), Place::Claimed | Place::Unknown)
            && self.claimed.len() < MAX_CLAIMED
            && self.claimed.keys().any(|gpu| !is_reported(gpu, gpus))
    }

    /// Whether the pod has no GPU and is not known to run: nothing is to be charged once it is deleted.
    pub(super) fn is_unplaced(&self, gpus: &[Gpu]) -> bool {
        matches!(self.place(gpus), Place::None)
    }

    /// What the pod is charged on each of the node's GPUs, in their order.
    pub(super) fn charges(&self, pod: &PodUid, gpus: &[Gpu]) -> Vec<Option<Charge>> {
        let place = self.place(gpus);
        gpus.iter()
            .map(|gpu| {
                let recorded = gpu.pods.get(pod).copied().unwrap_or(Units::ZERO);
                let (share, basis) = match self.share_on(&place, &gpu.uuid) {
                    Some((share, basis)) if share.units > recorded => (share, basis),
                    Some((share, _)) => (GpuShare { units: recorded, ..share }, Basis::Recorded),
                    None => {
                        let processes = self.largest().processes;
                        let share = GpuShare { processes, ..GpuShare::of(recorded) };
                        (share, Basis::Recorded)
                    }
                };
                let sharing = match basis {
                    Basis::UnknownPlace | Basis::UnprovenClaim => None,
                    _ => Some(self.sharing(gpu)),
                };
                Charge::of(pod, share, basis, sharing, gpu.units)
            })
            .collect()
    }

    /// How the pod shares a GPU that it is on.
    pub(super) fn sharing(&self, gpu: &Gpu) -> Sharing {
        gpu.isolation.sharing(self.isolation)
    }

    /// The source of the pod's GPUs. GPUs that the node does not report do not count.
    fn place(&self, gpus: &[Gpu]) -> Place<'_> {
        if let State::Allocated(record) = &self.state {
            return Place::Recorded(record);
        }
        if self.claimed.len() >= MAX_CLAIMED {
            return Place::Unknown;
        }
        if let Some(reservation) = &self.reservation {
            // The pod is on no other GPU, whether the node still reports these or not.
            return Place::Chosen(&reservation.claim);
        }
        if self.claimed.is_empty() {
            return if self.admitted { Place::Unknown } else { Place::None };
        }
        if self.is_overdue && !self.claimed.keys().all(|gpu| is_reported(gpu, gpus)) {
            return Place::ClaimedAlone;
        }
        let is_here = self.claimed.keys().any(|gpu| is_reported(gpu, gpus));
        if is_here { Place::Claimed } else { Place::Unknown }
    }

    /// The pod's share of a GPU and why it counts there; `None` if it does not.
    fn share_on(&self, place: &Place<'_>, gpu: &GpuId) -> Option<(GpuShare, Basis)> {
        let claimed = self.claimed.get(gpu).copied();
        match place {
            Place::Recorded(record) => {
                let units = *record.get(gpu)?;
                Some((GpuShare { units, ..self.known_share(gpu) }, Basis::Recorded))
            }
            Place::Chosen(claim) => match claim.gpus().get(gpu) {
                Some(share) => Some((share.larger(claimed.unwrap_or_default()), Basis::Chosen)),
                None => claimed.map(|share| (share, Basis::Claimed)),
            },
            Place::Claimed => Some(match claimed {
                Some(share) => (share, Basis::Claimed),
                None => (self.largest(), Basis::UnprovenClaim),
            }),
            Place::ClaimedAlone => claimed.map(|share| (share, Basis::Claimed)),
            Place::Unknown => Some((self.largest(), Basis::UnknownPlace)),
            Place::None => None,
        }
    }

    /// The share that was chosen or claimed on a GPU, or else the pod's largest share; of a pod without a claim, its
    /// units.
    pub(super) fn known_share(&self, gpu: &GpuId) -> GpuShare {
        let chosen = self.reservation.as_ref().and_then(|r| r.claim.gpus().get(gpu));
        match (chosen, self.claimed.get(gpu)) {
            (Some(chosen), Some(claimed)) => chosen.larger(*claimed),
            (Some(share), None) | (None, Some(share)) => *share,
            (None, None) => self.largest(),
        }
    }

    /// The units and processes of the pod's largest share, with the most that was chosen or claimed of the compute, and
    /// exclusive if any GPU is.
    fn largest(&self) -> GpuShare {
        let GpuShare { units, processes, .. } = self.shares.first().copied().unwrap_or_default();
        let mut largest = GpuShare { processes, ..GpuShare::default() };
        let chosen = self.reservation.as_ref().map(|reservation| reservation.claim.gpus());
        for (_, share) in chosen.into_iter().chain([&self.claimed]).flatten() {
            largest = largest.larger(*share);
        }
        GpuShare { units, ..largest }
    }
}

/// Whether the node reports the GPU.
fn is_reported(gpu: &GpuId, gpus: &[Gpu]) -> bool {
    gpus.iter().any(|reported| reported.uuid == *gpu)
}

/// A pod's units in the node's report of its GPUs.
pub(super) fn record(pod: &PodUid, gpus: &[Gpu]) -> Record {
    gpus.iter()
        .filter_map(|gpu| Some((gpu.uuid.clone(), *gpu.pods.get(pod)?)))
        .filter(|(_, units)| !units.is_zero())
        .collect()
}
