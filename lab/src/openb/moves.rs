//! Moves pods so that one that fits nowhere does, by `placement::moves::fewest_moves`.
//!
//! Every pod of the trace may be moved, and starts anew without loss: what is measured is what moves can gain at most.

use std::collections::HashMap;
use std::sync::Arc;

use placement::gpu::{Card, CardIsolation, ChoiceRule, GpuRequest, NodeLedger};
use placement::moves::{MoveNode, NodeIndex, PodNeeds, fewest_moves, fewest_to_leave};
use placement::resources::{PODS, Requests};
use placement::units::{CardId, MiB, NodeName, PodUid, Units};

use super::cluster::{Cards, Node};
use super::departures::Place;
use super::policies::plimsoll::request;
use super::trace::{MOST_CARDS, PodKind, Trace, WHOLE};

/// Nodes for which places elsewhere are looked for, those with the fewest moves first.
const MOST_TRIES: usize = 8;

/// Makes room.
#[derive(Debug)]
pub struct Mover<'t> {
    trace: &'t Trace,
    /// By kind of pod; `None` for one without cards.
    requests: Vec<Option<GpuRequest>>,
    uuids: Vec<CardId>,
    /// Each node as it was last looked at, by its pods then.
    known: HashMap<usize, (Vec<usize>, MoveNode)>,
}

impl<'t> Mover<'t> {
    /// Moves nothing yet.
    pub fn new(trace: &'t Trace) -> Self {
        Self {
            trace,
            requests: trace.kinds.iter().map(|kind| request(kind, &trace.models)).collect(),
            uuids: (0..MOST_CARDS).map(|at| format!("GPU-{at}").into()).collect(),
            known: HashMap::new(),
        }
    }

    /// Moves the fewest pods, `most` of them at most, so that one of this kind fits. Returns how many; `None` where no
    /// moves help, or the pod asks for no card.
    pub fn make_room(
        &mut self,
        nodes: &mut [Node],
        places: &mut HashMap<usize, Place>,
        kind: usize,
        most: usize,
    ) -> Option<usize> {
        let asked = self.requests[kind].clone()?;
        let mut on_node: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for (pod, place) in &*places {
            on_node[place.node].push(*pod);
        }
        on_node.iter_mut().for_each(|pods| pods.sort_unstable());
        let views: Vec<MoveNode> =
            (0..nodes.len()).map(|at| self.view(at, &nodes[at], &on_node[at], places)).collect();
        let wanted = self.needs(PodUid::from("wanted"), kind);
        let mut by_moves: Vec<(usize, usize, Vec<PodNeeds>)> = Vec::new();
        for (at, view) in views.iter().enumerate() {
            if view.cards.accounts().len() < asked.shares().len() {
                continue;
            }
            let on_it = on_node[at].iter();
            let pods: Vec<PodNeeds> =
                on_it.map(|pod| self.needs(uid(*pod), places[pod].kind)).collect();
            let all: Vec<&PodNeeds> = pods.iter().collect();
            match fewest_to_leave(view, &wanted, &all).map(|leaving| leaving.len()) {
                Some(count) if count <= most => by_moves.push((count, at, pods)),
                _ => {}
            }
        }
        by_moves.sort_by_key(|(count, at, _)| (*count, *at));
        let rule = ChoiceRule::default();
        let plans = by_moves.iter().take(MOST_TRIES);
        let plan = plans
            .filter_map(|(_, at, pods)| {
                let pods: Vec<&PodNeeds> = pods.iter().collect();
                fewest_moves(&views, NodeIndex(*at), &wanted, &pods, &rule, |_, _| true)
            })
            .filter(|plan| plan.moves.len() <= most)
            .min_by_key(|plan| plan.moves.len())?;
        for moved in &plan.moves {
            let pod: usize = moved.pod.as_str().parse().ok()?;
            let place = places[&pod];
            nodes[place.node].take_off(&self.trace.kinds[place.kind], place.cards);
        }
        for moved in &plan.moves {
            let pod: usize = moved.pod.as_str().parse().ok()?;
            let cards = moved.choice.iter().flat_map(|choice| &choice.cards);
            let cards: Cards = cards.fold(0, |cards, card| cards | 1 << card.index);
            let place = places.get_mut(&pod)?;
            *place = Place { node: moved.to.0, cards, ..*place };
            nodes[moved.to.0].put(&self.trace.kinds[place.kind], cards);
        }
        Some(plan.moves.len())
    }

    fn needs(&self, uid: PodUid, kind: usize) -> PodNeeds {
        let PodKind { cpu, memory, .. } = &self.trace.kinds[kind];
        let takes = amounts(f64::from(*cpu), f64::from(*memory));
        PodNeeds::new(uid, self.requests[kind].clone(), takes)
    }

    fn view(
        &mut self,
        at: usize,
        node: &Node,
        pods: &[usize],
        places: &HashMap<usize, Place>,
    ) -> MoveNode {
        if let Some((known, view)) = self.known.get(&at)
            && known == pods
        {
            return view.clone();
        }
        let view = self.new_view(at, node, pods, places);
        self.known.insert(at, (pods.to_vec(), view.clone()));
        view
    }

    fn new_view(
        &self,
        at: usize,
        node: &Node,
        pods: &[usize],
        places: &HashMap<usize, Place>,
    ) -> MoveNode {
        let model = self.trace.models.get(usize::from(node.room.model)).map_or("", String::as_str);
        let cards = (0..usize::from(node.room.cards)).map(|index| {
            let on_it = pods.iter().filter(|pod| places[pod].cards >> index & 1 == 1);
            let pods =
                on_it.map(|pod| (uid(*pod), Units(self.trace.kinds[places[pod].kind].milli)));
            Card {
                uuid: self.uuids[index].clone(),
                index: index as u32,
                model: model.into(),
                memory: MiB(1000),
                units: Units(WHOLE),
                numa_node: None,
                healthy: true,
                closed: None,
                isolation: CardIsolation::default(),
                outside_mps: Vec::new(),
                pods: pods.collect(),
            }
        });
        let mut ledger = NodeLedger::default();
        ledger.set_cards(cards.collect());
        ledger.set_cpu(Some(u64::from(node.room.cpu)));
        let mut free = amounts(f64::from(node.room.cpu), f64::from(node.memory));
        // The trace counts no places for pods.
        free.insert(PODS.to_owned(), f64::INFINITY);
        MoveNode {
            name: NodeName::from(format!("{at:05}")),
            cards: Arc::clone(ledger.read()),
            free: Some(free),
        }
    }
}

fn amounts(cpu: f64, memory: f64) -> Requests {
    [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into()
}

fn uid(pod: usize) -> PodUid {
    PodUid::from(pod.to_string())
}
