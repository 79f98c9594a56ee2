//! Owns what a person sees while the cluster comes up: one line a step, with the seconds since the start.

use std::io::Write;
use std::sync::OnceLock;
use std::time::Instant;

static START: OnceLock<Instant> = OnceLock::new();

/// Prints a line with the seconds since the first one.
pub fn step(text: &str) {
    let start = START.get_or_init(Instant::now);
    line(&format!("{:>6.1}s  {text}", start.elapsed().as_secs_f64()));
}

/// Prints a line as it is; a closed pipe is no reason to stop.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
