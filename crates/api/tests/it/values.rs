//! The values of the golden files.

use api::allocation::Allocation;
use api::cards::{Card, Cards};
use api::claim::Claim;
use api::inspect::{Device, Inspected, Node, Pod};
use api::share::{CardShare, NodeShare};
use placement::units::{CardId, MiB, Units};

pub(crate) fn uuid(index: u32) -> CardId {
    CardId::from(format!("GPU-{index:08x}-0000-0000-0000-000000000000"))
}

pub(crate) fn card(index: u32) -> Card {
    Card {
        uuid: uuid(index),
        index,
        model: "NVIDIA A10".to_owned(),
        memory: MiB(16384),
        units: Units(16),
        numa_node: None,
        healthy: true,
        pods: [].into(),
    }
}

pub(crate) fn cards() -> Cards {
    Cards(vec![
        Card { numa_node: Some(0), pods: [("2f6c".into(), Units(4))].into(), ..card(0) },
        Card { healthy: false, ..card(1) },
    ])
}

pub(crate) fn share() -> NodeShare {
    let unmeasured = |index| CardShare {
        uuid: uuid(index),
        units: Units(16),
        allocated: Units(0),
        used: None,
        utilisation: None,
    };
    let busy = CardShare {
        allocated: Units(7),
        used: Some(MiB(5120)),
        utilisation: Some(0.4),
        ..unmeasured(0)
    };
    NodeShare { time: "2026-11-20T09:00:00Z".parse().unwrap(), cards: vec![busy, unmeasured(1)] }
}

pub(crate) fn claim() -> Claim {
    let on = |units| [(uuid(3), Units(units))].into();
    Claim { containers: [("load".to_owned(), on(4)), ("serve".to_owned(), on(2))].into() }
}

pub(crate) fn allocation() -> Allocation {
    let on = |units| [(3, Units(units))].into();
    Allocation { containers: [(0, on(2)), (2, on(1))].into() }
}

pub(crate) fn inspected() -> Inspected {
    let train = Pod { name: "train".to_owned(), namespace: "default".to_owned(), used: 5 };
    let device = |id, used, pods| Device { id, total: 16, used, pods };
    let devs = vec![device(0, 5, vec![train]), device(1, 0, Vec::new())];
    let node = Node { name: "worker-1".to_owned(), total: 32, used: 5, devs };
    Inspected { nodes: vec![node], error: String::new() }
}
