//! Readings as text: Prometheus, OpenMetrics, and the flat JSON of `/statistics`. Pure.

use std::fmt::{self, Write};

use crate::series::Reading;

/// The text formats that Prometheus reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// Version 0.0.4, the one that everything reads.
    Prometheus,
    /// Version 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// The format that an `Accept` header prefers; OpenMetrics only for those who name it.
    #[must_use]
    pub fn negotiate(accept: &str) -> Self {
        let weight = |kind: &str| {
            accept.split(',').filter_map(|range| quality(range, kind)).fold(0.0, f32::max)
        };
        let openmetrics = weight("application/openmetrics-text");
        if openmetrics > 0.0 && openmetrics >= weight("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The media type, as Prometheus expects it.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The readings as gauges, each a family of its own.
    #[must_use]
    pub fn render(self, readings: impl Iterator<Item = Reading>) -> String {
        let mut text = String::with_capacity(2 << 10);
        for reading in readings {
            // Writing to a String cannot fail.
            let _ = family(&mut text, &reading);
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// The weight that a range like `text/plain;version=0.0.4;q=0.5` gives to a media type.
fn quality(range: &str, kind: &str) -> Option<f32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(kind) {
        return None;
    }
    let weight = parts.find_map(|part| part.strip_prefix("q="));
    weight.map_or(Some(1.0), |weight| weight.parse().ok())
}

fn family(text: &mut String, reading: &Reading) -> fmt::Result {
    let (signal, rule, value) = (reading.signal, reading.rule, Shortest(reading.value));
    let name = format_args!("node_{}_{rule}", signal.name);
    writeln!(text, "# HELP {name} {}: {}", capitalised(signal.help), rule.explanation())?;
    writeln!(text, "# TYPE {name} gauge\n{name} {value}")
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// One flat JSON object, the readings' names without `node_` to their values.
#[must_use]
pub fn statistics(readings: impl Iterator<Item = Reading>) -> String {
    let mut text = String::with_capacity(512);
    text.push('{');
    for (index, reading) in readings.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let (signal, rule, value) = (reading.signal.name, reading.rule, Shortest(reading.value));
        // Writing to a String cannot fail; names hold nothing that JSON escapes.
        let _ = write!(text, "{comma}\"{signal}_{rule}\":{value}");
    }
    text.push('}');
    text
}

/// A value with as many digits as the samples have (7 or so): 33.333332, not 33.33333206176758.
struct Shortest(f64);

impl fmt::Display for Shortest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never in exponent form, so that it is a JSON number; a reading is always finite.
        write!(f, "{}", self.0 as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Prometheus 3 sends.
    const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
        application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
        text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

    #[test]
    fn openmetrics_is_for_those_who_prefer_it() {
        assert_eq!(Exposition::negotiate(PROMETHEUS_3), Exposition::OpenMetrics);
        assert_eq!(Exposition::negotiate("application/openmetrics-text"), Exposition::OpenMetrics);
        assert_eq!(
            Exposition::negotiate("Application/OpenMetrics-Text; version=1.0.0"),
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
            "application/openmetrics-text;q=lots",
            ";;;,,,q=",
        ] {
            assert_eq!(Exposition::negotiate(accept), Exposition::Prometheus, "{accept:?}");
        }
    }

    #[test]
    fn nothing_known_is_an_empty_object_and_an_empty_exposition() {
        assert_eq!(statistics(std::iter::empty()), "{}");
        assert_eq!(Exposition::Prometheus.render(std::iter::empty()), "");
        assert_eq!(Exposition::OpenMetrics.render(std::iter::empty()), "# EOF\n");
    }

    #[test]
    fn values_are_json_numbers_of_few_digits() {
        let shown = [0.0, 100.0, 100.0 / 3.0, 1e-7, 1e12].map(|value| Shortest(value).to_string());
        assert_eq!(shown, ["0", "100", "33.333332", "0.0000001", "1000000000000"]);
    }
}
