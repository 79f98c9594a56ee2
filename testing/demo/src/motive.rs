//! Why a pod is where it is, and what kube-scheduler would have done by itself: read from the decisions of
//! the two schedulers, told in a few words or in more.

use sim::scheduler::{Candidate, Decision, Verdict};

use crate::alone::{Choice, Fault};

/// What an extender's point counts among kube-scheduler's, with the shipped weight.
const POINT: i64 = 30;
/// What the column of a small terminal has room for.
const BRIEF: usize = 28;

/// Why a pod is where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Motive {
    /// Points of 10 by load, and for a GPU pod by how well the card fits.
    own: i64,
    /// The next best node with its points, if there was any other.
    next: Option<(String, i64)>,
    /// Nodes turned away for their load.
    hot: usize,
    /// Nodes with enough GPU memory, but on no one card.
    split: usize,
    daemon: bool,
}

impl Motive {
    /// As decided, if the pod went anywhere.
    pub(crate) fn of(decision: &Decision, daemon: bool) -> Option<Self> {
        let node = decision.outcome.as_ref().ok()?;
        let fits = || decision.candidates.iter().filter(|c| c.verdict == Verdict::Fits);
        let points = |candidate: &Candidate| candidate.extra / POINT;
        let others = fits().filter(|candidate| candidate.node != *node);
        // The first among equals.
        let next = others.rev().max_by_key(|candidate| points(candidate));
        let turned_away = |of: fn(&str) -> bool| {
            let away = |c: &&Candidate| matches!(&c.verdict, Verdict::TurnedAway(why) if of(why));
            decision.candidates.iter().filter(away).count()
        };
        Some(Self {
            own: fits().find(|candidate| candidate.node == *node).map_or(0, points),
            next: next.map(|candidate| (candidate.node.clone(), points(candidate))),
            hot: turned_away(is_about_load),
            split: turned_away(|why| !is_about_load(why)),
            daemon,
        })
    }

    /// In [`BRIEF`] characters at most.
    pub(crate) fn brief(&self) -> String {
        let place = match &self.next {
            _ if self.daemon => return "its DaemonSet's node".to_owned(),
            None => "one left".to_owned(),
            Some((_, next)) => {
                let fuller = if self.next_is_fuller() { " fuller" } else { "" };
                format!("{}/10, next {next}{fuller}", self.own)
            }
        };
        let told = with_others(&place, "; ", &[(self.hot, "hot"), (self.split, "split")]);
        let fits = told.len() <= BRIEF;
        if fits { told } else { with_others(&place, "; ", &[(self.hot + self.split, "out")]) }
    }

    /// In more words.
    pub(crate) fn full(&self) -> String {
        let place = match &self.next {
            _ if self.daemon => {
                return "its DaemonSet's node, which load does not forbid".to_owned();
            }
            None => "the only node left".to_owned(),
            Some((node, next)) => {
                let fuller = if self.next_is_fuller() { " but is fuller" } else { "" };
                format!("{} of 10 points, {node} has {next}{fuller}", self.own)
            }
        };
        let out = [(self.hot, "overloaded"), (self.split, "with no such card")];
        with_others(&place, "; out: ", &out)
    }

    /// Whether the next best has more points of 10. Then kube-scheduler's own have decided, which count as
    /// well: the fewer, the more of a node is requested.
    fn next_is_fuller(&self) -> bool {
        self.next.as_ref().is_some_and(|(_, next)| self.own < *next)
    }
}

fn with_others(place: &str, link: &str, out: &[(usize, &str)]) -> String {
    let out = out.iter().filter(|(count, _)| *count > 0);
    let out: Vec<String> = out.map(|(count, what)| format!("{count} {what}")).collect();
    if out.is_empty() { place.to_owned() } else { format!("{place}{link}{}", out.join(", ")) }
}

/// What kube-scheduler would have done by itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ByDefault {
    Same,
    Nowhere,
    Other(Choice),
}

impl ByDefault {
    pub(crate) fn of(decision: &Decision, choice: Option<&Choice>) -> Self {
        match choice {
            None => Self::Nowhere,
            // A card that is free here need not be there.
            Some(Choice { node, fault: None, .. }) if decision.outcome.as_ref() == Ok(node) => {
                Self::Same
            }
            Some(choice) => Self::Other(choice.clone()),
        }
    }

    /// In 23 characters at most, for the names here.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Same => "the same".to_owned(),
            Self::Nowhere => "nowhere".to_owned(),
            Self::Other(Choice { node, fault: Some(fault), .. }) => {
                format!("{node}: {}", fault.words())
            }
            Self::Other(Choice { node, cpu: Some(cpu), .. }) => {
                format!("{node}, {:.0}% busy", cpu * 100.0)
            }
            Self::Other(Choice { node, .. }) => node.clone(),
        }
    }
}

impl Fault {
    fn words(self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::MemoryFull => "memory full",
            Self::NoCard => "no card fits",
        }
    }
}

fn is_about_load(why: &str) -> bool {
    why.starts_with("Load[")
}

#[cfg(test)]
pub(crate) fn samples() -> (Motive, ByDefault) {
    let next = Some(("cpu-1".to_owned(), 6));
    let motive = Motive { own: 8, next, hot: 2, split: 1, daemon: false };
    let fault = Some(Fault::Overloaded);
    (motive, ByDefault::Other(Choice { node: "cpu-2".to_owned(), cpu: Some(0.9), fault }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(node: &str, verdict: Verdict, points: i64) -> Candidate {
        Candidate { node: node.to_owned(), verdict, score: 0, extra: points * POINT }
    }

    fn decision() -> Decision {
        let no = |why: &str| Verdict::TurnedAway(why.to_owned());
        Decision {
            uid: "u".to_owned(),
            pod: "p".to_owned(),
            outcome: Ok("b".to_owned()),
            candidates: vec![
                candidate("a", Verdict::Fits, 6),
                candidate("b", Verdict::Fits, 8),
                candidate("c", no("Insufficient GPU Memory in one device: asked 8 units"), 0),
                candidate("d", no("Load[cpu_usage_active] is too high: 0.91 > 65.0%"), 0),
                candidate("e", Verdict::NoRoom(vec!["Insufficient cpu".to_owned()]), 0),
            ],
        }
    }

    #[test]
    fn a_motive_names_the_points_and_who_is_out() {
        let motive = Motive::of(&decision(), false).unwrap();
        assert_eq!(motive.brief(), "8/10, next 6; 1 hot, 1 split");
        assert_eq!(
            motive.full(),
            "8 of 10 points, a has 6; out: 1 overloaded, 1 with no such card"
        );
    }

    #[test]
    fn a_next_best_that_was_outdone_by_requests_is_called_fuller() {
        let mut decision = decision();
        // By 8 x 30 + 150 to 9 x 30 + 119.
        decision.candidates[0].extra = 9 * POINT;
        decision.candidates[0].score = 119;
        decision.candidates[1].score = 150;
        let told = |decision: &Decision| {
            let motive = Motive::of(decision, false).unwrap();
            (motive.brief(), motive.full())
        };
        let full = "8 of 10 points, a has 9 but is fuller; out: 1 overloaded, 1 with no such card";
        assert_eq!(told(&decision), ("8/10, next 9 fuller; 2 out".to_owned(), full.to_owned()));
        decision.candidates.remove(2);
        let full = "8 of 10 points, a has 9 but is fuller; out: 1 overloaded";
        assert_eq!(told(&decision), ("8/10, next 9 fuller; 1 hot".to_owned(), full.to_owned()));
    }

    #[test]
    fn few_words_fit_into_their_column_whatever_the_points() {
        for (own, next) in (0..=10).flat_map(|own| (0..=10).map(move |next| (own, next))) {
            let next = Some(("a".to_owned(), next));
            let brief = Motive { own, next, hot: 6, split: 5, daemon: false }.brief();
            assert!(brief.len() <= BRIEF, "{brief}");
        }
    }

    #[test]
    fn the_default_names_what_is_wrong_with_its_choice() {
        let words = |node: &str, fault| {
            let choice = Choice { node: node.to_owned(), cpu: Some(0.3), fault };
            ByDefault::of(&decision(), Some(&choice)).words()
        };
        assert_eq!(words("c", Some(Fault::NoCard)), "c: no card fits");
        assert_eq!(words("d", Some(Fault::Overloaded)), "d: overloaded");
        assert_eq!(words("a", None), "a, 30% busy");
        assert_eq!(words("b", None), "the same");
        assert_eq!(words("b", Some(Fault::NoCard)), "b: no card fits");
        assert_eq!(ByDefault::of(&decision(), None).words(), "nowhere");
    }
}
