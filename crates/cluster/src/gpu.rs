//! The border between the JSON of `api` and placement's GPUs and claims.

use std::collections::BTreeMap;

use api::JsonError;
use api::allocation::Allocation;
use api::claim::Share;
use api::gpus::{Gpus, GpusError, MAX_GPUS};
use api::share::NodeShare;
use jiff::Timestamp;
use placement::gpu::{
    Choice, Claim, ContainerKind, ContainerRequest, Gpu, GpuIsolation, GpuRequest, GpuShare,
    GpuUse, Isolation, MeasuredGpu, MeasuredMemory, Reservation, Topology,
};
use placement::names::{Names, aliyun};
use placement::units::Units;

use crate::meta::Annotations;

/// Why a pod's claim annotation does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Longer than any that Bind writes for this pod, or not JSON of the schema.
    #[error("the claim is not `{{\"<container>\": {{\"<GPU UUID>\": <units>}}}}`: {0}")]
    Unreadable(JsonError),
    /// Not what Bind would write for this pod.
    #[error(transparent)]
    NoClaim(#[from] placement::gpu::ClaimError),
}

/// Reads a node's GPUs. `isolation` is the mode of the Node's own annotation, which is in force for pods that require
/// none. An older device plugin reports none for each GPU: then it is the strongest that is known, too.
pub(crate) fn gpus(text: &str, isolation: Option<Isolation>) -> Result<Vec<Gpu>, GpusError> {
    let gpus = Gpus::from_json(text)?.0;
    Ok(gpus.into_iter().map(|gpu| read_gpu(gpu, isolation)).collect())
}

fn read_gpu(gpu: api::gpus::Gpu, isolation_of_node: Option<Isolation>) -> Gpu {
    Gpu {
        uuid: gpu.uuid,
        index: gpu.index,
        model: gpu.model.into(),
        memory: gpu.memory,
        units: gpu.units,
        topology: Topology { numa_node: gpu.numa_node, linked: gpu.linked.into_iter().collect() },
        healthy: gpu.healthy,
        closed: gpu.closed,
        isolation: GpuIsolation {
            strongest: gpu.isolation.map_or(isolation_of_node, enforced),
            minimum: isolation_of_node.unwrap_or_default(),
            mps_clients: gpu.mps_clients,
            drains_clients: gpu.mps_drain.unwrap_or(false),
        },
        outside_mps: gpu.outside_mps,
        pods: gpu.pods,
    }
}

fn enforced(isolation: api::gpus::Isolation) -> Option<Isolation> {
    match isolation {
        api::gpus::Isolation::None => Some(Isolation::None),
        api::gpus::Isolation::Mps => Some(Isolation::Mps),
        api::gpus::Isolation::Driver => Some(Isolation::Driver),
        api::gpus::Isolation::Other => None,
    }
}

/// Reads what is in use on a node's GPUs.
pub(crate) fn measured(text: &str) -> Option<MeasuredMemory> {
    let NodeShare { time, gpus } = NodeShare::from_json(text).ok()?;
    let measured = |gpu: api::share::GpuShare| {
        Some(MeasuredGpu { uuid: gpu.uuid, used: gpu.used?, held: gpu.allocated })
    };
    Some(MeasuredMemory { at: time, gpus: gpus.into_iter().filter_map(measured).collect() })
}

/// The request of a bound pod as its claim has it; `None` where that is no claim of a pod with these units.
pub(crate) fn as_claimed(text: &str, request: &GpuRequest) -> Option<GpuRequest> {
    let shares = request.containers().len() * MAX_GPUS;
    let claim = api::claim::Claim::from_json(text, shares).ok()?;
    let claimed = claim.shares();
    let limits = claim.limits();
    let on_a_node = claimed.values().all(|shares| shares.len() <= MAX_GPUS);
    on_a_node.then(|| request.as_claimed(&claimed, &limits))?
}

/// What the claim of a bound pod gives each of its containers, as a request; `None` where it is no claim. For a pod
/// whose spec cannot be read: all of its containers count as if they ran together.
pub(crate) fn request_of_claim(text: &str) -> Option<GpuRequest> {
    let claim = api::claim::Claim::from_json(text, MAX_GPUS * MAX_GPUS).ok()?;
    let limits = claim.limits();
    let mut containers = Vec::new();
    for (position, (name, shares)) in claim.shares().into_iter().enumerate() {
        let GpuShare { cores, exclusive, .. } = *shares.values().next()?;
        let units = shares.values().map(|share| share.units).sum();
        let limit = limits.get(&name).copied();
        let gpu_use = GpuUse {
            gpus: u32::try_from(shares.len()).ok()?,
            exclusive,
            cores,
            limit,
            processes: 1,
        };
        containers.push(ContainerRequest {
            name,
            kind: ContainerKind::App,
            position,
            units,
            gpu_use,
        });
    }
    GpuRequest::new(containers).ok()?
}

/// Reads a pod's claim, and checks it against the pod's spec.
pub(crate) fn claim(text: &str, request: &GpuRequest) -> Result<Claim, ClaimError> {
    let shares = request.containers().iter().map(|ask| ask.gpu_use.gpus as usize).sum();
    let claimed = api::claim::Claim::from_json(text, shares).map_err(ClaimError::Unreadable)?;
    Ok(Claim::checked(request, &claimed.shares())?)
}

/// The pod annotations that Bind writes: our claim, and those that Aliyun's tools read. `at`: when the GPU was chosen.
#[must_use]
pub fn claim_annotations(
    names: &Names,
    request: &GpuRequest,
    reservation: &Reservation,
    at: Timestamp,
) -> Annotations {
    let Reservation { claim, choice } = reservation;
    let texts = [
        wire(claim).to_json(),
        choice.first_index().to_string(),
        units_of_first(choice).to_string(),
        request.peak().to_string(),
        "false".to_owned(),
        at.as_nanosecond().to_string(),
        allocation(request, reservation).to_json(),
    ];
    written_keys(names).into_iter().zip(texts).collect()
}

/// The bytes of keys and values that the annotations of a pod may have together once it is bound: Kubernetes' limit
/// (`TotalAnnotationSizeLimitB`), less 64 KiB for those who write to the pod later.
///
/// Kubernetes checks the limit at each update, of a status too, and not what a binding adds. A pod beyond it runs, and
/// its kubelet can report nothing of it, nor can anything evict or preempt it.
pub const MAX_ANNOTATION_BYTES: usize = (256 - 64) << 10;

/// The most bytes of keys and values that [`claim_annotations`] has for this request, whatever the GPUs.
pub(crate) fn most_claim_bytes(names: &Names, request: &GpuRequest) -> usize {
    let mut bytes: usize = written_keys(names).iter().map(String::len).sum();
    // An index, two numbers of units, `false`, and a time in nanoseconds; the braces of both objects.
    bytes += 3 * 10 + 5 + 20 + 4;
    let share = api::claim::MAX_SHARE + api::allocation::MAX_SHARE;
    for ask in request.containers() {
        bytes += ask.name.len() + api::allocation::MAX_CONTAINER;
        bytes += share * ask.gpu_use.gpus as usize;
    }
    bytes
}

/// The keys of [`claim_annotations`], in the order of its texts.
pub(crate) fn written_keys(names: &Names) -> [String; 7] {
    [
        names.claim(),
        aliyun::IDX.to_owned(),
        aliyun::DEV.to_owned(),
        aliyun::POD.to_owned(),
        aliyun::ASSIGNED.to_owned(),
        aliyun::ASSUME_TIME.to_owned(),
        aliyun::ALLOCATION.to_owned(),
    ]
}

/// The annotations of a binding for a pod that asks for no GPU memory: a claim of nothing, since admission refuses
/// bindings of the extender without a claim.
pub fn no_claim(names: &Names) -> Annotations {
    let none = api::claim::Claim { containers: BTreeMap::new() };
    [(names.claim(), none.to_json())].into()
}

/// Aliyun's tools know one GPU a pod by these annotations, and several by the allocation.
fn units_of_first(choice: &Choice) -> Units {
    let first = choice.gpus.iter().min_by_key(|gpu| gpu.index);
    first.map_or(Units::ZERO, |gpu| gpu.units)
}

fn wire(claim: &Claim) -> api::claim::Claim {
    let mut containers = BTreeMap::new();
    for (name, shares) in claim.containers() {
        let limit = claim.limit_of(name);
        let gpus =
            shares.iter().map(|(gpu, share)| (gpu.clone(), Share::new(*share, limit))).collect();
        containers.insert(name.clone(), gpus);
    }
    api::claim::Claim { containers }
}

/// The app containers alone: Aliyun's tools know no others. A pod that has GPUs for itself is shown with all their
/// units.
fn allocation(request: &GpuRequest, Reservation { claim, choice }: &Reservation) -> Allocation {
    let mut containers = BTreeMap::new();
    for ask in request.containers().iter().filter(|ask| ask.kind == ContainerKind::App) {
        let mut units_by_index = BTreeMap::new();
        for (gpu, share) in claim.of(&ask.name).into_iter().flatten() {
            if let Some(chosen) = choice.gpus.iter().find(|chosen| chosen.uuid == *gpu) {
                let units = if share.exclusive { chosen.units } else { share.units };
                units_by_index.insert(chosen.index, units);
            }
        }
        containers.insert(ask.position, units_by_index);
    }
    Allocation { containers }
}
