//! Loads and cards as bars of characters.
//!
//! Filled parts bring their own background; other colours are readable on light and dark terminals. No colour carries
//! what letters and marks do not say as well.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::snapshot::{CardRow, NodeRow};

/// Cells of a load bar.
const BAR: usize = 5;
/// A cell filled to so many eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

pub(super) const PLAIN: Style = Style::new();
pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
pub(super) const WAITING: Style = Style::new().fg(Color::Magenta);
const OVERFULL: Style = Style::new().fg(Color::White).bg(Color::Red);
/// A card's pods alternate between these, so that neighbours can be told apart.
const POD_STYLES: [Style; 2] =
    [Style::new().fg(Color::White).bg(Color::Blue), Style::new().fg(Color::Black).bg(Color::Cyan)];

/// A node's load in twelve cells: a bar and the percentage of the CPU, or of the memory where only that is over its
/// limit. Marks: `!` over the CPU's limit, `M` over the memory's, `?` old readings.
pub(super) fn load(node: &NodeRow) -> Vec<Span<'static>> {
    let only_memory_is_over = node.over.memory && !node.over.cpu;
    let memory = if only_memory_is_over { node.memory } else { None };
    let Some(load) = memory.or(node.cpu) else {
        return vec![Span::styled(format!("{:<12}", "unknown"), DIM)];
    };
    let over = node.over.is_any();
    let mark = match (node.silent, over, memory) {
        (true, ..) => "?",
        (_, true, Some(_)) => "M",
        (_, true, None) => "!",
        _ => " ",
    };
    let (filled, rest) = bar(load);
    vec![
        Span::styled(filled, if over { BAD } else { GOOD }),
        Span::styled(rest, DIM),
        Span::styled(format!("{:>4.0}%{mark} ", load * 100.0), if over { BAD } else { PLAIN }),
    ]
}

/// The filled and the empty part of a load bar.
fn bar(load: f64) -> (String, String) {
    let eighths = ((load * (BAR * 8) as f64).round() as usize).min(BAR * 8);
    let full = eighths / 8;
    let part = eighths % 8;
    let cells = full + usize::from(part > 0);
    (format!("{}{}", "█".repeat(full), EIGHTHS[part]), "·".repeat(BAR - cells))
}

/// A card, one cell a unit: its pod's letter, or a dot where it is free. Dim where the device plugin is missing.
pub(super) fn card(card: &CardRow, plugin_missing: bool) -> Vec<Span<'static>> {
    let mut spans: Vec<Span<'static>> = Vec::new();
    for (index, (letter, units)) in card.pods.iter().enumerate() {
        let style = if card.used() > card.units {
            OVERFULL
        } else if plugin_missing {
            DIM
        } else {
            POD_STYLES[index % POD_STYLES.len()]
        };
        spans.push(Span::styled(letter.to_string().repeat(cells(*units)), style));
    }
    let free = card.units.saturating_sub(card.used());
    spans.push(Span::styled("·".repeat(cells(free)), DIM));
    spans
}

fn cells(units: u64) -> usize {
    usize::try_from(units).unwrap_or(0)
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
