//! The text formats of metrics that Prometheus reads, and the negotiation of the format.
//!
//! prometheus-client writes only OpenMetrics, so the older text format is converted from it.

use std::borrow::Cow;
use std::fmt::Write;

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus's text format 0.0.4, which every scraper reads.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// The format that `Accept` headers prefer by their weights (RFC 9110, 12.4.2), all headers together. OpenMetrics
    /// is for clients that name it: `*/*` and no header at all mean text.
    ///
    /// # Examples
    /// ```
    /// use daemon::Exposition;
    /// let accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3,*/*;q=0.2";
    /// assert_eq!(Exposition::negotiate([accept]), Exposition::OpenMetrics);
    /// assert_eq!(Exposition::negotiate(["*/*"]), Exposition::Text);
    /// ```
    #[must_use]
    pub fn negotiate<'a>(accepts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut openmetrics = 0.0;
        let mut text = 0.0;
        for range in accepts.into_iter().flat_map(|accept| accept.split(',')) {
            openmetrics = weight(range, "application/openmetrics-text").max(openmetrics);
            text = weight(range, "text/plain").max(text);
        }
        if openmetrics > 0.0 && openmetrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The media type, by which Prometheus picks its parser.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// A page of prometheus-client, which is OpenMetrics, in this format.
    #[must_use]
    pub fn of_openmetrics(self, page: &str) -> Cow<'_, str> {
        match self {
            Self::Text => Cow::Owned(text(page)),
            Self::OpenMetrics => Cow::Borrowed(page),
        }
    }
}

/// The weight, 0 to 1, that a media range like `text/plain;version=0.0.4;q=0.5` gives to a media type; 0 where it means
/// another type or its weight is no number.
fn weight(range: &str, kind: &str) -> f32 {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next().is_some_and(|named| named.eq_ignore_ascii_case(kind)) {
        return 0.0;
    }
    // A parameter's name has no case (RFC 9110, 5.6.6).
    let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
    weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0))
}

/// OpenMetrics as text 0.0.4. A counter's family is named as its samples are (`_total`), an info is a gauge (`_info`),
/// units, exemplars and the end mark are left out, and the help texts lose OpenMetrics' escape of quotes.
fn text(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        // Writing to a String cannot fail.
        let _ = match line.strip_prefix("# ") {
            Some(comment) => match comment.split_once(' ') {
                // HELP comes before TYPE, and the name to write depends on the type: so the help text waits.
                Some(("HELP", described)) => {
                    help = described.split_once(' ');
                    Ok(())
                }
                Some(("TYPE", typed)) => family(&mut text, typed, help.take()),
                // UNIT, EOF.
                _ => Ok(()),
            },
            None => writeln!(text, "{}", without_exemplar(line)),
        };
    }
    text
}

/// The comment lines of a family: `typed` is its name and OpenMetrics type, `help` its name and help text.
fn family(text: &mut String, typed: &str, help: Option<(&str, &str)>) -> std::fmt::Result {
    let Some((name, kind)) = typed.split_once(' ') else { return Ok(()) };
    let (suffix, kind) = match kind {
        "counter" => ("_total", kind),
        "info" => ("_info", "gauge"),
        "unknown" => ("", "untyped"),
        other => ("", other),
    };
    if let Some((_, help)) = help.filter(|(described, _)| *described == name) {
        writeln!(text, "# HELP {name}{suffix} {}", help.replace("\\\"", "\""))?;
    }
    writeln!(text, "# TYPE {name}{suffix} {kind}")
}

/// A sample's line up to its exemplar: ` # ` outside of the quotes of label values.
fn without_exemplar(line: &str) -> &str {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'#' if !quoted => return line[..at].trim_end(),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::exemplar::CounterWithExemplar;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    /// What Prometheus 3 sends.
    const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
        application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
        text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    /// What Prometheus 3 sends with `scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0]`.
    const TEXT_FIRST: &str = "text/plain;version=0.0.4;q=0.6,\
        application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.2";

    #[test]
    fn openmetrics_is_for_clients_that_prefer_it() {
        let upper_case = "Application/OpenMetrics-Text; version=1.0.0";
        for accept in [PROMETHEUS_3, "application/openmetrics-text", upper_case] {
            assert_eq!(Exposition::negotiate([accept]), Exposition::OpenMetrics, "{accept}");
        }
    }

    #[test]
    fn every_other_client_gets_text() {
        for accept in [
            "",
            "*/*",
            "text/plain",
            "text/html, application/json;q=0.9",
            TEXT_FIRST,
            "text/plain, application/openmetrics-text;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text; Q=0, text/plain",
            "application/openmetrics-text;Q=0.4, text/plain;Q=0.6",
            "application/openmetrics-text;q=lots",
            "application/openmetrics-text;q=NaN",
            ";;;,,,q=",
        ] {
            assert_eq!(Exposition::negotiate([accept]), Exposition::Text, "{accept:?}");
        }
        assert_eq!(Exposition::negotiate([]), Exposition::Text);
    }

    #[test]
    fn repeated_headers_count_as_one() {
        let text = "text/plain;q=0.5";
        let open = "application/openmetrics-text;q=0.9";
        for both in [[text, open], [open, text]] {
            assert_eq!(Exposition::negotiate(both), Exposition::OpenMetrics);
        }
    }

    /// One family of each kind.
    fn registry() -> Registry {
        let mut registry = Registry::default();
        let polls = Family::<[(&str, &str); 1], Counter>::default();
        polls.get_or_create(&[("path", "a # b\"\\\n")]).inc();
        registry.register("polls", "Polls \"asked\"", polls);
        let traced = CounterWithExemplar::<Vec<(&str, &str)>>::default();
        traced.inc_by(2, Some(vec![("trace", "x")]), None);
        registry.register("traced", "Traced", traced);
        let age = Gauge::<i64>::default();
        registry.register_with_unit("age", "Age", Unit::Seconds, age);
        registry.register("build", "Build", Info::new(vec![("git", "abc")]));
        let took = Histogram::new([0.5]);
        took.observe(0.25);
        registry.register("took_seconds", "Time", took);
        registry
    }

    #[test]
    fn text_names_families_as_their_samples_and_has_no_openmetrics_lines() {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry()).unwrap();
        let expected = r##"# HELP polls_total Polls "asked".
# TYPE polls_total counter
polls_total{path="a # b\"\\\n"} 1
# HELP traced_total Traced.
# TYPE traced_total counter
traced_total 2
# HELP age_seconds Age.
# TYPE age_seconds gauge
age_seconds 0
# HELP build_info Build.
# TYPE build_info gauge
build_info{git="abc"} 1
# HELP took_seconds Time.
# TYPE took_seconds histogram
took_seconds_sum 0.25
took_seconds_count 1
took_seconds_bucket{le="0.5"} 1
took_seconds_bucket{le="+Inf"} 1
"##;
        assert_eq!(text(&page), expected);
        assert_eq!(Exposition::OpenMetrics.of_openmetrics(&page), page);
    }

    #[test]
    fn nothing_known_is_an_empty_page() {
        assert_eq!(text("# EOF\n"), "");
    }
}
