//! The run as a plain log, one line an event, for where there is no terminal.

use std::collections::BTreeSet;
use std::io::{self, Write, stdout};

use crate::checker::Tally;
use crate::loads::LIMIT;
use crate::screen::Picture;
use crate::story::{NodeLine, Place, PodLine};

/// What has been told already.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    caption: String,
    told: BTreeSet<(String, &'static str)>,
    tally: Tally,
}

impl Journal {
    /// Prints what is new in a picture.
    ///
    /// # Errors
    /// Where nobody reads it any more.
    pub(crate) fn tell(&mut self, picture: &Picture) -> io::Result<()> {
        let mut out = stdout().lock();
        self.news(picture).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    fn news(&mut self, picture: &Picture) -> Vec<String> {
        let mut lines = Vec::new();
        let at = format!("{:>3} s", picture.seconds);
        if self.caption != picture.caption {
            self.caption.clone_from(&picture.caption);
            lines.push(format!("{at}  == {}", picture.caption));
        }
        let nodes = picture.scene.nodes.iter().flat_map(|node| {
            states(node).into_iter().map(|(state, words)| (&node.name, &node.name, state, words))
        });
        let pods =
            picture.scene.pods.iter().filter_map(|pod| {
                words(pod).map(|(state, words)| (&pod.uid, &pod.name, state, words))
            });
        for (id, name, state, words) in nodes.chain(pods) {
            if self.told.insert((id.clone(), state)) {
                lines.push(format!("{at}  {name:<9} {words}"));
            }
        }
        if !picture.tally.is_clean() && faults(&self.tally) != faults(&picture.tally) {
            let (mib, cards, hot) = faults(&picture.tally);
            lines.push(format!(
                "{at}  !! {mib} MiB double-booked, {cards} wrong cards, {hot} pods on overloaded nodes"
            ));
        }
        self.tally = picture.tally.clone();
        lines
    }
}

fn faults(tally: &Tally) -> (u64, usize, usize) {
    (tally.double_booked_mib, tally.card_mismatches, tally.hot_node_placements)
}

/// What is remarkable about a node. A load that goes up and down is told of once.
fn states(node: &NodeLine) -> Vec<(&'static str, String)> {
    let percent = |load: Option<f64>| load.unwrap_or_default() * 100.0;
    let over = |load: Option<f64>| load.is_some_and(|load| load > LIMIT);
    let all = [
        (over(node.cpu), "cpu", format!("is overloaded: {:.0}% of its CPUs", percent(node.cpu))),
        (
            over(node.memory),
            "mem",
            format!("is overloaded: {:.0}% of its memory", percent(node.memory)),
        ),
        (node.old, "old", "is silent: its last reading is shown".to_owned()),
        (node.plugin_away && node.cpu.is_some(), "away", "has no device plugin".to_owned()),
    ];
    let holds = all.into_iter().filter(|(holds, ..)| *holds);
    holds.map(|(_, state, words)| (state, words)).collect()
}

fn words(pod: &PodLine) -> Option<(&'static str, String)> {
    let amount = if pod.units > 0 { format!(" ({} GiB)", pod.units) } else { String::new() };
    match &pod.place {
        Place::Waits(reason) if reason.is_empty() => None,
        Place::Waits(reason) => Some(("waits", format!("waits{amount}: {reason}"))),
        Place::Failed(reason) => Some(("failed", format!("FAILED{amount}: {reason}"))),
        Place::On { node, card, .. } => {
            let card = card.map_or(String::new(), |card| format!(" card {card}"));
            let (motive, default) = pod.motive.as_ref()?;
            let why = format!("{}; by default {}", motive.full(), default.words());
            Some(("on", format!("-> {node}{card}{amount}: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::motive;
    use crate::story::Scene;

    #[test]
    fn every_event_is_told_once() {
        let place = Place::On { node: "gpu-1".to_owned(), card: Some(1), running: false };
        let pod = PodLine {
            uid: "u".to_owned(),
            name: "train-1".to_owned(),
            letter: 'a',
            units: 12,
            place,
            motive: Some(motive::samples()),
        };
        let node = NodeLine {
            name: "gpu-5".to_owned(),
            cpu: Some(0.7),
            memory: None,
            old: true,
            hot: 0,
            pods: 0,
            cards: Vec::new(),
            plugin_away: true,
        };
        let scene = Scene { nodes: vec![node], pods: vec![pod] };
        let picture =
            Picture { seconds: 3, caption: "Go.".to_owned(), scene, tally: Tally::default() };
        let mut journal = Journal::default();
        let expected = [
            "  3 s  == Go.",
            "  3 s  gpu-5     is overloaded: 70% of its CPUs",
            "  3 s  gpu-5     is silent: its last reading is shown",
            "  3 s  gpu-5     has no device plugin",
            "  3 s  train-1   -> gpu-1 card 1 (12 GiB): 8 of 10 points, cpu-1 has 6; \
             out: 2 overloaded, 1 with no such card; by default cpu-2: overloaded",
        ];
        assert_eq!(journal.news(&picture), expected);
        assert_eq!(journal.news(&picture), Vec::<String>::new());
    }
}
