//! A tree of control groups that the test writes, as a kubelet makes it.

use std::fs;
use std::path::{Path, PathBuf};

use node_exporter_plus::pods::Version;
use tempfile::TempDir;

/// How the kubelet names its groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    Cgroupfs,
    Systemd,
}

/// The files of a pod's group that was recorded for each version: `ORIGIN.md` there.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/cgroups");

pub(crate) struct Cgroups {
    folder: TempDir,
    version: Version,
    driver: Driver,
    /// The kubelet's `--cgroup-root`, in folders.
    above: &'static [&'static str],
}

impl Cgroups {
    pub(crate) fn new(version: Version, driver: Driver, above: &'static [&'static str]) -> Self {
        let cgroups = Self { folder: tempfile::tempdir().unwrap(), version, driver, above };
        match version {
            Version::V1 => {
                let joint = cgroups.root().join("cpu,cpuacct");
                fs::create_dir(&joint).unwrap();
                std::os::unix::fs::symlink("cpu,cpuacct", cgroups.root().join("cpuacct")).unwrap();
                fs::create_dir(cgroups.root().join("memory")).unwrap();
                // A hybrid node has version 2 beside, without these controllers.
                fs::create_dir(cgroups.root().join("unified")).unwrap();
                cgroups.write(Path::new("unified"), "cgroup.controllers", b"\n");
            }
            Version::V2 => cgroups.write(Path::new(""), "cgroup.controllers", b"cpu memory\n"),
        }
        let node = cgroups.path(&["kubepods"]);
        for hierarchy in cgroups.hierarchies() {
            fs::create_dir_all(hierarchy.join("system.slice/kubelet.service")).unwrap();
            fs::create_dir_all(hierarchy.join(&node)).unwrap();
        }
        cgroups
    }

    /// Version 2 with the systemd driver, as most nodes have it.
    pub(crate) fn usual() -> Self {
        Self::new(Version::V2, Driver::Systemd, &[])
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Adds a pod of a class (`burstable`, `besteffort`, or none for guaranteed) with the recorded files.
    pub(crate) fn pod(&self, class: &str, uid: &str) {
        let path = self.pod_path(class, uid);
        let (cpu, memory): (&[&str], &[&str]) = match self.version {
            Version::V1 => (&["cpuacct.usage"], &["memory.usage_in_bytes", "memory.stat"]),
            Version::V2 => (&["cpu.stat"], &["memory.current", "memory.stat"]),
        };
        for (hierarchy, files) in self.hierarchies().iter().zip([cpu, memory]) {
            // A pod's folder has one for each container, which is no pod.
            fs::create_dir_all(hierarchy.join(&path).join("0".repeat(32))).unwrap();
            for file in files {
                let recorded = Path::new(RECORDED).join(self.recorded()).join(file);
                fs::copy(recorded, hierarchy.join(&path).join(file)).unwrap();
            }
        }
    }

    /// Writes a file of a pod.
    pub(crate) fn set(&self, class: &str, uid: &str, file: &str, content: &[u8]) {
        for hierarchy in self.hierarchies() {
            let folder = hierarchy.join(self.pod_path(class, uid));
            if folder.join(file).exists() {
                fs::write(folder.join(file), content).unwrap();
            }
        }
    }

    /// Gives a pod's group so many processes.
    pub(crate) fn set_tasks(&self, class: &str, uid: &str, tasks: u64) {
        let hierarchy = match self.version {
            Version::V1 => self.root().join("pids"),
            Version::V2 => self.root().to_owned(),
        };
        let folder = hierarchy.join(self.pod_path(class, uid));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("pids.current"), format!("{tasks}\n")).unwrap();
    }

    /// A pod's folder, from the root of a hierarchy.
    pub(crate) fn pod_path(&self, class: &str, uid: &str) -> PathBuf {
        let pod = format!("pod{uid}");
        let names = ["kubepods", class, &pod];
        self.path(&names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>())
    }

    /// The roots of CPU time and of memory.
    pub(crate) fn hierarchies(&self) -> [PathBuf; 2] {
        match self.version {
            Version::V1 => ["cpu,cpuacct", "memory"].map(|name| self.root().join(name)),
            Version::V2 => [self.root().to_owned(), self.root().to_owned()],
        }
    }

    fn path(&self, names: &[&str]) -> PathBuf {
        let names = [self.above, names].concat();
        match self.driver {
            Driver::Cgroupfs => names.iter().collect(),
            Driver::Systemd => {
                let names: Vec<String> = names.iter().map(|name| name.replace('-', "_")).collect();
                (0..names.len())
                    .map(|depth| format!("{}.slice", names[..=depth].join("-")))
                    .collect()
            }
        }
    }

    fn recorded(&self) -> &'static str {
        match self.version {
            Version::V1 => "v1",
            Version::V2 => "v2",
        }
    }

    fn write(&self, folder: &Path, file: &str, content: &[u8]) {
        fs::write(self.root().join(folder).join(file), content).unwrap();
    }
}
