//! How the run went: a few lines that a newcomer understands, and the exit status.

use std::fmt::Write;

use super::checker::{Checker, Tally};
use super::motive::{ByDefault, Fault};
use super::screen::Picture;
use super::story::Decisions;
use crate::args::Sabotage;

/// How it came to its end.
#[derive(Debug)]
pub(super) enum Ending {
    /// All acts were played.
    Played,
    /// Somebody ended it before that.
    Interrupted,
    /// Nobody looks any more: stdout is closed.
    Unseen(std::io::Error),
    /// Something did not come about, or a program died.
    Failed(anyhow::Error),
}

/// What is to be told in the end.
pub(super) struct Verdict {
    pub(super) ending: Ending,
    /// What the judge found wrong.
    pub(super) complaints: Vec<String>,
    /// Pods that kube-scheduler by itself would have put where load or cards forbid.
    wrong_by_default: (usize, usize),
    containers: usize,
    sabotage: Option<Sabotage>,
}

impl Verdict {
    pub(super) fn new(
        ending: Ending,
        checker: &Checker,
        decisions: &Decisions,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let placed = decisions.values().filter(|decision| decision.outcome.is_ok());
        let faults: Vec<Fault> =
            placed.filter_map(|decision| ByDefault::of(decision, &[]).fault()).collect();
        let cards = faults.iter().filter(|fault| **fault == Fault::NoCard).count();
        Self {
            ending,
            complaints: checker.complaints.clone(),
            wrong_by_default: (faults.len() - cards, cards),
            containers: checker.containers,
            sabotage,
        }
    }

    /// 0 if everything held, 130 where it was interrupted (as shells have it) before there was anything to
    /// hold, else 1.
    pub(super) fn code(&self) -> u8 {
        match (&self.ending, self.complaints.is_empty()) {
            (Ending::Played, true) => 0,
            (Ending::Interrupted, true) => 130,
            _ => 1,
        }
    }

    /// Whether what is left of the run may tell why it failed.
    pub(super) fn needs_a_look(&self) -> bool {
        self.sabotage.is_none()
            && (!self.complaints.is_empty() || matches!(self.ending, Ending::Failed(_)))
    }

    /// For stderr: everything that was wrong.
    pub(super) fn wrongs(&self) -> Vec<String> {
        let ending = match &self.ending {
            Ending::Played => None,
            Ending::Interrupted => Some("interrupted before all acts were played".to_owned()),
            Ending::Unseen(error) => Some(format!("cannot write to stdout: {error}")),
            Ending::Failed(error) => Some(format!("{error:#}")),
        };
        self.complaints.iter().cloned().chain(ending).collect()
    }

    /// The summary.
    pub(super) fn words(&self, picture: &Picture) -> String {
        let tally = &picture.tally;
        let (hot, cards) = self.wrong_by_default;
        let mut words = format!(
            "{} of {} pods ran on {} nodes in {} s, {} waits. kube-scheduler alone would have put {hot}\n\
             on overloaded nodes, and {cards} where no single card fits.\n",
            tally.running,
            tally.pods,
            picture.scene.nodes.len(),
            picture.seconds,
            tally.pending
        );
        let mut line = |good: bool, what: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(words, "  {} {what}", if good { "ok " } else { "BAD" });
        };
        let Tally {
            double_booked_mib: mib, card_mismatches: wrong, hot_node_placements: hot, ..
        } = tally;
        line(*mib == 0, &format!("{mib} MiB of GPU memory promised twice"));
        let of = self.containers;
        line(*wrong == 0, &format!("{wrong} of {of} containers saw another card than was chosen"));
        line(*hot == 0, &format!("{hot} pods put on overloaded nodes"));
        let mark = match self.code() {
            0 => "ok ",
            130 => "-- ",
            _ => "BAD",
        };
        let _ = writeln!(words, "  {mark} {}", self.summed_up());
        words
    }

    fn summed_up(&self) -> &'static str {
        match (self.sabotage, self.code()) {
            (None, 0) => "every invariant held",
            (None, 130) => "interrupted before all acts were played",
            (None, _) => "not everything held: see above",
            (Some(_), 0) => "something was broken on purpose, and nobody noticed",
            (Some(_), 130) => "interrupted before it was seen whether the judge notices",
            (Some(_), _) => "something was broken on purpose, and the judge has noticed",
        }
    }
}
