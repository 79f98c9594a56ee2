//! One node in full: each metric with its reading, age and window, and each card.

use std::io::Write;

use anyhow::Result;
use api::explain::{
    Basis, Card, CardOutcome, Cards, LimitOutcome, Load, Node, NodeCost, Reading, ReadingStatus,
};
use placement::demand::Demand;

use crate::cards::closed;
use crate::format::{self, duration, printable};
use crate::table::{self, NONE, or_none};

/// Writes all details of the node.
///
/// # Errors
///
/// If `output` cannot be written.
pub(super) fn write(node: &Node, output: &mut dyn Write) -> Result<()> {
    if let Some(load) = &node.load {
        let rows: Vec<_> = Row::all(load).iter().map(Row::cells).collect();
        writeln!(output)?;
        let heading =
            ["METRIC", "READING", "AGE", "IN FLIGHT", "POD", "LIMIT", "OUTCOME", "POINTS"];
        table::write(output, heading, &rows)?;
        for NodeCost { points, text, .. } in &load.costs {
            writeln!(output, "\n{points} points less for {}.", printable(text))?;
        }
    }
    if let Some(cards) = &node.cards {
        let rows: Vec<_> = cards.cards.iter().map(|card| card_row(card, &cards.chosen)).collect();
        writeln!(output, "\nThe pod asks for {}.", asked(cards))?;
        if !rows.is_empty() {
            let heading =
                ["", "CARD", "MODEL", "FREE/UNITS", "UNMANAGED", "FREE COMPUTE", "OUTCOME"];
            table::write(output, heading, &rows)?;
        }
        if let Some(cost) = cards.cost {
            writeln!(
                output,
                "\nOn this node it costs pods that are likely to come {}: room that none of them could use, and places that \
                 those with several cards will need.",
                parts(cost)
            )?;
        }
    }
    if let Some(cost) = node.cost_to_cards {
        writeln!(
            output,
            "\nThe CPU that it takes costs pods that are likely to come {} more than on the cheapest node.",
            parts(cost)
        )?;
    }
    if !node.reasons.is_empty() {
        writeln!(output)?;
        node.reasons
            .iter()
            .try_for_each(|reason| writeln!(output, "Event: {}", printable(reason)))?;
    }
    Ok(())
}

/// Formats millionths of a card.
fn parts(millionths: i64) -> String {
    format!("{:.2} cards", millionths as f64 / 1e6)
}

/// What limit and term of one metric say.
struct Row<'a> {
    metric: &'a str,
    reading: &'a Reading,
    in_flight: Option<f64>,
    pod: Option<f64>,
    limit: Option<(f64, LimitOutcome)>,
    points: Option<f64>,
}

impl<'a> Row<'a> {
    fn all(load: &'a Load) -> Vec<Self> {
        let mut rows: Vec<Self> = load
            .limits
            .iter()
            .map(|limit| Row {
                metric: &limit.metric,
                reading: &limit.reading,
                in_flight: limit.in_flight,
                pod: limit.pod,
                limit: Some((limit.max, limit.outcome)),
                points: None,
            })
            .collect();
        for term in &load.terms {
            match rows.iter_mut().find(|row| row.metric == term.metric) {
                Some(row) => row.points = term.points,
                None => rows.push(Row {
                    metric: &term.metric,
                    reading: &term.reading,
                    in_flight: term.in_flight,
                    pod: term.pod,
                    limit: None,
                    points: term.points,
                }),
            }
        }
        rows
    }

    fn cells(&self) -> [String; 8] {
        let age = self.reading.age_seconds.map(|seconds| duration(seconds as f64));
        [
            self.metric.to_owned(),
            reading(self.reading),
            or_none(age),
            or_none(self.in_flight.map(load)),
            or_none(self.pod.map(load)),
            or_none(self.limit.map(|(max, _)| format::limit(max))),
            or_none(self.limit.map(|(_, outcome)| self.of_limit(outcome).to_owned())),
            or_none(self.points.map(|points| format!("{points:.1}"))),
        ]
    }

    fn of_limit(&self, outcome: LimitOutcome) -> &'static str {
        match outcome {
            LimitOutcome::Met => "met",
            LimitOutcome::MetWithoutPod => "met without the pod",
            LimitOutcome::Exceeded => "exceeded",
            LimitOutcome::Unknown if Demand::of_metric(&self.metric.into()).is_some() => {
                "node's speed not known: passes"
            }
            LimitOutcome::Unknown => "not measured: passes",
            LimitOutcome::UnknownRejected => "not measured: rejected",
            LimitOutcome::Exempt => "exempt",
        }
    }
}

/// As `80.4%`.
fn load(fraction: f64) -> String {
    format!("{}%", format::load(fraction))
}

fn reading(reading: &Reading) -> String {
    let value = reading.value.map_or_else(|| "infinite".to_owned(), load);
    match reading.status {
        ReadingStatus::Fresh => value,
        ReadingStatus::Stale => format!("{value} stale"),
        ReadingStatus::Missing => NONE.to_owned(),
        ReadingStatus::NotFetched => "not fetched".to_owned(),
    }
}

/// As `4 on each of 2 cards that no other pod is on, and 30% of their compute`.
fn asked(cards: &Cards) -> String {
    let count = match cards.count {
        1 => "one card".to_owned(),
        count => format!("each of {count} cards"),
    };
    let alone = if cards.exclusive { " that no other pod is on" } else { "" };
    let cores = match cards.asked_cores {
        0 => String::new(),
        cores if cards.count == 1 => format!(", and {cores}% of its compute"),
        cores => format!(", and {cores}% of their compute"),
    };
    format!("{} on {count}{alone}{cores}", cards.asked)
}

fn card_row(card: &Card, chosen: &[u32]) -> [String; 7] {
    let outcome = match card.outcome {
        CardOutcome::Fits => "fits",
        CardOutcome::TooLittleFree => "too little free",
        CardOutcome::Unhealthy => "unhealthy",
        CardOutcome::Closed => card.closed.map_or("closed", closed),
        CardOutcome::WeakIsolation => "weaker isolation",
        CardOutcome::NotAccepted => "not accepted",
        CardOutcome::TooFewCores => "too little compute",
        CardOutcome::InUse => "in use",
        CardOutcome::BeyondUnits => "beyond units",
        CardOutcome::OtherSharing => "shared in the other way",
        CardOutcome::TooManyClients => "too many MPS clients",
    };
    let mark = if chosen.contains(&card.index) { "*" } else { "" };
    let free = format!("{}/{}", card.free, card.units);
    let index = card.index.to_string();
    let model = card.model.clone();
    let cores = format!("{}%", card.free_cores);
    let unmanaged = card.charges.iter().filter(|charge| charge.basis == Basis::Unmanaged);
    let unmanaged = unmanaged.map(|charge| u64::from(charge.units)).sum::<u64>().to_string();
    [mark.to_owned(), index, model, free, unmanaged, cores, outcome.to_owned()]
}
