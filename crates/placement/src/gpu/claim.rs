//! A claim: the GPUs that a pod's containers are on, and what each of them has there.
//!
//! Written once, at Bind, in the same API write that sets the pod's node; read by the device plugin and by every
//! later extender. Invariant: a [`Claim`] agrees with the spec that it was made or checked with.

use std::collections::{BTreeMap, BTreeSet};

use super::request::peak;
use super::{ContainerRequest, GpuRequest, GpuShare, GpuShares, GpuUse};
use crate::units::{GpuId, Units};

/// The GPUs of a pod, and what each container that requests units has there.
///
/// # Examples
///
/// ```
/// use placement::gpu::{GpuShare, Claim, GpuRequest};
/// use placement::units::{GpuId, Units};
///
/// let request = GpuRequest::single("main", Units(3)).ok_or("asks for nothing")?;
/// let claim = Claim::on_gpu(&request, &GpuId::from("GPU-7f2a"));
/// assert_eq!(claim.units_of("main"), Some(Units(3)));
/// // As read back from an annotation: only what Bind would have written is a claim.
/// let read = |units| {
///     let share = GpuShare::of(units);
///     Claim::checked(&request, &[("main".to_owned(), [("GPU-7f2a".into(), share)].into())].into())
/// };
/// assert_eq!(read(Units(3)), Ok(claim));
/// assert!(read(Units(1)).is_err());
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    containers: BTreeMap<String, GpuShares>,
    /// The most that the pod holds of each GPU at one time.
    gpus: GpuShares,
    /// Units that containers may grow to on all their GPUs together, where that is more than they request.
    limits: BTreeMap<String, Units>,
}

/// Why an annotation is not a valid claim of its pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Container and units do not match the spec.
    #[error("the claim gives container `{container}` {claimed} units, its spec asks for {asked}")]
    Mismatch {
        /// The container.
        container: String,
        /// Units in the claim.
        claimed: Units,
        /// Units in the spec.
        asked: Units,
    },
    /// Another number of GPUs than the pod requests.
    #[error("the claim puts container `{container}` on {claimed} GPUs, its pod asks for {asked}")]
    Gpus {
        /// The container.
        container: String,
        /// GPUs in the claim.
        claimed: usize,
        /// GPUs that the pod requests.
        asked: u32,
    },
    /// The shares of several GPUs are not equal.
    #[error("the claim gives container `{0}` unequal shares of its GPUs")]
    Unequal(String),
    /// Containers of the pod are on different GPUs.
    #[error("the claim puts the pod's containers on different GPUs")]
    Apart,
}

impl Claim {
    /// The claim of a request for one GPU, with all its containers there.
    pub fn on_gpu(request: &GpuRequest, gpu: &GpuId) -> Self {
        Self::on_gpus(request, std::slice::from_ref(gpu))
    }

    /// The claim of `request` with its containers on these GPUs, as many as it has shares and in their order.
    pub fn on_gpus(request: &GpuRequest, gpus: &[GpuId]) -> Self {
        let mut containers = BTreeMap::new();
        for ask in request.containers() {
            let count = usize::try_from(ask.gpu_use.gpus).unwrap_or(usize::MAX);
            let on = gpus.iter().take(count).map(|gpu| (gpu.clone(), ask.share())).collect();
            containers.insert(ask.name.clone(), on);
        }
        let on_each = gpus.iter().cloned().zip(request.shares().iter().copied()).collect();
        Self { containers, gpus: on_each, limits: limits(request) }
    }

    /// The claim that an annotation holds, checked against the pod's spec. Each container that requests units has its
    /// units, in equal shares of as many GPUs as it requests. No other container has any, and the containers share
    /// their GPUs. Compute and exclusive GPUs are those of the claim, memory limits and processes those of the
    /// request ([`GpuRequest::as_claimed`]).
    ///
    /// # Errors
    ///
    /// What does not agree with the spec.
    pub fn checked(
        request: &GpuRequest,
        claimed: &BTreeMap<String, GpuShares>,
    ) -> Result<Self, ClaimError> {
        let mut others: BTreeSet<&str> = claimed.keys().map(String::as_str).collect();
        let mut containers = BTreeMap::new();
        for ask in request.containers() {
            let shares = checked(ask, claimed.get(&ask.name))?;
            others.remove(ask.name.as_str());
            containers.insert(ask.name.clone(), shares);
        }
        if let Some(name) = others.first() {
            return Err(mismatch(name, claimed.get(*name).map_or(Units::ZERO, total), Units::ZERO));
        }
        check_together(&containers)?;
        Ok(Self { gpus: on_each(request, &containers), containers, limits: limits(request) })
    }

    /// The GPUs that the pod is on, with the most that it holds there at one time.
    pub fn gpus(&self) -> &GpuShares {
        &self.gpus
    }

    /// The GPUs of one container, and its share of each; `None` where it requests none.
    pub fn of(&self, container: &str) -> Option<&GpuShares> {
        self.containers.get(container)
    }

    /// The units of one container on all its GPUs; `None` where it requests none.
    pub fn units_of(&self, container: &str) -> Option<Units> {
        self.of(container).map(total)
    }

    /// The units that a container may grow to on all its GPUs together; `None` where that is its request.
    pub fn limit_of(&self, container: &str) -> Option<Units> {
        self.limits.get(container).copied()
    }

    /// The GPUs of each container that requests any, by name.
    pub fn containers(&self) -> &BTreeMap<String, GpuShares> {
        &self.containers
    }
}

impl GpuRequest {
    /// The request of a pod that was bound with this claim and these memory limits: its GPUs, compute and limits are
    /// those of the claim, whatever its annotations are now. A limit below the request does not count. `None` if Bind
    /// never writes such a claim for a pod with these units.
    #[must_use]
    pub fn as_claimed(
        &self,
        claimed: &BTreeMap<String, GpuShares>,
        limits: &BTreeMap<String, Units>,
    ) -> Option<Self> {
        let request = self.with_uses(|ask: &ContainerRequest| {
            let mut shares = claimed.get(&ask.name)?.values();
            let GpuShare { cores, exclusive, .. } = *shares.next()?;
            let others = shares.len();
            let gpus = shares
                .all(|share| (share.cores, share.exclusive) == (cores, exclusive))
                .then(|| u32::try_from(others + 1).ok())??;
            let limit = limits.get(&ask.name).copied().filter(|limit| *limit >= ask.units);
            let processes = ask.gpu_use.processes;
            Some(GpuUse { gpus, exclusive, cores, limit, processes })
        })?;
        Claim::checked(&request, claimed).ok()?;
        Some(request)
    }
}

fn limits(request: &GpuRequest) -> BTreeMap<String, Units> {
    let mut limits = BTreeMap::new();
    for ask in request.containers() {
        if let Some(limit) = ask.gpu_use.limit.filter(|limit| *limit > ask.units) {
            limits.insert(ask.name.clone(), limit);
        }
    }
    limits
}

fn total(shares: &GpuShares) -> Units {
    shares.values().map(|share| share.units).sum()
}

fn checked(ask: &ContainerRequest, claimed: Option<&GpuShares>) -> Result<GpuShares, ClaimError> {
    let empty = GpuShares::new();
    let shares = claimed.unwrap_or(&empty);
    if total(shares) != ask.units {
        return Err(mismatch(&ask.name, total(shares), ask.units));
    }
    let GpuUse { gpus: asked, processes, .. } = ask.gpu_use;
    if u32::try_from(shares.len()) != Ok(asked) {
        let (container, claimed) = (ask.name.clone(), shares.len());
        return Err(ClaimError::Gpus { container, claimed, asked });
    }
    if shares.values().any(|share| share.units != ask.share().units) {
        return Err(ClaimError::Unequal(ask.name.clone()));
    }
    let share_of = |share: &GpuShare| GpuShare { processes, ..*share };
    Ok(shares.iter().map(|(gpu, share)| (gpu.clone(), share_of(share))).collect())
}

/// Checks that of any two containers one is on all GPUs of the other.
fn check_together(containers: &BTreeMap<String, GpuShares>) -> Result<(), ClaimError> {
    let mut by_count: Vec<&GpuShares> = containers.values().collect();
    by_count.sort_by_key(|gpus| gpus.len());
    for pair in by_count.windows(2) {
        if !pair[0].keys().all(|gpu| pair[1].contains_key(gpu)) {
            return Err(ClaimError::Apart);
        }
    }
    Ok(())
}

fn on_each(request: &GpuRequest, containers: &BTreeMap<String, GpuShares>) -> GpuShares {
    let gpus: BTreeSet<&GpuId> = containers.values().flat_map(BTreeMap::keys).collect();
    let mut on_each = GpuShares::new();
    for gpu in gpus {
        let of = |ask: &ContainerRequest| Some((ask.kind, *containers.get(&ask.name)?.get(gpu)?));
        on_each.insert(gpu.clone(), peak(request.containers().iter().filter_map(of)));
    }
    on_each
}

fn mismatch(container: &str, claimed: Units, asked: Units) -> ClaimError {
    ClaimError::Mismatch { container: container.to_owned(), claimed, asked }
}
