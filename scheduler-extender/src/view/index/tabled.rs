//! What the index still has, for tests: its bounded tables, and whether any pod is left.

use jiff::Timestamp;
use placement::load::IN_FLIGHT_MAX_AGE;
use placement::resources::Amounts;
use placement::units::NodeName;

use super::Index;
use super::in_flight::InFlightPods;
use crate::tables::Tabled;
use crate::view::fixtures;

impl Index {
    /// Whether nothing of any pod is left.
    pub(crate) fn has_no_pods(&self) -> bool {
        let Self { pods, plans, ending, departures, ended, loads, .. } = self;
        let are_deleted_gone = departures.is_empty() && ended.is_empty() && ending.is_empty();
        let has_entries = !plans.is_empty() || !loads.in_flight.uids().is_empty();
        pods.is_empty() && are_deleted_gone && !has_entries
    }
}

#[derive(Default)]
pub(crate) struct InFlight(InFlightPods);

pub(crate) struct Plans(Index);

pub(crate) struct BackOffEvents(Index);

impl Default for Plans {
    fn default() -> Self {
        Self(fixtures::index())
    }
}

impl Default for BackOffEvents {
    fn default() -> Self {
        Self(fixtures::index())
    }
}

impl Tabled for InFlight {
    fn add(&mut self, namespace: &str, name: &str) {
        let now = Timestamp::UNIX_EPOCH + IN_FLIGHT_MAX_AGE;
        let added = self.0.insert((namespace, &name.into()), &"n".into(), Amounts::default(), now);
        assert!(added.is_ok());
    }

    fn has(&self, name: &str) -> bool {
        self.0.node(&name.into()).is_some()
    }
}

impl Tabled for Plans {
    fn add(&mut self, namespace: &str, name: &str) {
        self.0.plan(namespace, &name.into(), Vec::new());
    }

    fn has(&self, name: &str) -> bool {
        self.0.plans.get(&name.into()).is_some()
    }
}

/// The name is that of the node.
impl Tabled for BackOffEvents {
    fn add(&mut self, namespace: &str, name: &str) {
        for _ in 0..3 {
            self.0.back_offs.failed(&name.into(), namespace, Timestamp::UNIX_EPOCH);
        }
    }

    fn has(&self, name: &str) -> bool {
        let mut begun = self.0.clone();
        begun.take_begun_back_offs().iter().any(|begun| begun.node == NodeName::from(name))
    }
}
