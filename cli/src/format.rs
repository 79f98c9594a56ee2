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

/// Seconds as kubectl shows an age, the two largest units: `45s`, `14m`, `3h20m`, `2d4h`.
pub(crate) fn short_duration(seconds: i64) -> String {
    let since = seconds.max(0);
    let [days, hours, minutes] = [since / 86_400, since / 3_600 % 24, since / 60 % 60];
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{since}s"),
        (0, 0, minutes) => format!("{minutes}m"),
        (0, hours, 0) => format!("{hours}h"),
        (0, hours, minutes) => format!("{hours}h{minutes}m"),
        (days, 0, _) => format!("{days}d"),
        (days, hours, _) => format!("{days}d{hours}h"),
    }
}

/// MiB as GiB, whole ones where they are many: `61 GiB`, `0.5 GiB`.
pub(crate) fn gibibytes(mebibytes: u64) -> String {
    let value = mebibytes as f64 / 1024.0;
    if value < 10.0 { format!("{value:.1} GiB") } else { format!("{value:.0} GiB") }
}

/// A text in one line, with what would move a terminal's cursor, change its colours or the order of its letters, or not
/// be seen at all, written as an escape.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_hidden(c) { c.escape_default().to_string() } else { c.into() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Control characters, and those of Unicode's categories Cf, Zl and Zp: marks of direction, joiners, line separators,
/// tags.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0001}'
                | '\u{e0020}'..='\u{e007f}'
        )
}

/// Each line as by [`printable`], joined again.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// The lines that differ, with `-` and `+`.
pub(crate) fn differences(before: &str, after: &str) -> String {
    let [before, after] = [before, after].map(|text| text.lines().collect::<Vec<_>>());
    // How many lines the rests from these two on have in common.
    let mut common = vec![vec![0_u32; after.len() + 1]; before.len() + 1];
    for (i, line) in before.iter().enumerate().rev() {
        for (j, other) in after.iter().enumerate().rev() {
            let skips = common[i + 1][j].max(common[i][j + 1]);
            common[i][j] = if line == other { common[i + 1][j + 1] + 1 } else { skips };
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    loop {
        match (before.get(i), after.get(j)) {
            (None, None) => return text,
            (Some(line), Some(other)) if line == other => (i, j) = (i + 1, j + 1),
            (Some(line), other) if other.is_none() || common[i + 1][j] >= common[i][j + 1] => {
                text += &format!("-{line}\n");
                i += 1;
            }
            (_, other) => {
                text.extend(other.map(|line| format!("+{line}\n")));
                j += 1;
            }
        }
    }
}

/// As `1 node` or `3 nodes`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// A fraction as whole percent: `65%`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

/// A load as percent with tenths, without the sign: `80.4`. At whole percent, one that is a little over its limit looks
/// equal to it.
pub(crate) fn load(fraction: f64) -> String {
    // -0.0 is shown without its sign.
    let percent = (fraction * 1_000.0).round() / 10.0 + 0.0;
    format!("{percent:.1}")
}

/// A limit with the digits that the policy has: `65%`, `82.5%`.
pub(crate) fn limit(fraction: f64) -> String {
    // Further digits are errors of binary fractions.
    let percent = (fraction * 1e8).round() / 1e6;
    format!("{percent}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_that_differ_are_shown() {
        assert_eq!(differences("a\nb\nc\n", "a\nx\ny\nc\n"), "-b\n+x\n+y\n");
        assert_eq!(differences("a\nb\nc\nd\n", "x\na\nb\nd\n"), "+x\n-c\n");
        assert_eq!(differences("a\na\n", "a\n"), "-a\n");
        assert_eq!(differences("", "a\n"), "+a\n");
        assert_eq!(differences("a\n", "a\n"), "");
    }

    #[test]
    fn loads_have_tenths_and_limits_the_digits_of_the_policy() {
        let loads = [0.804, 0.8004, 0.0, -0.0003, -0.3, 1.25].map(load);
        assert_eq!(loads, ["80.4", "80.0", "0.0", "0.0", "-30.0", "125.0"]);
        let limits = [0.8, 0.57, 0.655, 0.12345, 1.1].map(limit);
        assert_eq!(limits, ["80%", "57%", "65.5%", "12.345%", "110%"]);
    }

    #[test]
    fn ages_have_the_two_largest_units() {
        let ages = [45, 840, 12_000, 3_600, 187_200, 172_800].map(short_duration);
        assert_eq!(ages, ["45s", "14m", "3h20m", "1h", "2d4h", "2d"]);
        assert_eq!([61_440, 512, 0].map(gibibytes), ["60 GiB", "0.5 GiB", "0.0 GiB"]);
    }

    #[test]
    fn what_moves_a_terminals_cursor_is_shown_as_an_escape() {
        assert_eq!(printable("NVIDIA A10"), "NVIDIA A10");
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{9b}1m"), "a\\u{1b}[2Jb\\nc\\u{9b}1m");
    }

    #[test]
    fn what_reorders_or_hides_letters_is_shown_as_an_escape() {
        assert_eq!(printable("A10\u{202e}08A"), "A10\\u{202e}08A");
        assert_eq!(
            printable("a\u{200b}b\u{2066}c\u{feff}\u{e0041}"),
            "a\\u{200b}b\\u{2066}c\\u{feff}\\u{e0041}"
        );
        assert_eq!(printable("Grüße, 中文 A\u{301}"), "Grüße, 中文 A\u{301}");
    }
}
