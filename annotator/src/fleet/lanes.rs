//! The queues of nodes that wait for a job, and the slots of jobs in flight.
//!
//! A poll of a silent exporter holds its slot until the timeout, hundreds of times longer than a prompt answer. So
//! nodes wait in lanes by the health of their exporter, and each lane has slots of its own. Invariants: a job uses a
//! slot of the lane in which its node waited, so silent and slow exporters do not delay the others; within a lane jobs
//! start in the order in which they became due.

use std::collections::BTreeSet;

use jiff::Timestamp;
use placement::units::NodeName;

/// Slots for new exporters, for each slot for prompt ones. At the start of the program all exporters are new, silent
/// ones included: with 32 × 8 slots and a timeout of 3 s, 1,000 silent exporters delay the
/// others by at most 12 s, once.
const NEW_FACTOR: usize = 8;

/// Slots for silent and slow exporters, for each slot for prompt ones. With 32 × 4 slots and a timeout of 3 s, 5,000
/// silent exporters are polled every 2 minutes, which is the longest back-off.
const SLOW_FACTOR: usize = 4;

/// The lane of a job's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The exporter answered the last poll within a second.
    Prompt,
    /// The exporter was not polled yet.
    New,
    /// The last poll failed, or took longer than a second.
    Slow,
    /// The job only writes: a burst of writes delays no poll.
    Write,
}

/// One lane.
#[derive(Debug, Clone)]
struct Queue {
    lane: Lane,
    /// Nodes by the time at which their job is due.
    waiting: BTreeSet<(Timestamp, NodeName)>,
    in_flight: usize,
    slots: usize,
}

impl Queue {
    fn new(lane: Lane, slots: usize) -> Self {
        Self { lane, waiting: BTreeSet::new(), in_flight: 0, slots }
    }

    /// When the first job is due; `None` while no slot is free.
    fn next(&self) -> Option<Timestamp> {
        let (at, _) = self.waiting.first()?;
        (self.in_flight < self.slots).then_some(*at)
    }
}

/// All lanes.
#[derive(Debug, Clone)]
pub(super) struct Lanes([Queue; 4]);

/// A node's place in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) lane: Lane,
    /// When the job is due.
    pub(super) at: Timestamp,
}

impl Lanes {
    /// Lanes with `slots` for prompt exporters and for writes, and a multiple of it for the others.
    pub(super) fn new(slots: usize) -> Self {
        Self([
            Queue::new(Lane::Prompt, slots),
            Queue::new(Lane::New, slots.saturating_mul(NEW_FACTOR)),
            Queue::new(Lane::Slow, slots.saturating_mul(SLOW_FACTOR)),
            Queue::new(Lane::Write, slots),
        ])
    }

    fn queue(&mut self, lane: Lane) -> &mut Queue {
        let [prompt, new, slow, write] = &mut self.0;
        match lane {
            Lane::Prompt => prompt,
            Lane::New => new,
            Lane::Slow => slow,
            Lane::Write => write,
        }
    }

    /// Puts a node into these places.
    pub(super) fn insert(&mut self, places: &[Place], node: &NodeName) {
        for place in places {
            self.queue(place.lane).waiting.insert((place.at, node.clone()));
        }
    }

    /// Removes a node from these places.
    pub(super) fn remove(&mut self, places: &[Place], node: &NodeName) {
        for place in places {
            self.queue(place.lane).waiting.remove(&(place.at, node.clone()));
        }
    }

    /// When the next job with a free slot is due.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.0.iter().filter_map(Queue::next).min()
    }

    /// Removes and returns the node with the earliest job due at `now`, among lanes with a free slot.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<(Place, NodeName)> {
        let first = |queue: &Queue| Some((queue.next()?, queue.lane));
        let (at, lane) = self.0.iter().filter_map(first).min_by_key(|(at, _)| *at)?;
        if at > now {
            return None;
        }
        let (at, node) = self.queue(lane).waiting.pop_first()?;
        Some((Place { lane, at }, node))
    }

    /// A job takes a slot.
    pub(super) fn start_job(&mut self, lane: Lane) {
        self.queue(lane).in_flight += 1;
    }

    /// A job gives its slot back.
    pub(super) fn end_job(&mut self, lane: Lane) {
        self.queue(lane).in_flight -= 1;
    }

    /// Jobs in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.0.iter().map(|queue| queue.in_flight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(lane: Lane, second: i64) -> Place {
        Place { lane, at: Timestamp::from_second(second).unwrap() }
    }

    #[test]
    fn the_earliest_job_of_any_lane_with_a_free_slot_comes_first() {
        let mut lanes = Lanes::new(1);
        lanes.insert(&[place(Lane::Prompt, 20)], &"prompt".into());
        lanes.insert(&[place(Lane::Prompt, 22)], &"later".into());
        lanes.insert(&[place(Lane::Slow, 21)], &"slow".into());
        let now = Timestamp::from_second(30).unwrap();
        for name in ["prompt", "slow"] {
            let (place, node) = lanes.pop(now).unwrap();
            lanes.start_job(place.lane);
            assert_eq!(node.as_str(), name);
        }
        assert_eq!(lanes.pop(now), None);
        assert_eq!((lanes.next(), lanes.in_flight()), (None, 2));
        lanes.end_job(Lane::Prompt);
        assert_eq!(lanes.next(), Some(place(Lane::Prompt, 22).at));
        assert_eq!(lanes.pop(Timestamp::from_second(21).unwrap()), None);
    }

    #[test]
    fn a_node_that_was_removed_is_not_popped() {
        let mut lanes = Lanes::new(1);
        lanes.insert(&[place(Lane::New, 20)], &"a".into());
        lanes.remove(&[place(Lane::New, 20)], &"a".into());
        assert_eq!((lanes.next(), lanes.pop(Timestamp::MAX)), (None, None));
    }
}
