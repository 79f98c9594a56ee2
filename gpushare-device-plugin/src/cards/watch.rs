//! Follows the cards: opens NVML, polls health, listens for errors, publishes changes.
//!
//! Invariant: cards are prepared (written to the CDI specification) before they are published.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use nvml::{Probe, XidEvent};
use placement::units::{CardId, MiB};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Cards;
use super::inventory::Inventory;
use crate::metrics::{Metrics, OfCard};

/// Pause before NVML is opened again where that failed. Installing a driver takes minutes.
const RETRY: Duration = Duration::from_secs(10);
/// How often the event thread checks whether its receiver still exists.
const TICK: Duration = Duration::from_secs(1);
/// A poll without an answer within this counts as failed.
const HANGS: Duration = Duration::from_secs(30);

/// Opens NVML; called again until it succeeds.
pub type Open = Arc<dyn Fn() -> Result<Arc<dyn Probe>, nvml::Error> + Send + Sync>;

/// Called with cards before they are published; an error's text says why they cannot be used yet.
pub type Prepare = Box<dyn Fn(&Cards) -> Result<(), String> + Send + Sync>;

/// Follows the cards of this node.
pub struct CardWatch {
    /// Opens NVML.
    pub open: Open,
    /// Card memory of one unit.
    pub unit: MiB,
    /// Time between two polls.
    pub every: Duration,
    /// Writes the CDI specification.
    pub prepare: Prepare,
    /// Where changed cards are published.
    pub cards: watch::Sender<Arc<Cards>>,
    /// Where cards are counted.
    pub metrics: Metrics,
}

/// One poll: which cards there are, and which of them answer.
struct Poll {
    cards: Vec<nvml::Card>,
    answers: Vec<(CardId, bool)>,
}

impl CardWatch {
    /// Runs until the shutdown. `found` is called with whether there are cards, and if not, why.
    pub async fn run(self, shutdown: daemon::Shutdown, found: impl Fn(Result<(), String>)) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.watch(found) => {}
        }
    }

    /// A driver that no longer enumerates, as while it is replaced, is opened anew.
    async fn watch(self, found: impl Fn(Result<(), String>)) {
        let mut inventory = Inventory::new(self.unit);
        loop {
            let probe = self.opened(&found).await;
            let why = self.follow(&probe, &mut inventory, &found).await;
            tracing::warn!("NVML does not answer, opening it anew: {why}");
            inventory.enumerated(Vec::new());
            found(self.publish(inventory.cards()));
            sleep(self.every).await;
        }
    }

    async fn opened(&self, found: &impl Fn(Result<(), String>)) -> Arc<dyn Probe> {
        loop {
            let open = self.open.clone();
            match tokio::task::spawn_blocking(move || open()).await {
                Ok(Ok(probe)) => return probe,
                Ok(Err(error)) => found(Err(error.to_string())),
                Err(died) => found(Err(died.to_string())),
            }
            sleep(RETRY).await;
        }
    }

    /// Follows an open driver until it no longer enumerates. Returns why.
    async fn follow(
        &self,
        probe: &Arc<dyn Probe>,
        inventory: &mut Inventory,
        found: &impl Fn(Result<(), String>),
    ) -> String {
        let mut events = listen(probe.clone());
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => match polled(probe).await {
                    Ok(poll) => poll.tell(inventory),
                    Err(why) => return why,
                },
                Some(event) = events.recv() => {
                    let (card, fatal) = (event.uuid.as_deref(), event.is_fatal());
                    tracing::warn!(card, xid = event.xid, fatal, "a card raised an error");
                    inventory.raised(&event);
                }
            }
            found(self.publish(inventory.cards()));
        }
    }

    fn publish(&self, cards: Cards) -> Result<(), String> {
        if **self.cards.borrow() != cards {
            (self.prepare)(&cards)?;
            self.count(&cards);
            self.cards.send_replace(Arc::new(cards));
        }
        let none = "NVML enumerates no card whose memory it can tell";
        if self.cards.borrow().is_empty() { Err(none.to_owned()) } else { Ok(()) }
    }

    fn count(&self, cards: &Cards) {
        for card in cards.iter() {
            let label = OfCard { uuid: card.uuid.to_string() };
            self.metrics.card_healthy.get_or_create(&label).set(card.healthy.into());
            self.metrics.card_units.get_or_create(&label).set(card.units.0.into());
            tracing::info!(card = %card.uuid, model = card.model, units = card.units.0, healthy = card.healthy, "card");
        }
    }
}

impl Poll {
    fn of(probe: &dyn Probe) -> Result<Self, nvml::Error> {
        let cards = probe.cards()?;
        let answer = |card: &nvml::Card| {
            (CardId::from(card.uuid.as_str()), probe.status(&card.uuid).is_ok())
        };
        let answers = cards.iter().map(answer).collect();
        Ok(Self { cards, answers })
    }

    fn tell(self, inventory: &mut Inventory) {
        inventory.enumerated(self.cards);
        for (card, answered) in &self.answers {
            inventory.answered(card, *answered);
        }
    }
}

/// Polls on a thread that may block. One that hangs is left behind; opening NVML anew then waits
/// for as long as the driver hangs, so that no second thread is lost.
async fn polled(probe: &Arc<dyn Probe>) -> Result<Poll, String> {
    let asked = probe.clone();
    let poll = tokio::task::spawn_blocking(move || Poll::of(&*asked));
    match timeout(HANGS, poll).await {
        Ok(Ok(poll)) => poll.map_err(|error| error.to_string()),
        Ok(Err(died)) => Err(died.to_string()),
        Err(_) => Err(format!("no answer within {HANGS:?}")),
    }
}

/// Listens for errors on a thread of its own, since NVML blocks. It ends when the receiver is gone.
fn listen(probe: Arc<dyn Probe>) -> mpsc::UnboundedReceiver<XidEvent> {
    let (events, received) = mpsc::unbounded_channel();
    let observe = move || {
        let mut observe = |event: Option<XidEvent>| {
            let gone = match event {
                Some(event) => events.send(event).is_err(),
                None => events.is_closed(),
            };
            if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if let Err(error) = probe.watch(TICK, &mut observe) {
            tracing::warn!(
                "errors of the cards are not watched, only whether they answer: {error}"
            );
        }
    };
    std::thread::spawn(observe);
    received
}
