//! Readings in the text formats that Prometheus reads.

use std::fmt::{self, Write};

use super::Shortest;
use crate::series::{Reading, Rule};

/// The text formats that Prometheus reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// Version 0.0.4, the one that everything reads.
    Prometheus,
    /// Version 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// The format that `Accept` headers prefer, which all count as one; OpenMetrics only for those who name it.
    #[must_use]
    pub fn negotiate<'a>(accepts: impl Iterator<Item = &'a str>) -> Self {
        let (mut openmetrics, mut plain) = (0.0, 0.0);
        for range in accepts.flat_map(|accept| accept.split(',')) {
            openmetrics = quality(range, "application/openmetrics-text").max(openmetrics);
            plain = quality(range, "text/plain").max(plain);
        }
        if openmetrics > 0.0 && openmetrics >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The media type, as Prometheus expects it.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The readings as gauges, a family for each kind of signal and rule.
    #[must_use]
    pub fn render(self, readings: impl Iterator<Item = Reading>) -> String {
        let mut readings: Vec<Reading> = readings.collect();
        // A family's lines must follow each other.
        readings.sort_by_key(family);
        let mut text = String::with_capacity(1 << 10);
        for members in readings.chunk_by(|one, other| family(one) == family(other)) {
            // Writing to a String cannot fail.
            let _ = write_family(&mut text, members);
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

fn family(reading: &Reading) -> (&'static str, Rule) {
    (reading.signal.kind().name, reading.rule)
}

/// The weight that a range like `text/plain;version=0.0.4;q=0.5` gives to a media type; 0 where it means another, or is faulty.
fn quality(range: &str, kind: &str) -> f32 {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next().is_some_and(|named| named.eq_ignore_ascii_case(kind)) {
        return 0.0;
    }
    // A parameter's name has no case (RFC 9110, 5.6.6).
    let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
    weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0))
}

fn write_family(text: &mut String, members: &[Reading]) -> fmt::Result {
    let Some(first) = members.first() else { return Ok(()) };
    let (kind, rule) = (first.signal.kind(), first.rule);
    let name = format_args!("node_{}_{rule}", kind.name);
    writeln!(text, "# HELP {name} {}: {}", capitalised(kind.help), rule.explanation())?;
    writeln!(text, "# TYPE {name} gauge")?;
    for member in members {
        write!(text, "{name}")?;
        if let (Some(label), Some(value)) = (kind.label, member.signal.instance()) {
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

/// The value of a label.
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

    /// What Prometheus 3 sends.
    const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
        application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
        text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

    fn negotiate(accept: &str) -> Exposition {
        Exposition::negotiate(std::iter::once(accept))
    }

    #[test]
    fn openmetrics_is_for_those_who_prefer_it() {
        assert_eq!(negotiate(PROMETHEUS_3), Exposition::OpenMetrics);
        assert_eq!(negotiate("application/openmetrics-text"), Exposition::OpenMetrics);
        assert_eq!(
            negotiate("Application/OpenMetrics-Text; version=1.0.0"),
            Exposition::OpenMetrics
        );
    }

    #[test]
    fn everyone_else_gets_the_prometheus_text() {
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/html, application/json;q=0.9",
            "text/plain, application/openmetrics-text;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text; Q=0, text/plain",
            "application/openmetrics-text;Q=0.4, text/plain;Q=0.6",
            "application/openmetrics-text;q=lots",
            ";;;,,,q=",
        ] {
            assert_eq!(negotiate(accept), Exposition::Prometheus, "{accept:?}");
        }
    }

    #[test]
    fn headers_that_are_repeated_count_as_one() {
        let (plain, open) = ("text/plain;q=0.5", "application/openmetrics-text;q=0.9");
        for both in [[plain, open], [open, plain]] {
            assert_eq!(Exposition::negotiate(both.into_iter()), Exposition::OpenMetrics);
        }
        assert_eq!(Exposition::negotiate(std::iter::empty()), Exposition::Prometheus);
    }

    #[test]
    fn nothing_known_is_an_empty_exposition() {
        assert_eq!(Exposition::Prometheus.render(std::iter::empty()), "");
        assert_eq!(Exposition::OpenMetrics.render(std::iter::empty()), "# EOF\n");
    }

    static MOUNT: Kind = Kind { name: "fs_mountpoint_usage", help: "x", label: Some("mountpoint") };

    #[test]
    fn the_lines_of_a_family_follow_each_other_and_labels_are_escaped() {
        let mut text = Vec::new();
        for mount in ["/b", "/a\"\\\n"] {
            for rule in ["active", "avg_5m"] {
                let signal = Signal::of(&MOUNT, mount);
                let (rule, time) = (rule.parse().unwrap(), Moment(Duration::ZERO));
                text.push(Reading { signal, rule, value: 1.0, coverage: 1.0, time });
            }
        }
        let text = Exposition::Prometheus.render(text.into_iter());
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
