//! Whether pods have processes, by their control groups.
//!
//! Version 2 has a flag whether a group or one below it has a process. Version 1 lists only processes of the reader's
//! own PID namespace; there the controller `pids` counts the processes of a group and of all below it.
//!
//! Invariant: a pod is [`PodGroup::Absent`] or [`PodGroup::Empty`] only if every folder that may hold a group of it was
//! read; roots beyond the bounds of the search are not searched. It is empty only where some pod's group has processes:
//! else the containers of this host are in groups that are not found, and an empty one says nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::folders::{all_kubepods, all_pods};
use super::tree::{Mounted, Tree, Unread};
use super::uid::PodUid;

/// The state of a pod's control groups. A pod has several groups after a change of the kubelet's cgroup driver or
/// `--cgroup-root`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodGroup {
    /// One of them has processes, or its count of processes cannot be read.
    Populated,
    /// There are some, and none has processes.
    Empty,
    /// There is none. The kubelet removes a pod's group once its containers have stopped, wherever these were.
    Absent,
    /// No group with processes was found, and not all groups could be read, or no pod of the host has one.
    Unknown,
}

/// The pods that have a control group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods {
    /// Whether a group of the pod has processes.
    populated: BTreeMap<PodUid, bool>,
    unread: Option<Unread>,
}

/// Why the control groups of all pods are unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGroups {
    /// The search was complete and found no control groups of a kubelet.
    #[error("no control groups of a kubelet are there")]
    NoKubelet,
    /// The search was incomplete.
    #[error(transparent)]
    Unread(#[from] Unread),
}

impl Pods {
    /// Reads them below `root`, where the host's `/sys/fs/cgroup` is mounted.
    ///
    /// # Errors
    /// If no kubelet's groups exist, or none were found.
    pub fn read(root: &Path) -> Result<Self, NoGroups> {
        let hierarchy = Hierarchy::below(root)?.ok_or(NoGroups::NoKubelet)?;
        Self::of(&Mounted(&hierarchy.root), hierarchy.version_2)
    }

    fn of(tree: &impl Tree, version_2: bool) -> Result<Self, NoGroups> {
        let (roots, containers) = all_kubepods(tree);
        if roots.found.is_empty() && containers.is_empty() {
            return Err(roots.unread.map_or(NoGroups::NoKubelet, NoGroups::Unread));
        }
        let folders = all_pods(tree, &roots.found);
        let mut pods = Self { populated: BTreeMap::new(), unread: roots.unread.or(folders.unread) };
        for folder in folders.found.into_iter().chain(containers) {
            let processes = processes(tree, version_2, &folder.path).unwrap_or(true);
            *pods.populated.entry(folder.uid).or_default() |= processes;
        }
        Ok(pods)
    }

    /// The control groups of the pod with this UID.
    #[must_use]
    pub fn get(&self, uid: &str) -> PodGroup {
        match (self.populated.get(uid), &self.unread) {
            (Some(true), _) => PodGroup::Populated,
            (_, Some(_)) => PodGroup::Unknown,
            (Some(false), None) if self.shows_processes() => PodGroup::Empty,
            (Some(false), None) => PodGroup::Unknown,
            (None, None) => PodGroup::Absent,
        }
    }

    /// Whether pods' processes are in the groups that were found. A host on which this program runs as a pod has some.
    fn shows_processes(&self) -> bool {
        self.populated.values().any(|populated| *populated)
    }

    /// Why some groups may not have been read; `None` if all were.
    #[must_use]
    pub fn unread(&self) -> Option<&Unread> {
        self.unread.as_ref()
    }
}

/// The pods if no group could be read.
impl From<Unread> for Pods {
    fn from(unread: Unread) -> Self {
        Self { populated: BTreeMap::new(), unread: Some(unread) }
    }
}

/// The hierarchy in which processes are counted.
struct Hierarchy {
    root: PathBuf,
    version_2: bool,
}

impl Hierarchy {
    /// The hierarchy that is mounted at `root` or below it; `None` where there is none.
    fn below(root: &Path) -> Result<Option<Self>, Unread> {
        if kind(root, "cgroup.controllers")?.is_some_and(|kind| kind.is_file()) {
            return Ok(Some(Self { root: root.to_owned(), version_2: true }));
        }
        let pids = root.join("pids");
        let is_there = kind(root, "pids")?.is_some_and(|kind| kind.is_dir());
        Ok(is_there.then_some(Self { root: pids, version_2: false }))
    }
}

/// What `root` has under this name; `None` where it has nothing.
fn kind(root: &Path, name: &str) -> Result<Option<fs::FileType>, Unread> {
    match fs::metadata(root.join(name)) {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(Unread::failed(root, &error)),
        },
    }
}

/// Whether the group at `path`, or one below it, has a process; `None` if that cannot be read.
fn processes(tree: &impl Tree, version_2: bool, path: &Path) -> Option<bool> {
    if version_2 {
        let events = tree.read(&path.join("cgroup.events")).ok()?;
        return events.lines().find_map(|line| match line {
            "populated 0" => Some(false),
            "populated 1" => Some(true),
            _ => None,
        });
    }
    let count = tree.read(&path.join("pids.current")).ok()?;
    count.trim().parse::<u64>().ok().map(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const UID: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";

    /// The group of the pod in a tree of these files, where `POD` is its folder.
    fn group(folder: &str, files: &[(&str, &str)]) -> Result<PodGroup, NoGroups> {
        let files: Vec<_> =
            files.iter().map(|(file, content)| (file.replace("POD", folder), *content)).collect();
        Pods::read(tree(&files).path()).map(|pods| pods.get(UID))
    }

    /// As [`group`], beside another pod that has processes.
    fn beside_another(folder: &str, files: &[(&str, &str)]) -> Result<PodGroup, NoGroups> {
        const OTHER: [(&str, &str); 2] = [
            ("kubepods/pod11111111-2222-3333-4444-555555555555/cgroup.events", "populated 1"),
            ("pids/kubepods/pod11111111-2222-3333-4444-555555555555/pids.current", "1"),
        ];
        group(folder, &[files, &OTHER].concat())
    }

    fn tree(files: &[(String, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
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
            let read = |events| beside_another(&folder, &[v2, ("POD/cgroup.events", events)]);
            assert_eq!(read("populated 1\nfrozen 0\n"), Ok(PodGroup::Populated), "{folder}");
            assert_eq!(read("populated 0\nfrozen 0\n"), Ok(PodGroup::Empty), "{folder}");
        }
    }

    #[test]
    fn a_pod_has_processes_by_the_count_of_version_1() {
        let folder = format!("kubepods/pod{UID}");
        let read = |count| beside_another(&folder, &[("pids/POD/pids.current", count)]);
        assert_eq!(read("2\n"), Ok(PodGroup::Populated));
        assert_eq!(read("0\n"), Ok(PodGroup::Empty));
    }

    #[test]
    fn a_pod_with_several_groups_has_processes_where_one_of_them_has() {
        let systemd = UID.replace('-', "_");
        let folders = [
            format!("kubepods/pod{UID}"),
            format!("kubepods/besteffort/pod{UID}"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice"
            ),
            format!("plimsoll/kubepods/pod{UID}"),
        ];
        for (hierarchy, file, one) in
            [("", "cgroup.events", "populated 1"), ("pids/", "pids.current", "1")]
        {
            let none = one.replace('1', "0");
            let with = |populated: Option<usize>| {
                let content = |at| if populated == Some(at) { one } else { none.as_str() };
                let mut files: Vec<_> = folders
                    .iter()
                    .enumerate()
                    .map(|(at, folder)| (format!("{hierarchy}{folder}/{file}"), content(at)))
                    .collect();
                files.extend(hierarchy.is_empty().then(|| ("cgroup.controllers".to_owned(), "")));
                files.push((format!("{hierarchy}kubepods/pod{}/{file}", uid(1)), one));
                Pods::read(tree(&files).path()).unwrap().get(UID)
            };
            assert_eq!(with(None), PodGroup::Empty, "{file}");
            for (at, folder) in folders.iter().enumerate() {
                assert_eq!(with(Some(at)), PodGroup::Populated, "{folder}");
            }
        }
    }

    #[test]
    fn a_pod_has_the_processes_of_a_container_outside_of_its_folder() {
        let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        let own = format!("kubepods.slice/kubepods-burstable.slice/{slice}");
        let outside = format!("{slice}:cri-containerd:{}", "0a".repeat(32));
        for above in
            ["", "system.slice/", "system.slice/containerd.service/", "a.slice/b.slice/c.service/"]
        {
            for (hierarchy, file, some, none) in [
                ("", "cgroup.events", "populated 1\n", "populated 0\n"),
                ("pids/", "pids.current", "1\n", "0\n"),
            ] {
                let read = |inside| {
                    let container = format!("{hierarchy}{above}{outside}/{file}");
                    let mut files = vec![(container.as_str(), inside)];
                    let pod = format!("{hierarchy}POD/{file}");
                    files.push((pod.as_str(), none));
                    files.extend(hierarchy.is_empty().then_some(("cgroup.controllers", "")));
                    beside_another(&own, &files)
                };
                assert_eq!(read(some), Ok(PodGroup::Populated), "{hierarchy}{above}");
                assert_eq!(read(none), Ok(PodGroup::Empty), "{hierarchy}{above}");
            }
        }
    }

    #[test]
    fn an_empty_group_says_nothing_on_a_host_where_no_pods_group_has_processes() {
        let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        let folder = format!("kubepods.slice/kubepods-burstable.slice/{slice}");
        let files = [
            ("cgroup.controllers", ""),
            ("POD/cgroup.events", "populated 0"),
            ("runtime/containers/one/cgroup.events", "populated 1"),
        ];
        assert_eq!(group(&folder, &files), Ok(PodGroup::Unknown));
        assert_eq!(beside_another(&folder, &files), Ok(PodGroup::Empty));
        let removed = [files[0], files[2], ("kubepods.slice/cgroup.events", "populated 0")];
        assert_eq!(group(&folder, &removed), Ok(PodGroup::Absent), "the kubelet has ended it");
    }

    #[test]
    fn what_cannot_be_read_counts_as_processes() {
        let v2 = ("cgroup.controllers", "");
        let folder = format!("kubepods/pod{UID}");
        for events in ["", "populated", "nonsense 1"] {
            let read = group(&folder, &[v2, ("POD/cgroup.events", events)]);
            assert_eq!(read, Ok(PodGroup::Populated), "{events}");
        }
        let read = group(&folder, &[("pids/POD/pids.current", "max")]);
        assert_eq!(read, Ok(PodGroup::Populated));
        assert_eq!(group(&folder, &[("pids/POD/other", "")]), Ok(PodGroup::Populated));
    }

    #[test]
    fn without_a_folder_a_pod_has_no_group_and_a_host_says_nothing() {
        let v2 = ("cgroup.controllers", "");
        let without = group("kubepods/burstable", &[v2, ("POD/cgroup.events", "")]);
        assert_eq!(without, Ok(PodGroup::Absent));
        for files in [
            &[v2, ("system.slice/cgroup.events", "")][..],
            &[("memory/kubepods/memory.usage_in_bytes", "1")],
            &[],
        ] {
            assert_eq!(group("", files), Err(NoGroups::NoKubelet), "{files:?}");
        }
        assert_eq!(Pods::read(Path::new("/nowhere")), Err(NoGroups::NoKubelet));
    }

    #[test]
    fn a_root_that_cannot_be_read_is_none_without_a_kubelet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cgroup");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let unread = Pods::read(&path).unwrap_err();
        assert!(matches!(unread, NoGroups::Unread(_)), "{unread}");
        let text = unread.to_string();
        assert!(text.contains("cgroup cannot all be listed: "), "{text}");
    }

    /// How a read fails, and how many folders it lists before.
    type Failure = (io::ErrorKind, usize);

    /// A hierarchy of version 2 with these groups of pods. What fails is decided by a read's number and its path.
    struct Failing<F> {
        groups: Vec<(PathBuf, bool)>,
        failure: F,
        reads: Cell<usize>,
    }

    impl<F: Fn(usize, &Path) -> Option<Failure>> Failing<F> {
        fn new(groups: Vec<(PathBuf, bool)>, failure: F) -> Self {
            Self { groups, failure, reads: Cell::new(0) }
        }

        fn next_failure(&self, path: &Path) -> Option<Failure> {
            let number = self.reads.replace(self.reads.get() + 1);
            (self.failure)(number, path)
        }
    }

    impl<F: Fn(usize, &Path) -> Option<Failure>> Tree for Failing<F> {
        fn folders(&self, path: &Path) -> (Vec<String>, Option<Unread>) {
            let names: BTreeSet<String> = self
                .groups
                .iter()
                .filter_map(|(group, _)| {
                    let below = group.strip_prefix(path).ok()?.components().next()?;
                    below.as_os_str().to_str().map(str::to_owned)
                })
                .collect();
            let failure = self.next_failure(path);
            let unread = failure.map(|(kind, _)| Unread::failed(path, &kind.into()));
            let listed = failure.map_or(usize::MAX, |(_, listed)| listed);
            (names.into_iter().take(listed).collect(), unread)
        }

        fn read(&self, path: &Path) -> io::Result<String> {
            if let Some((kind, _)) = self.next_failure(path) {
                return Err(kind.into());
            }
            let folder = path.parent().unwrap();
            let (_, populated) = self.groups.iter().find(|(group, _)| group == folder).unwrap();
            Ok(format!("populated {}\n", u8::from(*populated)))
        }
    }

    /// The group of a pod with processes.
    fn populated(folder: &str, uid: &str) -> (PathBuf, bool) {
        (Path::new(folder).join(format!("pod{uid}")), true)
    }

    #[test]
    fn a_folder_that_vanishes_midway_hides_its_pods_and_no_others() {
        let one = uid(1);
        let other = uid(2);
        for gone in ["kubepods", "kubepods/burstable"] {
            let groups =
                vec![populated("kubepods/burstable", &one), populated("kubepods.slice", &other)];
            let failure =
                |_, path: &Path| (path == Path::new(gone)).then_some((io::ErrorKind::NotFound, 0));
            let pods = Pods::of(&Failing::new(groups, failure), true).unwrap();
            assert_eq!(pods.get(&one), PodGroup::Unknown, "{gone}");
            assert_eq!(pods.get(&other), PodGroup::Populated, "{gone}");
            assert!(pods.unread().is_some());
        }
        let emptied =
            |_, path: &Path| path.as_os_str().is_empty().then_some((io::ErrorKind::NotFound, 0));
        let none = Pods::of(&Failing::new(Vec::new(), emptied), true).unwrap_err();
        assert!(matches!(none, NoGroups::Unread(_)), "the hierarchy is unmounted: {none}");
    }

    fn read_with_failure(
        groups: Vec<(PathBuf, bool)>,
        closed: &'static str,
        kind: io::ErrorKind,
    ) -> Result<Pods, NoGroups> {
        Pods::of(
            &Failing::new(groups, move |_, path: &Path| {
                (path == Path::new(closed)).then_some((kind, 0))
            }),
            true,
        )
    }

    #[test]
    fn a_closed_folder_hides_pods_only_without_the_kubelets_folder() {
        let one = uid(1);
        let other = uid(2);
        let both = vec![populated("kubepods", &one), populated("lxc/theirs", &other)];
        let denied =
            read_with_failure(both.clone(), "lxc", io::ErrorKind::PermissionDenied).unwrap();
        assert_eq!((denied.get(&one), denied.get(&other)), (PodGroup::Populated, PodGroup::Absent));
        let failed = read_with_failure(both, "lxc", io::ErrorKind::Other).unwrap();
        assert_eq!(failed.get(&other), PodGroup::Unknown);
        let own = read_with_failure(
            vec![populated("kubepods/burstable", &one)],
            "kubepods/burstable",
            io::ErrorKind::PermissionDenied,
        );
        assert_eq!(own.unwrap().get(&one), PodGroup::Unknown);
        let none = read_with_failure(
            vec![populated("lxc/theirs", &other)],
            "lxc",
            io::ErrorKind::PermissionDenied,
        );
        assert!(matches!(none, Err(NoGroups::Unread(_))));
    }

    const PARENTS: [&str; 8] = [
        "kubepods",
        "kubepods/burstable",
        "kubepods/besteffort",
        "kubepods.slice/kubepods-burstable.slice",
        "kubelet.slice/kubelet-kubepods.slice",
        "a/b/kubepods",
        "system.slice",
        "system.slice/containerd.service",
    ];

    fn uid(number: u8) -> String {
        format!("8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e{number:02x}")
    }

    fn group_of(parent: usize, number: u8, populated: bool) -> (PathBuf, bool) {
        let parent = PARENTS[parent];
        let slice = format!("kubepods-pod{}.slice", uid(number).replace('-', "_"));
        let folder = if parent.starts_with("system.slice") {
            format!("{slice}:cri-containerd:{number}")
        } else if parent.ends_with(".slice") {
            slice
        } else {
            format!("pod{}", uid(number))
        };
        (Path::new(parent).join(folder), populated)
    }

    fn groups() -> impl Strategy<Value = Vec<(PathBuf, bool)>> {
        let groups = prop::collection::btree_map((0..PARENTS.len(), 0..4u8), any::<bool>(), 0..12);
        groups.prop_map(move |groups| {
            groups.into_iter().map(|((parent, number), on)| group_of(parent, number, on)).collect()
        })
    }

    /// Whether a group of the pod has processes; `None` where it has no group.
    fn truth(groups: &[(PathBuf, bool)], number: u8) -> Option<bool> {
        let uid = uid(number);
        let own = groups.iter().filter(|(path, _)| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let of_container = || PodUid::of_container(name).map(|(uid, _)| uid);
            PodUid::of_folder(name).or_else(of_container).unwrap().as_str() == uid
        });
        own.map(|(_, populated)| *populated).reduce(|one, other| one || other)
    }

    proptest! {
        #[test]
        fn a_pod_counts_by_all_its_groups(groups in groups()) {
            let tree = Failing::new(groups, |_, _: &Path| None);
            match Pods::of(&tree, true) {
                Ok(pods) => for number in 0..4 {
                    let expected = match truth(&tree.groups, number) {
                        None => PodGroup::Absent,
                        Some(false) if tree.groups.iter().all(|(_, on)| !on) => PodGroup::Unknown,
                        Some(false) => PodGroup::Empty,
                        Some(true) => PodGroup::Populated,
                    };
                    prop_assert_eq!(pods.get(&uid(number)), expected);
                },
                Err(none) => {
                    prop_assert_eq!(none, NoGroups::NoKubelet);
                    prop_assert!(tree.groups.is_empty());
                }
            }
        }

        #[test]
        fn a_pod_with_processes_is_never_said_to_have_none(
            groups in groups(),
            failing in prop::collection::btree_map(0..30_usize, 0..4_usize, 0..4),
        ) {
            let tree = Failing::new(groups, |number, _: &Path| Some((io::ErrorKind::Other, *failing.get(&number)?)));
            match Pods::of(&tree, true) {
                Ok(pods) => for number in 0..4 {
                    let group = pods.get(&uid(number));
                    let has_processes = truth(&tree.groups, number) == Some(true);
                    let is_held = [PodGroup::Populated, PodGroup::Unknown].contains(&group);
                    prop_assert!(is_held || !has_processes, "{number}: {group:?}");
                },
                Err(none) => prop_assert!(none != NoGroups::NoKubelet || tree.groups.is_empty()),
            }
        }
    }
}
