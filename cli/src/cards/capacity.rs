//! `plimsoll capacity`: how many more pods of a size fit.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use api::state::{Replica, State};
use jiff::Timestamp;
use serde::Serialize;

use super::room::{Asked, Free};
use super::{chosen, short_model, write_doubts};
use crate::args::cards::Capacity;
use crate::cluster_access::Cluster;
use crate::extender;
use crate::output::{refuse_names, write_value};
use crate::table;

/// What fits on the cards of one model, or on all.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Room {
    model: String,
    /// Cards that take pods.
    cards: u64,
    free_units: u64,
    /// How many more pods.
    pods: u64,
    /// The largest size that fits for as many cards.
    largest: u32,
}

/// What is written as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    time: Timestamp,
    /// The replica that answers: another than the leader, or one that has not listed everything yet, does not know all.
    replica: Replica,
    size: u32,
    count: u32,
    cores: u32,
    models: Vec<Room>,
    total: Room,
    /// Cards that are unhealthy, closed, or of a node that takes no GPU pods for a while.
    left_out: u64,
}

/// Tells what fits.
///
/// # Errors
///
/// If the extender does not answer.
pub(crate) fn capacity(flags: &Capacity, output: &mut dyn Write) -> Result<()> {
    refuse_names(flags.format)?;
    let cluster = Cluster::new(&flags.access);
    let state: State = extender::get(&cluster, "/v1/state")?;
    let is_chosen = chosen(flags.selector.as_deref(), &cluster)?;
    let asked = Asked { units: flags.size, cores: flags.cores, count: flags.count };
    let answer = answer(&state, asked, is_chosen);
    if write_value(&answer, flags.format, output)? {
        return Ok(());
    }
    let mut rows: Vec<[String; 5]> = answer.models.iter().map(row).collect();
    rows.push(row(&answer.total));
    table::write(output, ["MODEL", "CARDS", "FREE UNITS", "PODS THAT FIT", "LARGEST SIZE"], &rows)?;
    if answer.left_out > 0 {
        writeln!(output, "\n{} cards take no pods now, and are left out.", answer.left_out)?;
    }
    writeln!(output, "\nBy cards alone: CPU, memory, taints and load may let fewer pods in.")?;
    write_doubts(&state.replica, output)
}

fn row(room: &Room) -> [String; 5] {
    [
        short_model(&room.model).to_owned(),
        room.cards.to_string(),
        room.free_units.to_string(),
        room.pods.to_string(),
        room.largest.to_string(),
    ]
}

fn answer(state: &State, asked: Asked, is_chosen: impl Fn(&str) -> bool) -> Answer {
    let mut models: BTreeMap<&str, Room> = BTreeMap::new();
    let mut total = Room { model: "all".to_owned(), ..Room::default() };
    let mut left_out = 0;
    let mut next = 0;
    for (place, name) in state.nodes.name.iter().enumerate() {
        let count = state.nodes.cards.get(place).copied().unwrap_or_default() as usize;
        let cards = next..next + count;
        next += count;
        if !is_chosen(name) {
            continue;
        }
        let backed_off = state.nodes.backed_off.get(place).copied().unwrap_or_default();
        let mut open: Vec<(&str, Free)> = Vec::new();
        for card in cards {
            match free(state, card) {
                Some(found) if !backed_off => open.push(found),
                _ => left_out += 1,
            }
        }
        let all: Vec<Free> = open.iter().map(|(_, free)| *free).collect();
        total.add(&all, asked);
        for model in &state.models {
            let of_model: Vec<Free> =
                open.iter().filter(|(name, _)| name == model).map(|(_, free)| *free).collect();
            if !of_model.is_empty() {
                let empty = || Room { model: model.clone(), ..Room::default() };
                models.entry(model).or_insert_with(empty).add(&of_model, asked);
            }
        }
    }
    let Asked { units: size, cores, count } = asked;
    Answer {
        time: state.time,
        replica: state.replica.clone(),
        size,
        count,
        cores,
        models: models.into_values().collect(),
        total,
        left_out,
    }
}

/// A card's model, and what it has free; `None` if it takes no pods.
fn free(state: &State, place: usize) -> Option<(&str, Free)> {
    let cards = &state.cards;
    let number = u32::try_from(place).ok()?;
    if cards.unhealthy.contains(&number) || cards.closed.contains(&number) {
        return None;
    }
    let model = usize::try_from(*cards.model.get(place)?).ok()?;
    let units = cards.units.get(place)?.saturating_sub(*cards.held.get(place)?);
    let held_cores = cards.held_cores.get(place).copied().unwrap_or_default();
    let model = state.models.get(model)?;
    Some((model.as_str(), Free { units, cores: 100_u32.saturating_sub(held_cores) }))
}

impl Room {
    /// Adds a node's cards.
    fn add(&mut self, cards: &[Free], asked: Asked) {
        self.cards += cards.len() as u64;
        self.free_units += cards.iter().map(|free| u64::from(free.units)).sum::<u64>();
        self.pods += asked.on_node(cards);
        self.largest = self.largest.max(asked.largest(cards));
    }
}
