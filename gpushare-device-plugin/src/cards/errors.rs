//! Watches cards for critical errors, each on a thread of its own, since NVML blocks.
//!
//! Invariants: one thread for a card at most; the queue is bounded, and a thread waits while it is full;
//! the threads end with the [`ErrorWatches`], within a tick.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml::{Probe, Xid};
use placement::units::CardId;
use tokio::sync::mpsc;

/// How often a thread checks whether it is still needed.
const TICK: Duration = Duration::from_secs(1);
/// The largest number of errors in the queue.
const QUEUE: usize = 16;

/// A change of a card's health.
#[derive(Debug, Clone, Copy)]
pub(super) enum CardEvent {
    /// It raised this error.
    Raised(Xid),
    /// It does not answer; its watch has ended.
    Lost,
}

enum Message {
    Raised(Xid),
    Ended(nvml::Error, Instant),
}

/// The watches of one opened NVML.
pub(super) struct ErrorWatches {
    probe: Arc<dyn Probe>,
    sender: mpsc::Sender<(CardId, Message)>,
    receiver: mpsc::Receiver<(CardId, Message)>,
    watched: HashSet<CardId>,
    /// When each card answered a poll last.
    answered: HashMap<CardId, Instant>,
    /// The reason why a card that answers is not watched; logged once.
    refused: HashMap<CardId, String>,
}

impl ErrorWatches {
    pub(super) fn new(probe: Arc<dyn Probe>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        Self {
            probe,
            sender,
            receiver,
            watched: HashSet::new(),
            answered: HashMap::new(),
            refused: HashMap::new(),
        }
    }

    /// Watches `card` unless it is watched already. Must be called at each poll, begun at `polled`, for each card that
    /// answers, so that an ended watch is restarted.
    pub(super) fn start(&mut self, card: &CardId, polled: Instant) {
        self.answered.insert(card.clone(), polled);
        if self.watched.insert(card.clone()) {
            let (probe, sender, card) = (self.probe.clone(), self.sender.clone(), card.clone());
            std::thread::spawn(move || watch(&*probe, &card, &sender));
        }
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> (CardId, CardEvent) {
        loop {
            // Never without a message: `self` holds a sender.
            let Some((card, message)) = self.receiver.recv().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match message {
                Message::Raised(xid) => return (card, CardEvent::Raised(xid)),
                Message::Ended(nvml::Error::Lost { .. }, at) => {
                    self.watched.remove(&card);
                    if !self.has_answered_since(&card, at) {
                        return (card, CardEvent::Lost);
                    }
                }
                Message::Ended(error, _) => {
                    self.watched.remove(&card);
                    self.refuse(card, error.to_string());
                }
            }
        }
    }

    /// On a busy node the message of an ended watch may come late.
    fn has_answered_since(&self, card: &CardId, time: Instant) -> bool {
        self.answered.get(card).is_some_and(|polled| *polled > time)
    }

    fn refuse(&mut self, card: CardId, why: String) {
        if self.refused.get(&card) != Some(&why) {
            tracing::warn!(%card, "errors of this card are not watched, only whether it answers: {why}");
            self.refused.insert(card, why);
        }
    }
}

fn watch(probe: &dyn Probe, card: &CardId, sender: &mpsc::Sender<(CardId, Message)>) {
    let watched = probe.watch(card.as_str(), TICK, &mut |xid| {
        let needed = match xid {
            Some(xid) => sender.blocking_send((card.clone(), Message::Raised(xid))).is_ok(),
            None => !sender.is_closed(),
        };
        if needed { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Err(error) = watched {
        // Fails if the receiver is dropped.
        let _ = sender.blocking_send((card.clone(), Message::Ended(error, Instant::now())));
    }
}

#[cfg(test)]
mod tests {
    use nvml::Scripted;

    use super::*;
    use crate::fixtures::{A, B};

    #[tokio::test]
    async fn a_card_that_has_answered_since_its_watch_ended_is_not_lost() {
        let cards =
            [A, B].map(|uuid| nvml::Card { uuid: uuid.to_owned(), ..nvml::Card::default() });
        let probe = Arc::new(Scripted::new(cards.to_vec()));
        let (lost, other, start) = (CardId::from(A), CardId::from(B), Instant::now());
        probe.set_lost(A, true);
        let mut watches = ErrorWatches::new(probe.clone());
        watches.start(&lost, start);
        assert!(matches!(watches.next().await, (_, CardEvent::Lost)));
        // Its second watch ends at once, too, before this poll.
        watches.start(&lost, start + Duration::from_secs(3_600));
        while watches.receiver.is_empty() {
            tokio::task::yield_now().await;
        }
        watches.start(&other, start);
        probe.raise(B, Xid { number: Some(79) });
        assert_eq!(watches.next().await.0, other, "the message before it is passed over");
    }

    #[tokio::test]
    async fn errors_of_a_storm_stay_with_nvml_until_the_queue_has_room() {
        const STORM: usize = 1000;
        let card = nvml::Card { uuid: A.to_owned(), ..nvml::Card::default() };
        let probe = Arc::new(Scripted::new(vec![card]));
        (0..STORM).for_each(|_| probe.raise(A, Xid { number: Some(31) }));
        let mut watches = ErrorWatches::new(probe.clone());
        watches.start(&A.into(), Instant::now());
        for taken in 1..=STORM {
            watches.next().await;
            // One more is with the thread that waits for room.
            let least = STORM.saturating_sub(taken + QUEUE + 1);
            assert!(probe.unobserved(A) >= least, "{taken} taken, {}", probe.unobserved(A));
        }
    }
}
