//! Polls NVIDIA's CDI specification, reports its problems (as events on the Node, in the metrics, in the log), and publishes which
//! modes of isolation the node can enforce. Restores our own specification if it was deleted.
//!
//! Invariant: an event is written when a problem appears and every half hour while it persists; problems of one kind share an event.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::report::Reported as ReportedIsolation;
use super::support::{Host, IsolationSupport};
use super::{Isolation, Policy};
use crate::cards::Cards;
use crate::container::cdi::SpecFile;
use crate::metrics::{Metrics, ModeLabel, ProblemLabel};
use crate::node_events::NodeEvents;
use crate::nvidia::{CdiLocation, Problem};

/// Time between two checks; a change of the cards triggers a check at once.
const EVERY: Duration = Duration::from_secs(10);
/// Time after which a persisting problem is reported again. The API server keeps events for an hour by default.
const REPEAT_AFTER: Duration = Duration::from_secs(1800);

/// Checks NVIDIA's specification for the cards of this node.
pub struct SpecWatch {
    /// The location of NVIDIA's specification.
    pub location: CdiLocation,
    /// Our own specification; `None` unless `--response=cdi`.
    pub own: Option<Arc<SpecFile>>,
    /// The other inputs of the node's support.
    pub host: Host,
    /// The policy for containers.
    pub policy: Policy,
    /// Publishes the node's support.
    pub support: watch::Sender<Option<IsolationSupport>>,
    /// The cards that NVIDIA's specification must have.
    pub cards: watch::Receiver<Arc<Cards>>,
    /// Writes problems as events.
    pub events: NodeEvents,
    /// Counts problems.
    pub metrics: Metrics,
}

/// The problems that were reported, and when.
#[derive(Debug, Default)]
struct Reported {
    known: BTreeSet<Problem>,
    at: Option<Instant>,
}

impl Reported {
    /// The problems to report at `now`: the new ones, or all of them after half an hour.
    fn due(&mut self, problems: Vec<Problem>, now: Instant) -> Vec<Problem> {
        let problems: BTreeSet<Problem> = problems.into_iter().collect();
        let old = self.at.is_none_or(|at| now.duration_since(at) >= REPEAT_AFTER);
        if old {
            self.at = Some(now);
        }
        let due = problems.iter().filter(|problem| old || !self.known.contains(problem));
        let due = due.cloned().collect();
        self.known = problems;
        due
    }
}

impl SpecWatch {
    /// Checks until the shutdown.
    pub async fn run(mut self, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&mut self) {
        let (mut reported, mut isolation) = (Reported::default(), ReportedIsolation::default());
        loop {
            let cards = self.cards.borrow_and_update().clone();
            let Some((problems, support)) = self.check(cards.clone()).await else { return };
            if !cards.is_empty() {
                self.publish(support, &mut isolation).await;
            }
            self.count(&problems);
            let had = !reported.known.is_empty();
            if had && problems.is_empty() {
                tracing::info!("NVIDIA's CDI specification has every card now");
            }
            self.report(&reported.due(problems, Instant::now())).await;
            tokio::select! {
                changed = self.cards.changed() => if changed.is_err() { return },
                () = sleep(EVERY) => {}
            }
        }
    }

    /// Writes one event for each kind of problem: the API's clients aggregate events of one reason, whatever their text.
    async fn report(&self, problems: &[Problem]) {
        for problem in problems {
            tracing::warn!(problem = problem.label(), "{problem}");
        }
        for label in Problem::LABELS {
            let mut alike = problems.iter().filter(|problem| problem.label() == label);
            let Some(first) = alike.next() else { continue };
            let note = match alike.count() {
                0 => first.to_string(),
                more => format!("{first} ({more} more alike in the device plugin's log)"),
            };
            self.events.warn(first.reason(), "CheckCDI", note).await;
        }
    }

    async fn publish(&self, support: IsolationSupport, reported: &mut ReportedIsolation) {
        let decided = self.policy.decide(None, &support);
        for mode in Isolation::ALL {
            let in_force = decided.as_ref().is_ok_and(|decided| decided.isolation == mode);
            let label = ModeLabel { mode: mode.name() };
            self.metrics.isolation.get_or_create(&label).set(in_force.into());
        }
        self.support.send_if_modified(|known| known.replace(support.clone()) != Some(support));
        if let Some(note) = reported.due(decided) {
            self.events.warn("GPUIsolationUnavailable", "CheckIsolation", note).await;
        }
    }

    /// Reads the files, and restores our own, on a thread that may block; `None` if that thread panicked.
    async fn check(&self, cards: Arc<Cards>) -> Option<(Vec<Problem>, IsolationSupport)> {
        let (location, host, own) = (self.location.clone(), self.host.clone(), self.own.clone());
        let look = tokio::task::spawn_blocking(move || {
            // Our file has the cards before they are published. Without published cards it may be the file of an earlier process.
            if let Some(own) = own.filter(|_| !cards.is_empty()) {
                restore(&own);
            }
            let specs = location.specs();
            let problems = if host.by_cdi { location.problems(&specs, &cards) } else { Vec::new() };
            (problems, host.support(&specs, &cards))
        });
        look.await.inspect_err(|error| tracing::error!("NVIDIA's specification: {error}")).ok()
    }

    fn count(&self, problems: &[Problem]) {
        for label in Problem::LABELS {
            let count = problems.iter().filter(|problem| problem.label() == label).count();
            let gauge = self.metrics.cdi_problems.get_or_create(&ProblemLabel { problem: label });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

fn restore(own: &SpecFile) {
    if let Err(error) = own.restore() {
        tracing::warn!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_due_once_and_again_after_half_an_hour() {
        let problem = |card: &str| Problem::CardMissing { kind: "k".into(), card: card.into() };
        let (mut reported, start) = (Reported::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(reported.due(vec![problem("a")], start), [problem("a")]);
        assert_eq!(reported.due(vec![problem("a"), problem("b")], at(10)), [problem("b")]);
        assert!(reported.due(vec![problem("a")], at(20)).is_empty());
        assert_eq!(reported.due(vec![problem("a")], at(1800)), [problem("a")]);
        assert!(reported.due(Vec::new(), at(1810)).is_empty());
        assert_eq!(reported.due(vec![problem("a")], at(1820)), [problem("a")], "it came back");
    }
}
