//! The response to Allocate: how a container gets its GPU, by CDI devices or mounts.
//!
//! Invariant: values that a pod must not override go into the CDI specification ([`cdi`]), whose
//! environment overrides the pod's own. The pod's own variables override those of the response itself.

pub mod cdi;

use std::collections::HashMap;
use std::sync::Arc;

use clap::ValueEnum;
use cluster::MpsConflict;
use placement::gpu::GpuUse;
use placement::names::aliyun;
use placement::units::{Cores, MiB, PodUid, Units};

use crate::gpus::{Gpu, joined};
use crate::isolation::limit::{Limit, MpsLimit};
use crate::isolation::support::{IsolationSupport, Missing};
use crate::isolation::{
    ComputeNotEnforced, Decision, Isolation, IsolationError, NodeIsolation, compute_by_mps,
};
use crate::nvidia::KIND;
use cdi::{CdiError, SpecFile};
use kubelet_api::v1beta1::{CdiDevice, ContainerAllocateResponse, Mount};

/// GPU memory of one unit, in MiB. The kubelet keeps it with the response in its checkpoint, so a later
/// process can read the unit of a container's ids.
pub const UNIT_MIB: &str = "PLIMSOLL_GPU_UNIT_MIB";
/// The variable with the UUID of the container's GPU, the first of several, for programs in the container.
pub const GPU_UUID: &str = "PLIMSOLL_GPU_UUID";
/// The variable with the UUIDs of several GPUs, with commas between them.
pub const GPU_UUIDS: &str = "PLIMSOLL_GPU_UUIDS";
/// The variable by which a container requests GPUs from NVIDIA's container runtime.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// The folder below which a mount of `/dev/null` is a request for a GPU to NVIDIA's container runtime, if
/// accept-nvidia-visible-devices-as-volume-mounts is set. The last part of the path is the GPU's UUID.
const GPU_REQUESTS: &str = "/var/run/nvidia-container-devices";

/// How a container gets its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// CDI devices: NVIDIA's for the GPU itself, ours for the environment. A pod cannot override
    /// these.
    Cdi,
    /// A mount that NVIDIA's container runtime reads, for nodes without CDI. A pod can add GPUs with a
    /// hostPath volume only.
    Mounts,
}

/// The GPUs and units of one container.
#[derive(Debug, Clone, Copy)]
pub struct ContainerShare<'a> {
    /// The UID of the container's pod.
    pub uid: &'a PodUid,
    /// The GPUs of the pod's claim that the container is on, by index; never empty.
    pub gpus: &'a [Gpu],
    /// Units of this container.
    pub container: Units,
    /// The pod's peak.
    pub pod: Units,
    /// How the container uses its GPUs.
    pub gpu_use: GpuUse,
    /// Its pod's annotation `gpu-isolation`.
    pub isolation: Option<&'a str>,
    /// Why it cannot be a client of MPS.
    pub mps_conflict: Option<MpsConflict>,
}

/// A response, and the isolation of the container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerResponse {
    /// The response to the kubelet.
    pub response: ContainerAllocateResponse,
    /// The mode of isolation.
    pub isolation: Decision,
    /// Why it is not held to the part of the compute that it asks for; `None` if it is, or asks for none.
    pub compute: Option<ComputeNotEnforced>,
}

/// Why no response can be made.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The required isolation cannot be enforced.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// The device of its limit cannot be written.
    #[error(transparent)]
    Limit(#[from] CdiError),
}

/// Builds the kubelet's responses.
#[derive(Debug, Clone)]
pub struct Responder {
    /// How containers get their GPUs.
    pub mode: Mode,
    /// Kind of our CDI devices, `plimsoll.dev/gpu-mem`.
    pub own_kind: String,
    /// GPU memory of one unit.
    pub unit: MiB,
    /// How containers are limited to their share.
    pub isolation: NodeIsolation,
    /// Our CDI specification; `None` unless [`Mode::Cdi`].
    pub limits: Option<Arc<SpecFile>>,
}

impl Responder {
    /// The response to Allocate for one container. Writes the container's limit into the CDI specification before it
    /// returns.
    ///
    /// # Errors
    /// If the required isolation cannot be enforced, or the limit cannot be written.
    pub fn respond(&self, share: ContainerShare<'_>) -> Result<ContainerResponse, ResponseError> {
        let support = self.support(share).ok_or(IsolationError::NotKnown)?;
        let isolation = self.decide(share, &support)?;
        let compute =
            share.gpu_use.asks_for_compute().then(|| compute_by_mps(isolation.isolation, &support));
        let limit = self.limit(share, isolation.isolation, compute == Some(Ok(())));
        let mut response = self.response(share);
        if let (Some(limit), Some(file)) = (limit, &self.limits) {
            file.add(share.uid, limit)?;
            response.cdi_devices.push(CdiDevice { name: format!("{}={limit}", self.own_kind) });
        }
        Ok(ContainerResponse { response, isolation, compute: compute.and_then(Result::err) })
    }

    /// What the node can enforce for this container; `None` until it is detected. For one that cannot be a client of
    /// MPS, the node has no MPS. A container with exclusive GPUs has no limit, and so no mounts of MPS.
    fn support(&self, share: ContainerShare<'_>) -> Option<IsolationSupport> {
        let mut support = self.isolation.support.borrow().clone()?;
        let conflict = share.mps_conflict.filter(|_| !share.gpu_use.exclusive);
        if let (Some(conflict), Ok(())) = (conflict, &support.mps) {
            support.mps = Err(Missing::MpsConflict(conflict));
        }
        Some(support)
    }

    /// The mode of isolation. A container that cannot be a client of MPS is refused if its pod asks for MPS and nothing
    /// stronger takes its place. If only the node's policy asks for MPS, it is treated as on a node without MPS.
    fn decide(
        &self,
        share: ContainerShare<'_>,
        support: &IsolationSupport,
    ) -> Result<Decision, IsolationError> {
        let decided = self.isolation.policy.decide(share.isolation, support);
        match (&decided, &support.mps) {
            (Err(_), Err(Missing::MpsConflict(conflict)))
                if share.isolation == Some(Isolation::Mps.name()) =>
            {
                Err(IsolationError::MpsConflict(*conflict))
            }
            _ => decided,
        }
    }

    /// The limit of a container on each of its GPUs, at most the memory of the smallest; `None` if its pod is
    /// exclusive. `compute`: as for [`Limit::of`].
    fn limit(
        &self,
        share: ContainerShare<'_>,
        isolation: Isolation,
        compute: bool,
    ) -> Option<Limit> {
        let GpuUse { gpus, exclusive, cores, limit, .. } = share.gpu_use;
        if exclusive {
            return None;
        }
        let memory = share.gpus.iter().map(|gpu| gpu.memory).min().unwrap_or_default();
        let request = self.memory_on_each(share.container, gpus);
        let burst = self.memory_on_each(limit.unwrap_or(share.container), gpus);
        let limit = burst.max(request).min(memory);
        let threads = if cores == Cores::ZERO { Cores::ALL } else { cores };
        Limit::of(isolation, compute, MpsLimit { gpus, limit, threads: threads.0 })
    }

    /// The memory of these units on each of so many GPUs.
    fn memory_on_each(&self, units: Units, gpus: u32) -> MiB {
        MiB(u64::from(units.0 / gpus.max(1)) * self.unit.0)
    }

    fn response(&self, share: ContainerShare<'_>) -> ContainerAllocateResponse {
        let mut response = ContainerAllocateResponse {
            envs: self.amounts(share),
            ..ContainerAllocateResponse::default()
        };
        match self.mode {
            Mode::Cdi => response.cdi_devices = self.cdi_devices(share.gpus),
            Mode::Mounts => {
                response.envs.extend(first_gpu_env(share.gpus, GPU_REQUESTS));
                response.mounts = share.gpus.iter().map(request_mount).collect();
            }
        }
        response
    }

    fn amounts(&self, share: ContainerShare<'_>) -> HashMap<String, String> {
        let pairs = [
            (aliyun::POD, share.pod.to_string()),
            (aliyun::CONTAINER, share.container.to_string()),
            (UNIT_MIB, self.unit.0.to_string()),
        ];
        let several = (share.gpus.len() > 1).then(|| (GPU_UUIDS, uuids(share.gpus)));
        pairs.into_iter().chain(several).map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// NVIDIA's device of each GPU, and our device of the first GPU only: variables of a second one would replace its
    /// variables.
    fn cdi_devices(&self, gpus: &[Gpu]) -> Vec<CdiDevice> {
        let own = gpus.first().map(|gpu| cdi_device(&self.own_kind, gpu));
        gpus.iter().map(|gpu| cdi_device(KIND, gpu)).chain(own).collect()
    }
}

fn cdi_device(kind: &str, gpu: &Gpu) -> CdiDevice {
    CdiDevice { name: format!("{kind}={}", gpu.uuid) }
}

fn uuids(gpus: &[Gpu]) -> String {
    joined(gpus.iter().map(|gpu| &gpu.uuid))
}

fn first_gpu_env(gpus: &[Gpu], visible: &str) -> Vec<(String, String)> {
    gpus.first().map(|gpu| gpu_env(gpu, visible)).unwrap_or_default()
}

fn request_mount(gpu: &Gpu) -> Mount {
    Mount {
        container_path: format!("{GPU_REQUESTS}/{}", gpu.uuid),
        host_path: "/dev/null".to_owned(),
        read_only: true,
    }
}

/// The variables that name the GPU; `visible` is the value of [`VISIBLE_DEVICES`].
fn gpu_env(gpu: &Gpu, visible: &str) -> Vec<(String, String)> {
    let pairs = [
        (VISIBLE_DEVICES, visible.to_owned()),
        (GPU_UUID, gpu.uuid.to_string()),
        (aliyun::IDX, gpu.index.to_string()),
        (aliyun::DEV, gpu.units.to_string()),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::fixtures::{A, B, gpus};
    use crate::isolation::support::IsolationSupport;
    use crate::isolation::{MinIsolation, Policy, UnavailableAction};

    fn isolating(wanted: MinIsolation) -> NodeIsolation {
        let support = Some(IsolationSupport { driver: Ok(()), mps: Ok(()), drains_clients: None });
        let policy = Policy { minimum: wanted, unavailable: UnavailableAction::Refuse };
        NodeIsolation { policy, support: watch::channel(support).1 }
    }

    fn responder(mode: Mode, wanted: MinIsolation, limits: Option<Arc<SpecFile>>) -> Responder {
        Responder {
            mode,
            own_kind: "plimsoll.dev/gpu-mem".to_owned(),
            unit: MiB(1024),
            isolation: isolating(wanted),
            limits,
        }
    }

    fn given(
        responder: &Responder,
        isolation: Option<&str>,
    ) -> Result<ContainerResponse, ResponseError> {
        given_on(responder, &[A], GpuUse::default(), isolation)
    }

    fn given_on(
        responder: &Responder,
        on: &[&str],
        gpu_use: GpuUse,
        isolation: Option<&str>,
    ) -> Result<ContainerResponse, ResponseError> {
        given_with(responder, on, gpu_use, isolation, None)
    }

    fn given_with(
        responder: &Responder,
        on: &[&str],
        gpu_use: GpuUse,
        isolation: Option<&str>,
        mps_conflict: Option<MpsConflict>,
    ) -> Result<ContainerResponse, ResponseError> {
        let gpus = gpus(&on.iter().map(|uuid| (*uuid, 16)).collect::<Vec<_>>());
        let gpus: Vec<Gpu> = gpus.iter().cloned().collect();
        responder.respond(ContainerShare {
            uid: &PodUid::from("p"),
            gpus: &gpus,
            container: Units(2),
            pod: Units(3),
            gpu_use,
            isolation,
            mps_conflict,
        })
    }

    fn response(mode: Mode) -> ContainerAllocateResponse {
        response_of(mode, &[A])
    }

    fn response_of(mode: Mode, on: &[&str]) -> ContainerAllocateResponse {
        let responder = responder(mode, MinIsolation::None, None);
        given_on(&responder, on, GpuUse::default(), None).unwrap().response
    }

    #[test]
    fn every_response_has_the_amounts() {
        for mode in [Mode::Cdi, Mode::Mounts] {
            let envs = response(mode).envs;
            let values = [aliyun::CONTAINER, aliyun::POD, UNIT_MIB].map(|name| envs[name].as_str());
            assert_eq!(values, ["2", "3", "1024"], "{mode:?}");
        }
    }

    #[test]
    fn with_cdi_the_gpu_comes_by_two_devices_and_no_variable() {
        let response = response(Mode::Cdi);
        let names = response.cdi_devices.iter().map(|device| device.name.as_str());
        let expected = [format!("nvidia.com/gpu={A}"), format!("plimsoll.dev/gpu-mem={A}")];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert!(!response.envs.contains_key(VISIBLE_DEVICES) && response.mounts.is_empty());
    }

    #[test]
    fn a_limited_container_gets_the_device_of_its_limit_which_is_written_by_then() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem", None));
        for (wanted, asked, device) in [
            (MinIsolation::Driver, None, "driver-2048"),
            (MinIsolation::Mps, None, "mps-1-2048-100"),
            (MinIsolation::Auto, Some("driver"), "driver-2048"),
        ] {
            let responder = responder(Mode::Cdi, wanted, Some(file.clone()));
            let given = given(&responder, asked).unwrap();
            let last = &given.response.cdi_devices.last().unwrap().name;
            assert_eq!(*last, format!("plimsoll.dev/gpu-mem={device}"));
            let written = std::fs::read_to_string(file.path()).unwrap();
            assert!(written.contains(&format!("\"name\":\"{device}\"")), "{written}");
        }
    }

    fn conflicting(
        responder: &Responder,
        isolation: Option<&str>,
    ) -> Result<ContainerResponse, ResponseError> {
        let conflict = Some(MpsConflict::SharedMemory);
        given_with(responder, &[A], GpuUse::default(), isolation, conflict)
    }

    #[test]
    fn a_container_with_its_own_shared_memory_keeps_it_and_is_told_why_it_gets_no_mps() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(SpecFile::new(dir.path(), "k/c", None));
        let mut responder = responder(Mode::Cdi, MinIsolation::Mps, Some(file));
        responder.isolation.policy.unavailable = UnavailableAction::Downgrade;
        let mps_alone = IsolationSupport {
            driver: Err(Missing::UnknownDriver),
            mps: Ok(()),
            drains_clients: None,
        };
        responder.isolation.support = watch::channel(Some(mps_alone)).1;
        let given = conflicting(&responder, None).unwrap();
        let instead_of = Some((Isolation::Mps, Missing::MpsConflict(MpsConflict::SharedMemory)));
        assert_eq!(given.isolation, Decision { isolation: Isolation::None, instead_of });
        assert_eq!(given.response.cdi_devices.len(), 2, "no device of a limit");
        let refused = conflicting(&responder, Some("mps")).unwrap_err().to_string();
        assert!(
            refused.contains("/dev/shm") && refused.contains("take that mount off"),
            "{refused}"
        );
        responder.isolation.policy.unavailable = UnavailableAction::Refuse;
        assert!(conflicting(&responder, None).is_err());
        let whole = GpuUse { exclusive: true, ..GpuUse::default() };
        let conflict = Some(MpsConflict::SharedMemory);
        given_with(&responder, &[A], whole, Some("mps"), conflict)
            .expect("it has no mounts of MPS");
    }

    #[test]
    fn a_containers_own_shared_memory_is_in_the_way_of_mps_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(SpecFile::new(dir.path(), "k/c", None));
        for (minimum, asked, mode) in [
            (MinIsolation::Driver, None, Isolation::Driver),
            (MinIsolation::Driver, Some("mps"), Isolation::Driver),
            (MinIsolation::None, None, Isolation::None),
        ] {
            let responder = responder(Mode::Cdi, minimum, Some(file.clone()));
            assert_eq!(conflicting(&responder, asked).unwrap().isolation.isolation, mode);
        }
    }

    /// What a container with `gpu-cores: 25` gets on a node with this support: its limit, and why its compute is not
    /// enforced.
    fn with_cores(
        minimum: MinIsolation,
        asked: Option<&str>,
        support: &IsolationSupport,
        conflict: Option<MpsConflict>,
    ) -> (Option<Limit>, Option<ComputeNotEnforced>) {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(SpecFile::new(dir.path(), "k/c", None));
        let mut responder = responder(Mode::Cdi, minimum, Some(file));
        responder.isolation.support = watch::channel(Some(support.clone())).1;
        let quarter = GpuUse { cores: Cores(25), ..GpuUse::default() };
        let given = given_with(&responder, &[A], quarter, asked, conflict).unwrap();
        let device = given.response.cdi_devices.get(2);
        let limit = device.map(|device| device.name.split_once('=').unwrap().1.parse().unwrap());
        (limit, given.compute)
    }

    #[test]
    fn compute_is_held_by_mps_wherever_it_can_be_whatever_holds_memory() {
        let limit = MiB(2048);
        let mps = MpsLimit { gpus: 1, limit, threads: 25 };
        let no_mps = || Some(ComputeNotEnforced::NoMps(Missing::NoMps));
        let both = IsolationSupport { driver: Ok(()), mps: Ok(()), drains_clients: None };
        let mps_alone = IsolationSupport {
            driver: Err(Missing::UnknownDriver),
            mps: Ok(()),
            drains_clients: None,
        };
        let driver_alone =
            IsolationSupport { driver: Ok(()), mps: Err(Missing::NoMps), drains_clients: None };
        let none = IsolationSupport { mps: Err(Missing::NoMps), ..mps_alone.clone() };
        use MinIsolation::{Auto, Driver};
        for (minimum, asked, support, expected) in [
            (Driver, Some("mps"), &both, (Some(Limit::DriverAndMps(mps)), None)),
            (Driver, None, &both, (Some(Limit::DriverAndMps(mps)), None)),
            (Auto, Some("driver"), &both, (Some(Limit::DriverAndMps(mps)), None)),
            (Auto, Some("mps"), &both, (Some(Limit::Mps(mps)), None)),
            (Auto, Some("mps"), &mps_alone, (Some(Limit::Mps(mps)), None)),
            (Auto, Some("mps"), &driver_alone, (Some(Limit::Driver { limit }), no_mps())),
            (Driver, None, &driver_alone, (Some(Limit::Driver { limit }), no_mps())),
            (Auto, None, &both, (None, Some(ComputeNotEnforced::NotLimited))),
            (Auto, None, &none, (None, no_mps())),
        ] {
            let given = with_cores(minimum, asked, support, None);
            assert_eq!(given, expected, "{minimum:?} {asked:?} {support:?}");
        }
        let conflict = MpsConflict::SharedMemory;
        let why = ComputeNotEnforced::NoMps(Missing::MpsConflict(conflict));
        let given = with_cores(Driver, Some("mps"), &both, Some(conflict));
        assert_eq!(given, (Some(Limit::Driver { limit }), Some(why)));
    }

    #[test]
    fn who_asks_for_no_part_of_the_compute_is_told_of_none_and_is_no_client_of_mps() {
        let responder = responder(Mode::Cdi, MinIsolation::Driver, None);
        for gpu_use in [
            GpuUse::default(),
            GpuUse { cores: Cores::ALL, ..GpuUse::default() },
            GpuUse { cores: Cores(25), exclusive: true, ..GpuUse::default() },
        ] {
            let given = given_on(&responder, &[A], gpu_use, Some("mps")).unwrap();
            assert_eq!(given.compute, None, "{gpu_use:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(SpecFile::new(dir.path(), "k/c", None));
        let responder = Responder { limits: Some(file), ..responder };
        let given = given(&responder, Some("mps")).unwrap().response;
        assert!(given.cdi_devices.last().unwrap().name.ends_with("=driver-2048"));
    }

    #[test]
    fn each_of_several_gpus_has_its_part_a_burst_its_limit_and_a_whole_gpu_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(SpecFile::new(dir.path(), "k/c", None));
        let two = GpuUse { gpus: 2, ..GpuUse::default() };
        let burst = GpuUse { limit: Some(Units(6)), cores: Cores(25), ..two };
        let beyond = GpuUse { limit: Some(Units(100)), ..two };
        let whole = GpuUse { exclusive: true, ..two };
        for (wanted, gpu_use, last_device) in [
            (MinIsolation::Driver, two, "driver-1024"),
            (MinIsolation::Driver, burst, "driver-mps-2-3072-25"),
            (MinIsolation::Mps, burst, "mps-2-3072-25"),
            (MinIsolation::Driver, beyond, "driver-16384"),
            (MinIsolation::Driver, whole, A),
        ] {
            let responder = responder(Mode::Cdi, wanted, Some(file.clone()));
            let given = given_on(&responder, &[A, B], gpu_use, None).unwrap();
            let last = &given.response.cdi_devices.last().unwrap().name;
            assert_eq!(*last, format!("plimsoll.dev/gpu-mem={last_device}"));
        }
    }

    #[test]
    fn a_container_whose_limit_cannot_be_written_or_read_is_given_nothing() {
        let file = Arc::new(SpecFile::new(std::path::Path::new("/dev/null/cdi"), "k/c", None));
        let unwritable = given(&responder(Mode::Cdi, MinIsolation::Driver, Some(file)), None);
        assert!(matches!(unwritable, Err(ResponseError::Limit(_))), "{unwritable:?}");
        let nonsense = given(&responder(Mode::Cdi, MinIsolation::None, None), Some("max"));
        assert!(matches!(nonsense, Err(ResponseError::Isolation(_))), "{nonsense:?}");
    }

    #[test]
    fn a_limit_is_at_least_the_request_and_at_most_the_gpu_whatever_the_pod_says() {
        let responder = responder(Mode::Cdi, MinIsolation::Driver, None);
        let gpu: Vec<Gpu> = gpus(&[(A, 16)]).iter().cloned().collect();
        for said in [0, 1, 2, 16, 17, u32::MAX] {
            for gpus in [0, 1, 2, u32::MAX] {
                let gpu_use = GpuUse { gpus, limit: Some(Units(said)), ..GpuUse::default() };
                let share = ContainerShare {
                    uid: &PodUid::from("p"),
                    gpus: &gpu,
                    container: Units(2),
                    pod: Units(2),
                    gpu_use,
                    isolation: None,
                    mps_conflict: None,
                };
                let request = responder.memory_on_each(share.container, gpus);
                let limit = responder.limit(share, Isolation::Driver, false).unwrap();
                let limit = limit.by_driver().unwrap();
                assert!(request <= limit && limit <= gpu[0].memory, "{said} {gpus}: {limit:?}");
            }
        }
    }

    #[test]
    fn with_mounts_the_gpu_comes_by_a_mount_and_the_variable_names_none() {
        let response = response(Mode::Mounts);
        let mount = Mount {
            container_path: format!("/var/run/nvidia-container-devices/{A}"),
            host_path: "/dev/null".to_owned(),
            read_only: true,
        };
        assert_eq!((response.mounts, response.cdi_devices), (vec![mount], vec![]));
        assert_eq!(response.envs[VISIBLE_DEVICES], "/var/run/nvidia-container-devices");
        assert_eq!(response.envs[GPU_UUID], A);
    }

    #[test]
    fn several_gpus_come_all_in_every_mode() {
        let cdi = response_of(Mode::Cdi, &[A, B]);
        let names: Vec<&str> = cdi.cdi_devices.iter().map(|device| device.name.as_str()).collect();
        let nvidias = [A, B].map(|uuid| format!("nvidia.com/gpu={uuid}"));
        assert_eq!(names[..2], nvidias);
        assert_eq!(names[2..], [format!("plimsoll.dev/gpu-mem={A}")]);
        let by_mounts = response_of(Mode::Mounts, &[A, B]);
        assert_eq!(by_mounts.mounts.len(), 2);
        assert_eq!(by_mounts.envs[GPU_UUIDS], format!("{A},{B}"));
        assert_eq!(by_mounts.envs[GPU_UUID], A);
    }
}
