//! The script: which GPUs there are and what they report.
//!
//! Invariant: a script that cannot be read or parsed never replaces one that could: the last good one
//! stays in force.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

/// The environment variable with the script's path. Without it, [`SCRIPT_NAME`] beside the library is
/// read.
pub const SCRIPT_ENV: &str = "PLIMSOLL_NVML_SCRIPT";
/// The script's name in the library's own directory.
pub const SCRIPT_NAME: &str = "nvml-script.json";

/// A machine's driver and GPUs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// The driver's version, as `nvidia-smi` shows it.
    #[serde(default)]
    pub driver: Option<String>,
    /// The GPUs, in enumeration order.
    #[serde(rename = "cards")]
    pub gpus: Vec<Gpu>,
}

/// One GPU. A field that is left out is answered with "not supported", never with 0.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gpu {
    /// The GPU's UUID, `GPU-…`.
    pub uuid: String,
    /// Enumeration index; by default the place in the list, from 0.
    #[serde(default)]
    pub index: Option<u32>,
    /// Product name, such as `NVIDIA A10`.
    #[serde(default)]
    pub model: Option<String>,
    /// N of `/dev/nvidiaN`.
    #[serde(default)]
    pub minor: Option<u32>,
    /// Total memory in MiB.
    #[serde(rename = "memoryMiB", default)]
    pub memory_mib: Option<u64>,
    /// Memory in use, in MiB. NVML answers total and used together, so this cannot be unknown alone.
    #[serde(rename = "usedMiB", default)]
    pub used_mib: u64,
    /// Memory that the driver keeps for itself, in MiB, a part of the total.
    #[serde(rename = "reservedMiB", default)]
    pub reserved_mib: u64,
    /// What control groups may use of it, in MiB by the path of a group's folder; left out where the driver is older
    /// than the question.
    #[serde(rename = "limitsMiB", default)]
    pub limits_mib: Option<BTreeMap<String, u64>>,
    /// NUMA node of the host memory nearest to the GPU.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// Indexes of the GPUs that it reaches over NVLink.
    #[serde(default)]
    pub linked: Vec<u32>,
    /// Its number on the PCI bus of domain 0.
    pub pci_bus: Option<u32>,
    /// Major number of its CUDA compute capability.
    #[serde(default)]
    pub cuda_major: Option<i32>,
    /// Percent of the last sample period in which a kernel ran.
    #[serde(default)]
    pub utilisation: Option<u32>,
    /// Temperature in degrees Celsius.
    #[serde(default)]
    pub temperature: Option<u32>,
    /// Power draw in milliwatt.
    #[serde(default)]
    pub power_milliwatt: Option<u32>,
    /// Whether MIG mode is on.
    #[serde(default)]
    pub mig: Option<bool>,
    /// NVML's number of the recovery action that the GPU needs; 0 is none.
    #[serde(default)]
    pub recovery: Option<u32>,
    /// NVML's number of its compute mode: 0 any number of processes, 2 none, 3 one.
    #[serde(default)]
    pub compute_mode: Option<u32>,
    /// The processes on it; left out where the driver does not tell.
    #[serde(default)]
    pub processes: Option<Vec<Process>>,
    /// `false`: the GPU is lost. It keeps its name, but every reading and wait fails.
    #[serde(default = "healthy")]
    pub healthy: bool,
    /// What CUDA answers of it; left out where it works.
    #[serde(default)]
    pub cuda: Option<Cuda>,
    /// A critical error, raised once when this value appears or changes.
    #[serde(default)]
    pub xid: Option<u64>,
}

/// What CUDA answers of a GPU that it cannot use.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cuda {
    /// The function that fails, without its version: `cuInit`, `cuDeviceGet`, `cuCtxCreate`, `cuMemAlloc`,
    /// `cuMemcpyHtoD`, `cuMemcpyDtoH`, `cuMemFree` or `cuCtxDestroy`.
    #[serde(default = "context")]
    pub call: String,
    /// Its `CUresult`. A `cuMemcpyDtoH` of 0 reads other bytes than were written.
    #[serde(default)]
    pub code: i32,
    /// Whether it never returns.
    #[serde(default)]
    pub hangs: bool,
}

fn context() -> String {
    "cuCtxCreate".to_owned()
}

/// A process on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Process {
    /// Its id, in the PID namespace of the program that loads the library.
    pub pid: u32,
    /// Memory of the GPU that it has, in bytes; left out where the driver does not tell.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Percent of the last sample period in which it was busy; left out for a process that is not sampled. Where a
    /// GPU's processes all leave it out, the driver does not sample.
    #[serde(default)]
    pub sm: Option<u32>,
    /// Whether it is in the list of graphics processes, and not in that of compute processes.
    #[serde(default)]
    pub graphics: bool,
    /// Whether it is in the list of MPS's clients, and not in that of compute processes. Where a GPU's processes all
    /// leave it out, the driver does not tell.
    #[serde(default)]
    pub mps: Option<bool>,
}

fn healthy() -> bool {
    true
}

/// A script file that is read again when it changes.
#[derive(Debug)]
pub struct ScriptFile {
    path: PathBuf,
    seen: Option<Stamp>,
    script: Script,
}

/// A version of the file: its time of change, and its length in case the file system's clock is coarse.
type Stamp = (SystemTime, u64);

impl ScriptFile {
    /// The file at `path`, which [`ScriptFile::current`] reads.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None, script: Script::default() }
    }

    /// The script in force, or `None` while none has ever been readable.
    pub fn current(&mut self) -> Option<&Script> {
        let stamp = stamp(&self.path);
        if stamp.is_some()
            && stamp != self.seen
            && let Some(script) = read(&self.path)
        {
            self.script = script;
            self.seen = stamp;
        }
        self.seen.is_some().then_some(&self.script)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let data = fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

fn read(path: &Path) -> Option<Script> {
    let text = fs::read_to_string(path).ok()?;
    match serde_json::from_str(&text) {
        Ok(script) => Some(script),
        Err(error) => {
            // The caller sees an NVML code only.
            eprintln!(
                "nvml stand-in: {}: {error}; the last good script stays in force",
                path.display()
            );
            None
        }
    }
}

/// The script's path: from the environment, else beside the loaded library.
pub fn default_path() -> PathBuf {
    match std::env::var_os(SCRIPT_ENV) {
        Some(path) => PathBuf::from(path),
        None => library_directory().unwrap_or_default().join(SCRIPT_NAME),
    }
}

/// The directory of the file that this code was loaded from, by `/proc/self/maps`.
fn library_directory() -> Option<PathBuf> {
    let here = library_directory as *const () as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let file = maps.lines().find_map(|line| mapped_file(line, here))?;
    Path::new(file).parent().map(Path::to_path_buf)
}

/// The file of one line of `/proc/PID/maps`, if `address` lies in its range.
fn mapped_file(line: &str, address: usize) -> Option<&str> {
    let (start, rest) = line.split_once('-')?;
    let (end, rest) = rest.split_once(' ')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let path = rest.find('/').map(|at| &rest[at..])?;
    (start..end).contains(&address).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        r#"{"driver":"580.1","cards":[{"uuid":"GPU-a","memoryMiB":16384,"xid":null}]}"#;

    fn file(text: &str) -> (tempfile::TempDir, ScriptFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SCRIPT_NAME);
        fs::write(&path, text).unwrap();
        (dir, ScriptFile::new(path))
    }

    #[test]
    fn what_a_gpu_leaves_out_is_unknown_and_it_is_healthy() {
        let (_dir, mut file) = file(ONE);
        let gpu = &file.current().unwrap().gpus[0];
        assert_eq!((gpu.memory_mib, gpu.minor, gpu.healthy), (Some(16384), None, true));
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let (_dir, mut file) = file(ONE);
        assert_eq!(file.current().unwrap().gpus.len(), 1);
        fs::write(&file.path, r#"{"cards":[]}"#).unwrap();
        assert_eq!(file.current().unwrap().gpus.len(), 0);
    }

    #[test]
    fn a_broken_file_leaves_the_last_good_script_in_force() {
        let (_dir, mut file) = file(ONE);
        file.current().unwrap();
        fs::write(&file.path, "{").unwrap();
        assert_eq!(file.current().unwrap().gpus[0].uuid, "GPU-a");
        fs::remove_file(&file.path).unwrap();
        assert_eq!(file.current().unwrap().gpus[0].uuid, "GPU-a");
    }

    #[test]
    fn an_absent_file_gives_no_script() {
        assert_eq!(ScriptFile::new("/nonexistent/script.json".into()).current(), None);
    }

    #[test]
    fn an_address_finds_its_mapped_file() {
        let line = "7f00-7f80 r-xp 00000000 08:01 42   /opt/a dir/libnvidia-ml.so.1";
        assert_eq!(mapped_file(line, 0x7f10), Some("/opt/a dir/libnvidia-ml.so.1"));
        assert_eq!(mapped_file(line, 0x7f80), None);
        assert_eq!(mapped_file("7f00-7f80 rw-p 00000000 00:00 0", 0x7f10), None);
    }
}
