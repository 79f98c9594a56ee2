//! Loads and cards as bars.
//!
//! Colours stand on grounds of their own where they fill, and are otherwise such as read on light and dark
//! themes alike; none carries what letters and marks do not say.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use crate::loads::LIMIT;
use crate::story::{CardLine, NodeLine};

/// Cells of a load bar.
const BAR: usize = 5;
/// Parts of a cell, in eighths.
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

pub(crate) const PLAIN: Style = Style::new();
pub(crate) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
pub(crate) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
pub(crate) const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
pub(crate) const GOOD: Style = Style::new().fg(Color::Green);
pub(crate) const WAITING: Style = Style::new().fg(Color::Magenta);
const OVERFULL: Style = Style::new().fg(Color::White).bg(Color::Red);
/// Pods on a card take turns, so that neighbours can be told apart.
const TURNS: [Style; 2] =
    [Style::new().fg(Color::White).bg(Color::Blue), Style::new().fg(Color::Black).bg(Color::Cyan)];

/// The load of the processors, or of the memory where that is what forbids (`M`), with a mark where it
/// forbids new pods (`!`) and where nothing was heard of late (`?`). Twelve cells.
pub(crate) fn load(node: &NodeLine) -> Vec<Span<'static>> {
    let memory =
        node.memory.filter(|memory| *memory > LIMIT && node.cpu.is_none_or(|cpu| cpu < LIMIT));
    let Some(load) = memory.or(node.cpu) else {
        return vec![Span::styled(format!("{:<12}", "unknown"), FAINT)];
    };
    let over = load > LIMIT;
    let mark = match (node.old, over, memory) {
        (true, ..) => "?",
        (_, true, Some(_)) => "M",
        (_, true, None) => "!",
        _ => " ",
    };
    let (bar, rest) = bar(load);
    vec![
        Span::styled(bar, if over { BAD } else { GOOD }),
        Span::styled(rest, FAINT),
        Span::styled(format!("{:>4.0}%{mark} ", load * 100.0), if over { BAD } else { PLAIN }),
    ]
}

/// What is filled, and what is not.
fn bar(load: f64) -> (String, String) {
    let eighths = ((load * (BAR * 8) as f64).round() as usize).min(BAR * 8);
    let (full, part) = (eighths / 8, eighths % 8);
    let cells = full + usize::from(part > 0);
    (format!("{}{}", "█".repeat(full), PARTS[part]), "·".repeat(BAR - cells))
}

/// A card: each pod's letter once a unit, a dot for each that is free.
pub(crate) fn card(card: &CardLine, away: bool) -> Vec<Span<'static>> {
    let used: u64 = card.pods.iter().map(|(_, units)| units).sum();
    let mut spans: Vec<Span<'static>> = Vec::new();
    for (turn, (letter, units)) in card.pods.iter().enumerate() {
        let run = letter.to_string().repeat(usize::try_from(*units).unwrap_or(0));
        let style = match used > card.units {
            true => OVERFULL,
            false if away => FAINT,
            false => TURNS[turn % TURNS.len()],
        };
        spans.push(Span::styled(run, style));
    }
    let free = card.units.saturating_sub(used);
    spans.push(Span::styled("·".repeat(usize::try_from(free).unwrap_or(0)), FAINT));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_the_load_in_eighths_of_a_cell() {
        let bars = [0.0, 0.3, 0.91, 1.7].map(|load| {
            let (bar, rest) = bar(load);
            bar + &rest
        });
        assert_eq!(bars, ["·····", "█▌···", "████▌", "█████"]);
    }
}
