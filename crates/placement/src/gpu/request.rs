//! What a pod asks of a card.

use crate::units::Units;

/// How a container takes part in its pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs to its end before the next one starts; the kubelet hands its devices on.
    Init,
    /// An init container with `restartPolicy: Always`: keeps running, keeps its devices.
    Sidecar,
    /// An ordinary container.
    App,
}

/// One container's ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAsk {
    /// The container's name, unique in its pod.
    pub name: String,
    /// Its part in the pod's life.
    pub kind: ContainerKind,
    /// Its position within `spec.containers` (or `spec.initContainers`).
    pub position: usize,
    /// Units it asks for; never zero.
    pub units: Units,
}

/// What a pod asks for: its asking containers in the order in which the kubelet admits them, init
/// containers first. Never empty.
///
/// # Examples
///
/// ```
/// use placement::gpu::{ContainerAsk, ContainerKind, GpuRequest};
/// use placement::units::Units;
///
/// let ask = |name: &str, kind, position, units| ContainerAsk {
///     name: name.to_owned(),
///     kind,
///     position,
///     units: Units(units),
/// };
/// let request = GpuRequest::new([
///     ask("main", ContainerKind::App, 0, 2),
///     ask("log", ContainerKind::App, 1, 1),
///     ask("load", ContainerKind::Init, 0, 4),
/// ]);
/// // `load` has ended when `main` and `log` take its units over.
/// assert_eq!(request.map(|request| request.peak()), Some(Units(4)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRequest {
    containers: Vec<ContainerAsk>,
    peak: Units,
}

impl GpuRequest {
    /// The request, or `None` where no container asks for anything.
    pub fn new(containers: impl IntoIterator<Item = ContainerAsk>) -> Option<Self> {
        let asks = containers.into_iter().filter(|ask| !ask.units.is_zero());
        let mut containers: Vec<ContainerAsk> = asks.collect();
        containers.sort_by_key(|ask| (ask.kind == ContainerKind::App, ask.position));
        let peak = peak(&containers);
        (!containers.is_empty()).then_some(Self { containers, peak })
    }

    /// A request of a single ordinary container.
    pub fn single(name: &str, units: Units) -> Option<Self> {
        let kind = ContainerKind::App;
        Self::new([ContainerAsk { name: name.to_owned(), kind, position: 0, units }])
    }

    /// The asking containers, in admission order.
    pub fn containers(&self) -> &[ContainerAsk] {
        &self.containers
    }

    /// The units that the pod holds at most at one time. The kubelet sets them aside for its whole life, and
    /// kube-scheduler counts them.
    pub fn peak(&self) -> Units {
        self.peak
    }
}

/// Init containers run one after another beside the sidecars started before them, then the app containers beside all
/// sidecars.
fn peak(containers: &[ContainerAsk]) -> Units {
    let (mut steady, mut peak) = (Units::ZERO, Units::ZERO);
    for ask in containers {
        if ask.kind == ContainerKind::Init {
            peak = peak.max(steady.saturating_add(ask.units));
        } else {
            steady = steady.saturating_add(ask.units);
        }
    }
    peak.max(steady)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(kind: ContainerKind, position: usize, units: u32) -> ContainerAsk {
        ContainerAsk { name: format!("{kind:?}{position}"), kind, position, units: Units(units) }
    }

    #[test]
    fn app_containers_add_up() {
        let request =
            GpuRequest::new([ask(ContainerKind::App, 0, 3), ask(ContainerKind::App, 1, 2)]);
        assert_eq!(request.unwrap().peak(), Units(5));
    }

    #[test]
    fn an_init_container_shares_what_the_app_takes_over() {
        let request =
            GpuRequest::new([ask(ContainerKind::App, 0, 2), ask(ContainerKind::Init, 0, 4)]);
        assert_eq!(request.unwrap().peak(), Units(4));
    }

    #[test]
    fn a_sidecar_adds_to_every_init_container_after_it() {
        let request = GpuRequest::new([
            ask(ContainerKind::Init, 0, 4),
            ask(ContainerKind::Sidecar, 1, 2),
            ask(ContainerKind::Init, 2, 4),
            ask(ContainerKind::App, 0, 1),
        ]);
        assert_eq!(request.unwrap().peak(), Units(6));
    }

    #[test]
    fn asking_for_nothing_is_no_request() {
        assert_eq!(GpuRequest::new([ask(ContainerKind::App, 0, 0)]), None);
    }

    #[test]
    fn an_absurd_ask_is_capped_rather_than_wrapped() {
        let most = u32::MAX;
        let request =
            GpuRequest::new([ask(ContainerKind::App, 0, most), ask(ContainerKind::App, 1, 2)]);
        assert_eq!(request.unwrap().peak(), Units(most));
    }
}
