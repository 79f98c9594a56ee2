//! Which modes of isolation this node can enforce, and what it lacks for the others.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use cluster::MpsConflict;

use super::Isolation;
use crate::drain::DrainPipe;
use crate::gpus::Gpus;
use crate::nvidia::spec::{DeviceLookup, MEMORY_LIMIT_HOOK, Specs};

/// The first driver whose NVML sets a memory limit on a control group.
const FIRST_DRIVER: u32 = 615;
/// The first CUDA compute capability whose MPS limits memory: Volta's.
const FIRST_MPS: u32 = 7;
/// The most clients of MPS that a GPU of Volta or newer serves: more fail when they start. NVIDIA's own plugin has the
/// same number (NVIDIA/k8s-device-plugin, cmd/mps-control-daemon/mps/device.go, `maxClients`).
const MPS_CLIENTS: u16 = 48;
/// A file that only the root of a hierarchy of version 2 has.
const CGROUP_V2: &str = "cgroup.controllers";
/// The parameters of the driver's kernel module, below `/proc`.
const DRIVER_PARAMS: &str = "driver/nvidia/params";
/// The pipe or socket on which MPS's control daemon listens.
const CONTROL_PIPE: &str = "control";

/// What the node lacks for a mode. The texts name the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Containers get their GPU in another way.
    #[error("containers get their GPU without CDI: run the device plugin with --response=cdi")]
    NotByCdi,
    /// NVIDIA's CDI device of a GPU has no hook for it.
    #[error(
        "NVIDIA's CDI device of GPU {0} has no hook {MEMORY_LIMIT_HOOK}: install NVIDIA's container toolkit 1.20.1 \
         or newer \
         and generate the specification again"
    )]
    NoHook(String),
    /// The driver is older than the first with this feature.
    #[error("driver {0} cannot limit memory: install {FIRST_DRIVER} or newer")]
    OldDriver(String),
    /// NVML does not report the driver's version.
    #[error("NVML does not tell the driver's version: install driver {FIRST_DRIVER} or newer")]
    UnknownDriver,
    /// The node's control groups are of version 1.
    #[error(
        "{}/{CGROUP_V2} is missing, and the driver limits control groups of version 2 alone: boot the node with them \
         (systemd.unified_cgroup_hierarchy=1), or mount the host's /sys/fs/cgroup there", .0.display()
    )]
    NoCgroupV2(PathBuf),
    /// The driver's accounting of memory is switched off.
    #[error(
        "{} has RmMemacctMode=0 among its RegistryDwords, and NVIDIA's hook would fail: take it out of the option \
         NVreg_RegistryDwords of the kernel module nvidia, and load that again", .0.display()
    )]
    AccountingOff(PathBuf),
    /// A container ran without the limit that it was given.
    #[error(
        "by NVML, pod {0} was not held to its limit: see that the driver and NVIDIA's container toolkit are of the same \
         installation, and restart the device plugin, which then looks again"
    )]
    NotHeld(String),
    /// No folder for MPS is set.
    #[error("no MPS is set up: name its folder with --mps-dir")]
    NoMps,
    /// MPS limits no memory on a GPU.
    #[error(
        "GPU {uuid} has CUDA compute capability {major}, and MPS limits memory from {FIRST_MPS} (Volta) on: keep \
         pods that need a limit off this node"
    )]
    OldGpu {
        /// The GPU.
        uuid: String,
        /// The major number of its capability.
        major: u32,
    },
    /// No control daemon listens.
    #[error(
        "no MPS control daemon listens at {}: run it on this node (value mps.enabled), with that as its \
         CUDA_MPS_PIPE_DIRECTORY", .0.display()
    )]
    NoDaemon(PathBuf),
    /// The folder of the pipes, or the pipe or socket in it, may not be the control daemon's.
    #[error(
        "{} must be a folder (mode 755), pipe or socket that user {owner} made and others cannot replace: what \
         listens there may not be the \
         MPS control daemon. Remove it, and start the daemon as that user (value mps.enabled)", .path.display()
    )]
    NotTheDaemons {
        /// The folder of the pipes, or the pipe or socket in it.
        path: PathBuf,
        /// The user that it must belong to.
        owner: u32,
    },
    /// The container cannot be a client of MPS.
    #[error("{0}")]
    MpsConflict(MpsConflict),
}

/// For each mode: `Ok` if the node can enforce it, or what it lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsolationSupport {
    /// [`Isolation::Driver`].
    pub driver: Result<(), Missing>,
    /// [`Isolation::Mps`].
    pub mps: Result<(), Missing>,
    /// Whether clients of MPS are terminated before their processes are killed; `None` without MPS.
    pub drains_clients: Option<bool>,
}

impl IsolationSupport {
    /// Whether the node can enforce this mode.
    ///
    /// # Errors
    /// What it lacks for it.
    pub fn of(&self, isolation: Isolation) -> Result<(), Missing> {
        match isolation {
            Isolation::None => Ok(()),
            Isolation::Mps => self.mps.clone(),
            Isolation::Driver => self.driver.clone(),
        }
    }

    /// The strongest mode that the node can enforce, and the clients of MPS that each GPU serves.
    pub fn strongest(&self) -> (Isolation, Option<u16>) {
        (self.modes().next_back().unwrap_or_default(), self.mps.is_ok().then_some(MPS_CLIENTS))
    }

    /// The modes that the node can enforce, from the weakest.
    pub(super) fn modes(&self) -> impl DoubleEndedIterator<Item = Isolation> {
        Isolation::ALL.into_iter().filter(|mode| self.of(*mode).is_ok())
    }
}

/// The paths and settings by which the node's support is detected.
#[derive(Debug, Clone)]
pub struct Host {
    /// Whether containers get their GPU by CDI.
    pub by_cdi: bool,
    /// The root of the control groups.
    pub cgroups: PathBuf,
    /// The mount point of `/proc`.
    pub proc: PathBuf,
    /// The folder of MPS, with `pipe/` and `shm/` in it; `None` without MPS.
    pub mps: Option<PathBuf>,
    /// The user that the control daemon runs as, which is this plugin's own: root in the manifests.
    pub daemon_user: u32,
}

impl Host {
    /// The node's support for these GPUs, by NVIDIA's specification. Reads files.
    pub fn support(&self, specs: &Specs, gpus: &Gpus) -> IsolationSupport {
        let (driver, mps) = (self.driver(specs, gpus), self.mps(gpus));
        let pipe = self.mps.as_ref().map(|mps| DrainPipe::below(mps, self.daemon_user));
        IsolationSupport { driver, mps, drains_clients: pipe.map(|pipe| pipe.is_served()) }
    }

    fn driver(&self, specs: &Specs, gpus: &Gpus) -> Result<(), Missing> {
        self.by_cdi()?;
        check_driver(gpus.driver())?;
        // NVIDIA's toolkit writes no device for a GPU that is lost or in MIG mode, and no container starts on one.
        for gpu in gpus.healthy() {
            match specs.device(gpu.uuid.as_str()) {
                DeviceLookup::One(_, device) if device.limits_memory => {}
                _ => return Err(Missing::NoHook(gpu.uuid.to_string())),
            }
        }
        if !self.cgroups.join(CGROUP_V2).exists() {
            return Err(Missing::NoCgroupV2(self.cgroups.clone()));
        }
        let params = self.proc.join(DRIVER_PARAMS);
        let is_off = fs::read_to_string(&params).is_ok_and(|params| accounting_is_off(&params));
        if is_off { Err(Missing::AccountingOff(params)) } else { Ok(()) }
    }

    fn mps(&self, gpus: &Gpus) -> Result<(), Missing> {
        self.by_cdi()?;
        for gpu in gpus.iter() {
            if let Some(major) = gpu.cuda_major.filter(|major| *major < FIRST_MPS) {
                return Err(Missing::OldGpu { uuid: gpu.uuid.to_string(), major });
            }
        }
        let pipes = pipes(self.mps.as_deref().ok_or(Missing::NoMps)?);
        let control = pipes.join(CONTROL_PIPE);
        // Not the metadata of what a symbolic link names: a link is none of the daemon's files.
        let Ok(folder) = pipes.symlink_metadata() else { return Err(Missing::NoDaemon(pipes)) };
        if !(folder.is_dir() && self.is_the_daemons(&folder)) || others_can_replace_in(&folder) {
            return Err(self.not_the_daemons(pipes));
        }
        let Ok(entry) = control.symlink_metadata() else { return Err(Missing::NoDaemon(pipes)) };
        if !self.is_the_daemons(&entry) || entry.is_symlink() {
            return Err(self.not_the_daemons(control));
        }
        if listens(&control, &entry) { Ok(()) } else { Err(Missing::NoDaemon(pipes)) }
    }

    fn is_the_daemons(&self, metadata: &Metadata) -> bool {
        metadata.uid() == self.daemon_user
    }

    fn not_the_daemons(&self, path: PathBuf) -> Missing {
        Missing::NotTheDaemons { path, owner: self.daemon_user }
    }

    fn by_cdi(&self) -> Result<(), Missing> {
        if self.by_cdi { Ok(()) } else { Err(Missing::NotByCdi) }
    }
}

/// The folder of MPS's pipes.
pub fn pipes(mps: &Path) -> PathBuf {
    mps.join("pipe")
}

/// The folder of the shared memory of MPS's servers and clients.
pub fn shared_memory(mps: &Path) -> PathBuf {
    mps.join("shm")
}

/// Whether users other than the owner of a folder, and its group, can remove what is in it.
fn others_can_replace_in(folder: &Metadata) -> bool {
    folder.mode() & (Mode::WOTH | Mode::SVTX).bits() == Mode::WOTH.bits()
}

/// Whether a process has this pipe or socket open; the file alone outlives it.
fn listens(control: &Path, metadata: &Metadata) -> bool {
    let kind = metadata.file_type();
    (kind.is_fifo() && is_read(control)) || (kind.is_socket() && is_bound(control))
}

/// Without a reader, a pipe cannot be opened for writing alone.
fn is_read(pipe: &Path) -> bool {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(pipe, flags, Mode::empty()).is_ok()
}

/// Connects with another socket type than the daemon's. While a process has the socket open, that fails with an error
/// of its own, and the daemon gets no connection.
fn is_bound(socket: &Path) -> bool {
    let connected = UnixDatagram::unbound().and_then(|own| own.connect(socket));
    let error = connected.as_ref().err().and_then(Errno::from_io_error);
    connected.is_ok() || error == Some(Errno::PROTOTYPE)
}

/// Whether these parameters of the module switch the driver's accounting of memory by control groups off. Without the
/// parameter it is on, by the kernel's controller `dmem` or, without that, by the driver itself.
fn accounting_is_off(params: &str) -> bool {
    let dwords = params.lines().find_map(|line| line.strip_prefix("RegistryDwords:"));
    let keys = dwords.unwrap_or_default().trim().trim_matches('"');
    let is_mode = |(key, _): &(&str, &str)| key.trim() == "RmMemacctMode";
    let last = keys.rsplit(';').filter_map(|key| key.split_once('=')).find(is_mode);
    last.is_some_and(|(_, value)| {
        let digits = value.trim().strip_prefix("0x").unwrap_or(value.trim());
        !digits.is_empty() && digits.bytes().all(|digit| digit == b'0')
    })
}

fn check_driver(version: Option<&str>) -> Result<(), Missing> {
    let Some(version) = version else { return Err(Missing::UnknownDriver) };
    match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
        Some(major) if major >= FIRST_DRIVER => Ok(()),
        Some(_) => Err(Missing::OldDriver(version.to_owned())),
        None => Err(Missing::UnknownDriver),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use serde_json::json;

    use super::*;
    use crate::fixtures::{A, B, gpus, with_unhealthy};
    use crate::gpus::{Gpu, Unhealthy};

    struct MpsNode {
        dir: tempfile::TempDir,
        /// The daemon's end of its pipe.
        daemon: Option<fs::File>,
    }

    /// Makes a pipe, and opens it as its reader.
    fn pipe(path: &Path) -> fs::File {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, Mode::RWXU, 0).unwrap();
        fs::File::options().read(true).write(true).open(path).unwrap()
    }

    impl MpsNode {
        /// Control groups of version 2, hooks for these GPUs, a daemon of MPS.
        fn new(hooks: &[&str]) -> Self {
            let mut node = Self { dir: tempfile::tempdir().unwrap(), daemon: None };
            let edits = json!({ "hooks": [{ "args": ["x", MEMORY_LIMIT_HOOK] }] });
            let mut devices = Vec::new();
            for uuid in hooks {
                devices.push(json!({ "name": uuid, "containerEdits": edits }));
            }
            let spec = json!({ "kind": "k/c", "devices": devices });
            fs::write(node.dir.path().join("n.json"), spec.to_string()).unwrap();
            fs::write(node.dir.path().join(CGROUP_V2), "").unwrap();
            fs::create_dir(node.dir.path().join("pipe")).unwrap();
            node.daemon = Some(pipe(&node.control()));
            node
        }

        fn control(&self) -> PathBuf {
            self.dir.path().join("pipe/control")
        }

        fn support(&self, by_cdi: bool, driver: Option<&str>) -> IsolationSupport {
            let gpus = gpus(&[(A, 4), (B, 4)]).with_driver(driver.map(str::to_owned));
            self.host(by_cdi).support(&self.specs(), &gpus)
        }

        fn specs(&self) -> Specs {
            Specs::read(&[self.dir.path().to_owned()], "k/c")
        }

        fn host(&self, by_cdi: bool) -> Host {
            let path = self.dir.path().to_owned();
            let daemon_user = rustix::process::geteuid().as_raw();
            Host {
                by_cdi,
                cgroups: path.clone(),
                proc: path.join("proc"),
                mps: Some(path),
                daemon_user,
            }
        }
    }

    #[test]
    fn the_driver_needs_its_version_a_hook_for_every_gpu_and_cgroup_v2() {
        let node = MpsNode::new(&[A, B]);
        assert_eq!(node.support(true, Some("615.12.03")).driver, Ok(()));
        let old = node.support(true, Some("580.95.05")).driver;
        assert_eq!(old, Err(Missing::OldDriver("580.95.05".to_owned())));
        assert_eq!(node.support(true, None).driver, Err(Missing::UnknownDriver));
        assert_eq!(node.support(false, Some("615.1")).driver, Err(Missing::NotByCdi));
        fs::remove_file(node.dir.path().join(CGROUP_V2)).unwrap();
        let version_1 = node.support(true, Some("615.1")).driver;
        assert!(matches!(version_1, Err(Missing::NoCgroupV2(_))));
        let half = MpsNode::new(&[A]).support(true, Some("700.1")).driver;
        assert_eq!(half, Err(Missing::NoHook(B.to_owned())));
    }

    #[test]
    fn the_driver_needs_its_accounting_of_memory() {
        let node = MpsNode::new(&[A, B]);
        let folder = node.dir.path().join("proc/driver/nvidia");
        fs::create_dir_all(&folder).unwrap();
        let params = folder.join("params");
        for (dwords, is_on) in [
            ("", true),
            ("RMPcieLinkSpeed=0x1", true),
            ("RmMemacctMode=1", true),
            ("RmMemacctMode=0x3", true),
            ("RmMemacctMode=0;RmMemacctMode=3", true),
            ("OtherRmMemacctMode=0", true),
            ("RmMemacctMode=", true),
            ("RmMemacctMode=0", false),
            ("RMPcieLinkSpeed=0x1;RmMemacctMode=0x0;", false),
            ("a=1; RmMemacctMode=00", false),
        ] {
            let text = format!("ModifyDeviceFiles: 1\nRegistryDwords: \"{dwords}\"\nRmMsg: \"\"\n");
            fs::write(&params, text).unwrap();
            let support = node.support(true, Some("615.12.03")).driver;
            let expected = if is_on { Ok(()) } else { Err(Missing::AccountingOff(params.clone())) };
            assert_eq!(support, expected, "{dwords}");
        }
        fs::write(&params, "ModifyDeviceFiles: 1\n").unwrap();
        assert_eq!(node.support(true, Some("615.12.03")).driver, Ok(()), "of another form");
    }

    #[test]
    fn a_gpu_that_is_unhealthy_needs_no_hook() {
        let node = MpsNode::new(&[A]);
        let specs = node.specs();
        let host = node.host(true);
        let gpus = gpus(&[(A, 4), (B, 4)]).with_driver(Some("615.1".to_owned()));
        for why in [Unhealthy::Lost, Unhealthy::Mig] {
            let support = host.support(&specs, &with_unhealthy(&gpus, B, why));
            assert_eq!(support.driver, Ok(()), "{why}");
        }
    }

    #[test]
    fn a_daemon_may_listen_on_a_socket_and_gets_no_connection() {
        let node = MpsNode::new(&[]);
        fs::remove_file(node.control()).unwrap();
        let daemon = UnixListener::bind(node.control()).unwrap();
        assert_eq!(node.support(true, None).mps, Ok(()));
        daemon.set_nonblocking(true).unwrap();
        assert_eq!(daemon.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(daemon);
        assert!(matches!(node.support(true, None).mps, Err(Missing::NoDaemon(_))), "it has ended");
    }

    #[test]
    fn an_ordinary_file_or_folder_is_no_daemon() {
        let node = MpsNode::new(&[]);
        fs::remove_file(node.control()).unwrap();
        fs::write(node.control(), "").unwrap();
        assert!(matches!(node.support(true, None).mps, Err(Missing::NoDaemon(_))));
        fs::remove_file(node.control()).unwrap();
        fs::create_dir(node.control()).unwrap();
        assert!(matches!(node.support(true, None).mps, Err(Missing::NoDaemon(_))));
    }

    #[test]
    fn a_link_to_a_socket_that_another_process_listens_on_is_no_daemon() {
        let node = MpsNode::new(&[]);
        fs::remove_file(node.control()).unwrap();
        let elsewhere = node.dir.path().join("elsewhere");
        let _listener = UnixListener::bind(&elsewhere).unwrap();
        symlink(&elsewhere, node.control()).unwrap();
        let refused = node.support(true, None).mps.unwrap_err();
        assert!(
            matches!(&refused, Missing::NotTheDaemons { path, .. } if *path == node.control()),
            "{refused}"
        );
    }

    #[test]
    fn a_folder_of_pipes_behind_a_link_is_no_daemon() {
        let node = MpsNode::new(&[]);
        let pipes = node.dir.path().join("pipe");
        let elsewhere = node.dir.path().join("elsewhere");
        fs::rename(&pipes, &elsewhere).unwrap();
        symlink(&elsewhere, &pipes).unwrap();
        let refused = node.support(true, None).mps.unwrap_err();
        assert!(
            matches!(&refused, Missing::NotTheDaemons { path, .. } if *path == pipes),
            "{refused}"
        );
    }

    #[test]
    fn what_another_user_made_is_no_daemon_although_it_listens() {
        let node = MpsNode::new(&[]);
        let other =
            Host { daemon_user: rustix::process::geteuid().as_raw() + 1, ..node.host(true) };
        let refused = other.support(&node.specs(), &gpus(&[])).mps.unwrap_err();
        assert!(matches!(refused, Missing::NotTheDaemons { .. }), "{refused}");
    }

    #[test]
    fn a_folder_of_pipes_in_which_others_can_write_is_no_daemon() {
        let node = MpsNode::new(&[]);
        let pipes = node.dir.path().join("pipe");
        for (mode, is_safe) in [(0o755, true), (0o700, true), (0o1777, true), (0o777, false)] {
            fs::set_permissions(&pipes, fs::Permissions::from_mode(mode)).unwrap();
            let support = node.support(true, None).mps;
            assert_eq!(support.is_ok(), is_safe, "{mode:o}: {support:?}");
        }
    }

    #[test]
    fn mps_needs_gpus_on_which_it_limits_memory() {
        let node = MpsNode::new(&[]);
        let of = |major| {
            let gpus = gpus(&[(A, 4), (B, 4)]);
            let changed = gpus.iter().map(|gpu| {
                let cuda_major = if gpu.uuid.as_str() == B { major } else { Some(9) };
                Gpu { cuda_major, ..gpu.clone() }
            });
            node.host(true).support(&node.specs(), &Gpus::new(changed.collect())).mps
        };
        assert_eq!(of(Some(7)), Ok(()));
        assert_eq!(of(None), Ok(()), "NVML tells it of every GPU that it knows");
        assert_eq!(of(Some(6)), Err(Missing::OldGpu { uuid: B.to_owned(), major: 6 }));
    }

    #[test]
    fn mps_needs_a_daemon_that_listens() {
        let mut node = MpsNode::new(&[]);
        assert_eq!(node.support(true, None).mps, Ok(()));
        assert_eq!(node.support(false, None).mps, Err(Missing::NotByCdi));
        node.daemon = None;
        assert!(matches!(node.support(true, None).mps, Err(Missing::NoDaemon(_))), "it has ended");
        fs::remove_file(node.control()).unwrap();
        assert!(matches!(node.support(true, None).mps, Err(Missing::NoDaemon(_))));
        let host = Host { mps: None, ..node.host(true) };
        assert_eq!(host.support(&Specs::default(), &gpus(&[])).mps, Err(Missing::NoMps));
    }
}
