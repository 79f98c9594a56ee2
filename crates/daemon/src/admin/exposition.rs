//! Prometheus's text format 0.0.4, which every scraper reads.
//!
//! prometheus-client writes OpenMetrics alone, so the text is converted from it.

use std::fmt::Write;

/// The media type, by which Prometheus picks its parser.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of prometheus-client as text 0.0.4. A counter's family is named as its samples are (`_total`), an info is a
/// gauge (`_info`), units and the end mark are left out, and the help texts lose OpenMetrics' escape of quotes. No
/// metric of ours has exemplars.
pub(crate) fn text_of(openmetrics: &str) -> String {
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
            None => writeln!(text, "{line}"),
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

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    /// One family of each kind.
    fn registry() -> Registry {
        let mut registry = Registry::default();
        let polls = Family::<[(&str, &str); 1], Counter>::default();
        polls.get_or_create(&[("path", "a # b\"\\\n")]).inc();
        registry.register("polls", "Polls \"asked\"", polls);
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
        assert_eq!(text_of(&page), expected);
    }

    #[test]
    fn nothing_known_is_an_empty_page() {
        assert_eq!(text_of("# EOF\n"), "");
    }
}
