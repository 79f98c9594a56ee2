//! Owns the GPU: the machine's own, or one that a stand-in of NVIDIA's library tells of; and the CDI file by which
//! containers get it. No setting of a GPU is changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use nvml::{Library, Probe as _};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use crate::parts::Parts;

/// Where containers have the driver's libraries; the image's loader looks there.
pub(crate) const LIBRARIES: &str = "/usr/local/nvidia/lib64";
/// Folders of the driver's libraries that the loader may not know.
const FOLDERS: [&str; 3] = [LIBRARIES, "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu"];
/// What the stand-in tells: the memory of an H100 as NVML has it, 79 units of 1 GiB beside what the driver keeps.
const MEMORY_MIB: u64 = 81_559;
const RESERVED_MIB: u64 = 480;
/// What a process without allocations has of a real GPU, which the stand-in's have too.
const CONTEXT_MIB: u64 = 518;
/// The major number of NVIDIA's devices, and minor numbers of those that are no GPU.
const MAJOR: u32 = 195;
const OTHERS: [(&str, u32); 2] = [("nvidiactl", 255), ("nvidia-uvm", 253)];

/// A process on the GPU, as the stand-in is to tell of it.
pub(crate) struct Pretended {
    pub(crate) pid: i32,
    pub(crate) allocated_mib: u64,
    /// `None` outside of MPS.
    pub(crate) mps: Option<bool>,
}

/// The GPU that the questions are about: the first of the machine.
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) model: String,
    pub(crate) driver: String,
    pub(crate) memory_mib: u64,
    /// Memory that the driver keeps for itself.
    pub(crate) reserved_mib: u64,
    /// N of its device node `/dev/nvidiaN`.
    pub(crate) minor: u32,
    /// NVML, by path or soname.
    pub(crate) library: PathBuf,
    /// Whether it is a stand-in.
    pub(crate) fake: bool,
    script: PathBuf,
    nvml: Library,
}

impl Gpu {
    /// Finds the GPU, and writes the CDI file of it into `cdi`. `folder` takes what a stand-in needs.
    pub(crate) fn find(parts: &Parts, fake: bool, folder: &Path, cdi: &Path) -> Result<Self> {
        let script = folder.join("nvml-script.json");
        let library = if fake { stand_in(parts, folder, &script)? } else { own_library() };
        let nvml = Library::open(&library)
            .context("no GPU to ask: install NVIDIA's driver, or run with --fake (FAKE=1)")?;
        let gpus = nvml.gpus()?;
        let gpu = gpus.first().context("NVML tells of no GPU")?.clone();
        let gpu = Self {
            driver: nvml.driver().context("NVML does not tell the driver's version")?,
            model: gpu.model.unwrap_or_default(),
            memory_mib: gpu.memory_mib.context("NVML does not tell the GPU's memory")?,
            reserved_mib: gpu.reserved_mib.unwrap_or_default(),
            minor: gpu.minor.context("NVML does not tell the GPU's device node")?,
            uuid: gpu.uuid,
            library,
            fake,
            script,
            nvml,
        };
        let devices = if fake { folder.join("dev") } else { PathBuf::from("/dev") };
        if fake {
            make_devices(&devices, gpu.minor)?;
        }
        fs::write(cdi.join("nvidia.json"), gpu.cdi(&devices, folder)?.to_string())?;
        Ok(gpu)
    }

    /// Memory of the GPU in use by each process, in MiB: by nvidia-smi where there is one, which shares no code with
    /// Plimsoll.
    pub(crate) fn processes(&self) -> Result<BTreeMap<i32, u64>> {
        let smi = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"];
        if !self.fake
            && let Ok(listed) = e2e::command::run(
                e2e::command::command("nvidia-smi").args(smi).arg(format!("--id={}", self.uuid)),
            )
        {
            let row = |line: &str| {
                let (pid, mib) = line.split_once(',')?;
                Some((pid.trim().parse().ok()?, mib.trim().parse().ok()?))
            };
            return Ok(listed.lines().filter_map(row).collect());
        }
        let listed = self.nvml.processes(&self.uuid, SystemTime::now())?;
        let listed = listed.context("NVML does not tell the GPU's processes")?;
        Ok(listed
            .into_iter()
            .filter_map(|process| {
                Some((i32::try_from(process.pid).ok()?, process.used_bytes? >> 20))
            })
            .collect())
    }

    /// Memory in use, in MiB.
    pub(crate) fn used_mib(&self) -> Result<u64> {
        self.nvml.status(&self.uuid)?.used_mib.context("NVML does not tell the memory in use")
    }

    /// From now on the stand-in tells of these processes, and of this error. A real GPU tells of its own.
    pub(crate) fn pretend(&self, processes: &[Pretended], xid: Option<u64>) -> Result<()> {
        if !self.fake {
            return Ok(());
        }
        write_script(&self.script, processes, xid)
    }

    /// The shape of `nvidia-ctk cdi generate --device-name-strategy=uuid`, without hooks: the image's loader finds the
    /// libraries by itself.
    fn cdi(&self, devices: &Path, folder: &Path) -> Result<Value> {
        let own = format!("nvidia{}", self.minor);
        let node =
            |name: &str| json!({"path": format!("/dev/{name}"), "hostPath": devices.join(name)});
        ensure!(devices.join(&own).exists(), "the GPU has no device node /dev/{own}");
        let others = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];
        let others: Vec<Value> =
            others.into_iter().filter(|name| devices.join(name).exists()).map(node).collect();
        // The stand-in finds its script beside itself, and that is replaced: the folder is mounted, not its files.
        let mounts = if self.fake { vec![mount(folder, LIBRARIES)] } else { driver_mounts()? };
        Ok(json!({
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": self.uuid, "containerEdits": {"deviceNodes": [node(&own)]}}],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": others, "mounts": mounts,
            },
        }))
    }
}

/// NVML by its soname where the loader finds it, else by its path.
fn own_library() -> PathBuf {
    let soname = PathBuf::from(nvml::DEFAULT_LIBRARY);
    if Library::open(&soname).is_ok() {
        return soname;
    }
    let paths = FOLDERS.iter().map(|folder| Path::new(folder).join(nvml::DEFAULT_LIBRARY));
    paths.into_iter().find(|path| path.exists()).unwrap_or(soname)
}

/// The driver's libraries, of the folder from which NVML was loaded, as mounts.
fn driver_mounts() -> Result<Vec<Value>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let nvml = maps.lines().find_map(|line| {
        line.find('/').map(|at| &line[at..]).filter(|path| path.contains("libnvidia-ml.so"))
    });
    let folder = Path::new(nvml.context("NVML is not loaded")?).parent().context("no folder")?;
    let mut mounts = Vec::new();
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().exists()
            && name.contains(".so")
            && (name.starts_with("libcuda.") || name.starts_with("libnvidia-"))
        {
            mounts.push(mount(&entry.path(), &format!("{LIBRARIES}/{name}")));
        }
    }
    Ok(mounts)
}

fn mount(path: &Path, inside: &str) -> Value {
    let options = ["ro", "nosuid", "nodev", "bind"];
    json!({"hostPath": path, "containerPath": inside, "options": options})
}

/// The stand-in library beside its script, as NVML and as CUDA.
fn stand_in(parts: &Parts, folder: &Path, script: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    write_script(script, &[], None)?;
    let library = folder.join(nvml::DEFAULT_LIBRARY);
    for name in [&library, &folder.join("libcuda.so.1")] {
        fs::copy(parts.folder.join("lib/libplimsoll_nvml_standin.so"), name)
            .context("cannot copy the stand-in library")?;
    }
    Ok(library)
}

fn write_script(path: &Path, processes: &[Pretended], xid: Option<u64>) -> Result<()> {
    let told: Vec<Value> = processes
        .iter()
        .map(|process| {
            let bytes = (process.allocated_mib + CONTEXT_MIB) << 20;
            json!({"pid": process.pid, "usedBytes": bytes, "mps": process.mps})
        })
        .collect();
    let used: u64 = processes.iter().map(|process| process.allocated_mib + CONTEXT_MIB).sum();
    let script = json!({"driver": "580.0", "cards": [{
        "uuid": "GPU-5afec0de-5afe-4000-8000-000000000001", "index": 0, "minor": 0, "model": "NVIDIA H100",
        "memoryMiB": MEMORY_MIB, "reservedMiB": RESERVED_MIB, "usedMiB": RESERVED_MIB + used, "cudaMajor": 9,
        "numaNode": 0, "healthy": true, "xid": xid, "computeMode": 0, "processes": told,
    }]});
    let scratch = path.with_extension("new");
    fs::write(&scratch, script.to_string())?;
    fs::rename(&scratch, path).with_context(|| format!("cannot write {}", path.display()))
}

fn make_devices(folder: &Path, minor: u32) -> Result<()> {
    fs::create_dir_all(folder)?;
    let own = (format!("nvidia{minor}"), minor);
    let others = OTHERS.map(|(name, minor)| (name.to_owned(), minor));
    for (name, minor) in others.into_iter().chain([own]) {
        let path = folder.join(name);
        let kind = FileType::CharacterDevice;
        mknodat(CWD, &path, kind, Mode::from(0o666), makedev(MAJOR, minor))
            .with_context(|| format!("cannot make the device node {}", path.display()))?;
    }
    Ok(())
}
