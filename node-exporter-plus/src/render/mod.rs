//! Readings as Prometheus's text and as JSON. Pure: no clock, no I/O.

mod json;
mod metrics;
mod pods;

use std::fmt;

pub use json::{Node, statistics, statistics_v1};
pub use metrics::metrics;
pub use pods::pods;

/// A value with as many digits as an `f32` has, which is what samples are kept as: 33.333332, not 33.33333206176758.
struct Shortest(f64);

impl fmt::Display for Shortest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rust writes no exponents here, and a reading is always finite: so it is a JSON number.
        write!(f, "{}", self.0 as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_json_numbers_of_few_digits() {
        let shown = [0.0, 100.0, 100.0 / 3.0, 1e-7, 1e12].map(|value| Shortest(value).to_string());
        assert_eq!(shown, ["0", "100", "33.333332", "0.0000001", "1000000000000"]);
    }
}
