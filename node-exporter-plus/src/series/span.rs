//! The length of a window, written as the field writes it: `5m`, `1h`, `1d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A whole number of seconds, minutes, hours or days. It remembers its spelling: `24h` stays `24h`, because the
/// spelling is part of a metric's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    unit: Unit,
    count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Second,
    Minute,
    Hour,
    Day,
}

impl Unit {
    const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::Second => 's',
            Self::Minute => 'm',
            Self::Hour => 'h',
            Self::Day => 'd',
        }
    }

    fn of(letter: &str) -> Option<Self> {
        match letter {
            "s" => Some(Self::Second),
            "m" => Some(Self::Minute),
            "h" => Some(Self::Hour),
            "d" => Some(Self::Day),
            _ => None,
        }
    }
}

impl Span {
    /// The longest window that the series hold.
    pub const DAY: Self = Self { count: 1, unit: Unit::Day };

    /// Whole minutes.
    #[must_use]
    pub const fn minutes(count: u32) -> Self {
        Self { count, unit: Unit::Minute }
    }

    /// Whole hours.
    #[must_use]
    pub const fn hours(count: u32) -> Self {
        Self { count, unit: Unit::Hour }
    }

    /// The span as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.count as u64 * self.unit.seconds())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, self.unit.letter())
    }
}

/// A text that is no window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no window: write it like 30s, 5m, 1h or 1d, at most a day")]
pub struct SpanError(String);

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| SpanError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Span> {
    let (digits, letter) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    // Written in one way only, so that a metric has one name.
    let canonical = !digits.starts_with('0');
    let span = Span { count: digits.parse().ok()?, unit: Unit::of(letter)? };
    (canonical && span.duration() <= Span::DAY.duration()).then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_keeps_its_spelling() {
        for text in ["30s", "5m", "60m", "1h", "24h", "1d", "86400s"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("24h".parse::<Span>().unwrap().duration(), Span::DAY.duration());
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in
            ["", "5", "m", "0m", "05m", "5M", "1.5h", "25h", "2d", "5mm", "4294967296s", "-1m"]
        {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
