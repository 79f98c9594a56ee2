//! How pods share a GPU: as clients of NVIDIA's MPS, or by turns. The MPS server of a GPU takes turns with each
//! program that is not its client, so a pod without MPS takes the time of all clients together, whatever their shares
//! of the compute. And a GPU serves a limited number of clients: more fail when they start.
//!
//! Invariant: a GPU with pods of one kind takes no pod of the other, and no more clients than it serves. Charges of
//! unknown kind keep no pod off, and count among the clients. A client that is killed with work in flight ends the
//! others on its GPU, so where nothing terminates clients first, none is evicted or moved beside others.

use super::Isolation;

/// How a pod shares a GPU with other pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Its programs are clients of the GPU's MPS server.
    Mps,
    /// Its programs take turns with all others.
    Turns,
}

/// What of a pod decides how it shares GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PodIsolation {
    /// The weakest isolation that it requires.
    pub required: Isolation,
    /// Whether a container of it cannot be a client of MPS. Where the node's own minimum is `mps`, such a container
    /// runs as on a node without MPS.
    pub excludes_mps: bool,
    /// Whether a container of it asks for a part of the compute of GPUs that it shares, which MPS alone enforces.
    pub asks_for_compute: bool,
}

/// What a node reports of the isolation on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct GpuIsolation {
    /// The strongest mode that the node can enforce; `None` if it does not report one.
    pub strongest: Option<Isolation>,
    /// The mode for pods that require none.
    pub minimum: Isolation,
    /// The most clients of MPS that the GPU serves; `None` if the node does not report it: then there is no limit.
    pub mps_clients: Option<u16>,
    /// Whether clients of MPS are terminated before their processes are killed. False where that is not known.
    pub drains_clients: bool,
}

impl GpuIsolation {
    /// How a pod shares the GPU: by the stronger of the mode that it requires and the node's minimum, as the device
    /// plugin decides for its containers.
    pub fn sharing(self, pod: PodIsolation) -> Sharing {
        match pod.required.max(self.minimum) {
            _ if pod.excludes_mps => Sharing::Turns,
            Isolation::Mps if !self.has_driver_alone() => Sharing::Mps,
            // The driver limits its memory, MPS its compute.
            Isolation::Driver if pod.asks_for_compute && self.mps_clients.is_some() => Sharing::Mps,
            Isolation::None | Isolation::Mps | Isolation::Driver => Sharing::Turns,
        }
    }

    /// Whether `driver` is enforced where `mps` is required, since the node cannot do `mps`.
    fn has_driver_alone(self) -> bool {
        self.strongest == Some(Isolation::Driver) && self.mps_clients.is_none()
    }
}

/// The kinds of pods on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Sharers {
    /// None of known kind.
    #[default]
    None,
    /// Of one kind.
    Only(Sharing),
    /// Of both, as where the node's minimum was changed.
    Mixed,
}

impl Sharers {
    /// With a pod beside them.
    #[must_use]
    pub(super) fn and(self, pod: Option<Sharing>) -> Self {
        match (self, pod) {
            (_, None) => self,
            (Self::None, Some(kind)) => Self::Only(kind),
            (Self::Only(kind), Some(other)) if kind == other => self,
            _ => Self::Mixed,
        }
    }

    /// Whether a pod of this kind may join them.
    pub(super) fn admit(self, kind: Sharing) -> bool {
        matches!(self, Self::None) || self == Self::Only(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Isolation = Isolation::None;
    const MPS: Isolation = Isolation::Mps;
    const DRIVER: Isolation = Isolation::Driver;

    fn is_client(required: Isolation, gpu: GpuIsolation) -> bool {
        gpu.sharing(PodIsolation { required, ..PodIsolation::default() }) == Sharing::Mps
    }

    fn gpu(strongest: Isolation, minimum: Isolation, mps_clients: Option<u16>) -> GpuIsolation {
        GpuIsolation { strongest: Some(strongest), minimum, mps_clients, drains_clients: false }
    }

    #[test]
    fn a_pod_is_a_client_of_mps_where_that_is_the_stronger_of_its_mode_and_the_nodes() {
        let by_annotation = gpu(MPS, NONE, Some(48));
        assert_eq!([NONE, MPS].map(|mode| is_client(mode, by_annotation)), [false, true]);
        let by_default = gpu(MPS, MPS, Some(48));
        assert_eq!([NONE, MPS].map(|mode| is_client(mode, by_default)), [true, true]);
        let by_driver = gpu(DRIVER, DRIVER, Some(48));
        assert_eq!(Isolation::ALL.map(|mode| is_client(mode, by_driver)), [false; 3]);
        let both = gpu(DRIVER, NONE, Some(48));
        assert_eq!(Isolation::ALL.map(|mode| is_client(mode, both)), [false, true, false]);
    }

    #[test]
    fn a_part_of_the_compute_makes_a_client_where_the_driver_limits_the_memory() {
        let pod = PodIsolation { required: DRIVER, excludes_mps: false, asks_for_compute: true };
        assert_eq!(gpu(DRIVER, NONE, Some(48)).sharing(pod), Sharing::Mps);
        assert_eq!(gpu(DRIVER, NONE, None).sharing(pod), Sharing::Turns);
        let whole = PodIsolation { asks_for_compute: false, ..pod };
        assert_eq!(gpu(DRIVER, NONE, Some(48)).sharing(whole), Sharing::Turns);
        let by_turns = PodIsolation { required: NONE, ..pod };
        assert_eq!(gpu(DRIVER, NONE, Some(48)).sharing(by_turns), Sharing::Turns);
    }

    #[test]
    fn the_driver_stands_in_for_mps_where_the_node_has_none() {
        assert!(!is_client(MPS, gpu(DRIVER, NONE, None)));
        // A report without a number of clients, by an older device plugin.
        assert!(is_client(MPS, gpu(MPS, NONE, None)));
    }

    #[test]
    fn a_pod_stays_a_client_while_its_daemon_is_down() {
        assert!(is_client(MPS, gpu(NONE, NONE, None)));
    }

    #[test]
    fn a_pod_that_cannot_be_a_client_takes_turns() {
        let pod = PodIsolation { excludes_mps: true, ..PodIsolation::default() };
        assert_eq!(gpu(MPS, MPS, Some(48)).sharing(pod), Sharing::Turns);
    }
}
