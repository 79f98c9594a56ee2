//! The life of a process: logs, admin server, signals, the program, and an orderly end.

use std::fs;
use std::future::Future;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::http::Limits;
use crate::{Context, Program, Settings, Shutdown, admin, fatal, http, logging};

/// How long the tasks have to end after the shutdown has begun.
pub const GRACE: Duration = Duration::from_secs(10);

/// How many threads a process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Everything on the main thread: the smallest footprint.
    CurrentThread,
    /// A worker for each core.
    #[cfg(feature = "multi-thread")]
    MultiThread,
}

impl Default for Flavour {
    fn default() -> Self {
        #[cfg(feature = "multi-thread")]
        return Self::MultiThread;
        #[cfg(not(feature = "multi-thread"))]
        return Self::CurrentThread;
    }
}

/// Runs a program from its start to its end, on every core where the `multi-thread` feature is on.
pub fn run<F, Fut>(program: Program, settings: Settings, app: F) -> ExitCode
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    run_on(Flavour::default(), program, settings, app)
}

/// [`run`] on a runtime of the given flavour.
pub fn run_on<F, Fut>(flavour: Flavour, program: Program, settings: Settings, app: F) -> ExitCode
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    fatal::report_panics(program.name, fatal::TERMINATION_LOG.into());
    let outcome = runtime(flavour).and_then(|runtime| {
        let outcome = runtime.block_on(live(program, settings, app));
        // What still blocks a thread (a file read, say) must not hold up the end.
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

fn runtime(flavour: Flavour) -> anyhow::Result<Runtime> {
    let mut builder = match flavour {
        Flavour::CurrentThread => Builder::new_current_thread(),
        #[cfg(feature = "multi-thread")]
        Flavour::MultiThread => Builder::new_multi_thread(),
    };
    builder.enable_all().build().context("start the runtime")
}

async fn live<F, Fut>(program: Program, settings: Settings, app: F) -> anyhow::Result<()>
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    logging::init(&settings.log)?;
    let context = Context::new(program);
    cancel_on_signals(context.shutdown())?;
    tracing::info!(version = program.version, "{} starts", program.name);
    let admin_end = serve_admin(&settings, &context).await?;
    let outcome = supervise(&context, app(context.clone()), GRACE).await;
    admin_end.cancel();
    if outcome.is_ok() {
        tracing::info!("{} ends", program.name);
    }
    outcome
}

/// Runs `app` and then the tasks it spawned, until all have ended; after the shutdown has begun, for `grace`
/// at most.
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

/// The admin server outlives the program's shutdown, so that probes are answered during the grace.
async fn serve_admin(settings: &Settings, context: &Context) -> anyhow::Result<Shutdown> {
    let end = Shutdown::new();
    let listener = http::bind(settings.admin, "--admin-address").await?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /livez, /readyz and /version");
    let server = http::serve(listener, admin::router(context), Limits::admin(), end.clone());
    tokio::spawn(server);
    Ok(end)
}

fn cancel_on_signals(shutdown: Shutdown) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut hangup = unless_ignored(SignalKind::hangup()).context("listen for SIGHUP")?;
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            Some(()) = async { hangup.as_mut()?.recv().await } => "SIGHUP",
        };
        tracing::info!("{name}: stopping");
        shutdown.cancel();
    });
    Ok(())
}

/// `None` where the process was started with it ignored: nohup(1) wants SIGHUP to stay so.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignores(&status, kind) { Ok(None) } else { signal(kind).map(Some) }
}

/// Whether a process of this `/proc/PID/status` ignores it.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
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
            context.spawn("deaf", pending());
            context.shutdown().cancel();
            Ok(())
        };
        let error = supervise(&context, app, GRACE).await.unwrap_err();
        assert_eq!(error.to_string(), "still running 10s after the shutdown began: deaf");
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

    #[test]
    fn a_signal_that_the_parent_had_ignored_stays_ignored() {
        for (mask, ignored) in [("1", true), ("4001", true), ("1002", false), ("0", false)] {
            let status = format!("SigBlk:\tffffffffffffffff\nSigIgn:\t{mask:0>16}\n");
            assert_eq!(ignores(&status, SignalKind::hangup()), ignored, "{mask}");
        }
        assert!(!ignores("", SignalKind::hangup()));
    }
}
