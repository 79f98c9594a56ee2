//! When nodes are written.

use std::time::Duration;

use placement::publish::DEFAULT_DEAD_BAND;

/// When nodes are written.
#[derive(Debug, Clone, clap::Args)]
pub struct WriteArgs {
    /// How far a value may move from what is written before it is written for that: a fraction of 1, and of the value
    /// where that is above 1. Extenders are told each poll without a write; where crane's own scheduler reads what is
    /// written, take 0.05. What crosses a limit of the policy is always written, and what is written never expires
    /// while its exporter answers. 0: whatever moved is written.
    #[arg(
        long,
        env = "PLIMSOLL_DEAD_BAND",
        default_value_t = DEFAULT_DEAD_BAND,
        value_parser = dead_band,
        value_name = "FRACTION"
    )]
    pub dead_band: f64,

    /// How far apart nodes are written, all in one burst: each write of a Node makes kube-scheduler retry every pod
    /// that an extender rejected, and many writes at once hardly more often than one. What is new does not wait, and
    /// what crosses a limit waits 23s at most. 0s: each poll writes for itself; otherwise 5s to 2m.
    #[arg(
        long,
        env = "PLIMSOLL_BURST_INTERVAL",
        default_value = "45s",
        value_parser = burst_interval,
        value_name = "DURATION"
    )]
    pub burst_interval: Duration,
}

/// Accepts 0 and more, below 1.
fn dead_band(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if (0.0..1.0).contains(&fraction) => Ok(fraction),
        _ => Err("expected a fraction of at least 0 and below 1, such as 0.05".to_owned()),
    }
}

/// Accepts 0, and what is neither shorter than a burst takes nor longer than readings can wait for.
fn burst_interval(text: &str) -> Result<Duration, String> {
    let duration = daemon::duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() || (5..=120).contains(&duration.as_secs()) {
        Ok(duration)
    } else {
        Err("expected 0s, or 5s to 2m".to_owned())
    }
}
