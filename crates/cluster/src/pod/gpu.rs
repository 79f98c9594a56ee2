//! What a pod requests of GPUs, by the limits of its containers and its annotations.
//!
//! Invariant: an annotation that cannot be read is an error, and never counts as absent for a pod that is to be placed.
//! A bound pod with such an annotation is charged by its containers' limits, and is of unknown place unless its claim
//! agrees with these.

use std::collections::BTreeMap;
use std::str::FromStr;

use api::JsonError;
use api::per_container::PerContainer;
use placement::gpu::{
    ContainerKind, ContainerRequest, GpuFilter, GpuOptions, GpuRequest, GpuUse, Isolation,
    MpsConflict, PatternError, Patterns, RequestError, Strategy, UnexpectedValue, UnknownIsolation,
    UnknownStrategy, excludes_mps,
};
use placement::names::Names;
use placement::quantity::QuantityError;
use placement::reason;
use placement::units::Units;

use super::{Container, GpuPod, Pod};
use crate::gpu::{self, MAX_ANNOTATION_BYTES};
use crate::quantity::Quantity;
use placement::names::aliyun;

/// The most containers of a pod that may request GPU memory. The facts of GPU pods are kept, and a pod's JSON has room
/// for thousands of containers.
const MAX_CONTAINERS: usize = 1_000;

/// Characters of an annotation's value that an error repeats.
const QUOTED: usize = 64;

/// What a pod requests cannot be read, or cannot be met anywhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuRequestError {
    /// The limit of a container.
    #[error("container `{container}`, limits of {resource}: {cause}")]
    Quantity {
        /// The container.
        container: String,
        /// The resource.
        resource: String,
        /// What is wrong with the quantity.
        cause: QuantityError,
    },
    /// More containers with GPU memory than are read. Such a pod is refused everywhere.
    #[error("{0} containers ask for GPU memory, and at most {MAX_CONTAINERS} of a pod may")]
    TooManyContainers(usize),
    /// An annotation.
    #[error("annotation {key}: {cause}")]
    Annotation {
        /// Its key.
        key: String,
        /// Which of the annotations.
        annotation: GpuAnnotation,
        /// What is wrong with it.
        cause: ValueError,
    },
    /// The containers' requests together.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Once bound, the pod could hardly be written any more: see [`MAX_ANNOTATION_BYTES`].
    #[error(
        "annotations: {own} bytes, and up to {added} more that Bind adds; at most {MAX_ANNOTATION_BYTES} together are \
         accepted, for Kubernetes takes 262144 and others write annotations later: keep long texts in a ConfigMap, or \
         ask for fewer GPUs in fewer containers"
    )]
    LongAnnotations {
        /// Bytes of the keys and values of its own.
        own: usize,
        /// Bytes that Bind adds at most.
        added: usize,
    },
    /// It is not read where it is placed: see [`MAX_GPU_POD`].
    #[error(
        "the pod has {0} bytes of JSON and asks for GPU memory; at most {MAX_GPU_POD} are read: keep long texts in a \
         ConfigMap"
    )]
    LargePod(usize),
    /// The pod is there, but not every field of its spec or its metadata could be read.
    #[error("not every field of the pod can be read")]
    UnreadPod,
}

/// The longest pod that asks for GPUs and is read by Filter, in bytes of JSON.
///
/// A pod that no GPU is for is tried again and again, and kube-scheduler tries one pod at a time.
pub const MAX_GPU_POD: usize = 512 << 10;

/// The annotations by which a pod requests more than units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuAnnotation {
    /// `gpu-card-count`.
    GpuCount,
    /// `gpu-cores`.
    Cores,
    /// `gpu-processes`.
    Processes,
    /// `gpu-mem-limit`.
    MemoryLimit,
    /// `gpu-model`.
    Model,
    /// `gpu-uuid`.
    Uuid,
    /// `gpu-placement`.
    Placement,
    /// `gpu-isolation`.
    Isolation,
}

/// Why the value of an annotation is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Neither one value nor an object of values.
    #[error("neither one value nor an object as in `{{\"main\":2}}`: {0}")]
    Unreadable(JsonError),
    /// No container of this name requests GPU memory.
    #[error("no container `{0}` asks for GPU memory")]
    NoSuchContainer(String),
    /// A value.
    #[error(transparent)]
    Unexpected(#[from] UnexpectedValue),
    /// A list of models or UUIDs.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A strategy.
    #[error(transparent)]
    Strategy(#[from] UnknownStrategy),
    /// A mode of isolation.
    #[error(transparent)]
    Isolation(#[from] UnknownIsolation),
}

impl GpuRequestError {
    /// The text for Filter's answer: the same whatever the values, for kube-scheduler groups nodes by it and uses it as
    /// a format string.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Quantity { .. } => reason!("the pod's limit of GPU memory cannot be read"),
            Self::UnreadPod => reason!("not every field of the pod can be read"),
            Self::TooManyContainers(_) => {
                reason!("too many containers of the pod ask for GPU memory")
            }
            Self::Annotation { annotation, .. } => match annotation {
                GpuAnnotation::GpuCount => {
                    reason!("the pod's annotation gpu-card-count cannot be read")
                }
                GpuAnnotation::Cores => reason!("the pod's annotation gpu-cores cannot be read"),
                GpuAnnotation::Processes => {
                    reason!("the pod's annotation gpu-processes cannot be read")
                }
                GpuAnnotation::MemoryLimit => {
                    reason!("the pod's annotation gpu-mem-limit cannot be read")
                }
                GpuAnnotation::Model => reason!("the pod's annotation gpu-model cannot be read"),
                GpuAnnotation::Uuid => reason!("the pod's annotation gpu-uuid cannot be read"),
                GpuAnnotation::Placement => {
                    reason!("the pod's annotation gpu-placement cannot be read")
                }
                GpuAnnotation::Isolation => {
                    reason!("the pod's annotation gpu-isolation cannot be read")
                }
            },
            Self::Request(error) => match error {
                RequestError::Indivisible { .. } => reason!(
                    "the pod's GPU memory does not divide into equal shares by its gpu-card-count"
                ),
                RequestError::HandedOn { .. } => reason!(
                    "the pod's gpu-card-count does not go with an init container that asks for GPU memory"
                ),
                RequestError::LimitBelowRequest { .. } => {
                    reason!("the pod's gpu-mem-limit is below its GPU memory")
                }
                RequestError::TooManyCores(_) => {
                    reason!("the pod's gpu-cores are more than a GPU has")
                }
            },
            Self::LargePod(_) => reason!(
                "the pod asks for GPU memory and has more than 512 KiB: keep long texts in a ConfigMap"
            ),
            Self::LongAnnotations { .. } => reason!(
                "the pod's annotations and the claim that binding adds are beyond 192 KiB: shorten them"
            ),
        }
    }
}

impl Pod {
    /// What it requests of the GPU resource; `None` if nothing.
    ///
    /// # Errors
    ///
    /// Names the container or the annotation that cannot be read, or what cannot be met anywhere.
    pub fn request(&self, names: &Names) -> Result<Option<GpuRequest>, GpuRequestError> {
        if self.is_unread() {
            return Err(GpuRequestError::UnreadPod);
        }
        let containers = self.containers(names)?;
        if containers.iter().all(|ask| ask.units.is_zero()) {
            return Ok(None);
        }
        let (containers, options) = self.options(names, containers)?;
        let request = GpuRequest::with_options(containers, options)?;
        if let Some(request) = request.as_ref().filter(|_| self.node().is_none()) {
            self.leaves_room_for_annotations(names, request)?;
        }
        Ok(self.with_cpu(request))
    }

    /// The bytes of the keys and values of its annotations: its own, without those that Bind writes, and the most that
    /// Bind writes for this request.
    pub fn annotation_bytes(&self, names: &Names, request: &GpuRequest) -> (usize, usize) {
        let written = gpu::written_keys(names);
        let mut own = 0;
        for (key, value) in self.metadata.object.annotations.iter().flatten() {
            if !written.contains(key) {
                own += key.len() + value.len();
            }
        }
        (own, gpu::most_claim_bytes(names, request))
    }

    fn leaves_room_for_annotations(
        &self,
        names: &Names,
        request: &GpuRequest,
    ) -> Result<(), GpuRequestError> {
        let (own, added) = self.annotation_bytes(names, request);
        if own.saturating_add(added) > MAX_ANNOTATION_BYTES {
            return Err(GpuRequestError::LongAnnotations { own, added });
        }
        Ok(())
    }

    /// The facts of a pod that requests the GPU resource; `None` if it requests none.
    pub(super) fn gpu(&self, names: &Names) -> Result<Option<GpuPod>, GpuRequestError> {
        let (request, fault) = match self.request(names) {
            Ok(request) => (request, None),
            // What it holds is what Bind gave it.
            Err(fault @ GpuRequestError::UnreadPod) => {
                let claim =
                    self.metadata.annotation(&names.claim()).filter(|_| self.node().is_some());
                let Some(request) = claim.and_then(gpu::request_of_claim) else {
                    return Err(fault);
                };
                (Some(request), Some(fault))
            }
            Err(
                fault @ (GpuRequestError::Quantity { .. } | GpuRequestError::TooManyContainers(_)),
            ) => return Err(fault),
            Err(fault) => {
                let containers = self.containers(names)?;
                let options = self.sharing_options(names, &containers);
                (self.with_cpu(GpuRequest::with_options(containers, options)?), Some(fault))
            }
        };
        let Some(request) = request else { return Ok(None) };
        // A change of the annotations after Bind neither frees units of this pod nor takes units of other pods.
        let text = self.metadata.annotation(&names.claim());
        let bound = if self.node().is_some() { text } else { None };
        let as_claimed = bound.and_then(|text| gpu::as_claimed(text, &request));
        let request = as_claimed.unwrap_or(request);
        let claim = text.map(|text| gpu::claim(text, &request)).transpose();
        let assigned = self.metadata.annotation(aliyun::ASSIGNED) == Some("true");
        let isolation = self.metadata.annotation(&names.isolation()).map(|text| cut(text.trim()));
        let mps_conflicts = self.mps_conflicts();
        Ok(Some(GpuPod { request, fault, isolation, mps_conflicts, claim, assigned }))
    }

    fn with_cpu(&self, request: Option<GpuRequest>) -> Option<GpuRequest> {
        request.map(|request| request.with_cpu(self.cpu_request()).with_priority(self.priority()))
    }

    /// Each container that requests units with what it requests, by its limits alone.
    fn containers(&self, names: &Names) -> Result<Vec<ContainerRequest>, GpuRequestError> {
        let mut all = Vec::new();
        for (position, container) in self.spec.init_containers.iter().enumerate() {
            all.extend(container.gpu_request(names, container.init_kind(), position)?);
        }
        for (position, container) in self.spec.containers.iter().enumerate() {
            all.extend(container.gpu_request(names, ContainerKind::App, position)?);
        }
        match all.len() {
            count if count > MAX_CONTAINERS => Err(GpuRequestError::TooManyContainers(count)),
            _ => Ok(all),
        }
    }

    fn options(
        &self,
        names: &Names,
        mut containers: Vec<ContainerRequest>,
    ) -> Result<(Vec<ContainerRequest>, GpuOptions), GpuRequestError> {
        self.read(names.gpu_count(), GpuAnnotation::GpuCount)
            .each(&mut containers, GpuUse::read_gpu_count)?;
        self.read(names.gpu_cores(), GpuAnnotation::Cores)
            .each(&mut containers, GpuUse::read_cores)?;
        self.read(names.gpu_processes(), GpuAnnotation::Processes)
            .each(&mut containers, GpuUse::read_processes)?;
        self.read(names.gpu_mem_limit(), GpuAnnotation::MemoryLimit)
            .each(&mut containers, GpuUse::read_memory_limit)?;
        let filter = GpuFilter {
            models: self
                .read(names.gpu_model(), GpuAnnotation::Model)
                .parsed::<Patterns>()?
                .unwrap_or_default(),
            uuids: self
                .read(names.gpu_uuid(), GpuAnnotation::Uuid)
                .parsed::<Patterns>()?
                .unwrap_or_default(),
            isolation: self
                .read(names.isolation(), GpuAnnotation::Isolation)
                .parsed::<Isolation>()?
                .unwrap_or_default(),
        };
        let strategy =
            self.read(names.gpu_placement(), GpuAnnotation::Placement).parsed::<Strategy>()?;
        let excludes_mps = self.excludes_mps(&containers);
        Ok((containers, GpuOptions::of_pod(filter, strategy, excludes_mps)))
    }

    /// What decides how a pod with a fault shares its GPUs: it may have been bound before the fault.
    fn sharing_options(&self, names: &Names, containers: &[ContainerRequest]) -> GpuOptions {
        let parsed = self.read(names.isolation(), GpuAnnotation::Isolation).parsed();
        let isolation = parsed.ok().flatten().unwrap_or_default();
        let filter = GpuFilter { isolation, ..GpuFilter::default() };
        GpuOptions { filter, excludes_mps: self.excludes_mps(containers), ..GpuOptions::default() }
    }

    /// The containers that cannot be clients of MPS, by name.
    pub fn mps_conflicts(&self) -> BTreeMap<String, MpsConflict> {
        let mut conflicts = BTreeMap::new();
        for container in self.spec.init_containers.iter().chain(&self.spec.containers) {
            if let Some(conflict) = MpsConflict::find(self.spec.host_ipc, container.own_paths()) {
                conflicts.insert(container.name.clone(), conflict);
            }
        }
        conflicts
    }

    /// Whether a container that may share its GPUs cannot be a client of MPS.
    fn excludes_mps(&self, containers: &[ContainerRequest]) -> bool {
        let conflicts = self.mps_conflicts();
        excludes_mps(containers, |ask| conflicts.contains_key(&ask.name))
    }

    fn read(&self, key: String, annotation: GpuAnnotation) -> Annotation<'_> {
        Annotation { text: self.metadata.annotation(&key), key, annotation }
    }
}

impl Container {
    /// Where it has mounts and devices of its pod.
    fn own_paths(&self) -> impl Iterator<Item = &str> {
        let mounts = self.volume_mounts.iter().map(|mount| mount.mount_path.as_str());
        mounts.chain(self.volume_devices.iter().map(|device| device.device_path.as_str()))
    }

    pub(super) fn init_kind(&self) -> ContainerKind {
        match self.restart_policy.as_deref() {
            Some("Always") => ContainerKind::Sidecar,
            _ => ContainerKind::Init,
        }
    }

    /// `None` if it requests no units.
    fn gpu_request(
        &self,
        names: &Names,
        kind: ContainerKind,
        position: usize,
    ) -> Result<Option<ContainerRequest>, GpuRequestError> {
        let resource = names.gpu_resource();
        let count = self.resources.limits.get(resource).map_or(Ok(0), Quantity::count);
        let units = Units(count.map_err(|cause| GpuRequestError::Quantity {
            container: self.name.clone(),
            resource: resource.to_owned(),
            cause,
        })?);
        if units.is_zero() {
            return Ok(None);
        }
        let (name, gpu_use) = (self.name.clone(), GpuUse::default());
        Ok(Some(ContainerRequest { name, kind, position, units, gpu_use }))
    }
}

/// One of the pod's annotations.
struct Annotation<'p> {
    key: String,
    annotation: GpuAnnotation,
    text: Option<&'p str>,
}

impl Annotation<'_> {
    fn parsed<T>(&self) -> Result<Option<T>, GpuRequestError>
    where
        T: FromStr,
        ValueError: From<T::Err>,
    {
        let parsed = self.text.map(|text| text.trim().parse().map_err(ValueError::from));
        parsed.transpose().map_err(|cause| self.error(cause))
    }

    /// Sets the value of each container that requests units.
    fn each(
        &self,
        containers: &mut [ContainerRequest],
        set: fn(&mut GpuUse, &str) -> Result<(), UnexpectedValue>,
    ) -> Result<(), GpuRequestError> {
        let Some(text) = self.text else { return Ok(()) };
        let read = PerContainer::read(text).map_err(ValueError::Unreadable);
        let values = read.map_err(|cause| self.error(cause))?;
        let asking =
            |name: &str| containers.iter().any(|ask| ask.name == name && !ask.units.is_zero());
        if let Some(name) = values.names().find(|name| !asking(name)) {
            return Err(self.error(ValueError::NoSuchContainer(cut(name))));
        }
        for ask in containers.iter_mut().filter(|ask| !ask.units.is_zero()) {
            if let Some(value) = values.of(&ask.name) {
                set(&mut ask.gpu_use, value).map_err(|cause| self.error(cause.into()))?;
            }
        }
        Ok(())
    }

    fn error(&self, cause: ValueError) -> GpuRequestError {
        GpuRequestError::Annotation { key: self.key.clone(), annotation: self.annotation, cause }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(QUOTED).collect()
}
