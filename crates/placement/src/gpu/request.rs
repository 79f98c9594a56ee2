//! What a pod requests of GPUs.

use super::annotation_value::MAX_GPUS;
use super::{
    BeyondUnits, Excess, GivenOut, GpuFilter, GpuShare, GpuUse, Isolation, PodIsolation, Strategy,
};
use crate::units::{Cores, MiB, Units};

/// When a container runs in its pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs to its end before the next container starts. The kubelet then gives its devices to later containers.
    Init,
    /// An init container with `restartPolicy: Always`: it keeps running and keeps its devices.
    Sidecar,
    /// An ordinary container.
    App,
}

/// What one container requests of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRequest {
    /// The container's name, unique in its pod.
    pub name: String,
    /// When it runs.
    pub kind: ContainerKind,
    /// Its position within `spec.containers` (or `spec.initContainers`).
    pub position: usize,
    /// Units it requests; never zero.
    pub units: Units,
    /// What it requests beyond units.
    pub gpu_use: GpuUse,
}

/// Which GPUs a pod accepts and how they are chosen, by its annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Which GPUs it accepts.
    pub filter: GpuFilter,
    /// How its GPUs are chosen; `None` for the policy's strategy.
    pub strategy: Option<Strategy>,
    /// Whether a container that may share its GPUs cannot be a client of MPS.
    pub excludes_mps: bool,
}

impl GpuOptions {
    /// The options of a pod that asks for this. MPS cannot serve a container that mounts something of its own where
    /// its clients have theirs, and the driver's limit can.
    #[must_use]
    pub fn of_pod(mut filter: GpuFilter, strategy: Option<Strategy>, excludes_mps: bool) -> Self {
        if filter.isolation == Isolation::Mps && excludes_mps {
            filter.isolation = Isolation::Driver;
        }
        Self { filter, strategy, excludes_mps }
    }
}

/// Why no node can ever fulfil a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The units do not divide equally among several GPUs.
    #[error(
        "container `{container}`: {units} units do not divide into equal shares of {gpus} GPUs"
    )]
    Indivisible {
        /// The container.
        container: String,
        /// Its units.
        units: Units,
        /// Its GPUs.
        gpus: u32,
    },
    /// Several GPUs together with an init container that requests units. The kubelet gives any of the init container's
    /// device ids to later containers, so the shares would not stay equal.
    #[error(
        "container `{container}` asks for {gpus} GPUs: no init container of its pod may ask for units then"
    )]
    HandedOn {
        /// The container.
        container: String,
        /// Its GPUs.
        gpus: u32,
    },
    /// A limit below the request.
    #[error(
        "container `{container}`: a memory limit of {limit} units is below its request of {units}"
    )]
    LimitBelowRequest {
        /// The container.
        container: String,
        /// Units of its limit.
        limit: Units,
        /// Its units.
        units: Units,
    },
    /// More of a GPU's compute than it has.
    #[error("containers that run at the same time ask for {0} percent of one GPU's compute")]
    TooManyCores(Cores),
}

/// A pod's GPU request: its requesting containers in the order in which the kubelet admits them, init
/// containers first. Never empty.
///
/// A container on several GPUs has equal shares of the pod's first GPUs. So the shares of a pod's GPUs are sorted,
/// the largest first, and a GPU that fits the first share fits each of them.
///
/// # Examples
///
/// ```
/// use placement::gpu::{GpuUse, ContainerRequest, ContainerKind, GpuRequest};
/// use placement::units::Units;
///
/// let ask = |name: &str, kind, position, units| ContainerRequest {
///     name: name.to_owned(),
///     kind,
///     position,
///     units: Units(units),
///     gpu_use: GpuUse::default(),
/// };
/// let request = GpuRequest::new([
///     ask("main", ContainerKind::App, 0, 2),
///     ask("log", ContainerKind::App, 1, 1),
///     ask("load", ContainerKind::Init, 0, 4),
/// ])?;
/// // `load` has ended when `main` and `log` take its units over.
/// assert_eq!(request.map(|request| request.peak()), Some(Units(4)));
///
/// let gpu_use = GpuUse { gpus: 2, ..GpuUse::default() };
/// let two_gpus = GpuRequest::new([ContainerRequest { gpu_use, ..ask("main", ContainerKind::App, 0, 6) }])?;
/// let shares = two_gpus.map(|request| request.shares().to_vec()).unwrap_or_default();
/// assert_eq!(shares.iter().map(|share| share.units.0).collect::<Vec<_>>(), [3, 3]);
/// # Ok::<(), placement::gpu::RequestError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRequest {
    containers: Vec<ContainerRequest>,
    /// The most that the pod has of each of its GPUs at one time, the largest first.
    shares: Vec<GpuShare>,
    options: GpuOptions,
    cpu: u64,
    priority: i32,
    /// What its namespace may take beyond units.
    beyond_units: BeyondUnits,
    given_out: GivenOut,
}

impl GpuRequest {
    /// The request, or `None` where no container requests anything.
    ///
    /// # Errors
    ///
    /// Why no node can ever fulfil the request.
    pub fn new(
        containers: impl IntoIterator<Item = ContainerRequest>,
    ) -> Result<Option<Self>, RequestError> {
        Self::with_options(containers, GpuOptions::default())
    }

    /// As [`GpuRequest::new`], for a pod with GPU options.
    ///
    /// # Errors
    ///
    /// Why no node can ever fulfil the request.
    pub fn with_options(
        containers: impl IntoIterator<Item = ContainerRequest>,
        options: GpuOptions,
    ) -> Result<Option<Self>, RequestError> {
        let mut asks: Vec<ContainerRequest> =
            containers.into_iter().filter(|ask| !ask.units.is_zero()).collect();
        asks.sort_by_key(|ask| (ask.kind == ContainerKind::App, ask.position));
        asks.iter().try_for_each(ContainerRequest::check)?;
        check_init_containers(&asks)?;
        let gpus = asks.iter().map(|ask| ask.gpu_use.gpus).max().unwrap_or(0);
        let share_of = |gpu: u32| {
            let is_on = |ask: &&ContainerRequest| ask.gpu_use.gpus > gpu;
            peak(asks.iter().filter(is_on).map(|ask| (ask.kind, ask.share())))
        };
        let shares: Vec<GpuShare> = (0..gpus).map(share_of).collect();
        match shares.first() {
            Some(share) if share.cores > Cores::ALL => Err(RequestError::TooManyCores(share.cores)),
            Some(_) => {
                let (containers, beyond_units) = (asks, BeyondUnits::default());
                let (cpu, priority, given_out) = (0, 0, GivenOut::Units);
                let request =
                    Self { containers, shares, options, cpu, priority, beyond_units, given_out };
                Ok(Some(request))
            }
            None => Ok(None),
        }
    }

    /// A request of a single ordinary container for a part of one GPU.
    pub fn single(name: &str, units: Units) -> Option<Self> {
        let kind = ContainerKind::App;
        let gpu_use = GpuUse::default();
        let ask = ContainerRequest { name: name.to_owned(), kind, position: 0, units, gpu_use };
        Self::new([ask]).ok().flatten()
    }

    /// A request for the same part of this many GPUs of one node, of a namespace that may take any part of their
    /// compute. `None` without GPUs or units, or with more units than can be counted.
    pub fn of_shape(gpus: u32, units: Units, cores: Cores) -> Option<Self> {
        let units = Units(units.0.checked_mul(gpus)?);
        let gpu_use = GpuUse { gpus, cores, ..GpuUse::default() };
        let (name, kind) = ("main".to_owned(), ContainerKind::App);
        let request = Self::new([ContainerRequest { name, kind, position: 0, units, gpu_use }]);
        Some(request.ok()??.with_beyond_units(BeyondUnits::ALL))
    }

    /// The request of a ResourceClaim: this much of the memory and compute of so many GPUs of one node, the whole
    /// memory without an amount. In MiB in place of units, for [`NodeGpus::for_claims`](super::NodeGpus::for_claims).
    /// `None` without GPUs or with more than 64, or with more memory than can be counted.
    pub fn of_claim(
        gpus: u32,
        memory: Option<MiB>,
        cores: Cores,
        isolation: Isolation,
    ) -> Option<Self> {
        if gpus > MAX_GPUS {
            return None;
        }
        let mib = u32::try_from(memory.unwrap_or_default().0).ok()?.max(1);
        let gpu_use = GpuUse { gpus, cores, exclusive: memory.is_none(), ..GpuUse::default() };
        let (name, kind, units) =
            (String::new(), ContainerKind::App, Units(mib.checked_mul(gpus)?));
        let filter = GpuFilter { isolation, ..GpuFilter::default() };
        let options = GpuOptions { filter, ..GpuOptions::default() };
        let container = ContainerRequest { name, kind, position: 0, units, gpu_use };
        let request = Self::with_options([container], options).ok()??;
        let given_out = GivenOut::Claims;
        Some(Self { given_out, ..request.with_beyond_units(BeyondUnits::ALL) })
    }

    /// The same request on this number of GPUs. `None` if the units of a container do not divide by it.
    #[must_use]
    pub fn on_gpus(&self, gpus: u32) -> Option<Self> {
        self.with_uses(|ask| Some(GpuUse { gpus, ..ask.gpu_use }))
    }

    pub(super) fn with_uses(
        &self,
        of: impl Fn(&ContainerRequest) -> Option<GpuUse>,
    ) -> Option<Self> {
        let ask =
            |ask: &ContainerRequest| Some(ContainerRequest { gpu_use: of(ask)?, ..ask.clone() });
        let asks: Option<Vec<ContainerRequest>> = self.containers.iter().map(ask).collect();
        let request = Self::with_options(asks?, self.options.clone()).ok()??;
        let given_out = self.given_out;
        let request = request.with_cpu(self.cpu).with_beyond_units(self.beyond_units);
        Some(Self { given_out, ..request })
    }

    /// The same request with the pod's CPU request, in thousandths of a core.
    #[must_use]
    pub fn with_cpu(self, cpu: u64) -> Self {
        Self { cpu, ..self }
    }

    /// The same request of a pod of this priority; without this, 0.
    #[must_use]
    pub fn with_priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// The same request for a namespace that may take this beyond units. A request may take nothing beyond them by
    /// itself.
    #[must_use]
    pub fn with_beyond_units(self, beyond_units: BeyondUnits) -> Self {
        Self { beyond_units, ..self }
    }

    /// What the pod would take beyond its units, without a right to it, with this share of a GPU of `gpu` units.
    pub fn excess(&self, share: GpuShare, gpu: Units) -> Option<Excess> {
        let allowed = self.beyond_units;
        if !allowed.memory_limit && self.may_grow() {
            return Some(Excess::MemoryLimit);
        }
        if share.exclusive {
            return (!allowed.exclusive && share.units < gpu).then_some(Excess::Exclusive);
        }
        let most = (u64::from(share.units.0) * 100).div_ceil(u64::from(gpu.0.max(1)));
        (!allowed.cores && u64::from(share.cores.0) > most).then_some(Excess::Cores)
    }

    /// Whether the pod may have whole GPUs for fewer units than these have.
    pub(super) fn may_be_exclusive(&self) -> bool {
        self.beyond_units.exclusive
    }

    /// Whether a container has a memory limit above its request.
    fn may_grow(&self) -> bool {
        self.containers.iter().any(|ask| ask.gpu_use.limit.is_some_and(|limit| limit > ask.units))
    }

    /// The same request for its units and their GPUs alone: without compute, exclusive GPUs and memory limits.
    #[must_use]
    pub fn of_units_alone(&self) -> Option<Self> {
        self.with_uses(|ContainerRequest { gpu_use, .. }| {
            let GpuUse { gpus, processes, .. } = gpu_use;
            Some(GpuUse { gpus: *gpus, processes: *processes, ..GpuUse::default() })
        })
    }

    /// Whether every node gets the same rating for both requests under one rule: they request the same of GPUs, at the
    /// same priority, and, with `counts_cpu`, the same CPU.
    pub fn is_rated_as(&self, other: &Self, counts_cpu: bool) -> bool {
        self.shares == other.shares
            && self.options == other.options
            && self.isolation() == other.isolation()
            && self.beyond_units == other.beyond_units
            && self.may_grow() == other.may_grow()
            && self.priority == other.priority
            && self.given_out == other.given_out
            && (!counts_cpu || self.cpu == other.cpu)
    }

    /// The CPU that the pod requests, in thousandths of a core: the CPU left on a node limits what its GPUs can be
    /// used for.
    pub fn cpu(&self) -> u64 {
        self.cpu
    }

    /// The pod's priority: GPUs that are kept for less important pods count as free for it.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// How the GPUs are given out that it asks for.
    pub fn given_out(&self) -> GivenOut {
        self.given_out
    }

    /// The containers that request units, in admission order.
    pub fn containers(&self) -> &[ContainerRequest] {
        &self.containers
    }

    /// The most that the pod has of each of its GPUs at one time, the largest share first; never empty.
    pub fn shares(&self) -> &[GpuShare] {
        &self.shares
    }

    /// The largest share: a GPU that has room for it has room for each.
    pub fn largest(&self) -> GpuShare {
        self.shares.first().copied().unwrap_or_default()
    }

    /// The units that the pod holds at most at one time, on all its GPUs. The kubelet sets them aside for its whole
    /// life, and kube-scheduler counts them.
    pub fn peak(&self) -> Units {
        self.shares.iter().map(|share| share.units).sum()
    }

    /// Which GPUs the pod accepts.
    pub fn filter(&self) -> &GpuFilter {
        &self.options.filter
    }

    /// What of it decides how it shares GPUs.
    pub fn isolation(&self) -> PodIsolation {
        let GpuOptions { filter, excludes_mps, .. } = &self.options;
        let asks_for_compute = self.containers.iter().any(|ask| ask.gpu_use.asks_for_compute());
        PodIsolation { required: filter.isolation, excludes_mps: *excludes_mps, asks_for_compute }
    }

    /// How its GPUs are to be chosen; `None` for the policy's strategy.
    pub fn strategy(&self) -> Option<Strategy> {
        self.options.strategy
    }
}

impl ContainerRequest {
    /// Its share of each of its GPUs.
    pub fn share(&self) -> GpuShare {
        let GpuUse { gpus, exclusive, cores, processes, .. } = self.gpu_use;
        GpuShare { units: Units(self.units.0 / gpus.max(1)), cores, exclusive, processes }
    }

    fn check(&self) -> Result<(), RequestError> {
        let GpuUse { gpus, limit, .. } = self.gpu_use;
        let units = self.units;
        if gpus == 0 || !units.0.is_multiple_of(gpus) {
            return Err(RequestError::Indivisible { container: self.name.clone(), units, gpus });
        }
        match limit {
            Some(limit) if limit < units => {
                let container = self.name.clone();
                Err(RequestError::LimitBelowRequest { container, limit, units })
            }
            _ => Ok(()),
        }
    }
}

fn check_init_containers(containers: &[ContainerRequest]) -> Result<(), RequestError> {
    let has_init = containers.iter().any(|ask| ask.kind == ContainerKind::Init);
    for ContainerRequest { name, gpu_use, .. } in containers {
        if has_init && gpu_use.gpus > 1 {
            return Err(RequestError::HandedOn { container: name.clone(), gpus: gpu_use.gpus });
        }
    }
    Ok(())
}

/// The most that containers, in admission order, have of a GPU at one time. Init containers run one after another,
/// together with the sidecars that started before them; then the app containers run, together with all sidecars.
pub(super) fn peak(shares: impl Iterator<Item = (ContainerKind, GpuShare)>) -> GpuShare {
    let mut steady = GpuShare::default();
    let mut peak = GpuShare::default();
    for (kind, share) in shares {
        if kind == ContainerKind::Init {
            peak = peak.larger(steady.plus(share));
        } else {
            steady = steady.plus(share);
        }
    }
    peak.larger(steady)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(kind: ContainerKind, position: usize, units: u32) -> ContainerRequest {
        let gpu_use = GpuUse::default();
        ContainerRequest {
            name: format!("{kind:?}{position}"),
            kind,
            position,
            units: Units(units),
            gpu_use,
        }
    }

    fn on(gpus: u32, ask: ContainerRequest) -> ContainerRequest {
        ContainerRequest { gpu_use: GpuUse { gpus, ..ask.gpu_use }, ..ask }
    }

    fn request(
        asks: impl IntoIterator<Item = ContainerRequest>,
    ) -> Result<Option<GpuRequest>, RequestError> {
        GpuRequest::new(asks)
    }

    fn peak_of(asks: impl IntoIterator<Item = ContainerRequest>) -> Units {
        request(asks).unwrap().unwrap().peak()
    }

    #[test]
    fn app_containers_add_up() {
        let asks = [ask(ContainerKind::App, 0, 3), ask(ContainerKind::App, 1, 2)];
        assert_eq!(peak_of(asks), Units(5));
    }

    #[test]
    fn an_init_container_shares_what_the_app_takes_over() {
        let asks = [ask(ContainerKind::App, 0, 2), ask(ContainerKind::Init, 0, 4)];
        assert_eq!(peak_of(asks), Units(4));
    }

    #[test]
    fn a_sidecar_adds_to_every_init_container_after_it() {
        let asks = [
            ask(ContainerKind::Init, 0, 4),
            ask(ContainerKind::Sidecar, 1, 2),
            ask(ContainerKind::Init, 2, 4),
            ask(ContainerKind::App, 0, 1),
        ];
        assert_eq!(peak_of(asks), Units(6));
    }

    #[test]
    fn asking_for_nothing_is_no_request() {
        assert_eq!(request([ask(ContainerKind::App, 0, 0)]), Ok(None));
    }

    #[test]
    fn an_absurd_ask_is_capped_rather_than_wrapped() {
        let most = u32::MAX;
        assert_eq!(
            peak_of([ask(ContainerKind::App, 0, most), ask(ContainerKind::App, 1, 2)]),
            Units(most)
        );
    }

    #[test]
    fn containers_on_several_gpus_share_the_first_ones() {
        let asks = [on(3, ask(ContainerKind::App, 0, 6)), on(2, ask(ContainerKind::App, 1, 8))];
        let request = request(asks).unwrap().unwrap();
        let units: Vec<u32> = request.shares().iter().map(|share| share.units.0).collect();
        assert_eq!((units, request.peak()), (vec![6, 6, 2], Units(14)));
    }

    #[test]
    fn a_share_that_does_not_divide_is_refused() {
        let refused = request([on(2, ask(ContainerKind::App, 0, 5))]);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "container `App0`: 5 units do not divide into equal shares of 2 GPUs"
        );
    }

    #[test]
    fn several_gpus_beside_an_init_container_that_asks_are_refused() {
        let asks = [ask(ContainerKind::Init, 0, 2), on(2, ask(ContainerKind::App, 0, 4))];
        assert!(matches!(request(asks), Err(RequestError::HandedOn { gpus: 2, .. })));
        let sidecar = [ask(ContainerKind::Sidecar, 0, 2), on(2, ask(ContainerKind::App, 0, 4))];
        assert!(request(sidecar).is_ok());
    }

    #[test]
    fn a_limit_below_the_request_and_cores_beyond_a_gpu_are_refused() {
        let app = ask(ContainerKind::App, 0, 4);
        let with = |gpu_use| request([ContainerRequest { gpu_use, ..app.clone() }]);
        let limit = |units| GpuUse { limit: Some(Units(units)), ..GpuUse::default() };
        assert!(matches!(with(limit(3)), Err(RequestError::LimitBelowRequest { .. })));
        assert!(with(limit(4)).is_ok());
        let cores = |cores| GpuUse { cores: Cores(cores), ..GpuUse::default() };
        assert_eq!(with(cores(101)), Err(RequestError::TooManyCores(Cores(101))));
        assert!(with(cores(100)).is_ok());
    }
}
