//! What every process shares: logs, admin endpoints, tasks, shutdown; TLS and a bearer token for servers.
//!
//! A program's `main.rs` is this, and nothing else:
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
//! and its `app.rs` wires the work up and returns; the process then lives for as long as the tasks do:
//!
//! ```
//! # async fn watch(_: daemon::Shutdown) -> anyhow::Result<()> { Ok(()) }
//! # #[derive(Default)] struct Metrics;
//! # impl Metrics { fn register(_: &mut daemon::Registry) -> Self { Self } }
//! async fn run(address: std::net::SocketAddr, context: daemon::Context) -> anyhow::Result<()> {
//!     // Names get the prefix `plimsoll_`; a program adds its own with `sub_registry_with_prefix`.
//!     let metrics = context.register(Metrics::register);
//!     // Declare every condition before the first one holds: /readyz is 200 once all of them do.
//!     let listed = context.readiness().condition("nodes-listed");
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
//! Invariants: exactly one place decides that the process ends (the [`Shutdown`] token); every HTTP server is
//! bounded in connections, header time, request time and body; a fatal error reaches stderr and the
//! termination log, and the exit status is 1.
//!
//! Durations in flags: `#[arg(long, default_value = "10s", value_parser = daemon::duration)]`, or
//! `daemon::positive_duration` where 0 makes no sense.
//!
//! In tests, make a [`Context`] with [`Context::new`], call the program's `app::run` with it, and cancel
//! [`Context::shutdown`] to stop.

pub mod admin;
mod args;
mod context;
mod duration;
pub mod fatal;
pub mod follow;
pub mod http;
mod logging;
mod process;
mod program;
mod readiness;
mod run;
mod tasks;
#[cfg(feature = "tls")]
pub mod tls;
pub mod token;

pub use args::{AdminArgs, DaemonArgs, LogArgs, LogFormat, Settings};
pub use context::Context;
pub use duration::{DurationError, PositiveError, duration, positive_duration};
pub use logging::LogError;
pub use process::ProcessMetrics;
pub use program::Program;
pub use readiness::{Condition, Readiness};
pub use run::{Flavour, GRACE, run, run_on, supervise};
pub use tasks::Tasks;

pub use prometheus_client::registry::Registry;

/// Cancelled once, when the process has to end: by SIGTERM, SIGINT or the death of a task.
pub type Shutdown = tokio_util::sync::CancellationToken;
