//! Watches the cards: opens NVML, polls health, receives errors, publishes changes.
//!
//! Invariant: cards are prepared (written to the CDI specification) before they are published.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml::{Probe, Status};
use placement::units::CardId;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::errors::{ErrorWatches, Event};
use super::inventory::Inventory;
use super::sizing::Sizing;
use super::{Card, Cards};
use crate::metrics::{ErrorOfCard, Metrics, OfCard};

/// The longest pause before a failed publication of cards is retried.
const RETRY: Duration = Duration::from_secs(5);
/// Pause before a failed attempt to open NVML is retried. Installing a driver takes minutes.
const REOPEN_PAUSE: Duration = Duration::from_secs(10);
/// Time for one poll of all cards. After it NVML counts as hanging.
const POLL_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens NVML. May block.
pub type Open = Arc<dyn Fn() -> Result<Arc<dyn Probe>, nvml::Error> + Send + Sync>;

/// NVML, while it is open.
pub type OpenNvml = Option<Arc<dyn Probe>>;

/// Called with cards before they are published; the error says why they cannot be used yet.
pub type Prepare = Box<dyn Fn(&Cards) -> Result<(), String> + Send + Sync>;

/// Watches the cards of this node.
pub struct CardWatch {
    /// Opens NVML; called at the start, and again when NVML no longer enumerates.
    pub open: Open,
    /// How many units a card has.
    pub sizing: Sizing,
    /// Time between two polls.
    pub every: Duration,
    /// XIDs that do not make a card unhealthy, in addition to those that applications cause.
    pub ignored_xids: Vec<u64>,
    /// Indexes of cards that take no pods, from the ConfigMap.
    pub unhealthy_indexes: watch::Receiver<BTreeSet<u32>>,
    /// Called before each publication.
    pub prepare: Prepare,
    /// Publishes changed cards.
    pub cards: watch::Sender<Arc<Cards>>,
    /// Publishes NVML while it is open.
    pub probe: watch::Sender<OpenNvml>,
    /// Metrics of the cards.
    pub metrics: Metrics,
}

/// One poll: the cards that the driver enumerates, and the status of each.
struct Poll {
    driver: Option<String>,
    cards: Vec<nvml::Card>,
    answers: Vec<(CardId, Option<Status>)>,
}

impl CardWatch {
    /// Runs until the shutdown. Calls `found` after each poll: `Ok` if there are cards, or why there are none.
    pub async fn run(self, shutdown: daemon::Shutdown, found: impl Fn(Result<(), String>)) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.watch(found) => {}
        }
    }

    /// Reopens a driver that no longer enumerates, for example while it is replaced.
    async fn watch(mut self, found: impl Fn(Result<(), String>)) {
        let ignored = std::mem::take(&mut self.ignored_xids);
        let mut inventory = Inventory::new(self.sizing).ignoring(ignored);
        loop {
            let probe = self.open_nvml(&found).await;
            self.probe.send_replace(Some(probe.clone()));
            let why = self.follow(&probe, &mut inventory, &found).await;
            // The library is unloaded once nothing holds it, so the next open loads a new driver's library.
            drop(probe);
            self.probe.send_replace(None);
            tracing::warn!("NVML does not answer, opening it anew: {why}");
            inventory.closed();
            found(self.publish(inventory.cards()));
            sleep(self.every).await;
        }
    }

    async fn open_nvml(&self, found: &impl Fn(Result<(), String>)) -> Arc<dyn Probe> {
        loop {
            let open = self.open.clone();
            match tokio::task::spawn_blocking(move || open()).await {
                Ok(Ok(probe)) => return probe,
                Ok(Err(error)) => found(Err(error.to_string())),
                Err(panicked) => found(Err(panicked.to_string())),
            }
            sleep(REOPEN_PAUSE).await;
        }
    }

    /// Polls an open driver until it no longer enumerates. Returns why.
    async fn follow(
        &self,
        probe: &Arc<dyn Probe>,
        inventory: &mut Inventory,
        found: &impl Fn(Result<(), String>),
    ) -> String {
        let mut errors = ErrorWatches::new(probe.clone());
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut indexes = self.unhealthy_indexes.clone();
        indexes.mark_changed();
        loop {
            tokio::select! {
                // An error means no sender: no ConfigMap is watched.
                Ok(()) = indexes.changed() => inventory.set_unhealthy_indexes(indexes.borrow_and_update().clone()),
                _ = ticks.tick() => match poll_all(probe).await {
                    Ok(poll) => poll.record(inventory, &mut errors),
                    Err(why) => return why,
                },
                (card, event) = errors.next() => self.record(&card, event, inventory),
            }
            let published = self.publish(inventory.cards());
            if published.is_err() {
                ticks.reset_after(self.every.min(RETRY));
            }
            found(published);
        }
    }

    fn record(&self, card: &CardId, event: Event, inventory: &mut Inventory) {
        match event {
            Event::Raised(xid) => {
                tracing::debug!(%card, "the card raised {xid}");
                let number = xid.number.map_or("unknown".to_owned(), |number| number.to_string());
                let label = ErrorOfCard { uuid: card.to_string(), xid: number };
                self.metrics.card_errors.get_or_create(&label).inc();
                inventory.raised(card, xid, Instant::now());
            }
            Event::Lost => inventory.lost(card),
        }
    }

    fn publish(&self, cards: Cards) -> Result<(), String> {
        let before = self.cards.borrow().clone();
        if *before != cards {
            (self.prepare)(&cards)?;
            cards.iter().for_each(|card| self.record_health(card, before.get(&card.uuid)));
            self.cards.send_replace(Arc::new(cards));
        }
        let none = "NVML enumerates no card whose memory it can tell";
        if self.cards.borrow().is_empty() { Err(none.to_owned()) } else { Ok(()) }
    }

    /// Sets a card's metrics, and logs a change of its health.
    fn record_health(&self, card: &Card, before: Option<&Card>) {
        let label = OfCard { uuid: card.uuid.to_string() };
        self.metrics.card_healthy.get_or_create(&label).set(card.is_healthy().into());
        self.metrics.card_units.get_or_create(&label).set(card.units.0.into());
        let (units, model) = (card.units.0, &card.model);
        match (card.unhealthy, before.map(|before| before.unhealthy)) {
            (now, Some(then)) if now == then => {}
            (Some(why), _) => {
                tracing::warn!(card = %card.uuid, model, units, "the card is unhealthy: {why}")
            }
            (None, _) => tracing::info!(card = %card.uuid, model, units, "the card is healthy"),
        }
    }
}

impl Poll {
    fn of(probe: &dyn Probe) -> Result<Self, nvml::Error> {
        let cards = probe.cards()?;
        let answer =
            |card: &nvml::Card| (CardId::from(card.uuid.as_str()), probe.status(&card.uuid).ok());
        let answers = cards.iter().map(answer).collect();
        Ok(Self { driver: probe.driver(), cards, answers })
    }

    fn record(self, inventory: &mut Inventory, errors: &mut ErrorWatches) {
        inventory.driver(self.driver);
        inventory.enumerated(self.cards);
        for (card, status) in &self.answers {
            match status {
                Some(status) => {
                    errors.start(card);
                    inventory.read(card, status, Instant::now());
                }
                None => inventory.lost(card),
            }
        }
    }
}

/// Polls on a thread that may block. A hanging thread is abandoned. Reopening NVML then hangs as well, so at
/// most one thread is abandoned.
async fn poll_all(probe: &Arc<dyn Probe>) -> Result<Poll, String> {
    let polled = probe.clone();
    let poll = tokio::task::spawn_blocking(move || Poll::of(&*polled));
    match timeout(POLL_TIMEOUT, poll).await {
        Ok(Ok(poll)) => poll.map_err(|error| error.to_string()),
        Ok(Err(panicked)) => Err(panicked.to_string()),
        Err(_) => Err(format!("no answer within {POLL_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use nvml::{Recovery, Scripted, Xid};
    use placement::units::MiB;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::cards::Unhealthy;
    use crate::fixtures::{A, B};

    /// A watch over two cards, polled every millisecond.
    struct Bench {
        probe: Arc<Scripted>,
        cards: watch::Receiver<Arc<Cards>>,
        /// Every list of cards that was published.
        published: Arc<Mutex<Vec<Vec<Option<Unhealthy>>>>>,
        metrics: Metrics,
        task: JoinHandle<()>,
    }

    fn card(uuid: &str, index: u32) -> nvml::Card {
        nvml::Card { uuid: uuid.to_owned(), index, memory_mib: Some(4096), ..nvml::Card::default() }
    }

    impl Bench {
        fn new() -> Self {
            let probe = Arc::new(Scripted::new(vec![card(A, 0), card(B, 1)]));
            let (sender, cards) = watch::channel(Arc::default());
            let (published, metrics) = (Arc::new(Mutex::new(Vec::new())), Metrics::default());
            let (opened, seen) = (probe.clone(), published.clone());
            let watch = CardWatch {
                open: Arc::new(move || Ok(opened.clone() as Arc<dyn Probe>)),
                sizing: Sizing::of_unit(MiB(1024)),
                every: Duration::from_millis(1),
                ignored_xids: Vec::new(),
                unhealthy_indexes: watch::channel(BTreeSet::new()).1,
                prepare: Box::new(move |cards| {
                    let healths = cards.iter().map(|card| card.unhealthy).collect();
                    seen.lock().unwrap().push(healths);
                    Ok(())
                }),
                cards: sender,
                probe: watch::Sender::default(),
                metrics: metrics.clone(),
            };
            let task = tokio::spawn(watch.watch(|_| {}));
            Self { probe, cards, published, metrics, task }
        }

        async fn until(&mut self, healths: [Option<Unhealthy>; 2]) {
            let is = |cards: &Arc<Cards>| cards.iter().map(|card| card.unhealthy).eq(healths);
            timeout(Duration::from_secs(120), self.cards.wait_for(is)).await.unwrap().unwrap();
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    #[tokio::test]
    async fn a_lost_card_is_published_once_and_recovers_while_the_others_stay_healthy() {
        let mut bench = Bench::new();
        bench.until([None, None]).await;
        bench.probe.set_lost(A, true);
        bench.until([Some(Unhealthy::Lost), None]).await;
        // Polls go on for as long as the other card is lost and back.
        bench.probe.set_lost(B, true);
        bench.until([Some(Unhealthy::Lost), Some(Unhealthy::Lost)]).await;
        bench.probe.set_lost(B, false);
        bench.until([Some(Unhealthy::Lost), None]).await;
        bench.probe.set_lost(A, false);
        bench.until([None, None]).await;
        let lost = Some(Unhealthy::Lost);
        let all = [[None, None], [lost, None], [lost, lost], [lost, None], [None, None]];
        assert_eq!(*bench.published.lock().unwrap(), all.map(Vec::from));
    }

    #[tokio::test]
    async fn errors_reach_their_card_also_after_it_was_lost() {
        let mut bench = Bench::new();
        bench.until([None, None]).await;
        bench.probe.set_lost(B, true);
        bench.until([None, Some(Unhealthy::Lost)]).await;
        bench.probe.set_lost(B, false);
        bench.until([None, None]).await;
        let xid = Xid { number: Some(79) };
        bench.probe.raise(B, xid);
        bench.until([None, Some(Unhealthy::Failed(xid))]).await;
        let recovered = Status { recovery: Some(Recovery::Unneeded), ..Status::default() };
        bench.probe.set_status(B, recovered);
        bench.until([None, None]).await;
        let label = ErrorOfCard { uuid: B.to_owned(), xid: "79".to_owned() };
        assert_eq!(bench.metrics.card_errors.get_or_create(&label).get(), 1);
    }

    #[tokio::test]
    async fn each_error_of_a_storm_is_counted() {
        let mut bench = Bench::new();
        bench.until([None, None]).await;
        let xid = Xid { number: Some(31) };
        (0..1000).for_each(|_| bench.probe.raise(A, xid));
        bench.probe.raise(A, Xid { number: Some(79) });
        bench.until([Some(Unhealthy::Failed(Xid { number: Some(79) })), None]).await;
        let label = ErrorOfCard { uuid: A.to_owned(), xid: "31".to_owned() };
        assert_eq!(bench.metrics.card_errors.get_or_create(&label).get(), 1000);
    }
}
