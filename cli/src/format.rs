//! Quantities as tables show them.

use std::borrow::Cow;

use jiff::SignedDuration;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};

/// Durations as policies write them: `1h30m`.
const DURATION: SpanPrinter =
    SpanPrinter::new().designator(Designator::Compact).spacing(Spacing::None);

/// Seconds as `1h30m`.
pub(crate) fn duration(seconds: f64) -> String {
    let duration = SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX);
    DURATION.duration_to_string(&duration)
}

/// A text in one line, with what would move a terminal's cursor or change its colours written as an escape.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let each = text.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    Cow::Owned(each.collect())
}

/// The same of each line.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// A fraction as whole percent: `65%`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_terminals_cursor_is_shown_as_an_escape() {
        assert_eq!(printable("NVIDIA A10"), "NVIDIA A10");
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{9b}1m"), "a\\u{1b}[2Jb\\nc\\u{9b}1m");
    }
}
