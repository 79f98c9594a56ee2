//! Go's duration strings (`3m`, `1h30m`, `500ms`), since crane's policies are written in them.

use jiff::SignedDuration;

/// Parses a Go duration; negative ones and bare numbers (other than `0`) are refused.
pub(super) fn parse(text: &str) -> Option<SignedDuration> {
    if text == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut rest = text;
    let mut total = 0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        total += number.parse::<f64>().ok()? * seconds(unit)?;
        rest = tail;
    }
    (!text.is_empty()).then(|| SignedDuration::try_from_secs_f64(total).ok())?
}

fn seconds(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" | "µs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_parse() {
        for (text, seconds) in
            [("3m", 180), ("15m", 900), ("1h30m", 5400), ("0", 0), ("1.5h", 5400)]
        {
            assert_eq!(parse(text), Some(SignedDuration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("250ms"), Some(SignedDuration::from_millis(250)));
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for text in ["", "5", "-3m", "3 m", "m", "3d", "..5s", "9e99h", "3mm"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
