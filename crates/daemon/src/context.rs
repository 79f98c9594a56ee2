//! The state that a running program shares with this crate: its shutdown, tasks, health and metrics.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::follow::{FileError, Follower, Source};
use crate::metrics::{FileChanges, FileMetrics, Registry};
use crate::{Health, Program, Shutdown, Status, Tasks};

/// A running program's shutdown, tasks, health and metrics. Clones share one state.
#[derive(Debug, Clone)]
pub struct Context {
    program: Program,
    shutdown: Shutdown,
    tasks: Tasks,
    health: Health,
    registry: Arc<Mutex<Registry>>,
    files: FileMetrics,
}

impl Context {
    /// A context without tasks or conditions, with `plimsoll_build_info`, the metrics of the process and those of files
    /// registered.
    #[must_use]
    pub fn new(program: Program) -> Self {
        let shutdown = Shutdown::new();
        let mut registry = Registry::of_program(program);
        Self {
            program,
            tasks: Tasks::new(shutdown.clone()),
            shutdown,
            health: Health::default(),
            files: FileMetrics::register(&mut registry),
            registry: Arc::new(Mutex::new(registry)),
        }
    }

    /// The program's name, version and commit.
    #[must_use]
    pub fn program(&self) -> Program {
        self.program
    }

    /// Cancelled when the process has to end; cancel it to end the process.
    #[must_use]
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// The conditions behind `/readyz` and `/v1/health`.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The tasks behind `/livez`.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Runs `task` as part of the process. The process ends with an error if it ends before the shutdown.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.tasks.spawn(name, task);
    }

    /// Follows files as a task of the process ([`Follower::follow`]). Their changes are counted by this name,
    /// which says what they hold, and is the id of a condition: whether the last change was taken.
    pub fn follow<S, P>(
        &self,
        name: &'static str,
        files: Follower<S>,
        pause: impl Fn() -> P + Send + 'static,
        mut on_change: impl FnMut(Result<Arc<S::Value>, &FileError>) + Send + 'static,
    ) where
        S: Source + Send + 'static,
        S::Value: Send + Sync,
        P: Future<Output = ()> + Send + 'static,
    {
        let changes = self.file_changes(name);
        let condition = self.health.condition(name);
        condition.set(Status::ok("read"));
        let on_change = move |change: Result<Arc<S::Value>, &FileError>| {
            condition.set(match &change {
                Ok(_) => Status::ok("read"),
                Err(error) => Status::failed(
                    format!("refused, and the one before stays in force: {error}"),
                    "mend the file, or go back to the one before",
                ),
            });
            let good = change.is_ok();
            on_change(change);
            changes.count(good);
        };
        self.spawn(name, files.follow(pause, on_change, self.shutdown()));
    }

    /// The metrics of files that are not followed with [`follow`](Self::follow).
    #[must_use]
    pub fn file_changes(&self, name: &'static str) -> FileChanges {
        self.files.of(name)
    }

    /// Registers a program's metrics. A program has one such call for all that it may ever serve: the tables of
    /// docs/metrics.md are made from the same function.
    pub fn register<M>(&self, register: impl FnOnce(&mut Registry) -> M) -> M {
        register(&mut self.registry())
    }

    /// Calls `set` before each scrape, for metrics that are counted from a `state` of the program. It must not register
    /// others.
    pub fn before_scrape<M, S>(&self, metrics: &M, state: S, set: fn(&M, &S))
    where
        M: Clone + Send + 'static,
        S: Send + 'static,
    {
        let shared = metrics.clone();
        self.registry().before_scrape(move || set(&shared, &state));
    }

    /// All metrics in Prometheus's text format.
    ///
    /// # Errors
    /// When a metric fails to encode itself.
    pub fn metrics(&self) -> Result<String, std::fmt::Error> {
        self.health.refresh();
        self.registry().page()
    }

    // A panic cannot leave a partial change: a registry is only added to.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
