//! The state behind NVML's handles: GPUs by UUID, and event sets.
//!
//! Invariant: a handle means one UUID while the process runs, whatever the script does. A handle that was
//! never given out is an invalid argument.

use std::collections::HashMap;

use crate::script::{Gpu, Script, ScriptFile};

/// `nvmlReturn_t`. The values are NVML's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum Return {
    /// The call wrote its result.
    Success = 0,
    /// No script could be read.
    DriverNotLoaded = 9,
    /// A null pointer, or a handle that was never given out.
    InvalidArgument = 2,
    /// The script leaves this reading out.
    NotSupported = 3,
    /// No GPU has that UUID.
    NotFound = 6,
    /// The caller's buffer is too short.
    InsufficientSize = 7,
    /// No event arrived in time.
    Timeout = 10,
    /// The driver does not have the function.
    FunctionNotFound = 13,
    /// The GPU is unhealthy or gone from the script.
    GpuIsLost = 15,
    /// A lock was poisoned.
    Unknown = 999,
}

/// A critical error that an event set delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Handle of the GPU.
    pub device: usize,
    /// NVIDIA's number of the error.
    pub xid: u64,
}

/// The script, the handles given out, and the event sets.
#[derive(Debug)]
pub struct Machine {
    file: ScriptFile,
    /// UUIDs with a handle; the handle is the position plus one.
    names: Vec<String>,
    sets: HashMap<usize, Watched>,
    last_set: usize,
}

/// The GPUs of an event set, each with its last XID.
type Watched = HashMap<usize, Option<u64>>;

impl Machine {
    /// A machine as `file` describes it.
    pub fn new(file: ScriptFile) -> Self {
        Self { file, names: Vec::new(), sets: HashMap::new(), last_set: 0 }
    }

    /// The script in force.
    pub fn script(&mut self) -> Result<&Script, Return> {
        self.file.current().ok_or(Return::DriverNotLoaded)
    }

    /// The handle of the GPU whose enumeration index is `index`.
    pub fn by_index(&mut self, index: u32) -> Result<usize, Return> {
        let gpus = &self.script()?.gpus;
        let at = (0..).zip(gpus).find(|(place, gpu)| gpu.index.unwrap_or(*place) == index);
        let uuid = at.ok_or(Return::InvalidArgument)?.1.uuid.clone();
        Ok(self.handle(uuid))
    }

    /// The handle of the GPU of that UUID.
    pub fn by_uuid(&mut self, uuid: &str) -> Result<usize, Return> {
        let known = self.script()?.gpus.iter().any(|gpu| gpu.uuid == uuid);
        if known { Ok(self.handle(uuid.to_owned())) } else { Err(Return::NotFound) }
    }

    fn handle(&mut self, uuid: String) -> usize {
        match self.names.iter().position(|name| *name == uuid) {
            Some(at) => at + 1,
            None => {
                self.names.push(uuid);
                self.names.len()
            }
        }
    }

    /// A GPU's index and names. A lost GPU still has these.
    pub fn identity(&mut self, device: usize) -> Result<(u32, Gpu), Return> {
        let at = device.checked_sub(1).ok_or(Return::InvalidArgument)?;
        let uuid = self.names.get(at).ok_or(Return::InvalidArgument)?.clone();
        let gpus = &self.script()?.gpus;
        let (place, gpu) =
            (0..).zip(gpus).find(|(_, gpu)| gpu.uuid == uuid).ok_or(Return::GpuIsLost)?;
        Ok((gpu.index.unwrap_or(place), gpu.clone()))
    }

    /// A GPU with its readings, by its handle.
    ///
    /// # Errors
    /// [`Return::GpuIsLost`] where it is lost.
    pub fn reading(&mut self, device: usize) -> Result<Gpu, Return> {
        let (_, gpu) = self.identity(device)?;
        if gpu.healthy { Ok(gpu) } else { Err(Return::GpuIsLost) }
    }

    /// A new, empty event set.
    pub fn create_set(&mut self) -> usize {
        self.last_set += 1;
        self.sets.insert(self.last_set, Watched::new());
        self.last_set
    }

    /// Removes an event set.
    pub fn free_set(&mut self, set: usize) -> Result<(), Return> {
        self.sets.remove(&set).map(drop).ok_or(Return::InvalidArgument)
    }

    /// Adds a GPU to a set, which delivers the errors that it raises from now on.
    pub fn register(&mut self, device: usize, set: usize) -> Result<(), Return> {
        let xid = self.reading(device)?.xid;
        self.sets.get_mut(&set).ok_or(Return::InvalidArgument)?.insert(device, xid);
        Ok(())
    }

    /// The next event of a set, if there is one now.
    ///
    /// # Errors
    /// [`Return::GpuIsLost`] for as long as a GPU of the set is lost.
    pub fn poll(&mut self, set: usize) -> Result<Option<Event>, Return> {
        let devices: Vec<usize> =
            self.sets.get(&set).ok_or(Return::InvalidArgument)?.keys().copied().collect();
        for device in devices {
            let xid = self.reading(device)?.xid;
            let before =
                self.sets.get_mut(&set).and_then(|watched| watched.insert(device, xid)).flatten();
            if let Some(xid) = xid
                && Some(xid) != before
            {
                return Ok(Some(Event { device, xid }));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        machine: Machine,
    }

    fn bench(gpus: &str) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::new(ScriptFile::new(dir.path().join("s.json")));
        let bench = Bench { dir, machine };
        bench.write(gpus);
        bench
    }

    impl Bench {
        fn write(&self, gpus: &str) {
            fs::write(self.dir.path().join("s.json"), format!(r#"{{"cards":[{gpus}]}}"#)).unwrap();
        }
    }

    const A: &str = r#"{"uuid":"GPU-a"}"#;

    #[test]
    fn a_handle_follows_its_gpu_when_the_order_changes() {
        let mut bench = bench(r#"{"uuid":"GPU-a"},{"uuid":"GPU-b"}"#);
        let b = bench.machine.by_index(1).unwrap();
        bench.write(r#"{"uuid":"GPU-b"},{"uuid":"GPU-a"} "#);
        let (index, gpu) = bench.machine.identity(b).unwrap();
        assert_eq!((index, gpu.uuid.as_str()), (0, "GPU-b"));
    }

    #[test]
    fn a_handle_never_given_out_is_an_invalid_argument() {
        let mut bench = bench(A);
        assert_eq!(bench.machine.identity(0), Err(Return::InvalidArgument));
        assert_eq!(bench.machine.identity(7), Err(Return::InvalidArgument));
        assert_eq!(bench.machine.by_index(1), Err(Return::InvalidArgument));
    }

    #[test]
    fn a_gpu_gone_from_the_script_is_lost() {
        let mut bench = bench(A);
        let a = bench.machine.by_uuid("GPU-a").unwrap();
        bench.write("");
        assert_eq!(bench.machine.reading(a), Err(Return::GpuIsLost));
    }

    #[test]
    fn an_unhealthy_gpu_keeps_its_name_but_reads_nothing() {
        let mut bench = bench(r#"{"uuid":"GPU-a","healthy":false}"#);
        let a = bench.machine.by_index(0).unwrap();
        assert_eq!(bench.machine.identity(a).unwrap().1.uuid, "GPU-a");
        assert_eq!(bench.machine.reading(a), Err(Return::GpuIsLost));
    }

    #[test]
    fn an_xid_is_delivered_once_and_again_when_it_changes() {
        let mut bench = bench(r#"{"uuid":"GPU-a","xid":13}"#);
        let a = bench.machine.by_index(0).unwrap();
        let set = bench.machine.create_set();
        bench.machine.register(a, set).unwrap();
        assert_eq!(bench.machine.poll(set), Ok(None), "raised before it was registered");
        bench.write(r#"{"uuid":"GPU-a","xid":79} "#);
        assert_eq!(bench.machine.poll(set), Ok(Some(Event { device: a, xid: 79 })));
        assert_eq!(bench.machine.poll(set), Ok(None));
    }

    #[test]
    fn a_set_with_a_lost_gpu_delivers_nothing_but_that() {
        let mut bench = bench(r#"{"uuid":"GPU-a"},{"uuid":"GPU-b"}"#);
        let a = bench.machine.by_index(0).unwrap();
        let b = bench.machine.by_index(1).unwrap();
        let first = bench.machine.create_set();
        let second = bench.machine.create_set();
        bench.machine.register(a, first).unwrap();
        bench.machine.register(b, second).unwrap();
        bench.write(r#"{"uuid":"GPU-a","healthy":false},{"uuid":"GPU-b"}"#);
        assert_eq!(bench.machine.poll(first), Err(Return::GpuIsLost));
        assert_eq!(bench.machine.register(a, second), Err(Return::GpuIsLost));
        assert_eq!(bench.machine.poll(second), Ok(None));
    }

    #[test]
    fn a_freed_set_is_an_invalid_argument() {
        let mut bench = bench(A);
        let set = bench.machine.create_set();
        assert_eq!(bench.machine.free_set(set), Ok(()));
        assert_eq!(bench.machine.poll(set), Err(Return::InvalidArgument));
    }
}
