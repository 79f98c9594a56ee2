//! Owns the progress on standard output: one line for each step, with the seconds since the first.

use std::io::Write;
use std::sync::OnceLock;
use std::time::Instant;

static START: OnceLock<Instant> = OnceLock::new();

/// Prints a line with the seconds since the first one.
pub fn step(text: &str) {
    let start = START.get_or_init(Instant::now);
    line(&format!("{:>6.1}s  {text}", start.elapsed().as_secs_f64()));
}

/// Prints a line. A closed pipe is no error.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
