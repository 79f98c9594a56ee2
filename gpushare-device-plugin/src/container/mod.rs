//! What a container is given with its card: by CDI devices, by a mount, or by environment variables.
//!
//! Invariant: what a pod must not override goes into the CDI specification ([`cdi`]), whose
//! environment wins over the pod's own. Variables in the response itself lose to the pod's own.

pub mod cdi;

use std::collections::HashMap;

use clap::ValueEnum;
use placement::names::aliyun;
use placement::units::{MiB, Units};

use crate::cards::Card;
use kubelet_api::v1beta1::{CdiDevice, ContainerAllocateResponse, Mount};

/// Card memory of one unit, in MiB. The kubelet keeps it with the response in its checkpoint, which tells
/// what unit a container's ids were granted with.
pub const UNIT_MIB: &str = "PLIMSOLL_GPU_UNIT_MIB";
/// The variable with the card's UUID, for programs in the container.
pub const GPU_UUID: &str = "PLIMSOLL_GPU_UUID";
/// The variable by which NVIDIA's container runtime is asked for cards.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// NVIDIA's container runtime takes a mount of `/dev/null` below this folder as a request for a card, the
/// last part of the path being the card's UUID, if it is set to (accept-nvidia-visible-devices-as-volume-mounts).
const CARD_REQUESTS: &str = "/var/run/nvidia-container-devices";

/// How a container is given its card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// CDI devices: NVIDIA's for the card itself, ours for the environment. A pod cannot override
    /// these.
    Cdi,
    /// A mount that NVIDIA's container runtime reads, for nodes without CDI. A pod can add cards with a
    /// hostPath volume only.
    Mounts,
    /// NVIDIA_VISIBLE_DEVICES in the environment, for runtimes that read nothing else. A pod's own spec
    /// overrides it.
    Env,
}

/// What one container is given.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a> {
    /// The card of the pod's claim.
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
            Mode::Mounts => {
                response.envs.extend(card_env(share.card, CARD_REQUESTS));
                response.mounts = vec![request_mount(share.card)];
            }
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

fn request_mount(card: &Card) -> Mount {
    Mount {
        container_path: format!("{CARD_REQUESTS}/{}", card.uuid),
        host_path: "/dev/null".to_owned(),
        read_only: true,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, cards};

    fn response(mode: Mode) -> ContainerAllocateResponse {
        let (nvidia_kind, own_kind) = ("nvidia.com/gpu".into(), "plimsoll.dev/gpu-mem".into());
        let responder = Responder { mode, nvidia_kind, own_kind, unit: MiB(1024) };
        let cards = cards(&[(A, 16)]);
        let card = cards.iter().next().unwrap();
        responder.response(Share { card, container: Units(2), pod: Units(3) })
    }

    #[test]
    fn every_response_has_the_amounts() {
        for mode in [Mode::Cdi, Mode::Mounts, Mode::Env] {
            let envs = response(mode).envs;
            let values = [aliyun::CONTAINER, aliyun::POD, UNIT_MIB].map(|name| envs[name].as_str());
            assert_eq!(values, ["2", "3", "1024"], "{mode:?}");
        }
    }

    #[test]
    fn with_cdi_the_card_comes_by_two_devices_and_no_variable() {
        let response = response(Mode::Cdi);
        let names = response.cdi_devices.iter().map(|device| device.name.as_str());
        let expected = [format!("nvidia.com/gpu={A}"), format!("plimsoll.dev/gpu-mem={A}")];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert!(!response.envs.contains_key(VISIBLE_DEVICES) && response.mounts.is_empty());
    }

    #[test]
    fn with_mounts_the_card_comes_by_a_mount_and_the_variable_names_none() {
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
    fn with_env_the_variable_names_the_card() {
        let response = response(Mode::Env);
        assert_eq!((response.mounts, response.cdi_devices), (vec![], vec![]));
        assert_eq!(response.envs[VISIBLE_DEVICES], A);
    }
}
