//! What the probe says of the cards, as lines of text; both directions.
//!
//! ```text
//! 0 GPU-8f2c… 37 512 23028 41 60500      index, UUID, use %, used MiB, total MiB, °C, mW; `-` is not known
//! 1 GPU-77aa… lost                       the card does not answer
//! .                                      the report is whole
//! ```

use std::fmt;

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardReport {
    /// NVML's number.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// What it reads, if it answers.
    pub reading: Option<Reading>,
}

/// What a card reads; what it does not have is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Percent of the time in which a kernel ran.
    pub usage: Option<u64>,
    /// MiB.
    pub used: Option<u64>,
    /// MiB.
    pub total: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u64>,
    /// Milliwatt.
    pub power: Option<u64>,
}

/// The line after the last card.
pub const END: &str = ".";

impl fmt::Display for CardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.index, self.uuid)?;
        let Some(Reading { usage, used, total, temperature, power }) = self.reading else {
            return f.write_str(" lost");
        };
        [usage, used, total, temperature, power].iter().try_for_each(|number| match number {
            Some(number) => write!(f, " {number}"),
            None => f.write_str(" -"),
        })
    }
}

impl CardReport {
    /// Reads a line. None if it is none of ours.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let (index, uuid, reading) = match words[..] {
            [index, uuid, "lost"] => (index, uuid, None),
            [index, uuid, usage, used, total, temperature, power] => {
                let reading = Reading {
                    usage: number(usage)?,
                    used: number(used)?,
                    total: number(total)?,
                    temperature: number(temperature)?,
                    power: number(power)?,
                };
                (index, uuid, Some(reading))
            }
            _ => return None,
        };
        let named = !uuid.is_empty() && uuid.chars().all(|c| c.is_ascii_graphic());
        named.then_some(Self { index: index.parse().ok()?, uuid: uuid.to_owned(), reading })
    }
}

/// The outer `None` is no number, the inner one is not known.
fn number(word: &str) -> Option<Option<u64>> {
    if word == "-" { Some(None) } else { word.parse().ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_as_documented() {
        let reading =
            Reading { usage: Some(37), used: Some(512), total: Some(23_028), ..Reading::default() };
        let card = CardReport { index: 0, uuid: "GPU-8f".to_owned(), reading: Some(reading) };
        assert_eq!(card.to_string(), "0 GPU-8f 37 512 23028 - -");
        let lost = CardReport { index: 1, uuid: "GPU-77".to_owned(), reading: None };
        assert_eq!(lost.to_string(), "1 GPU-77 lost");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(index: u32, uuid in "GPU-[0-9a-f]{1,8}", numbers: Option<[Option<u64>; 5]>) {
            let reading = numbers.map(|[usage, used, total, temperature, power]| {
                Reading { usage, used, total, temperature, power }
            });
            let card = CardReport { index, uuid, reading };
            prop_assert_eq!(CardReport::parse(&card.to_string()), Some(card));
        }

        #[test]
        fn no_line_panics(line in "\\PC{0,80}") {
            let _ = CardReport::parse(&line);
        }
    }
}
