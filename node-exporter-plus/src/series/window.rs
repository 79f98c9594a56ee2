//! The length of a window, as metrics' names write it: `5m`, `1h`, `1d`.
//!
//! It is not the grammar of durations in flags and policies (`1m30s`): a window has one unit and one spelling, days
//! included.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A whole number of seconds, minutes, hours or days, at most one day. It keeps its spelling, which is part of a
/// metric's name: `24h` and `1d` are equally long and not equal.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use node_exporter_plus::series::Window;
///
/// let window: Window = "24h".parse()?;
/// assert_eq!((window.duration(), window.to_string()), (Duration::from_secs(86_400), "24h".to_owned()));
/// assert_ne!(window, Window::DAY);
/// assert!("2d".parse::<Window>().is_err());
/// # Ok::<(), node_exporter_plus::series::WindowError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
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

impl Window {
    /// `1d`, the longest window.
    pub const DAY: Self = Self { count: 1, unit: Unit::Day };

    /// So many minutes.
    #[must_use]
    pub const fn minutes(count: u32) -> Self {
        Self { count, unit: Unit::Minute }
    }

    /// So many hours.
    #[must_use]
    pub const fn hours(count: u32) -> Self {
        Self { count, unit: Unit::Hour }
    }

    /// Its length.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.count as u64 * self.unit.seconds())
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, self.unit.letter())
    }
}

/// Why a text is no window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no window: write it like 30s, 5m, 1h or 1d, at most a day")]
pub struct WindowError(String);

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| WindowError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Window> {
    let (digits, letter) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    // No leading zeros, so that a metric has one name.
    let canonical = !digits.starts_with('0');
    let window = Window { count: digits.parse().ok()?, unit: Unit::of(letter)? };
    (canonical && window.duration() <= Window::DAY.duration()).then_some(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_keeps_its_spelling() {
        for text in ["30s", "5m", "60m", "1h", "24h", "1d", "86400s"] {
            assert_eq!(text.parse::<Window>().unwrap().to_string(), text);
        }
        assert_eq!("24h".parse::<Window>().unwrap().duration(), Window::DAY.duration());
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in
            ["", "5", "m", "0m", "05m", "5M", "1.5h", "25h", "2d", "5mm", "4294967296s", "-1m"]
        {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
    }
}
