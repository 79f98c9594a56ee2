//! Owns the outer process: a mount namespace and control groups for the node, and the removal of everything at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::cgroups;
use e2e::command::{command, run as run_command, wait_for};
use e2e::kernel::processes::{self, Pid, Signal};
use e2e::progress::{line, step};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Run;
use crate::parts::{self, Parts};

/// The topmost of the node's control groups.
pub(crate) const GROUP: &str = "plimsoll-card";
/// The node's address, on the loopback interface: a kubelet takes none of 127.0.0.0/8.
pub(crate) const ADDRESS: &str = "10.88.255.1";
/// Folders whose paths kubelet, containerd and the device plugin have for themselves. The node's lie over them.
pub(crate) const MOUNTED: [&str; 5] = [
    "/var/lib/kubelet",
    "/run/containerd",
    "/var/log/containers",
    "/var/run/cdi",
    "/run/plimsoll-gpu",
];
/// Folders of the node's work that tell of a failure.
const LOGS: [&str; 2] = ["logs", "pod-logs"];

/// Builds what is missing, asks in a namespace of its own, and removes all. Returns whether all promises hold.
pub(crate) fn run(mut run: Run) -> Result<bool> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the node needs root (namespaces, mounts and control groups): run it again with sudo"
    );
    let parts = match &run.parts {
        Some(folder) => Parts::at(folder)?,
        None => parts::prepare()?,
    };
    run.parts = Some(parts.folder.clone());
    run.work = std::path::absolute(&run.work)?;
    run.json = run.json.map(std::path::absolute).transpose()?;
    remove(&run.work)?;
    let place = Place::make(&run, &parts)?;
    let asked = place.ask(&run);
    if matches!(asked, Ok(true)) {
        drop(place);
        remove(&run.work)?;
    } else {
        line(&format!("the logs are in {}", run.work.display()));
    }
    asked
}

/// What is made outside of the namespace. Dropped, it is gone.
struct Place {
    created: Vec<PathBuf>,
    busybox: PathBuf,
}

impl Place {
    fn make(run: &Run, parts: &Parts) -> Result<Self> {
        let mut created = Vec::new();
        for folder in MOUNTED.iter().map(Path::new) {
            for missing in folder.ancestors().take_while(|path| !path.exists()) {
                created.push(missing.to_owned());
            }
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let place = Self { created, busybox: parts.bin("busybox") };
        fs::create_dir_all(&run.work)?;
        private(&run.work)?;
        // A run that was killed has left it.
        let _ = place.address("del");
        place.address("add")?;
        cgroups::create(&format!("/{GROUP}"))?;
        Ok(place)
    }

    fn address(&self, verb: &str) -> Result<()> {
        let host = format!("{ADDRESS}/32");
        run_command(command(&self.busybox).args(["ip", "addr", verb, &host, "dev", "lo"])).map(drop)
    }

    /// Runs the questions, and waits for their end or for a signal.
    fn ask(&self, run: &Run) -> Result<bool> {
        let program = std::env::current_exe().context("cannot tell where this program lies")?;
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--propagation", "private", "--"]).arg(program).arg("inside");
        let mut child = inside.args(run.words()).spawn().context("cannot start unshare")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("a process has a number")?;
        let ended = until_it_ends(&mut child)?;
        if ended.is_none() {
            // The namespace's first process may be between two children; its group's end is ours.
            let _ = processes::signal(pid, Signal::KILL);
            let _ = child.wait();
            bail!("ended by a signal");
        }
        Ok(ended == Some(true))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let ended = end_processes();
        let _ = self.address("del");
        // The deepest first; what somebody has put into one stays.
        self.created.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        if let Err(error) = ended {
            line(&format!("error: {error:#}"));
        }
    }
}

/// Whether the child succeeded; `None` where a signal came first.
fn until_it_ends(child: &mut Child) -> Result<Option<bool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status.success()));
            }
            tokio::select! {
                _ = interrupt.recv() => return Ok(None),
                _ = terminate.recv() => return Ok(None),
                _ = tick.tick() => {}
            }
        }
    })
}

/// Kills every process of the node's control groups, and removes the groups.
fn end_processes() -> Result<()> {
    wait_for("the node's processes to end", Duration::from_secs(60), || {
        let found = cgroups::processes(GROUP);
        let pids = found.into_iter().filter_map(Pid::from_raw);
        pids.for_each(|pid| drop(processes::signal(pid, Signal::KILL)));
        cgroups::remove(GROUP);
        Ok((!cgroups::exist(GROUP)).then_some(()))
    })
}

/// Ends what a former run left, and removes the node's folder.
fn remove(work: &Path) -> Result<()> {
    if cgroups::exist(GROUP) {
        step("ending what a former run left");
        end_processes()?;
    }
    if !work.exists() {
        return Ok(());
    }
    // Nothing else is removed by mistake.
    ensure!(
        LOGS.iter().any(|logs| work.join(logs).exists()) || fs::read_dir(work)?.next().is_none(),
        "{} is none of the node's folders: name an empty or missing one by --work",
        work.display()
    );
    fs::remove_dir_all(work).with_context(|| format!("cannot remove {}", work.display()))
}

/// Others read neither the administrator's token nor its socket.
fn private(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot protect {}", folder.display()))
}
