//! GPUs, pods and ids for unit tests.

use std::sync::Arc;
use std::time::Instant;

use cluster::{GpuPod, PodFacts};
use placement::gpu::{Claim, ContainerKind, ContainerRequest, GpuRequest, GpuUse};
use placement::load::PodKind;
use placement::units::{Cores, GpuId, MiB, PodUid, Units};

use crate::gpus::ids::Ids;
use crate::gpus::inventory::Inventory;
use crate::gpus::sizing::Sizing;
use crate::gpus::{Gpu, Gpus, Unhealthy};
use crate::pods::PodRef;
use crate::records::pod_resources::ListedPod;
use crate::records::resource_claims::{BookedClaim, ClaimedShare};

/// A GPU whose device ids begin with `aaaaaaaa`.
pub(crate) const A: &str = "GPU-aaaaaaaa-1111";
/// A GPU whose device ids begin with `bbbbbbbb`.
pub(crate) const B: &str = "GPU-bbbbbbbb-1111";

/// GPUs of these units, at indexes 0, 1, …
pub(crate) fn gpus(gpus: &[(&str, u32)]) -> Gpus {
    let mut enumerated = Vec::new();
    for (index, (uuid, units)) in (0..).zip(gpus) {
        enumerated.push(nvml::Gpu {
            uuid: (*uuid).to_owned(),
            index,
            memory_mib: Some(u64::from(*units) * 1024),
            ..nvml::Gpu::default()
        });
    }
    let mut inventory = Inventory::new(Sizing::of_unit(MiB(1024)));
    inventory.set_enumerated(enumerated, Instant::now());
    inventory.gpus()
}

/// The same GPUs, this one unhealthy.
pub(crate) fn with_unhealthy(gpus: &Gpus, uuid: &str, why: Unhealthy) -> Gpus {
    let mut changed: Vec<Gpu> = gpus.iter().cloned().collect();
    for gpu in &mut changed {
        if gpu.uuid.as_str() == uuid {
            gpu.unhealthy = Some(why);
        }
    }
    Gpus::new(changed).with_driver(gpus.driver().map(str::to_owned))
}

/// A pod `default/<name>` with UID `<name>`, bound, not admitted yet, claimed on `gpu`.
pub(crate) fn pod(name: &str, gpu: &str, asks: &[(&str, ContainerKind, u32)]) -> PodFacts {
    claimed(name, request(asks, GpuUse::default()), &[gpu])
}

/// A pod with this request, claimed on these GPUs.
pub(crate) fn claimed(name: &str, request: GpuRequest, gpus: &[&str]) -> PodFacts {
    let on: Vec<GpuId> = gpus.iter().map(|gpu| GpuId::from(*gpu)).collect();
    let claim = Claim::on_gpus(&request, &on);
    let gpu = GpuPod {
        claim: Ok(Some(claim)),
        assigned: false,
        request,
        fault: None,
        isolation: None,
        mps_conflicts: Default::default(),
    };
    PodFacts {
        uid: PodUid::from(name),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        version: None,
        node: None,
        nominated_node: None,
        group: None,
        kind: PodKind::Ordinary,
        gpu: Ok(Some(gpu)),
        admitted: false,
        finished: false,
        refused: false,
        started: false,
        stopped: false,
        deleting: false,
        waits_at: None,
        created_at: None,
        bound_at: None,
    }
}

fn request(asks: &[(&str, ContainerKind, u32)], gpu_use: GpuUse) -> GpuRequest {
    let mut requests = Vec::new();
    for (position, (name, kind, units)) in asks.iter().enumerate() {
        let name = (*name).to_owned();
        requests.push(ContainerRequest {
            name,
            kind: *kind,
            position,
            units: Units(*units),
            gpu_use,
        });
    }
    GpuRequest::new(requests).unwrap().unwrap()
}

/// A pod with one container `main` that uses its GPU in this way.
pub(crate) fn with_use(name: &str, gpu: &str, units: u32, gpu_use: GpuUse) -> PodFacts {
    claimed(name, request(&[("main", ContainerKind::App, units)], gpu_use), &[gpu])
}

/// A pod with one container `main`.
pub(crate) fn simple(name: &str, gpu: &str, units: u32) -> Arc<PodFacts> {
    Arc::new(pod(name, gpu, &[("main", ContainerKind::App, units)]))
}

/// A pod with one container `main` that has half of its units on each of the GPUs [`A`] and [`B`].
pub(crate) fn on_two_gpus(name: &str, units: u32) -> Arc<PodFacts> {
    let gpu_use = GpuUse { gpus: 2, ..GpuUse::default() };
    let request = request(&[("main", ContainerKind::App, units)], gpu_use);
    Arc::new(claimed(name, request, &[A, B]))
}

/// A pod with an init container `init` and a container `main`.
pub(crate) fn with_init(name: &str, gpu: &str, init: u32, main: u32) -> Arc<PodFacts> {
    Arc::new(pod(
        name,
        gpu,
        &[("init", ContainerKind::Init, init), ("main", ContainerKind::App, main)],
    ))
}

/// Ids from their texts.
pub(crate) fn ids<const N: usize>(texts: [&str; N]) -> Ids {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The kubelet's entry of a pod `default/<name>` with one container `main`.
pub(crate) fn listed<const N: usize>(name: &str, held: [&str; N]) -> ListedPod {
    ListedPod {
        pod: PodRef::new("default", name),
        containers: [("main".to_owned(), ids(held))].into(),
    }
}

/// A share of a GPU, in MiB and percent of its compute.
pub(crate) fn share(gpu: &str, memory: u64, cores: u32) -> ClaimedShare {
    ClaimedShare {
        request: "gpu".to_owned(),
        device: gpu.to_lowercase(),
        share_id: None,
        gpu: gpu.into(),
        memory: MiB(memory),
        cores: Cores(cores),
    }
}

/// A prepared claim `ml/<name>` with these shares, of the pod `pod-<name>`.
pub(crate) fn booked(name: &str, shares: &[ClaimedShare]) -> BookedClaim {
    BookedClaim {
        namespace: "ml".to_owned(),
        name: name.to_owned(),
        shares: shares.to_vec(),
        limit: None,
        pods: [PodUid::from(format!("pod-{name}"))].into(),
        prepared: true,
    }
}
