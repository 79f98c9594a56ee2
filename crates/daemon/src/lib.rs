//! What every process shares: flags, logs, tasks, shutdown, the admin port, followed files, and bounded HTTP servers.
//!
//! A program's `main.rs` is this alone:
//!
//! ```no_run
//! # mod app { pub async fn run(_: super::Args, _: daemon::Context) -> anyhow::Result<()> { Ok(()) } }
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! #[command(version, about)]
//! struct Args {
//!     /// Log and admin flags; 19102 is this program's default admin port.
//!     #[command(flatten)]
//!     daemon: daemon::DaemonArgs<19102>,
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let args = Args::parse();
//!     let settings = args.daemon.settings();
//!     daemon::run(daemon::program!(), settings, |context| app::run(args, context))
//! }
//! ```
//!
//! and its `app.rs` checks flags and files, starts the tasks and returns. From then on the admin port answers, and the
//! process lives for as long as the tasks do:
//!
//! ```
//! # async fn watch(_: daemon::Shutdown) -> anyhow::Result<()> { Ok(()) }
//! # #[derive(Default)] struct Metrics;
//! # impl Metrics { fn register(_: &mut daemon::metrics::Registry) -> Self { Self } }
//! async fn run(address: std::net::SocketAddr, context: daemon::Context) -> anyhow::Result<()> {
//!     // All metrics of the program: docs/metrics.md lists what this function registers.
//!     let metrics = context.register(Metrics::register);
//!     // Declare every gate before the first one holds: /readyz is 200 once all of them do.
//!     let listed = context.health().gate("nodes-listed");
//!     // A task that fails, panics or ends before the shutdown stops the process with its reason.
//!     context.spawn("watch", watch(context.shutdown()));
//!     let listener = daemon::http::bind(address, "--listen-address").await?;
//!     let router = axum::Router::new();
//!     context.spawn(
//!         "verbs",
//!         daemon::http::serve(listener, router, daemon::http::Limits::default(), context.shutdown()),
//!     );
//!     listed.set_ready();
//!     // listed.set_not_ready("the watch has failed for 40 s");
//!     Ok(())
//! }
//! ```
//!
//! Invariants: one thing ends the process, the [`Shutdown`] token; every HTTP server is bounded in connections, times
//! and sizes; a fatal error is one line on stderr and in the termination log, names each cause once, and the exit
//! status is 1.
//!
//! Durations in flags: `#[arg(long, default_value = "10s", value_parser = daemon::duration)]`, or
//! `daemon::positive_duration` where 0 makes no sense.
//!
//! A test makes a [`Context`] with [`Context::new`], calls the program's `app::run` with it, and cancels
//! [`Context::shutdown`] to stop.
#![deny(missing_docs)]

pub mod admin;
mod args;
mod context;
mod duration;
mod error;
pub mod follow;
pub mod http;
mod lifecycle;
pub mod metrics;
#[cfg(feature = "tls")]
pub mod tls;
pub mod token;

pub use admin::{Condition, Health, ProcessMetrics, Status, few};
pub use args::{AdminArgs, DaemonArgs, LogArgs, LogFormat, Settings, listen_address, parse};
pub use context::Context;
pub use duration::{DurationError, PositiveError, duration, positive_duration};
pub use error::Causes;
pub use lifecycle::{
    GRACE, HUNG, LogError, OwnThread, Program, Tasks, Threads, fatal, run, run_on, supervise,
    unless_ignored,
};

/// Replaces what a channel has where that differs, and only then wakes its receivers. Returns whether it did.
///
/// # Examples
///
/// ```
/// let (sender, mut receiver) = tokio::sync::watch::channel(1);
/// assert!(!daemon::publish(&sender, 1));
/// assert!(daemon::publish(&sender, 2));
/// assert_eq!(*receiver.borrow_and_update(), 2);
/// ```
pub fn publish<T: PartialEq>(sender: &tokio::sync::watch::Sender<T>, now: T) -> bool {
    sender.send_if_modified(|known| {
        let changed = *known != now;
        if changed {
            *known = now;
        }
        changed
    })
}

/// Cancelled once, when the process has to end: by SIGTERM, SIGINT, SIGHUP or the death of a task.
pub type Shutdown = tokio_util::sync::CancellationToken;
