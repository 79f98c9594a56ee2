//! The run as a plain log, one line an event, for where there is no terminal.
#![expect(clippy::print_stdout, reason = "the log is this program's answer")]

use std::collections::BTreeSet;

use super::checker::Tally;
use super::screen::Picture;
use super::story::{Place, PodLine};

/// What has been told already.
#[derive(Debug, Default)]
pub(super) struct Journal {
    caption: String,
    told: BTreeSet<(String, &'static str)>,
    tally: Tally,
}

impl Journal {
    /// Prints what is new in a picture.
    pub(super) fn tell(&mut self, picture: &Picture) {
        for line in self.news(picture) {
            println!("{line}");
        }
    }

    fn news(&mut self, picture: &Picture) -> Vec<String> {
        let mut lines = Vec::new();
        let at = format!("{:>3} s", picture.seconds);
        if self.caption != picture.caption {
            self.caption.clone_from(&picture.caption);
            lines.push(format!("{at}  == {}", picture.caption));
        }
        for pod in &picture.scene.pods {
            if let Some((kind, words)) = words(pod)
                && self.told.insert((pod.uid.clone(), kind))
            {
                lines.push(format!("{at}  {:<9}{words}", pod.name));
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

    /// The last picture's nodes, for a terminal whose screen is gone.
    pub(super) fn last(picture: &Picture) {
        for node in &picture.scene.nodes {
            let cpu = node.cpu.map_or("?".to_owned(), |cpu| format!("{:.0}%", cpu * 100.0));
            let used = node.cards.iter().map(|card| {
                let used: u64 = card.pods.iter().map(|(_, units)| units).sum();
                format!("{used}/{}", card.units)
            });
            let cards = used.collect::<Vec<_>>().join("  ");
            println!("{:<10} cpu {cpu:>4}  pods {:>2}  {cards}", node.name, node.pods);
        }
    }
}

fn faults(tally: &Tally) -> (u64, usize, usize) {
    (tally.double_booked_mib, tally.card_mismatches, tally.hot_node_placements)
}

fn words(pod: &PodLine) -> Option<(&'static str, String)> {
    let amount = if pod.units > 0 { format!(" ({} GiB)", pod.units) } else { String::new() };
    match &pod.place {
        Place::Waits(reason) if reason.is_empty() => None,
        Place::Waits(reason) => Some(("waits", format!("waits{amount}: {reason}"))),
        Place::Failed(reason) => Some(("failed", format!("FAILED{amount}: {reason}"))),
        Place::On { node, card, .. } => {
            let card = card.map_or(String::new(), |card| format!(" card {card}"));
            let why = format!("{}; by default {}", pod.why, pod.by_default);
            (!pod.why.is_empty()).then(|| ("on", format!("-> {node}{card}{amount}: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::story::Scene;

    #[test]
    fn every_event_is_told_once() {
        let place = Place::On { node: "gpu-1".to_owned(), card: Some(1), running: false };
        let pod = PodLine {
            uid: "u".to_owned(),
            name: "train-1".to_owned(),
            units: 12,
            place,
            why: "8/10, next 6".to_owned(),
            by_default: "cpu-2: overloaded".to_owned(),
        };
        let scene = Scene { nodes: Vec::new(), pods: vec![pod] };
        let picture =
            Picture { seconds: 3, caption: "Go.".to_owned(), scene, tally: Tally::default() };
        let mut journal = Journal::default();
        let expected = [
            "  3 s  == Go.",
            "  3 s  train-1  -> gpu-1 card 1 (12 GiB): 8/10, next 6; by default cpu-2: overloaded",
        ];
        assert_eq!(journal.news(&picture), expected);
        assert_eq!(journal.news(&picture), Vec::<String>::new());
    }
}
