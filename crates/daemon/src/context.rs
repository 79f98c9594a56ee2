//! The state that a running program shares with this crate: its shutdown, tasks, readiness and metrics.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::info::Info;

use crate::admin::text_of;
use crate::{ProcessMetrics, Program, Readiness, Registry, Shutdown, Tasks};

/// A running program's shutdown, tasks, readiness and metrics. Clones share one state.
#[derive(Debug, Clone)]
pub struct Context {
    program: Program,
    shutdown: Shutdown,
    tasks: Tasks,
    readiness: Readiness,
    registry: Arc<Mutex<Registry>>,
}

impl Context {
    /// A context without tasks or conditions, with `plimsoll_build_info` and the process metrics registered.
    #[must_use]
    pub fn new(program: Program) -> Self {
        let shutdown = Shutdown::new();
        Self {
            program,
            tasks: Tasks::new(shutdown.clone()),
            shutdown,
            readiness: Readiness::default(),
            registry: Arc::new(Mutex::new(base_registry(program))),
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

    /// The conditions behind `/readyz`.
    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
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

    /// Registers a program's metrics; their names get the prefix `plimsoll_`.
    pub fn register<M>(&self, register: impl FnOnce(&mut Registry) -> M) -> M {
        register(self.registry().sub_registry_with_prefix("plimsoll"))
    }

    /// All metrics in Prometheus's text format.
    ///
    /// # Errors
    /// When a metric fails to encode itself.
    pub fn metrics(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry())?;
        Ok(text_of(&page))
    }

    // A panic cannot leave a partial change: a registry is only added to.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn base_registry(program: Program) -> Registry {
    let mut registry = Registry::default();
    let labels = vec![
        ("name", program.name),
        ("version", program.version),
        ("git", program.git.unwrap_or("")),
    ];
    registry.register("plimsoll_build", "What this process was built from", Info::new(labels));
    registry.register_collector(Box::new(ProcessMetrics::of_this_process()));
    registry
}
