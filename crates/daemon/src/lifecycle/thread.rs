//! A thread with a runtime of its own.
//!
//! A runtime of several threads runs a woken task on any free thread, for each piece of a body that arrives. For
//! requests of some hundred kilobytes that cost a sixth of the time of a whole request. Tasks here stay on one thread.
//!
//! Invariant: a blocking call blocks every task of this thread; [`OwnThread::watch`] fails if that lasts.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;

use crate::Shutdown;

/// The interval at which [`OwnThread::watch`] checks that the thread runs its tasks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time after which a thread that runs no task counts as hung. Longer than any answer takes, even on a machine with
/// few processors.
pub const HUNG: Duration = Duration::from_secs(15);

/// A thread that runs tasks, until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct OwnThread {
    name: &'static str,
    handle: Handle,
    _end: Arc<DropGuard>,
}

impl OwnThread {
    /// Starts the thread. The kernel shows 15 bytes of its name.
    ///
    /// # Errors
    /// If the kernel cannot create the thread, or the file for its events.
    pub fn start(name: &'static str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let end = Shutdown::new();
        let ended = end.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(ended.cancelled());
            // A blocking call in progress must not delay the end.
            runtime.shutdown_background();
        })?;
        Ok(Self { name, handle, _end: Arc::new(end.drop_guard()) })
    }

    /// Runs a task on the thread.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(task)
    }

    /// Runs a task on the thread and returns its result.
    ///
    /// # Panics
    /// If the task panics.
    pub async fn run<F>(&self, task: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self.spawn(task).await {
            Ok(output) => output,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The thread lasts as long as this does, and so do its tasks.
                Err(error) => unreachable!("{error}"),
            },
        }
    }

    /// Checks until the shutdown that the thread runs its tasks.
    ///
    /// # Errors
    /// If the thread has run no task for [`HUNG`].
    pub async fn watch(self, shutdown: Shutdown) -> anyhow::Result<()> {
        match shutdown.run_until_cancelled(self.hung(CHECK_INTERVAL, HUNG)).await {
            Some(()) => bail!("the thread {:?} has run no task for {HUNG:?}", self.name),
            None => Ok(()),
        }
    }

    /// Returns once the thread has run no task for `limit`; checks at each `interval`.
    async fn hung(&self, interval: Duration, limit: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            if tokio::time::timeout(limit, self.spawn(async {})).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn tasks_run_on_the_one_thread() {
        let own = OwnThread::start("own").unwrap();
        let name = async || thread::current().name().map(str::to_owned);
        assert_eq!(own.run(name()).await.as_deref(), Some("own"));
        let nested = own.run(async move { tokio::spawn(name()).await.unwrap() }).await;
        assert_eq!(nested.as_deref(), Some("own"));
    }

    #[tokio::test]
    async fn the_thread_ends_with_its_last_clone() {
        let own = OwnThread::start("own").unwrap();
        let task = own.spawn(std::future::pending::<()>());
        drop(own.clone());
        assert_eq!(own.run(async { 7 }).await, 7);
        drop(own);
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_thread_that_hangs_is_found_and_one_that_works_is_not() {
        let own = OwnThread::start("own").unwrap();
        let watched = own.clone();
        let interval = Duration::from_millis(1);
        // A busy machine may not let a thread that works run for seconds.
        let hung =
            tokio::spawn(async move { watched.hung(interval, Duration::from_secs(120)).await });
        // A hundred checks or so; the thread works in all of them.
        for _ in 0..100 {
            own.run(async { tokio::time::sleep(Duration::from_millis(1)).await }).await;
        }
        assert!(!hung.is_finished());
        hung.abort();
        let (release, blocked) = mpsc::channel::<()>();
        let hanging = own.spawn(async move { blocked.recv().is_err() });
        own.hung(interval, Duration::from_millis(50)).await;
        drop(release);
        assert!(hanging.await.unwrap());
    }

    #[tokio::test]
    async fn the_watch_ends_with_the_shutdown() {
        let own = OwnThread::start("own").unwrap();
        let shutdown = Shutdown::new();
        let watch = tokio::spawn(own.watch(shutdown.clone()));
        shutdown.cancel();
        watch.await.unwrap().unwrap();
    }
}
