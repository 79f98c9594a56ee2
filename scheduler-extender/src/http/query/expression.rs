//! The supported subset of PromQL: a metric of each node, divided by a number, with a default for nodes without a
//! value.
//!
//! Invariant: an accepted expression has the same meaning in Prometheus, for series with one label `instance`.

use thiserror::Error;

/// The series that is 1 for each node.
const EVERY_NODE: &str = "plimsoll_node";

/// A parsed expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Expression<'a> {
    /// The name of the series.
    pub(super) series: &'a str,
    /// Above 0.
    pub(super) divisor: f64,
    /// The value of nodes without a fresh one, 0 to 1.
    pub(super) default: Option<f64>,
}

/// The expression is not in the supported subset.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "only `SERIES`, `SERIES / NUMBER` and either with `or {EVERY_NODE} * NUMBER` behind it are answered: a number above 0, \
     and one from 0 to 1"
)]
pub(super) struct NoSuchExpression;

impl<'a> Expression<'a> {
    /// Reads `SERIES [/ NUMBER] [or plimsoll_node * NUMBER]`, with spaces between the words.
    pub(super) fn parse(text: &'a str) -> Result<Self, NoSuchExpression> {
        let words: Vec<&str> = text.split_ascii_whitespace().take(8).collect();
        let (value, fallback) = match words[..] {
            [ref value @ .., "or", EVERY_NODE, "*", number] => (value, Some(number)),
            ref value => (value, None),
        };
        let (series, divisor) = match *value {
            [series] => (series, "1"),
            [series, "/", divisor] => (series, divisor),
            _ => return Err(NoSuchExpression),
        };
        let divisor = read_number(divisor)?;
        let default = fallback.map(read_number).transpose()?;
        let is_default_valid = default.is_none_or(|value| (0.0..=1.0).contains(&value));
        if !is_name(series) || divisor <= 0.0 || !is_default_valid {
            return Err(NoSuchExpression);
        }
        Ok(Self { series, divisor, default })
    }
}

fn read_number(text: &str) -> Result<f64, NoSuchExpression> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or(NoSuchExpression)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_a_divisor_and_a_value_for_the_unknown_are_read() {
        for (text, divisor, default) in [
            ("cpu", 1.0, None),
            (" cpu / 2\n", 2.0, None),
            ("cpu or plimsoll_node * 0.5", 1.0, Some(0.5)),
            ("cpu / 4 or plimsoll_node * 1", 4.0, Some(1.0)),
        ] {
            let expected = Expression { series: "cpu", divisor, default };
            assert_eq!(Expression::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn nothing_else_is_guessed_at() {
        for text in [
            "",
            "cpu / 0",
            "cpu / -1",
            "cpu / NaN",
            "cpu / inf",
            "cpu / x",
            "cpu 2",
            "cpu * 2",
            "cpu{instance=\"a\"}",
            "avg(cpu)",
            "cpu or vector(0.5)",
            "cpu or plimsoll_node * 2",
            "cpu or plimsoll_node * -0.1",
            "cpu or plimsoll_node",
            "or plimsoll_node * 0.5",
            "cpu / 2 / 2",
            "cpu / 2 or plimsoll_node * 0.5 or plimsoll_node * 0.6",
        ] {
            assert_eq!(Expression::parse(text), Err(NoSuchExpression), "{text}");
        }
    }
}
