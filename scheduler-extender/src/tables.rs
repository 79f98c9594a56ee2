//! The bounded tables that pods of any namespace fill, and the room of each.
//!
//! Invariant: each is a [`SharedTable`], so that no namespace takes the room of others.

use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use placement::shares::SharedTable;
use tokio::sync::Notify;

/// A bounded table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Table {
    /// The last decision about each pod.
    Decisions,
    /// The first request for each pod whose object does not show since when it waits: 3 MiB.
    Waiting,
    /// Pods between Filter and their binding. kube-scheduler has some hundred (478 were measured).
    InFlight,
    /// GPUs that a preemption would free. A plan ends when its pod is bound or deleted.
    Plans,
    /// Back-offs whose event is not written yet. The log has all.
    BackOffs,
    /// Filter's reports for the evictor, until that reads them.
    GpuReports,
    /// Pods for which others may be evicted. Further ones are reported again when kube-scheduler retries them.
    WithoutGpu,
    /// Pods for which others were moved.
    MovedFor,
    /// Pods whose event is not written yet. Metrics count all.
    OverLimits,
    /// Decisions that wait for their comparison with the shadow policy. Metrics count those that are left out.
    ShadowDecisions,
    /// The comparisons with the shadow policy, of some 600 bytes each.
    ShadowSamples,
}

impl Table {
    /// Its room.
    pub(crate) const fn most(self) -> usize {
        match self {
            Self::Decisions | Self::ShadowSamples | Self::MovedFor => 1_000,
            Self::Waiting => 20_000,
            Self::InFlight => 4_096,
            Self::Plans => 1_024,
            Self::BackOffs | Self::ShadowDecisions => 64,
            Self::GpuReports | Self::WithoutGpu | Self::OverLimits => 256,
        }
    }

    /// The table, empty.
    pub(crate) fn empty<K: Clone + Eq + Hash, V>(self) -> SharedTable<K, V> {
        SharedTable::new(self.most())
    }
}

/// A queue from the verbs to one task. Each namespace has a share of its room, and its turn.
#[derive(Debug)]
pub(crate) struct TurnQueue<K, V> {
    table: Mutex<SharedTable<K, V>>,
    added: Notify,
}

impl<K: Clone + Eq + Hash, V> TurnQueue<K, V> {
    pub(crate) fn new(table: Table) -> Self {
        Self { table: Mutex::new(table.empty()), added: Notify::new() }
    }

    /// Adds an item, in place of an earlier one of its key. Returns the replaced or displaced one.
    pub(crate) fn push(&self, namespace: &str, key: K, value: V) -> Option<(K, V)> {
        let lost = self.table().insert(namespace, key, value);
        self.added.notify_one();
        lost
    }

    /// The next item.
    pub(crate) async fn next(&self) -> (K, V) {
        loop {
            if let Some(item) = self.try_next() {
                return item;
            }
            // A permit is there for what was added since.
            self.added.notified().await;
        }
    }

    pub(crate) fn try_next(&self) -> Option<(K, V)> {
        self.table().take_in_turn()
    }

    // Every change is one insert or removal.
    fn table(&self) -> MutexGuard<'_, SharedTable<K, V>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table as the test of all tables sees it.
#[cfg(test)]
pub(crate) trait Tabled {
    /// Adds what a pod of this namespace and name adds.
    fn add(&mut self, namespace: &str, name: &str);

    /// Whether that is there.
    fn has(&self, name: &str) -> bool;
}

#[cfg(test)]
impl<V: Default> Tabled for TurnQueue<String, V> {
    fn add(&mut self, namespace: &str, name: &str) {
        self.push(namespace, name.to_owned(), V::default());
    }

    fn has(&self, name: &str) -> bool {
        self.table().get(&name.to_owned()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::{DecisionLog, WaitingPods};
    use crate::gpu_evictions::{MovedFor, PodsWithoutGpu};
    use crate::shadow::Samples;
    use crate::view::tabled::{BackOffEvents, InFlight, Plans};

    fn tables() -> Vec<(Table, Box<dyn Tabled>)> {
        let queue = |table| -> Box<dyn Tabled> { Box::new(TurnQueue::<String, ()>::new(table)) };
        let mut tables = Vec::new();
        // The first table; the match names the one after each, so that none is forgotten.
        let mut next = Some(Table::Decisions);
        while let Some(table) = next {
            let (tabled, after): (Box<dyn Tabled>, _) = match table {
                Table::Decisions => (Box::new(DecisionLog::default()), Some(Table::Waiting)),
                Table::Waiting => (Box::new(WaitingPods::default()), Some(Table::InFlight)),
                Table::InFlight => (Box::new(InFlight::default()), Some(Table::Plans)),
                Table::Plans => (Box::new(Plans::default()), Some(Table::BackOffs)),
                Table::BackOffs => (Box::new(BackOffEvents::default()), Some(Table::GpuReports)),
                Table::GpuReports => (queue(table), Some(Table::WithoutGpu)),
                Table::WithoutGpu => {
                    (Box::new(PodsWithoutGpu::new(Default::default())), Some(Table::MovedFor))
                }
                Table::MovedFor => (Box::new(MovedFor::default()), Some(Table::OverLimits)),
                Table::OverLimits => (queue(table), Some(Table::ShadowDecisions)),
                Table::ShadowDecisions => (queue(table), Some(Table::ShadowSamples)),
                Table::ShadowSamples => (Box::new(Samples::default()), None),
            };
            tables.push((table, tabled));
            next = after;
        }
        tables
    }

    #[test]
    fn in_every_table_each_namespace_keeps_its_share() {
        for (table, mut tabled) in tables() {
            let most = table.most();
            for at in 0..most + 10 {
                tabled.add("large", &format!("first{at}"));
            }
            let small: Vec<String> = (0..most / 4).map(|at| format!("small{at}")).collect();
            small.iter().for_each(|name| tabled.add("small", name));
            for at in 0..2 * most {
                tabled.add("large", &format!("later{at}"));
            }
            let kept = small.iter().filter(|name| tabled.has(name)).count();
            assert_eq!(kept, small.len(), "{table:?}");
        }
    }

    #[tokio::test]
    async fn the_queue_gives_each_namespace_its_turn() {
        let queue = TurnQueue::new(Table::OverLimits);
        for at in 0..300 {
            queue.push("a", at, ());
        }
        queue.push("b", 1_000, ());
        assert_eq!(queue.next().await.0, 45);
        assert_eq!(queue.next().await.0, 1_000);
        assert_eq!(queue.next().await.0, 46);
    }
}
