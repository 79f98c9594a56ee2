//! One frame as SVG, in colours that follow the page's light or dark theme.

use std::fmt::Write;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::frame::{WIDTH, draw};
use super::snapshot::Snapshot;

/// Lines of the frame: more than a small terminal has, so that more pods are shown.
const HEIGHT: u16 = 32;
/// Width and height of a character, in pixels.
const CELL: (u16, u16) = (8, 17);
const MARGIN: u16 = 12;

/// The light theme, then the dark one. The contrast of each colour to its background is at least 4.5, as WCAG's level
/// AA demands of text.
const STYLE: &str = "\
svg { background: #fff; } \
text { font: 13px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre; fill: #1f2328; } \
.bold { font-weight: bold; } .dim { fill: #656d76; } \
.red { fill: #b91c1c; } .green { fill: #15803d; } .magenta { fill: #a21caf; } \
text.on-blue, text.on-red { fill: #fff; } text.on-cyan { fill: #000; } \
rect.on-blue { fill: #1d4ed8; } rect.on-cyan { fill: #67d6e0; } rect.on-red { fill: #b91c1c; } \
@media (prefers-color-scheme: dark) { svg { background: #0d1117; } text { fill: #e6edf3; } \
.dim { fill: #8b949e; } .red { fill: #ff7b72; } .green { fill: #7ee787; } .magenta { fill: #d2a8ff; } }";

/// The snapshot's frame as an SVG document.
pub(crate) fn svg(snapshot: &Snapshot) -> String {
    let backend = TestBackend::new(WIDTH, HEIGHT);
    let mut lines = String::new();
    // Drawing into memory cannot fail.
    if let Ok(mut terminal) = Terminal::new(backend)
        && let Ok(frame) = terminal.draw(|frame| draw(frame, snapshot))
    {
        (0..HEIGHT).for_each(|y| line(frame.buffer, y, &mut lines));
    }
    let width = WIDTH * CELL.0 + 2 * MARGIN;
    let height = HEIGHT * CELL.1 + 2 * MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" viewBox=\"0 0 {width} {height}\" width=\"{width}\">\n\
         <style>{STYLE}</style>\n{lines}</svg>\n"
    )
}

/// Appends a line of the frame as runs of equal style. Each run has its own position, so that a font of another width
/// shifts nothing.
fn line(buffer: &Buffer, y: u16, svg: &mut String) {
    let mut x = 0;
    while x < WIDTH {
        let class = class(&buffer[(x, y)]);
        let end = (x..WIDTH).find(|x| self::class(&buffer[(*x, y)]) != class).unwrap_or(WIDTH);
        let run: String = (x..end).map(|x| buffer[(x, y)].symbol()).collect();
        if !run.trim().is_empty() {
            let left = MARGIN + x * CELL.0;
            let base = MARGIN + y * CELL.1 + CELL.1 - 4;
            let length = (end - x) * CELL.0;
            if let Some(background) = background(&buffer[(x, y)]) {
                let top = MARGIN + y * CELL.1 + 1;
                let height = CELL.1 - 2;
                // Writing to a string cannot fail.
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left}\" y=\"{top}\" width=\"{length}\" height=\"{height}\" class=\"{background}\"/>"
                );
            }
            let _ = writeln!(
                svg,
                "<text x=\"{left}\" y=\"{base}\" textLength=\"{length}\" class=\"{class}\">{}</text>",
                escaped(&run)
            );
        }
        x = end;
    }
}

/// The class of a cell's background, where it has one.
fn background(cell: &Cell) -> Option<&'static str> {
    match cell.bg {
        Color::Blue => Some("on-blue"),
        Color::Cyan => Some("on-cyan"),
        Color::Red => Some("on-red"),
        _ => None,
    }
}

/// The classes of a cell's text.
fn class(cell: &Cell) -> String {
    let colour = match cell.fg {
        Color::Red => "red",
        Color::Green => "green",
        Color::Magenta => "magenta",
        _ => "",
    };
    let bold = if cell.modifier.contains(Modifier::BOLD) { "bold" } else { "" };
    let dim = if cell.modifier.contains(Modifier::DIM) { "dim" } else { "" };
    let all = [colour, bold, dim, background(cell).unwrap_or("")].join(" ");
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_their_own_positions_and_markup_is_escaped() {
        let snapshot = Snapshot { caption: "a < b & c".to_owned(), ..Snapshot::default() };
        let svg = svg(&snapshot);
        let expected =
            "<text x=\"12\" y=\"42\" textLength=\"72\" class=\"bold\">a &lt; b &amp; c</text>";
        assert!(svg.contains(expected), "{svg}");
    }
}
