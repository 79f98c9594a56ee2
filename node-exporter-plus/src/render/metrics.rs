//! Readings in Prometheus's text format 0.0.4, which every scraper reads.

use std::fmt::{self, Write};

use super::Shortest;
use crate::series::{Aggregate, Reading};

/// The readings as gauges, one family for each kind of signal and aggregate, in the order of their names:
///
/// ```text
/// # HELP node_disk_device_usage_avg_5m Time in which the disk was busy, percent: mean of the last 5m
/// # TYPE node_disk_device_usage_avg_5m gauge
/// node_disk_device_usage_avg_5m{device="sda"} 12.5
/// ```
#[must_use]
pub fn metrics(readings: impl Iterator<Item = Reading>) -> String {
    let mut sorted: Vec<Reading> = readings.collect();
    // A family's lines must follow each other.
    sorted.sort_by_key(family);
    let mut text = String::with_capacity(1 << 10);
    for members in sorted.chunk_by(|one, other| family(one) == family(other)) {
        // Writing to a String cannot fail.
        let _ = write_family(&mut text, members);
    }
    text
}

fn family(reading: &Reading) -> (&'static str, Aggregate) {
    (reading.signal.kind().name, reading.aggregate)
}

fn write_family(text: &mut String, members: &[Reading]) -> fmt::Result {
    let Some(first) = members.first() else { return Ok(()) };
    let kind = first.signal.kind();
    let aggregate = first.aggregate;
    let name = format_args!("node_{}_{aggregate}", kind.name);
    writeln!(text, "# HELP {name} {}: {}", capitalised(kind.help), aggregate.description())?;
    writeln!(text, "# TYPE {name} gauge")?;
    for member in members {
        write!(text, "{name}")?;
        if let (Some(label), Some(value)) = (kind.label, member.signal.device()) {
            write!(text, "{{{label}=\"{}\"}}", Escaped(value))?;
        }
        writeln!(text, " {}", Shortest(member.value))?;
    }
    Ok(())
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// A label's value, escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::{Kind, Moment, Signal};
    use std::time::Duration;

    #[test]
    fn nothing_known_is_an_empty_exposition() {
        assert_eq!(metrics(std::iter::empty()), "");
    }

    static MOUNT: Kind = Kind { name: "fs_mountpoint_usage", help: "x", label: Some("mountpoint") };

    #[test]
    fn the_lines_of_a_family_follow_each_other_and_labels_are_escaped() {
        let mut text = Vec::new();
        for mount in ["/b", "/a\"\\\n"] {
            for aggregate in ["active", "avg_5m"] {
                let signal = Signal::of_device(&MOUNT, mount);
                let aggregate = aggregate.parse().unwrap();
                let time = Moment(Duration::ZERO);
                text.push(Reading { signal, aggregate, value: 1.0, coverage: 1.0, time });
            }
        }
        let text = metrics(text.into_iter());
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            r#"node_fs_mountpoint_usage_active{mountpoint="/b"} 1"#,
            r#"node_fs_mountpoint_usage_active{mountpoint="/a\"\\\n"} 1"#,
            r#"node_fs_mountpoint_usage_avg_5m{mountpoint="/b"} 1"#,
            r#"node_fs_mountpoint_usage_avg_5m{mountpoint="/a\"\\\n"} 1"#,
        ];
        assert_eq!(lines, expected);
    }
}
