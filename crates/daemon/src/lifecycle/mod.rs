//! The life of a process: logs, signals, the program's start, the admin server, and an orderly end.
//!
//! Invariant: no port accepts a client before the program has started, that is before its flags and files are checked.

pub mod fatal;
mod logging;
mod program;
mod signals;
mod tasks;
mod thread;

use std::future::Future;
#[cfg(feature = "multi-thread")]
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
#[cfg(feature = "multi-thread")]
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::runtime::{Builder, Runtime};

pub use self::logging::LogError;
pub use self::program::Program;
pub use self::signals::unless_ignored;
pub use self::tasks::Tasks;
pub use self::thread::{HUNG, OwnThread};
use crate::http::{Bound, Limits};
use crate::{Context, Settings, Shutdown, admin, http};

/// How long the tasks have to end after the shutdown has begun.
pub const GRACE: Duration = Duration::from_secs(10);

/// How many threads a process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The main thread alone: the smallest footprint.
    One,
    /// A worker for each core.
    #[cfg(feature = "multi-thread")]
    PerCore,
    /// A worker for each core except one, and at least one worker: the program also has a thread of its own
    /// ([`OwnThread`]).
    #[cfg(feature = "multi-thread")]
    PerOtherCore,
}

impl Default for Threads {
    fn default() -> Self {
        #[cfg(feature = "multi-thread")]
        return Self::PerCore;
        #[cfg(not(feature = "multi-thread"))]
        return Self::One;
    }
}

/// Runs a program from its start to its end, with a worker for each core where the `multi-thread` feature is on.
///
/// `app` checks flags and files, starts the program's tasks and returns. The admin port answers from then on.
pub fn run<F, Fut>(program: Program, settings: Settings, app: F) -> ExitCode
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    run_on(Threads::default(), program, settings, app)
}

/// [`run`] on so many threads.
pub fn run_on<F, Fut>(threads: Threads, program: Program, settings: Settings, app: F) -> ExitCode
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    fatal::report_panics(program.name, fatal::TERMINATION_LOG.into());
    let outcome = runtime(threads).and_then(|runtime| {
        let outcome = runtime.block_on(live(program, settings, app));
        // A blocked thread, for example in a file read, must not delay the end.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            fatal::report(program.name, &error, Path::new(fatal::TERMINATION_LOG));
            ExitCode::FAILURE
        }
    }
}

fn runtime(threads: Threads) -> anyhow::Result<Runtime> {
    let mut builder = match threads {
        Threads::One => Builder::new_current_thread(),
        #[cfg(feature = "multi-thread")]
        Threads::PerCore | Threads::PerOtherCore => Builder::new_multi_thread(),
    };
    #[cfg(feature = "multi-thread")]
    if threads == Threads::PerOtherCore {
        let cores = available_parallelism().map_or(1, NonZero::get);
        builder.worker_threads(cores.saturating_sub(1).max(1));
    }
    builder.enable_all().build().context("cannot start the runtime")
}

async fn live<F, Fut>(program: Program, settings: Settings, app: F) -> anyhow::Result<()>
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    logging::init(&settings.log)?;
    let context = Context::new(program);
    signals::cancel_on_end(context.shutdown())?;
    tracing::info!(version = program.version, "{} starts", program.name);
    // Reserved now, so that a taken port is an error before any task starts; it listens once the program has started.
    let admin = http::reserve(settings.admin, "--admin-address")?;
    let admin_end = Shutdown::new();
    let start = async {
        app(context.clone()).await?;
        serve_admin(admin, &context, admin_end.clone())
    };
    let outcome = supervise(&context, start, GRACE).await;
    admin_end.cancel();
    if outcome.is_ok() {
        tracing::info!("{} ends", program.name);
    }
    outcome
}

/// Runs `app` and then the tasks that it spawned, until all have ended; after the shutdown has begun, for `grace` at
/// most.
///
/// # Errors
/// When `app` or a task fails, or something still runs after the grace.
pub async fn supervise(
    context: &Context,
    app: impl Future<Output = anyhow::Result<()>>,
    grace: Duration,
) -> anyhow::Result<()> {
    let shutdown = context.shutdown();
    tokio::select! {
        outcome = app_then_tasks(context, app) => outcome,
        () = expiry(&shutdown, grace) => {
            bail!("still running {grace:?} after the shutdown began: {}", context.tasks().running().join(", "))
        }
    }
}

async fn app_then_tasks(
    context: &Context,
    app: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let outcome = app.await;
    if outcome.is_err() {
        context.shutdown().cancel();
    }
    let tasks = context.tasks().join().await;
    outcome.and(tasks)
}

async fn expiry(shutdown: &Shutdown, grace: Duration) {
    shutdown.cancelled().await;
    tokio::time::sleep(grace).await;
}

/// Serves until `end`, not until the program's shutdown: probes are answered during the grace.
fn serve_admin(admin: Bound, context: &Context, end: Shutdown) -> anyhow::Result<()> {
    let listener = admin.listen()?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /livez, /readyz, /version and /v1/health");
    tokio::spawn(http::serve(listener, admin::router(context), Limits::admin(), end));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn context() -> Context {
        Context::new(crate::program!())
    }

    #[tokio::test(start_paused = true)]
    async fn the_process_ends_when_the_last_task_has_ended() {
        let context = context();
        let shutdown = context.shutdown();
        let app = async {
            let token = context.shutdown();
            context.spawn("serve", async move {
                token.cancelled().await;
                Ok(())
            });
            shutdown.cancel();
            Ok(())
        };
        supervise(&context, app, GRACE).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_the_shutdown_is_named() {
        let context = context();
        let app = async {
            context.spawn("endless", pending());
            context.shutdown().cancel();
            Ok(())
        };
        let error = supervise(&context, app, GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "still running 10s after the shutdown began: endless");
    }

    #[tokio::test(start_paused = true)]
    async fn an_app_that_fails_stops_its_tasks_and_keeps_its_own_error() {
        let context = context();
        let app = async {
            let token = context.shutdown();
            context.spawn("serve", async move {
                token.cancelled().await;
                Ok(())
            });
            bail!("bad policy")
        };
        let error = supervise(&context, app, GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "bad policy");
    }

    fn settings(admin: std::net::SocketAddr) -> Settings {
        let log = crate::LogArgs { log_level: "off".to_owned(), log_format: None };
        Settings { log, admin }
    }

    /// A socket that is bound and never listens: nothing else gets its port, and the program can listen beside it.
    fn kept_port() -> tokio::net::TcpSocket {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket
    }

    #[tokio::test]
    async fn the_admin_port_refuses_clients_until_the_program_has_started() {
        let kept = kept_port();
        let address = kept.local_addr().unwrap();
        let app = async |context: Context| {
            let early = tokio::net::TcpStream::connect(address).await;
            assert_eq!(early.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
            context.spawn("ask", async move {
                while tokio::net::TcpStream::connect(address).await.is_err() {
                    tokio::task::yield_now().await;
                }
                Err(anyhow::anyhow!("answered"))
            });
            Ok(())
        };
        let error = live(crate::program!(), settings(address), app).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "task \"ask\": answered");
    }

    #[tokio::test]
    async fn a_taken_admin_port_is_known_before_the_program_starts() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let app = async |_: Context| panic!("started");
        let error = live(crate::program!(), settings(address), app).await.unwrap_err();
        let line = crate::Causes(error.as_ref()).to_string();
        let expected = format!(
            "--admin-address {address}: cannot listen there, free the port or give another address: \
             Address already in use (os error 98)"
        );
        assert_eq!(line, expected);
    }
}
