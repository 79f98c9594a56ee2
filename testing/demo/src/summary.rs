//! How the run went: a few lines for people, and the exit status.

use std::fmt::Write;

use crate::args::Sabotage;
use crate::baseline::{Choices, Problem};
use crate::checker::{Checker, Counts};
use crate::view::Snapshot;

/// How the run ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// After the whole scenario.
    Complete,
    /// By a signal before that.
    Interrupted,
    /// Stdout was closed.
    StdoutClosed(std::io::Error),
    /// A step of the scenario did not come about, or a program ended by itself.
    Failed(anyhow::Error),
}

/// The outcome of a run.
pub(crate) struct Summary {
    ending: Ending,
    /// What the checker found wrong.
    findings: Vec<String>,
    /// Pods that kube-scheduler by itself would have put on an overloaded node.
    baseline_overloaded: usize,
    /// Pods that it would have put where no single GPU fits.
    baseline_without_gpu: usize,
    checked_containers: usize,
    sabotage: SabotageResult,
    /// Errors of the output files. They fail the run, and say nothing about the cluster.
    pub(crate) file_errors: Vec<String>,
}

/// Whether there was a sabotage, and whether the checker counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SabotageResult {
    NoSabotage,
    Noticed,
    Unnoticed,
}

impl SabotageResult {
    /// A sabotage is noticed by the count that it must raise, and by no other.
    fn of(sabotage: Option<Sabotage>, counts: &Counts) -> Self {
        let noticed = match sabotage {
            None => return Self::NoSabotage,
            Some(Sabotage::Gpu) => counts.gpu_mismatches > 0,
            Some(Sabotage::Hot) => counts.hot_node_placements > 0,
            Some(Sabotage::Ledger) => counts.double_booked_mib > 0,
        };
        if noticed { Self::Noticed } else { Self::Unnoticed }
    }
}

impl Summary {
    pub(crate) fn new(
        ending: Ending,
        checker: &Checker,
        choices: &Choices,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let problems: Vec<Problem> =
            choices.values().flatten().filter_map(|choice| choice.problem).collect();
        let without_gpu = problems.iter().filter(|problem| **problem == Problem::NoGpu).count();
        Self {
            ending,
            findings: checker.findings.clone(),
            baseline_overloaded: problems.len() - without_gpu,
            baseline_without_gpu: without_gpu,
            checked_containers: checker.checked_containers,
            sabotage: SabotageResult::of(sabotage, &checker.counts()),
            file_errors: Vec::new(),
        }
    }

    /// The exit status, errors of output files included.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.outcome_code() {
            0 if !self.file_errors.is_empty() => 1,
            code => code,
        }
    }

    /// 0 if everything held, 130 (128 and SIGINT, as in shells) if the run was interrupted before that was known, else
    /// 1. Never 0 with a sabotage.
    fn outcome_code(&self) -> u8 {
        match (&self.ending, self.findings.is_empty()) {
            (Ending::Complete, true) if self.sabotage == SabotageResult::NoSabotage => 0,
            (Ending::Interrupted, true) => 130,
            _ => 1,
        }
    }

    /// Whether logs and objects are worth keeping: the run failed, and not by a noticed sabotage.
    pub(crate) fn keeps_files(&self) -> bool {
        self.sabotage != SabotageResult::Noticed && self.has_failed()
    }

    fn has_failed(&self) -> bool {
        !self.findings.is_empty() || matches!(self.ending, Ending::Failed(_))
    }

    /// Everything that went wrong, for stderr.
    pub(crate) fn errors(&self) -> Vec<String> {
        let ending = match &self.ending {
            Ending::Complete => None,
            Ending::Interrupted => Some("interrupted before the scenario had ended".to_owned()),
            Ending::StdoutClosed(error) => Some(format!("cannot write to stdout: {error}")),
            Ending::Failed(error) => Some(format!("{error:#}")),
        };
        self.findings.iter().cloned().chain(ending).chain(self.file_errors.clone()).collect()
    }

    /// The lines before the last one.
    pub(crate) fn text(&self, snapshot: &Snapshot) -> String {
        let counts = &snapshot.counts;
        let mut text = format!(
            "{} of {} pods ran on {} nodes in {} s, {} waits. kube-scheduler alone\n\
             would have put {} on overloaded nodes, and {} where no single GPU fits.\n",
            counts.running,
            counts.pods,
            snapshot.nodes.len(),
            snapshot.seconds,
            counts.pending,
            self.baseline_overloaded,
            self.baseline_without_gpu,
        );
        let Counts {
            double_booked_mib: mib, gpu_mismatches: wrong, hot_node_placements: hot, ..
        } = counts;
        line(&mut text, *mib == 0, &format!("{mib} MiB of GPU memory promised twice"));
        let of = self.checked_containers;
        line(
            &mut text,
            *wrong == 0,
            &format!("{wrong} of {of} containers saw another GPU than was chosen"),
        );
        line(&mut text, *hot == 0, &format!("{hot} pods put on overloaded nodes"));
        let mark = match self.outcome_code() {
            0 => "ok ",
            130 => "-- ",
            _ => "BAD",
        };
        let _ = writeln!(text, "  {mark} {}", self.verdict());
        text
    }

    fn verdict(&self) -> &'static str {
        use SabotageResult::{NoSabotage, Noticed, Unnoticed};
        match (self.sabotage, self.outcome_code()) {
            (NoSabotage, 0) => "every invariant held",
            (NoSabotage, 130) => "interrupted before the scenario had ended",
            (NoSabotage, _) => "not everything held: see above",
            (Noticed, _) => "the checker has noticed the sabotage",
            (Unnoticed, 130) => "interrupted before the checker could notice the sabotage",
            (Unnoticed, _) if self.has_failed() => {
                "something other than the sabotage failed: see above"
            }
            (Unnoticed, _) => "the sabotage was not noticed",
        }
    }
}

fn line(text: &mut String, good: bool, what: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {} {what}", if good { "ok " } else { "BAD" });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(ending: Ending, sabotage: SabotageResult, findings: &[&str]) -> Summary {
        Summary {
            ending,
            findings: findings.iter().map(|finding| (*finding).to_owned()).collect(),
            baseline_overloaded: 0,
            baseline_without_gpu: 0,
            checked_containers: 0,
            sabotage,
            file_errors: Vec::new(),
        }
    }

    fn outcome(ending: Ending, sabotage: SabotageResult, findings: &[&str]) -> (u8, &'static str) {
        let summary = summary(ending, sabotage, findings);
        (summary.exit_code(), summary.verdict())
    }

    #[test]
    fn a_sabotage_is_noticed_by_its_own_count_alone() {
        let counts = Counts { gpu_mismatches: 1, ..Counts::default() };
        assert_eq!(SabotageResult::of(Some(Sabotage::Gpu), &counts), SabotageResult::Noticed);
        assert_eq!(SabotageResult::of(Some(Sabotage::Hot), &counts), SabotageResult::Unnoticed);
        assert_eq!(SabotageResult::of(Some(Sabotage::Ledger), &counts), SabotageResult::Unnoticed);
        assert_eq!(SabotageResult::of(None, &counts), SabotageResult::NoSabotage);
    }

    #[test]
    fn a_run_with_something_broken_never_succeeds() {
        use SabotageResult::{NoSabotage, Noticed, Unnoticed};
        let noticed = "the checker has noticed the sabotage";
        let another = "something other than the sabotage failed: see above";
        let unnoticed = "the sabotage was not noticed";
        let failed = Ending::Failed(anyhow::anyhow!("annotator ended by itself"));
        assert_eq!(outcome(Ending::Complete, NoSabotage, &[]), (0, "every invariant held"));
        assert_eq!(
            outcome(Ending::Complete, NoSabotage, &["a"]),
            (1, "not everything held: see above")
        );
        assert_eq!(outcome(Ending::Complete, Noticed, &["a"]), (1, noticed));
        assert_eq!(outcome(Ending::Complete, Unnoticed, &["a"]), (1, another));
        assert_eq!(outcome(failed, Unnoticed, &[]), (1, another));
        assert_eq!(outcome(Ending::Complete, Unnoticed, &[]), (1, unnoticed));
    }

    #[test]
    fn a_file_that_cannot_be_written_fails_the_run_and_is_no_finding() {
        let mut summary = summary(Ending::Complete, SabotageResult::NoSabotage, &[]);
        summary.file_errors.push("no space".to_owned());
        assert_eq!((summary.exit_code(), summary.verdict()), (1, "every invariant held"));
        assert_eq!(summary.errors(), ["no space"]);
    }
}
