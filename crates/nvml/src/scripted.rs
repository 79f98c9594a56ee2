//! A probe with answers that a test sets.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nvml_wrapper::error::NvmlError;

use crate::{Error, Gpu, MemoryLimit, Observer, Probe, Process, Status, Xid};

/// A [`Probe`] whose GPUs, readings, lost GPUs and errors are set by its owner, from any thread.
#[derive(Debug, Default)]
pub struct Scripted {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    gpus: Vec<Gpu>,
    readings: HashMap<String, Status>,
    processes: HashMap<String, Vec<Process>>,
    limits: HashMap<(String, PathBuf), MemoryLimit>,
    lost: BTreeSet<String>,
    /// Whether the driver cannot enumerate.
    silent: bool,
    raised: HashMap<String, VecDeque<Xid>>,
}

impl State {
    fn answers(&self, uuid: &str) -> Result<(), Error> {
        let known = self.gpus.iter().any(|gpu| gpu.uuid == uuid);
        if known && !self.lost.contains(uuid) {
            return Ok(());
        }
        Err(Error::Lost { uuid: uuid.to_owned(), reason: "scripted".to_owned() })
    }

    /// The oldest error of a GPU that no watch has observed yet.
    fn take(&mut self, uuid: &str) -> Option<Xid> {
        self.raised.get_mut(uuid)?.pop_front()
    }
}

impl Scripted {
    /// A probe with these GPUs, each without any reading.
    pub fn new(gpus: Vec<Gpu>) -> Self {
        let state = Mutex::new(State { gpus, ..State::default() });
        Self { state, changed: Condvar::new() }
    }

    /// Sets the status of a GPU.
    pub fn set_status(&self, uuid: &str, status: Status) {
        self.state().readings.insert(uuid.to_owned(), status);
    }

    /// Sets the processes on a GPU. Until then they are unknown.
    pub fn set_processes(&self, uuid: &str, processes: Vec<Process>) {
        self.state().processes.insert(uuid.to_owned(), processes);
    }

    /// Sets what the driver lets a control group use of a GPU. Until then it is unknown.
    pub fn set_memory_limit(&self, uuid: &str, group: &Path, limit: MemoryLimit) {
        self.state().limits.insert((uuid.to_owned(), group.to_owned()), limit);
    }

    /// Makes a GPU lost, or present again.
    pub fn set_lost(&self, uuid: &str, lost: bool) {
        let mut state = self.state();
        if lost {
            state.lost.insert(uuid.to_owned())
        } else {
            state.lost.remove(uuid)
        };
        self.changed.notify_all();
    }

    /// Sets whether the driver enumerates its GPUs.
    pub fn set_enumerates(&self, enumerates: bool) {
        self.state().silent = !enumerates;
        self.changed.notify_all();
    }

    /// Raises an error of a GPU. It is kept until a watch observes it.
    pub fn raise(&self, uuid: &str, xid: Xid) {
        self.state().raised.entry(uuid.to_owned()).or_default().push_back(xid);
        self.changed.notify_all();
    }

    /// How many errors of a GPU no watch has observed yet.
    pub fn unobserved(&self, uuid: &str) -> usize {
        self.state().raised.get(uuid).map_or(0, VecDeque::len)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPU's next error, within `tick`.
    fn next(&self, uuid: &str, tick: Duration) -> Result<Option<Xid>, Error> {
        let waited = self.changed.wait_timeout_while(self.state(), tick, |state: &mut State| {
            state.answers(uuid).is_ok() && state.raised.get(uuid).is_none_or(VecDeque::is_empty)
        });
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.answers(uuid)?;
        Ok(state.take(uuid))
    }
}

impl Probe for Scripted {
    fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        let state = self.state();
        if state.silent { Err(NvmlError::Uninitialized.into()) } else { Ok(state.gpus.clone()) }
    }

    fn driver(&self) -> Option<String> {
        None
    }

    fn status(&self, uuid: &str) -> Result<Status, Error> {
        let state = self.state();
        state.answers(uuid)?;
        Ok(state.readings.get(uuid).cloned().unwrap_or_default())
    }

    fn processes(&self, uuid: &str, _since: SystemTime) -> Result<Option<Vec<Process>>, Error> {
        let state = self.state();
        state.answers(uuid)?;
        Ok(state.processes.get(uuid).cloned())
    }

    fn memory_limit(&self, uuid: &str, group: &Path) -> Result<MemoryLimit, Error> {
        let state = self.state();
        state.answers(uuid)?;
        let key = (uuid.to_owned(), group.to_owned());
        Ok(state.limits.get(&key).copied().unwrap_or(MemoryLimit::Unknown))
    }

    fn watch(&self, uuid: &str, tick: Duration, observe: &mut Observer<'_>) -> Result<(), Error> {
        while let ControlFlow::Continue(()) = observe(self.next(uuid, tick)?) {}
        Ok(())
    }
}
