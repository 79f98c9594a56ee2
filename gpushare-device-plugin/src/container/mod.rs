//! What a container is given with its card: by CDI devices, or by environment variables where a node
//! has no CDI.
//!
//! Invariant: what a pod must not override goes into the CDI specification ([`cdi`]), whose
//! environment wins over the pod's own. Variables in the response itself lose to the pod's own.

pub mod cdi;

use std::collections::HashMap;

use clap::ValueEnum;
use placement::names::aliyun;
use placement::units::{MiB, Units};

use crate::cards::Card;
use kubelet_api::v1beta1::{CdiDevice, ContainerAllocateResponse};

/// Card memory of one unit, in MiB. The kubelet keeps it with the response in its checkpoint, which tells
/// what unit a container's ids were granted with.
pub const UNIT_MIB: &str = "PLIMSOLL_GPU_UNIT_MIB";
/// The card's UUID.
pub const GPU_UUID: &str = "PLIMSOLL_GPU_UUID";
/// Read by NVIDIA's container runtime.
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

/// What one container is given.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a> {
    /// The card.
    pub card: &'a Card,
    /// Units of this container.
    pub container: Units,
    /// Units that the whole pod holds at its peak.
    pub pod: Units,
}

/// Builds the kubelet's responses.
#[derive(Debug, Clone)]
pub struct Responder {
    /// How containers are given their cards.
    pub mode: Mode,
    /// Kind of NVIDIA's CDI devices, `nvidia.com/gpu`.
    pub nvidia_kind: String,
    /// Kind of our CDI devices, `plimsoll.dev/gpu-mem`.
    pub own_kind: String,
    /// Card memory of one unit.
    pub unit: MiB,
}

impl Responder {
    /// The response to Allocate for one container.
    pub fn response(&self, share: Share<'_>) -> ContainerAllocateResponse {
        let mut response = ContainerAllocateResponse {
            envs: self.amounts(share),
            ..ContainerAllocateResponse::default()
        };
        match self.mode {
            Mode::Cdi => response.cdi_devices = self.cdi_devices(share.card),
            Mode::Env => response.envs.extend(card_env(share.card, share.card.uuid.as_str())),
        }
        response
    }

    fn amounts(&self, share: Share<'_>) -> HashMap<String, String> {
        let pairs = [
            (aliyun::POD, share.pod.to_string()),
            (aliyun::CONTAINER, share.container.to_string()),
            (UNIT_MIB, self.unit.0.to_string()),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }

    fn cdi_devices(&self, card: &Card) -> Vec<CdiDevice> {
        let device = |kind: &String| CdiDevice { name: format!("{kind}={}", card.uuid) };
        [&self.nvidia_kind, &self.own_kind].map(device).into()
    }
}

/// The variables that name the card; `visible` is the value of [`VISIBLE_DEVICES`].
fn card_env(card: &Card, visible: &str) -> Vec<(String, String)> {
    let pairs = [
        (VISIBLE_DEVICES, visible.to_owned()),
        (GPU_UUID, card.uuid.to_string()),
        (aliyun::IDX, card.index.to_string()),
        (aliyun::DEV, card.units.to_string()),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}
