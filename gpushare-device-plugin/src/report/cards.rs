//! The cards of the node's annotation.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{PodFacts, wire_closed};
use placement::gpu::Isolation;
use placement::units::{CardId, PodUid, Units};

use crate::cards::closed::ClosedCards;
use crate::cards::ids::Ids;
use crate::cards::{Cards, units_of};
use crate::isolation::support::IsolationSupport;
use crate::records::at_peak;

/// The units that are counted for a pod on each card.
pub(super) type PodCharge = (PodUid, BTreeMap<CardId, Units>);

/// The cards for the node's annotation, each with why it takes no new pods, what the node can enforce, and the units
/// that pods hold on it. `pods` hold ids of ours. `others` are the charges of pods that linger, and of pods that hold
/// cards through another plugin's resource.
pub(super) fn report(
    cards: &Cards,
    closed: &ClosedCards,
    support: Option<&IsolationSupport>,
    pods: &[(Arc<PodFacts>, Ids)],
    others: Vec<PodCharge>,
) -> api::cards::Cards {
    let mut charges = others;
    for (facts, ids) in pods {
        let peak = facts.gpu_pod().map(|gpu| gpu.request.peak()).unwrap_or_default();
        charges.push((facts.uid.clone(), at_peak(units_of(ids, cards), peak)));
    }
    let strongest = support.map(IsolationSupport::strongest);
    let mut reported = Vec::new();
    for card in cards.iter() {
        reported.push(api::cards::Card {
            pods: charged_on(&card.uuid, &charges),
            uuid: card.uuid.clone(),
            index: card.index,
            model: card.model.clone(),
            memory: card.memory,
            units: card.units,
            numa_node: card.numa_node,
            healthy: card.is_healthy(),
            closed: closed.of(&card.uuid).map(wire_closed),
            isolation: strongest.map(|(isolation, _)| wire_isolation(isolation)),
            mps_clients: strongest.and_then(|(_, clients)| clients),
            outside_mps: Vec::new(),
            mps_drain: support.and_then(|support| support.drains_clients),
        });
    }
    api::cards::Cards(reported)
}

/// The units that are counted for each pod on one card: the largest of its charges.
fn charged_on(card: &CardId, charges: &[PodCharge]) -> BTreeMap<PodUid, Units> {
    let mut charged: BTreeMap<PodUid, Units> = BTreeMap::new();
    for (pod, cards) in charges {
        if let Some(units) = cards.get(card) {
            let most = charged.entry(pod.clone()).or_default();
            *most = (*most).max(*units);
        }
    }
    charged
}

fn wire_isolation(isolation: Isolation) -> api::cards::Isolation {
    match isolation {
        Isolation::None => api::cards::Isolation::None,
        Isolation::Mps => api::cards::Isolation::Mps,
        Isolation::Driver => api::cards::Isolation::Driver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, cards, ids, simple, with_init};

    /// A pod that holds units of card A.
    fn charge(pod: &str, units: u32) -> PodCharge {
        (PodUid::from(pod), [(CardId::from(A), Units(units))].into())
    }

    #[test]
    fn a_pod_counts_its_peak_on_the_card_of_the_kubelets_record() {
        let pods = [
            (with_init("init", B, 3, 1), ids(["bbbbbbbb-0"])),
            (simple("elsewhere", A, 1), ids(["bbbbbbbb-3"])),
        ];
        let others = vec![charge("gone", 2), charge("whole", 4), charge("whole", 1)];
        let report =
            report(&cards(&[(A, 4), (B, 4)]), &ClosedCards::default(), None, &pods, others).0;
        let others = [("gone".into(), Units(2)), ("whole".into(), Units(4))];
        assert_eq!(report[0].pods, others.into());
        assert_eq!(
            report[1].pods,
            [("init".into(), Units(3)), ("elsewhere".into(), Units(1))].into()
        );
    }
}
