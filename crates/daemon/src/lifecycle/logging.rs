//! The process's log: to stderr, filtered by `--log-level`, as text or JSON.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::{LogArgs, LogFormat};

#[cfg(feature = "env-filter")]
type Filter = tracing_subscriber::EnvFilter;
#[cfg(not(feature = "env-filter"))]
type Filter = tracing_subscriber::filter::Targets;

/// A log that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `--log-level` is no filter.
    #[error("--log-level {filter:?}: {reason}; try \"info\", or \"info,module=debug\"")]
    Filter {
        /// The flag's value.
        filter: String,
        /// What the parser says of it.
        reason: String,
    },
}

/// Starts logging. A subscriber that is already there (in a test) stays.
pub(crate) fn init(args: &LogArgs) -> Result<(), LogError> {
    let filter = parse(&args.log_level)?;
    let terminal = stderr().is_terminal();
    let layer = match args.log_format.unwrap_or_else(|| default_format(terminal)) {
        LogFormat::Text => text(terminal),
        LogFormat::Json => json(),
    };
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter));
    if subscriber.try_init().is_err() {
        tracing::debug!("a log subscriber was already set");
    }
    Ok(())
}

fn parse(filter: &str) -> Result<Filter, LogError> {
    filter
        .parse()
        .map_err(|error| LogError::Filter { filter: filter.to_owned(), reason: format!("{error}") })
}

fn default_format(terminal: bool) -> LogFormat {
    if terminal { LogFormat::Text } else { LogFormat::Json }
}

fn text(terminal: bool) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = tracing_subscriber::fmt::layer().with_writer(stderr);
    layer.with_ansi(terminal && cfg!(feature = "ansi")).boxed()
}

fn json() -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = tracing_subscriber::fmt::layer().with_writer(stderr);
    layer.json().flatten_event(true).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_by_module_are_understood() {
        for filter in ["info", "warn,kube=debug", "off"] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
    }

    #[test]
    fn a_bad_filter_is_named_with_a_way_out() {
        let error = parse("kube=loud").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("kube=loud") && error.contains("try \"info\""), "{error}");
    }

    #[test]
    fn text_is_for_terminals_only() {
        assert_eq!(default_format(true), LogFormat::Text);
        assert_eq!(default_format(false), LogFormat::Json);
    }
}
