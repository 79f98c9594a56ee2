//! What a granted container is given: CDI devices by default, plain environment where a node has no
//! CDI.
//!
//! Invariant: what must hold for the container goes into CDI, whose environment beats the pod's
//! own; Allocate's envs lose to it, so with CDI they only carry what is informative.

use std::collections::HashMap;

use clap::ValueEnum;
use placement::gpu::GpuRequest;
use placement::names::aliyun;

use crate::allocate::Grant;
use crate::cards::Card;
use kubelet_api::v1beta1::{CdiDevice, ContainerAllocateResponse};

/// The card's UUID, for programs and for tests that ask a process what it sees.
pub const GPU_UUID: &str = "PLIMSOLL_GPU_UUID";
/// NVIDIA's container runtime reads this one.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// How a container is given its card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// CDI devices: NVIDIA's for the card itself, ours for the environment. A pod cannot override
    /// these.
    Cdi,
    /// NVIDIA_VISIBLE_DEVICES in the environment, for runtimes without CDI. A pod's own spec
    /// overrides it.
    Env,
}

/// Builds responses.
#[derive(Debug, Clone)]
pub struct Responder {
    /// How.
    pub mode: Mode,
    /// Kind of NVIDIA's CDI devices, `nvidia.com/gpu`.
    pub nvidia_kind: String,
    /// Kind of ours, `plimsoll.dev/gpu-mem`.
    pub own_kind: String,
}

impl Responder {
    /// What the container is given.
    pub fn response(&self, grant: &Grant) -> ContainerAllocateResponse {
        let mut response = ContainerAllocateResponse {
            envs: amounts(grant),
            ..ContainerAllocateResponse::default()
        };
        match self.mode {
            Mode::Cdi => response.cdi_devices = self.cdi_devices(&grant.card),
            Mode::Env => response.envs.extend(env_of(&grant.card, grant.card.uuid.as_str())),
        }
        response
    }

    fn cdi_devices(&self, card: &Card) -> Vec<CdiDevice> {
        let device = |kind: &String| CdiDevice { name: format!("{kind}={}", card.uuid) };
        [&self.nvidia_kind, &self.own_kind].map(device).into()
    }
}

/// The environment that names the card.
pub fn env_of(card: &Card, visible: &str) -> Vec<(String, String)> {
    let pairs = [
        (VISIBLE_DEVICES, visible.to_owned()),
        (GPU_UUID, card.uuid.to_string()),
        (aliyun::IDX, card.index.to_string()),
        (aliyun::DEV, card.units.to_string()),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

fn amounts(grant: &Grant) -> HashMap<String, String> {
    let request = grant.facts.gpu.as_ref().ok().and_then(Option::as_ref).map(|gpu| &gpu.request);
    let container = grant.ids.len().to_string();
    let pod = request
        .map_or_else(|| container.clone(), |request: &GpuRequest| request.peak().to_string());
    [(aliyun::POD.to_owned(), pod), (aliyun::CONTAINER.to_owned(), container)].into()
}
