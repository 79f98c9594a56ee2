//! The tasks of a process. A task that ends before the shutdown counts as dead and stops the process.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, anyhow};
use tokio::task::JoinError;
use tokio_util::task::TaskTracker;

use crate::{Causes, Shutdown};

/// All tasks of a process.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    running: Vec<&'static str>,
    dead: Vec<&'static str>,
    first_death: Option<anyhow::Error>,
}

impl Tasks {
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { tracker: TaskTracker::new(), shutdown, state: Arc::default() }
    }

    /// Runs `task` until it ends. It should end soon after the shutdown token is cancelled, and not before.
    pub(crate) fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.lock().running.push(name);
        // Spawned by itself, so that a panic (in builds that unwind) reaches `ended` as an error.
        let handle = tokio::spawn(task);
        let tasks = self.clone();
        self.tracker.spawn(async move {
            let outcome = handle.await;
            tasks.ended(name, outcome);
        });
    }

    /// Names of the dead tasks, in the order of their ends.
    #[must_use]
    pub fn dead(&self) -> Vec<&'static str> {
        self.lock().dead.clone()
    }

    /// Names of the tasks that run.
    #[must_use]
    pub fn running(&self) -> Vec<&'static str> {
        self.lock().running.clone()
    }

    /// Waits until every task has ended.
    ///
    /// # Errors
    /// The first task's that died.
    pub(crate) async fn join(&self) -> anyhow::Result<()> {
        self.tracker.close();
        self.tracker.wait().await;
        self.lock().first_death.take().map_or(Ok(()), Err)
    }

    fn ended(&self, name: &'static str, outcome: Result<anyhow::Result<()>, JoinError>) {
        let mut state = self.lock();
        if let Some(position) = state.running.iter().position(|running| *running == name) {
            state.running.remove(position);
        }
        if let Err(error) = verdict(outcome, &self.shutdown).context(format!("task {name:?}")) {
            tracing::error!(task = name, error = %Causes(error.as_ref()), "task died");
            state.dead.push(name);
            state.first_death.get_or_insert(error);
        }
        let died = !state.dead.is_empty();
        drop(state);
        if died {
            self.shutdown.cancel();
        }
    }

    // A panic cannot leave a partial change: each is one push or remove.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error where the task died.
fn verdict(
    outcome: Result<anyhow::Result<()>, JoinError>,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    match outcome {
        Err(panic) => Err(panic.into()),
        Ok(Ok(())) if !shutdown.is_cancelled() => Err(anyhow!("ended before the shutdown")),
        Ok(outcome) => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Tasks {
        Tasks::new(Shutdown::new())
    }

    #[tokio::test]
    async fn a_failed_task_stops_the_process_and_is_named() {
        let tasks = tasks();
        tasks.spawn("watch", async { Err(anyhow!("no route to host")) });
        tasks.shutdown.cancelled().await;
        let error = tasks.join().await.unwrap_err();
        assert_eq!(format!("{error:#}"), "task \"watch\": no route to host");
        assert_eq!(tasks.dead(), ["watch"]);
    }

    #[tokio::test]
    async fn a_task_that_ends_early_or_panics_is_dead() {
        for (name, task) in [("ends", false), ("panics", true)] {
            let tasks = tasks();
            tasks.spawn(name, async move {
                assert!(!task, "a bug");
                Ok(())
            });
            tasks.shutdown.cancelled().await;
            assert!(tasks.join().await.is_err());
            assert_eq!(tasks.dead(), [name]);
        }
    }

    #[tokio::test]
    async fn a_task_that_ends_with_the_shutdown_is_not_dead() {
        let tasks = tasks();
        let shutdown = tasks.shutdown.clone();
        tasks.spawn("serve", async move {
            shutdown.cancelled().await;
            Ok(())
        });
        assert_eq!(tasks.running(), ["serve"]);
        tasks.shutdown.cancel();
        tasks.join().await.unwrap();
        assert!(tasks.dead().is_empty() && tasks.running().is_empty());
    }
}
