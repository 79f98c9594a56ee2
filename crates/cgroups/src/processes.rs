//! Whether pods have processes, by the control groups that count them.
//!
//! Version 2 says whether a group or one below it has a process. Version 1 lists only processes of the reader's own PID
//! namespace; there the controller `pids` counts those of a group and of all below it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::folders::{kubepods, pods};
use super::uid::PodUid;

/// Pods that are looked at, at most. The kubelet's own default limit is 110.
const MAX_PODS: usize = 4_096;

/// What is known of a pod's control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodGroup {
    /// It has processes, or what would tell cannot be read.
    Populated,
    /// It has none.
    Empty,
}

/// The pods that have a control group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods(BTreeMap<PodUid, PodGroup>);

impl Pods {
    /// Reads them below `root`, where the host's `/sys/fs/cgroup` is mounted. `None` where no kubelet's groups are.
    #[must_use]
    pub fn read(root: &Path) -> Option<Self> {
        let hierarchy = Hierarchy::below(root)?;
        let roots = kubepods(&hierarchy.root);
        if roots.is_empty() {
            return None;
        }
        let (found, _) = pods(&hierarchy.root, &roots, MAX_PODS);
        let group = |path: &Path| match hierarchy.processes(path) {
            Some(false) => PodGroup::Empty,
            Some(true) | None => PodGroup::Populated,
        };
        Some(Self(found.into_iter().map(|pod| (pod.uid, group(&pod.path))).collect()))
    }

    /// The control group of the pod with this UID; `None` where it has none.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<PodGroup> {
        self.0.get(uid).copied()
    }
}

/// Where processes are counted.
struct Hierarchy {
    root: PathBuf,
    version_2: bool,
}

impl Hierarchy {
    fn below(root: &Path) -> Option<Self> {
        if root.join("cgroup.controllers").is_file() {
            return Some(Self { root: root.to_owned(), version_2: true });
        }
        let pids = root.join("pids");
        pids.is_dir().then_some(Self { root: pids, version_2: false })
    }

    /// Whether the group at `path`, or one below it, has a process; `None` where that cannot be read.
    fn processes(&self, path: &Path) -> Option<bool> {
        let folder = self.root.join(path);
        if self.version_2 {
            let events = fs::read_to_string(folder.join("cgroup.events")).ok()?;
            return events.lines().find_map(|line| match line {
                "populated 0" => Some(false),
                "populated 1" => Some(true),
                _ => None,
            });
        }
        let count = fs::read_to_string(folder.join("pids.current")).ok()?;
        count.trim().parse::<u64>().ok().map(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";

    fn group(folder: &str, files: &[(&str, &str)]) -> Option<Option<PodGroup>> {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = root.path().join(file.replace("POD", folder));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Pods::read(root.path()).map(|pods| pods.get(UID))
    }

    #[test]
    fn a_pod_has_processes_by_the_event_file_of_version_2_under_both_drivers() {
        let v2 = ("cgroup.controllers", "cpu memory pids");
        let systemd = UID.replace('-', "_");
        for folder in [
            format!("kubepods/pod{UID}"),
            format!("kubelet/kubepods/besteffort/pod{UID}"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice"
            ),
        ] {
            let read = |events| group(&folder, &[v2, ("POD/cgroup.events", events)]);
            assert_eq!(
                read("populated 1\nfrozen 0\n"),
                Some(Some(PodGroup::Populated)),
                "{folder}"
            );
            assert_eq!(read("populated 0\nfrozen 0\n"), Some(Some(PodGroup::Empty)), "{folder}");
        }
    }

    #[test]
    fn a_pod_has_processes_by_the_count_of_version_1() {
        let read =
            |count| group(&format!("kubepods/pod{UID}"), &[("pids/POD/pids.current", count)]);
        assert_eq!(read("2\n"), Some(Some(PodGroup::Populated)));
        assert_eq!(read("0\n"), Some(Some(PodGroup::Empty)));
    }

    #[test]
    fn what_cannot_be_read_counts_as_processes() {
        let (v2, folder) = (("cgroup.controllers", ""), format!("kubepods/pod{UID}"));
        for events in ["", "populated", "nonsense 1"] {
            let read = group(&folder, &[v2, ("POD/cgroup.events", events)]);
            assert_eq!(read, Some(Some(PodGroup::Populated)), "{events}");
        }
        let read = group(&folder, &[("pids/POD/pids.current", "max")]);
        assert_eq!(read, Some(Some(PodGroup::Populated)));
        assert_eq!(group(&folder, &[("pids/POD/other", "")]), Some(Some(PodGroup::Populated)));
    }

    #[test]
    fn a_pod_without_a_folder_has_no_group_and_a_host_without_the_kubelets_folder_says_nothing() {
        let v2 = ("cgroup.controllers", "");
        assert_eq!(group("kubepods/burstable", &[v2, ("POD/cgroup.events", "")]), Some(None));
        assert_eq!(group("system.slice", &[v2, ("POD/cgroup.events", "")]), None);
        assert_eq!(group("kubepods", &[("memory/POD/memory.usage_in_bytes", "1")]), None);
    }
}
