//! Quantities as tables show them.

use jiff::SignedDuration;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};

/// Durations as policies write them: `1h30m`.
const DURATION: SpanPrinter =
    SpanPrinter::new().designator(Designator::Compact).spacing(Spacing::None);

/// Seconds as `1h30m`.
pub(crate) fn duration(seconds: f64) -> String {
    let duration = SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX);
    DURATION.duration_to_string(&duration)
}

/// A fraction as whole percent: `65%`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}
