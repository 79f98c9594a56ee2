//! How the run went: a few lines that a newcomer understands, and the exit status.

use std::fmt::Write;

use crate::alone::{Choices, Fault};
use crate::args::Sabotage;
use crate::checker::{Checker, Tally};
use crate::screen::Picture;

/// How it came to its end.
#[derive(Debug)]
pub(crate) enum Ending {
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
pub(crate) struct Verdict {
    pub(crate) ending: Ending,
    /// What the judge found wrong.
    pub(crate) complaints: Vec<String>,
    /// Pods that kube-scheduler by itself would have put where load or cards forbid.
    wrong_by_default: (usize, usize),
    containers: usize,
    sabotage: Sabotaged,
    /// What went wrong beside the run: files that could not be written.
    pub(crate) troubles: Vec<String>,
}

/// Whether something was broken on purpose, and whether that shows in its own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sabotaged {
    No,
    Noticed,
    Unnoticed,
}

impl Sabotaged {
    fn of(sabotage: Option<Sabotage>, tally: &Tally) -> Self {
        let shows = match sabotage {
            None => return Self::No,
            Some(Sabotage::Card) => tally.card_mismatches > 0,
            Some(Sabotage::Hot) => tally.hot_node_placements > 0,
            Some(Sabotage::Ledger) => tally.double_booked_mib > 0,
        };
        if shows { Self::Noticed } else { Self::Unnoticed }
    }
}

impl Verdict {
    pub(crate) fn new(
        ending: Ending,
        checker: &Checker,
        choices: &Choices,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let faults: Vec<Fault> =
            choices.values().flatten().filter_map(|choice| choice.fault).collect();
        let cards = faults.iter().filter(|fault| **fault == Fault::NoCard).count();
        Self {
            ending,
            complaints: checker.complaints.clone(),
            wrong_by_default: (faults.len() - cards, cards),
            containers: checker.containers,
            sabotage: Sabotaged::of(sabotage, &checker.tally()),
            troubles: Vec::new(),
        }
    }

    /// The exit status.
    pub(crate) fn code(&self) -> u8 {
        match self.judged() {
            0 if !self.troubles.is_empty() => 1,
            judged => judged,
        }
    }

    /// 0 if everything held, 130 where it was interrupted (as shells have it) before there was anything to
    /// hold, else 1; never 0 where something was broken on purpose.
    fn judged(&self) -> u8 {
        match (&self.ending, self.complaints.is_empty()) {
            (Ending::Played, true) if self.sabotage == Sabotaged::No => 0,
            (Ending::Interrupted, true) => 130,
            _ => 1,
        }
    }

    /// Whether what is left of the run may tell why it failed.
    pub(crate) fn needs_a_look(&self) -> bool {
        self.sabotage != Sabotaged::Noticed && self.failed()
    }

    fn failed(&self) -> bool {
        !self.complaints.is_empty() || matches!(self.ending, Ending::Failed(_))
    }

    /// For stderr: everything that was wrong.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        let ending = match &self.ending {
            Ending::Played => None,
            Ending::Interrupted => Some("interrupted before all acts were played".to_owned()),
            Ending::Unseen(error) => Some(format!("cannot write to stdout: {error}")),
            Ending::Failed(error) => Some(format!("{error:#}")),
        };
        self.complaints.iter().cloned().chain(ending).chain(self.troubles.clone()).collect()
    }

    /// The summary.
    pub(crate) fn words(&self, picture: &Picture) -> String {
        let tally = &picture.tally;
        let (hot, cards) = self.wrong_by_default;
        let mut words = format!(
            "{} of {} pods ran on {} nodes in {} s, {} waits. kube-scheduler alone\n\
             would have put {hot} on overloaded nodes, and {cards} where no single card fits.\n",
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
        let mark = match self.judged() {
            0 => "ok ",
            130 => "-- ",
            _ => "BAD",
        };
        let _ = writeln!(words, "  {mark} {}", self.summed_up());
        words
    }

    fn summed_up(&self) -> &'static str {
        use Sabotaged::{No, Noticed, Unnoticed};
        match (self.sabotage, self.judged()) {
            (No, 0) => "every invariant held",
            (No, 130) => "interrupted before all acts were played",
            (No, _) => "not everything held: see above",
            (Noticed, _) => "something was broken on purpose, and the judge has noticed",
            (Unnoticed, 130) => "interrupted before it was seen whether the judge notices",
            (Unnoticed, _) if self.failed() => {
                "something was broken on purpose, but what failed is something else: see above"
            }
            (Unnoticed, _) => "something was broken on purpose, and nobody noticed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ending: Ending, sabotage: Sabotaged, complaints: &[&str]) -> Verdict {
        Verdict {
            ending,
            complaints: complaints.iter().map(|words| (*words).to_owned()).collect(),
            wrong_by_default: (0, 0),
            containers: 0,
            sabotage,
            troubles: Vec::new(),
        }
    }

    fn sum(ending: Ending, sabotage: Sabotaged, complaints: &[&str]) -> (u8, &'static str) {
        let verdict = verdict(ending, sabotage, complaints);
        (verdict.code(), verdict.summed_up())
    }

    #[test]
    fn a_sabotage_is_noticed_by_its_own_count_alone() {
        let tally = Tally { card_mismatches: 1, ..Tally::default() };
        let of = |sabotage| Sabotaged::of(sabotage, &tally);
        assert_eq!(of(Some(Sabotage::Card)), Sabotaged::Noticed);
        assert_eq!(of(Some(Sabotage::Hot)), Sabotaged::Unnoticed);
        assert_eq!(of(Some(Sabotage::Ledger)), Sabotaged::Unnoticed);
        assert_eq!(of(None), Sabotaged::No);
    }

    #[test]
    fn a_run_with_something_broken_never_succeeds() {
        use Sabotaged::{No, Noticed, Unnoticed};
        let noticed = "something was broken on purpose, and the judge has noticed";
        let another =
            "something was broken on purpose, but what failed is something else: see above";
        let nobody = "something was broken on purpose, and nobody noticed";
        let failed = || Ending::Failed(anyhow::anyhow!("annotator ended by itself"));
        assert_eq!(sum(Ending::Played, No, &[]), (0, "every invariant held"));
        assert_eq!(sum(Ending::Played, No, &["a"]), (1, "not everything held: see above"));
        assert_eq!(sum(Ending::Played, Noticed, &["a"]), (1, noticed));
        assert_eq!(sum(Ending::Played, Unnoticed, &["a"]), (1, another));
        assert_eq!(sum(failed(), Unnoticed, &[]), (1, another));
        assert_eq!(sum(Ending::Played, Unnoticed, &[]), (1, nobody));
    }

    #[test]
    fn a_file_that_cannot_be_written_fails_the_run_and_not_the_judgement() {
        let mut verdict = verdict(Ending::Played, Sabotaged::No, &[]);
        verdict.troubles.push("no space".to_owned());
        assert_eq!((verdict.code(), verdict.summed_up()), (1, "every invariant held"));
        assert_eq!(verdict.wrongs(), ["no space"]);
    }
}
