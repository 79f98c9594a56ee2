//! A node's GPUs and charges at one time, as Filter, Prioritize, preempt, explain and Bind read them.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::choice_rule::Preference;
use super::fit::{FreeNear, check, free_near, packing_score, spread_score, why_no_fit};
use super::fragmentation::{Cost, Measure};
use super::free_gpu::Room;
use super::{
    Account, Basis, Charge, Choice, ChoiceRule, Fit, FreeGpu, GivenOut, GpuIsolation, GpuRequest,
    GpuShare, NoFit, Rating, Sharing, choose,
};
use crate::units::{PodUid, Units};

/// A node's GPUs at one time: what is free, and what each pod is charged. Immutable; the ledger makes a new value
/// after each change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeGpus {
    accounts: Vec<Account>,
    /// The open GPUs, sorted by free units, then by what is free near them and by index: under packing, the first
    /// that fits is best.
    open_gpus: Box<[OpenGpu]>,
    pods: PodStates,
    /// Free CPU, in thousandths of a core; `None` where it is not known.
    cpu: Option<u64>,
    /// [`NodeGpus::for_claims`].
    for_claims: Option<Box<NodeGpus>>,
}

/// What is known of pods beyond their charges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodStates {
    /// Pods that Bind has chosen GPUs for since this process started, sorted by UID.
    pub(super) chosen: Vec<(PodUid, Choice)>,
    /// Pods that GPUs are kept for until they are bound, sorted by UID, each with its priority.
    pub(super) nominated: Vec<(PodUid, i32)>,
    /// Deleted pods that may still have processes and that no report has shown, sorted by UID.
    pub(super) departed: Vec<PodUid>,
    /// How many reservations the API server has not confirmed.
    pub(super) reserved: usize,
    /// Units of pods that are bound without a claim and not on a GPU yet.
    pub(super) unplaced: Vec<(PodUid, Units)>,
    /// Pods of which nothing but a claim is known, and that names a GPU that the node does not report.
    pub(super) on_lost_gpus: Vec<PodUid>,
}

/// A healthy GPU that takes new pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenGpu {
    room: Room,
    near: FreeNear,
    /// All its units.
    units: Units,
    isolation: GpuIsolation,
    /// Its position among the node's accounts.
    position: usize,
}

impl NodeGpus {
    pub(super) fn new(accounts: Vec<Account>, pods: PodStates, cpu: Option<u64>) -> Self {
        let near = free_near(&accounts.iter().map(|account| &account.gpu).collect::<Vec<_>>());
        let mut open_gpus = Vec::with_capacity(accounts.len());
        for (position, Account { gpu, .. }) in accounts.iter().enumerate() {
            if gpu.is_open() {
                let (room, units, isolation) = (gpu.room(), gpu.units, gpu.isolation);
                open_gpus.push(OpenGpu { room, near: near(gpu), units, isolation, position });
            }
        }
        open_gpus.sort_by_key(|gpu| (gpu.room.units, gpu.near, accounts[gpu.position].gpu.index));
        Self { accounts, open_gpus: open_gpus.into(), pods, cpu, for_claims: None }
    }

    /// The same for pods without ResourceClaims; for pods with them, these accounts in MiB.
    pub(super) fn with_claims(self, in_mib: Option<Vec<Account>>) -> Self {
        let nominated = self.pods.nominated.clone();
        let pods = PodStates { nominated, ..PodStates::default() };
        let of = |accounts| Box::new(Self::new(accounts, pods, self.cpu));
        Self { for_claims: in_mib.map(of), ..self }
    }

    /// The GPUs as a pod finds them that asks by ResourceClaims, in MiB in place of units ([`GpuRequest::of_claim`]);
    /// `None` where claims get none.
    pub fn for_claims(&self) -> Option<&Self> {
        self.for_claims.as_deref()
    }

    /// The GPUs as a pod with the request finds them; `None` where it gets none.
    pub fn found_by(&self, request: &GpuRequest) -> Option<&Self> {
        match request.given_out() {
            GivenOut::Units => Some(self),
            GivenOut::Claims => self.for_claims(),
        }
    }

    /// The GPUs, if they are given out in that way.
    pub fn if_given_out(&self, way: GivenOut) -> Option<&Self> {
        match way {
            GivenOut::Units => self.for_claims.is_none().then_some(self),
            GivenOut::Claims => self.for_claims(),
        }
    }

    /// Free CPU, in thousandths of a core; `None` where it is not known.
    pub fn cpu(&self) -> Option<u64> {
        self.cpu
    }

    /// How many reservations the API server has not confirmed.
    pub fn reserved(&self) -> usize {
        self.pods.reserved
    }

    /// Deleted pods that are still charged for some seconds, since they may have processes; sorted by UID.
    pub fn departed(&self) -> &[PodUid] {
        &self.pods.departed
    }

    /// Pods that are bound without a claim and not on a GPU yet, with their units. They count once on the whole node,
    /// as in kube-scheduler: a pod fits only if the node's free units suffice for it and for them.
    pub fn unplaced(&self) -> &[(PodUid, Units)] {
        &self.pods.unplaced
    }

    /// Pods of which nothing but a claim is known, and that names a GPU that the node does not report.
    pub fn on_lost_gpus(&self) -> &[PodUid] {
        &self.pods.on_lost_gpus
    }

    /// The pods that GPUs are reserved or kept for. For these, [`NodeGpus::fit`], [`NodeGpus::check`] and
    /// [`NodeGpus::rate`] may return something else than for other pods with the same request.
    pub fn pods_with_set_aside_gpus(&self) -> impl Iterator<Item = &PodUid> {
        let PodStates { chosen, nominated, .. } = &self.pods;
        chosen.iter().map(|(pod, _)| pod).chain(nominated.iter().map(|(pod, _)| pod))
    }

    /// The accounts, by index.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// The clients of MPS beside others on a GPU where nothing terminates a client before it is killed: a kill with
    /// work in flight would end the others. A pod of unknown kind counts as a client where there is MPS.
    pub fn undrained_clients(&self) -> BTreeSet<&PodUid> {
        let mut undrained = BTreeSet::new();
        for Account { gpu, charges } in &self.accounts {
            let isolation = gpu.isolation;
            let is_client = |charge: &&Charge| match charge.sharing {
                _ if !charge.basis.is_held() => false,
                Some(sharing) => sharing == Sharing::Mps,
                None => isolation.mps_clients.is_some(),
            };
            let clients: Vec<_> = charges.iter().filter(is_client).map(Charge::pods).collect();
            if !isolation.drains_clients && clients.len() > 1 {
                undrained.extend(clients.into_iter().flatten());
            }
        }
        undrained
    }

    /// The GPUs that a pod would get. A pod that Bind has chosen GPUs for keeps them: its own charges are no reason
    /// against them.
    ///
    /// # Errors
    ///
    /// Why none fit.
    pub fn fit(
        &self,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        if let Some(choice) = self.choice(pod) {
            return Ok(choice.clone());
        }
        match (request.shares(), rule.preference(request)) {
            _ if self.has_kept_for(pod, request) => self.fit_without(|_| false, pod, request, rule),
            _ if self.unplaced_need(|_| false, self.gpus(), request) => {
                Err(NoFit::NeededByUnplaced)
            }
            ([share], Preference::Fullest | Preference::Emptiest) => {
                let gpu = self.best_gpu(request, *share, rule)?;
                let gpu = self.accounts[gpu.position].gpu.chosen(*share);
                Ok(Choice { gpus: vec![gpu], cost: None })
            }
            _ => choose(self.gpus(), self.cpu, request, rule),
        }
    }

    /// Whether [`NodeGpus::fit`] finds GPUs, without choosing them.
    ///
    /// # Errors
    ///
    /// Why none fit.
    pub fn check(&self, pod: &PodUid, request: &GpuRequest) -> Result<(), NoFit> {
        if self.choice(pod).is_some() {
            return Ok(());
        }
        match request.shares() {
            _ if self.has_kept_for(pod, request) => {
                self.fit_without(|_| false, pod, request, &ChoiceRule::default()).map(|_| ())
            }
            _ if self.unplaced_need(|_| false, self.gpus(), request) => {
                Err(NoFit::NeededByUnplaced)
            }
            [share] => match self.fitting(request, *share).next() {
                Some(_) => Ok(()),
                None => Err(self.why_no_fit(request)),
            },
            _ => check(&self.gpus().collect::<Vec<_>>(), request),
        }
    }

    /// How good the node is for the pod, as [`Choice::rate`] of what [`NodeGpus::fit`] chooses.
    ///
    /// # Errors
    ///
    /// As [`NodeGpus::fit`].
    pub fn rate(
        &self,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Rating, NoFit> {
        let preference = rule.preference(request);
        let points = match preference {
            Preference::Cheapest(_) => None,
            Preference::Fullest => Some(packing_score as fn(Units, Units) -> _),
            Preference::Emptiest => Some(spread_score as fn(Units, Units) -> _),
        };
        match (request.shares(), points) {
            // Avoids a copy of the GPU.
            ([share], Some(points))
                if self.choice(pod).is_none()
                    && !self.has_kept_for(pod, request)
                    && self.pods.unplaced.is_empty() =>
            {
                let OpenGpu { room, units, .. } = self.best_gpu(request, *share, rule)?;
                Ok(Rating::Score(points(room.left(*share), *units)))
            }
            _ => self.fit(pod, request, rule).map(|choice| choice.rate(request, rule)),
        }
    }

    /// The GPU for a request of one share under packing or spreading: as [`choose`], without a copy of the GPUs.
    fn best_gpu(
        &self,
        request: &GpuRequest,
        share: GpuShare,
        rule: &ChoiceRule,
    ) -> Result<&OpenGpu, NoFit> {
        let mut fitting = self.fitting(request, share);
        let chosen = match rule.preference(request) {
            Preference::Emptiest => fitting.max_by_key(|gpu| {
                let index = self.accounts[gpu.position].gpu.index;
                (gpu.room.units, gpu.near, Reverse(index))
            }),
            _ => fitting.next(),
        };
        chosen.ok_or_else(|| self.why_no_fit(request))
    }

    /// The GPUs that fit a share, the fullest first.
    fn fitting(&self, request: &GpuRequest, share: GpuShare) -> impl Iterator<Item = &OpenGpu> {
        // Most pods accept any GPU; then the accounts need not be read.
        let is_any = request.filter().accepts_all();
        self.open_gpus
            .iter()
            .filter(move |gpu| {
                gpu.room.takes(share, request, gpu.isolation)
                    && request.excess(share, gpu.units).is_none()
            })
            .filter(move |gpu| {
                is_any || self.accounts[gpu.position].gpu.is_accepted(request.filter())
            })
    }

    fn why_no_fit(&self, request: &GpuRequest) -> NoFit {
        why_no_fit(&self.gpus().collect::<Vec<_>>(), request)
    }

    /// The cost to the GPUs of a pod without GPUs that requests this CPU, in thousandths of a core. 0 if the node's
    /// free CPU is not known.
    pub fn cost_of_cpu(&self, requested: u64, measure: &Measure) -> Cost {
        self.cpu.map_or(Cost(0), |cpu| measure.cost_of_cpu(self.gpus(), cpu, requested))
    }

    /// As [`NodeGpus::fit`], and for each GPU whether the largest share fits it.
    pub fn explain(&self, pod: &PodUid, request: &GpuRequest, rule: &ChoiceRule) -> Fit {
        let largest_share = request.largest();
        let count = request.shares().len();
        let mut gpus = Vec::with_capacity(self.accounts.len());
        for gpu in self.accounts.iter().map(|account| account.for_pod(pod, request)) {
            let fit = gpu.fit(largest_share, request);
            gpus.push((gpu, fit));
        }
        let rating = self.rate(pod, request, rule).ok();
        Fit { largest_share, count, gpus, outcome: self.fit(pod, request, rule), rating }
    }

    /// As [`NodeGpus::fit`], without the charges of the pods for which `gone` is true.
    ///
    /// # Errors
    ///
    /// Why no GPUs fit even then.
    pub fn fit_without(
        &self,
        gone: impl Fn(&PodUid) -> bool,
        pod: &PodUid,
        request: &GpuRequest,
        rule: &ChoiceRule,
    ) -> Result<Choice, NoFit> {
        if let Some(choice) = self.choice(pod) {
            return Ok(choice.clone());
        }
        let stays =
            |charge: &&Charge| !charge.ends_without(&gone) && charge.counts_against(pod, request);
        let gpus: Vec<FreeGpu> =
            self.accounts.iter().map(|account| account.with_charges(stays)).collect();
        if self.unplaced_need(&gone, gpus.iter(), request) {
            return Err(NoFit::NeededByUnplaced);
        }
        choose(&gpus, self.cpu, request, rule)
    }

    /// Whether pods that are not on a GPU yet, without those for which `gone` is true, need units of `gpus` that the
    /// request would take.
    pub(super) fn unplaced_need<'c>(
        &self,
        gone: impl Fn(&PodUid) -> bool,
        gpus: impl Iterator<Item = &'c FreeGpu>,
        request: &GpuRequest,
    ) -> bool {
        let beside = self.free_beside_unplaced(gone, gpus);
        beside.is_some_and(|free| free < request.peak())
    }

    /// The units of `gpus` that no pod needs that is not on a GPU yet; `None` if there is no such pod. Those for
    /// which `gone` is true do not count.
    pub(super) fn free_beside_unplaced<'c>(
        &self,
        gone: impl Fn(&PodUid) -> bool,
        gpus: impl Iterator<Item = &'c FreeGpu>,
    ) -> Option<Units> {
        let needed: Units =
            self.pods.unplaced.iter().filter(|(pod, _)| !gone(pod)).map(|(_, units)| *units).sum();
        if needed.is_zero() {
            return None;
        }
        let free: Units = gpus.filter(|gpu| gpu.healthy).map(|gpu| gpu.free).sum();
        Some(free.saturating_sub(needed))
    }

    /// These GPUs without the charges of the pods for which `gone` is true.
    #[must_use]
    pub fn without(&self, gone: impl Fn(&PodUid) -> bool) -> Self {
        let mut accounts = Vec::with_capacity(self.accounts.len());
        for Account { gpu, charges } in &self.accounts {
            let stay = charges.iter().filter(|it| !it.ends_without(&gone)).cloned().collect();
            accounts.push(Account::new(gpu, stay));
        }
        let mut pods = self.pods.clone();
        pods.unplaced.retain(|(pod, _)| !gone(pod));
        pods.chosen.retain(|(pod, _)| !gone(pod));
        pods.nominated.retain(|(pod, _)| !gone(pod));
        Self::new(accounts, pods, self.cpu)
    }

    /// These GPUs with a pod on the chosen ones, and with its CPU taken.
    #[must_use]
    pub fn with(&self, pod: &PodUid, request: &GpuRequest, choice: &Choice) -> Self {
        let mut accounts = self.accounts.clone();
        for (chosen, share) in choice.gpus.iter().zip(request.shares()) {
            let known = accounts.iter_mut().find(|account| account.gpu.uuid == chosen.uuid);
            let Some(account) = known else { continue };
            let mut charges = std::mem::take(&mut account.charges);
            let sharing = Some(account.gpu.isolation.sharing(request.isolation()));
            charges.extend(Charge::of(pod, *share, Basis::Chosen, sharing, chosen.units));
            charges.sort_by(|one, other| one.pod.cmp(&other.pod));
            *account = Account::new(&account.gpu, charges);
        }
        let cpu = self.cpu.map(|cpu| cpu.saturating_sub(request.cpu()));
        Self::new(accounts, self.pods.clone(), cpu)
    }

    /// These GPUs with this much free CPU, in thousandths of a core.
    #[must_use]
    pub fn with_cpu(self, cpu: Option<u64>) -> Self {
        Self { cpu, ..self }
    }

    /// Whether GPUs are kept for a pod that is as important as this one.
    pub fn keeps_from(&self, pod: &PodUid, request: &GpuRequest) -> bool {
        let nominated = &self.pods.nominated;
        nominated.iter().any(|(other, kept_at)| other != pod && *kept_at >= request.priority())
    }

    /// Whether GPUs are kept that count as free for the pod: its own, and those of less important pods.
    fn has_kept_for(&self, pod: &PodUid, request: &GpuRequest) -> bool {
        let nominated = &self.pods.nominated;
        nominated.iter().any(|(other, kept_at)| other == pod || *kept_at < request.priority())
    }

    fn choice(&self, pod: &PodUid) -> Option<&Choice> {
        let chosen = &self.pods.chosen;
        if chosen.is_empty() {
            return None;
        }
        let at = chosen.binary_search_by(|(chosen, _)| chosen.cmp(pod)).ok()?;
        chosen.get(at).map(|(_, choice)| choice)
    }

    fn gpus(&self) -> impl ExactSizeIterator<Item = &FreeGpu> + Clone {
        self.accounts.iter().map(|account| &account.gpu)
    }
}
