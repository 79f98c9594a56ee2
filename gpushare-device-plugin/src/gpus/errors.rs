//! Watches GPUs for critical errors, each on a thread of its own, since NVML blocks.
//!
//! Invariants: one thread for a GPU at most; the queue is bounded, and a thread waits while it is full;
//! the threads end with the [`ErrorWatches`], within a tick.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml::{Probe, Xid};
use placement::units::GpuId;
use tokio::sync::mpsc;

/// How often a thread checks whether it is still needed.
const TICK: Duration = Duration::from_secs(1);
/// The largest number of errors in the queue.
const QUEUE: usize = 16;

/// A change of a GPU's health.
#[derive(Debug, Clone, Copy)]
pub(super) enum GpuEvent {
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
    sender: mpsc::Sender<(GpuId, Message)>,
    receiver: mpsc::Receiver<(GpuId, Message)>,
    watched: HashSet<GpuId>,
    /// When each GPU answered a poll last.
    answered: HashMap<GpuId, Instant>,
    /// The reason why a GPU that answers is not watched; logged once.
    refused: HashMap<GpuId, String>,
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

    /// Watches `gpu` unless it is watched already. Must be called at each poll, begun at `polled`, for each GPU that
    /// answers, so that an ended watch is restarted.
    pub(super) fn start(&mut self, gpu: &GpuId, polled: Instant) {
        self.answered.insert(gpu.clone(), polled);
        if self.watched.insert(gpu.clone()) {
            let (probe, sender, gpu) = (self.probe.clone(), self.sender.clone(), gpu.clone());
            std::thread::spawn(move || watch(&*probe, &gpu, &sender));
        }
    }

    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> (GpuId, GpuEvent) {
        loop {
            // Never without a message: `self` holds a sender.
            let Some((gpu, message)) = self.receiver.recv().await else {
                std::future::pending::<()>().await;
                continue;
            };
            match message {
                Message::Raised(xid) => return (gpu, GpuEvent::Raised(xid)),
                Message::Ended(nvml::Error::Lost { .. }, at) => {
                    self.watched.remove(&gpu);
                    if !self.has_answered_since(&gpu, at) {
                        return (gpu, GpuEvent::Lost);
                    }
                }
                Message::Ended(error, _) => {
                    self.watched.remove(&gpu);
                    self.refuse(gpu, error.to_string());
                }
            }
        }
    }

    /// On a busy node the message of an ended watch may come late.
    fn has_answered_since(&self, gpu: &GpuId, time: Instant) -> bool {
        self.answered.get(gpu).is_some_and(|polled| *polled > time)
    }

    fn refuse(&mut self, gpu: GpuId, why: String) {
        if self.refused.get(&gpu) != Some(&why) {
            tracing::warn!(%gpu, "errors of this GPU are not watched, only whether it answers: {why}");
            self.refused.insert(gpu, why);
        }
    }
}

fn watch(probe: &dyn Probe, gpu: &GpuId, sender: &mpsc::Sender<(GpuId, Message)>) {
    let watched = probe.watch(gpu.as_str(), TICK, &mut |xid| {
        let needed = match xid {
            Some(xid) => sender.blocking_send((gpu.clone(), Message::Raised(xid))).is_ok(),
            None => !sender.is_closed(),
        };
        if needed { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if let Err(error) = watched {
        // Fails if the receiver is dropped.
        let _ = sender.blocking_send((gpu.clone(), Message::Ended(error, Instant::now())));
    }
}

#[cfg(test)]
mod tests {
    use nvml::Scripted;

    use super::*;
    use crate::fixtures::{A, B};

    #[tokio::test]
    async fn a_gpu_that_has_answered_since_its_watch_ended_is_not_lost() {
        let gpus = [A, B].map(|uuid| nvml::Gpu { uuid: uuid.to_owned(), ..nvml::Gpu::default() });
        let probe = Arc::new(Scripted::new(gpus.to_vec()));
        let (lost, other, start) = (GpuId::from(A), GpuId::from(B), Instant::now());
        probe.set_lost(A, true);
        let mut watches = ErrorWatches::new(probe.clone());
        watches.start(&lost, start);
        assert!(matches!(watches.next().await, (_, GpuEvent::Lost)));
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
        let gpu = nvml::Gpu { uuid: A.to_owned(), ..nvml::Gpu::default() };
        let probe = Arc::new(Scripted::new(vec![gpu]));
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
