//! Which modes of isolation this node can enforce, and what it lacks for the others.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Isolation;
use crate::cards::Cards;
use crate::nvidia::spec::{DeviceLookup, MEMORY_LIMIT_HOOK, Specs};

/// The first driver whose NVML sets a memory limit on a control group.
const FIRST_DRIVER: u32 = 615;
/// A file that only the root of a hierarchy of version 2 has.
const CGROUP_V2: &str = "cgroup.controllers";
/// The pipe or socket on which MPS's control daemon listens.
const CONTROL_PIPE: &str = "control";

/// What the node lacks for a mode. The texts name the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Containers get their card in another way.
    #[error("containers get their card without CDI: run the device plugin with --response=cdi")]
    NotByCdi,
    /// NVIDIA's CDI device of a card has no hook for it.
    #[error(
        "NVIDIA's CDI device of card {0} has no hook {MEMORY_LIMIT_HOOK}: install NVIDIA's container toolkit 1.20.1 or newer \
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
         (systemd.unified_cgroup_hierarchy=1), or name where they are with --cgroup-dir", .0.display()
    )]
    NoCgroupV2(PathBuf),
    /// No folder for MPS is set.
    #[error("no MPS is set up: name its folder with --mps-dir")]
    NoMps,
    /// No control daemon listens.
    #[error(
        "no MPS control daemon listens at {}: run it on this node (component gpu-mps), with that as its \
         CUDA_MPS_PIPE_DIRECTORY", .0.display()
    )]
    NoDaemon(PathBuf),
}

/// For each mode: `Ok` if the node can enforce it, or what it lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsolationSupport {
    /// [`Isolation::Driver`].
    pub driver: Result<(), Missing>,
    /// [`Isolation::Mps`].
    pub mps: Result<(), Missing>,
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
}

/// The paths and settings by which the node's support is detected.
#[derive(Debug, Clone)]
pub struct Host {
    /// Whether containers get their card by CDI.
    pub by_cdi: bool,
    /// The root of the control groups.
    pub cgroups: PathBuf,
    /// The folder of MPS, with `pipe/` and `shm/` in it; `None` without MPS.
    pub mps: Option<PathBuf>,
}

impl Host {
    /// The node's support for these cards, by NVIDIA's specification. Reads files.
    pub fn support(&self, specs: &Specs, cards: &Cards) -> IsolationSupport {
        IsolationSupport { driver: self.driver(specs, cards), mps: self.mps() }
    }

    fn driver(&self, specs: &Specs, cards: &Cards) -> Result<(), Missing> {
        self.by_cdi()?;
        check_driver(cards.driver())?;
        // NVIDIA's toolkit writes no device for a card that is lost or in MIG mode, and no container starts on one.
        for card in cards.healthy() {
            match specs.device(card.uuid.as_str()) {
                DeviceLookup::One(_, device) if device.limits_memory => {}
                _ => return Err(Missing::NoHook(card.uuid.to_string())),
            }
        }
        let v2 = self.cgroups.join(CGROUP_V2).exists();
        if v2 { Ok(()) } else { Err(Missing::NoCgroupV2(self.cgroups.clone())) }
    }

    fn mps(&self) -> Result<(), Missing> {
        self.by_cdi()?;
        let pipes = pipes(self.mps.as_deref().ok_or(Missing::NoMps)?);
        if listens(&pipes.join(CONTROL_PIPE)) { Ok(()) } else { Err(Missing::NoDaemon(pipes)) }
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

/// Whether a process has this pipe or socket open; the file alone outlives it.
fn listens(control: &Path) -> bool {
    let kind = control.metadata().map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| {
        (kind.is_fifo() && is_read(control)) || (kind.is_socket() && is_bound(control))
    })
}

/// Without a reader, a pipe cannot be opened for writing alone.
fn is_read(pipe: &Path) -> bool {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(pipe, flags, Mode::empty()).is_ok()
}

/// A connection with another socket type fails with its own error while a process has the socket open, and the daemon gets no
/// connection from it.
fn is_bound(socket: &Path) -> bool {
    let connected = UnixDatagram::unbound().and_then(|own| own.connect(socket));
    let error = connected.as_ref().err().and_then(Errno::from_io_error);
    connected.is_ok() || error == Some(Errno::PROTOTYPE)
}

fn check_driver(version: Option<&str>) -> Result<(), Missing> {
    let version = version.ok_or(Missing::UnknownDriver)?;
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major >= FIRST_DRIVER => Ok(()),
        Some(_) => Err(Missing::OldDriver(version.to_owned())),
        None => Err(Missing::UnknownDriver),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::cards::Unhealthy;
    use crate::fixtures::{A, B, cards, with_unhealthy};

    struct Node {
        dir: tempfile::TempDir,
        /// The daemon's end of its pipe.
        daemon: Option<fs::File>,
    }

    /// Makes a pipe, and opens it as its reader.
    fn pipe(path: &Path) -> fs::File {
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        fs::File::options().read(true).write(true).open(path).unwrap()
    }

    impl Node {
        /// Control groups of version 2, hooks for these cards, a daemon of MPS.
        fn new(hooks: &[&str]) -> Self {
            let mut node = Self { dir: tempfile::tempdir().unwrap(), daemon: None };
            let device = |uuid: &&str| {
                format!(
                    r#"{{"name":"{uuid}","containerEdits":{{"hooks":[{{"args":["x","{MEMORY_LIMIT_HOOK}"]}}]}}}}"#
                )
            };
            let devices: Vec<String> = hooks.iter().map(device).collect();
            let spec = format!(r#"{{"kind":"k/c","devices":[{}]}}"#, devices.join(","));
            fs::write(node.dir.path().join("n.json"), spec).unwrap();
            fs::write(node.dir.path().join(CGROUP_V2), "").unwrap();
            fs::create_dir(node.dir.path().join("pipe")).unwrap();
            node.daemon = Some(pipe(&node.control()));
            node
        }

        fn control(&self) -> PathBuf {
            self.dir.path().join("pipe/control")
        }

        fn support(&self, by_cdi: bool, driver: Option<&str>) -> IsolationSupport {
            let cards = cards(&[(A, 4), (B, 4)]).with_driver(driver.map(str::to_owned));
            self.host(by_cdi).support(&self.specs(), &cards)
        }

        fn specs(&self) -> Specs {
            Specs::read(&[self.dir.path().to_owned()], "k/c")
        }

        fn host(&self, by_cdi: bool) -> Host {
            let path = self.dir.path().to_owned();
            Host { by_cdi, cgroups: path.clone(), mps: Some(path) }
        }
    }

    #[test]
    fn the_driver_needs_its_version_a_hook_for_every_card_and_cgroup_v2() {
        let node = Node::new(&[A, B]);
        let driver = |version| node.support(true, version).driver;
        assert_eq!(driver(Some("615.12.03")), Ok(()));
        assert_eq!(driver(Some("580.95.05")), Err(Missing::OldDriver("580.95.05".to_owned())));
        assert_eq!(driver(None), Err(Missing::UnknownDriver));
        assert_eq!(node.support(false, Some("615.1")).driver, Err(Missing::NotByCdi));
        fs::remove_file(node.dir.path().join(CGROUP_V2)).unwrap();
        assert!(matches!(driver(Some("615.1")), Err(Missing::NoCgroupV2(_))));
        let half = Node::new(&[A]).support(true, Some("700.1")).driver;
        assert_eq!(half, Err(Missing::NoHook(B.to_owned())));
    }

    #[test]
    fn a_card_that_is_unhealthy_needs_no_hook() {
        let node = Node::new(&[A]);
        let (specs, host) = (node.specs(), node.host(true));
        let cards = cards(&[(A, 4), (B, 4)]).with_driver(Some("615.1".to_owned()));
        for why in [Unhealthy::Lost, Unhealthy::Mig] {
            let support = host.support(&specs, &with_unhealthy(&cards, B, why));
            assert_eq!(support.driver, Ok(()), "{why}");
        }
    }

    #[test]
    fn a_daemon_may_listen_on_a_socket_and_gets_no_connection() {
        let node = Node::new(&[]);
        fs::remove_file(node.control()).unwrap();
        let daemon = UnixListener::bind(node.control()).unwrap();
        assert_eq!(node.support(true, None).mps, Ok(()));
        daemon.set_nonblocking(true).unwrap();
        assert_eq!(daemon.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(daemon);
        assert!(!listens(&node.control()), "it has ended");
    }

    #[test]
    fn nobody_listens_on_an_ordinary_file() {
        let node = Node::new(&[]);
        fs::remove_file(node.control()).unwrap();
        fs::write(node.control(), "").unwrap();
        assert!(!listens(&node.control()));
    }

    #[test]
    fn mps_needs_a_daemon_that_listens() {
        let mut node = Node::new(&[]);
        assert_eq!(node.support(true, None).mps, Ok(()));
        assert_eq!(node.support(false, None).mps, Err(Missing::NotByCdi));
        node.daemon = None;
        assert!(matches!(node.support(true, None).mps, Err(Missing::NoDaemon(_))), "it has ended");
        fs::remove_file(node.control()).unwrap();
        assert!(matches!(node.support(true, None).mps, Err(Missing::NoDaemon(_))));
        let host = Host { by_cdi: true, cgroups: "/".into(), mps: None };
        assert_eq!(host.support(&Specs::default(), &cards(&[])).mps, Err(Missing::NoMps));
    }
}
