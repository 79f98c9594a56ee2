//! File systems: `fs_mountpoint_usage` and `inode_mountpoint_usage` of each, and for the node `fs_usage` and
//! `inode_usage`, those of the fullest that pods fill. A full `/boot` is none of theirs, and no pod that goes frees it.
//!
//! Usage is what `df` shows: used space as a share of used space and of that free to users other than root; `df -i` for
//! inodes. File systems that make inodes as they need them (btrfs, vfat) have no usage of these. The mounts are those
//! that this process sees below `--host-root`, from its own `/proc/self/mountinfo`, so that neither `hostPID` nor
//! root is needed. [`mounts`] selects those that count.

mod mounts;

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::{CollectError, Collector, ProcFile, Record, Roots};
use crate::series::{Kind, Moment, Signal};

pub use mounts::{Mount, parse};

/// `fs_mountpoint_usage`, in percent.
pub static MOUNT_USAGE: Kind =
    Kind::of_device("fs_mountpoint_usage", "mountpoint", "space in use, percent");
/// `fs_usage`, in percent.
pub static USAGE: Kind =
    Kind::of_node("fs_usage", "space in use on the fullest file system that pods fill, percent");

/// `inode_mountpoint_usage`, in percent.
pub static MOUNT_INODES: Kind =
    Kind::of_device("inode_mountpoint_usage", "mountpoint", "inodes in use, percent");
/// `inode_usage`, in percent.
pub static INODES: Kind = Kind::of_node(
    "inode_usage",
    "inodes in use on the file system that pods fill with the largest share of them in use, percent",
);

/// A node with 250 pods has a few thousand mounts of 200 bytes; where mounts leak, there are tens of thousands.
const LIMIT: u64 = 8 << 20;
/// How many file systems are sampled at most.
const MAX_MOUNTS: usize = 64;

/// Samples the mounted file systems.
#[derive(Debug)]
pub struct Filesystems {
    mountinfo: ProcFile,
    rootfs: PathBuf,
    kubelet_root: PathBuf,
}

impl Filesystems {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        let mountinfo = ProcFile::new(&roots.procfs.join("self/mountinfo"), LIMIT);
        Self { mountinfo, rootfs: roots.rootfs.clone(), kubelet_root: roots.kubelet.clone() }
    }
}

impl Collector for Filesystems {
    fn name(&self) -> &'static str {
        "filesystem"
    }

    fn collect(&mut self, _: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let rootfs = &self.rootfs;
        let kubelet_root = &self.kubelet_root;
        let mounts = self
            .mountinfo
            .parse_if_there(|text| parse(text, rootfs, kubelet_root, |path| look(rootfs, path)))?;
        let mut fullest: [Option<f64>; 2] = [None; 2];
        for Mount { path, shown, is_filled_by_pods } in
            mounts.into_iter().flatten().take(MAX_MOUNTS)
        {
            let found = usages(&path);
            for (kind, usage) in [&MOUNT_USAGE, &MOUNT_INODES].into_iter().zip(found) {
                usage.into_iter().for_each(|usage| record(&Signal::of_device(kind, &shown), usage));
            }
            for (fullest, usage) in fullest.iter_mut().zip(found).filter(|_| is_filled_by_pods) {
                *fullest = fullest.iter().copied().chain(usage).reduce(f64::max);
            }
        }
        for (kind, usage) in [&USAGE, &INODES].into_iter().zip(fullest) {
            usage.into_iter().for_each(|usage| record(&Signal::of_node(kind), usage));
        }
        Ok(())
    }
}

/// A path of the node, below `rootfs`: the same if it is a folder, where it leads if it is a link.
fn look(rootfs: &Path, path: &Path) -> Option<PathBuf> {
    let seen = rootfs.join(path.strip_prefix("/").ok()?);
    match seen.read_link() {
        Ok(target) => Some(path.parent()?.join(target)),
        Err(_) => seen.is_dir().then(|| path.to_owned()),
    }
}

/// The space and the inodes in use, in percent. `None` if the file system has no number of them, or statfs fails: it
/// was unmounted, or this process has no permission.
fn usages(path: &Path) -> [Option<f64>; 2] {
    let Ok(found) = statvfs(path) else { return [None; 2] };
    let space = share(found.f_blocks, found.f_bfree, found.f_bavail);
    [space, share(found.f_files, found.f_ffree, found.f_favail)]
}

/// What is in use, in percent of that and of what is free to users other than root.
fn share(all: u64, free: u64, available: u64) -> Option<f64> {
    let used = all.checked_sub(free)?;
    let reachable = used.checked_add(available)?;
    (reachable > 0).then(|| 100.0 * used as f64 / reachable as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::time::Duration;

    /// The signals of a node with these mounts: folder, source, options of the file system.
    fn signals(mounts: &[(&str, &str, &str)]) -> Vec<String> {
        let host = tempfile::tempdir().unwrap();
        let folder = |name: &str| host.path().join(name);
        fs::create_dir_all(folder("proc/self")).unwrap();
        let mountinfo: String = mounts
            .iter()
            .enumerate()
            .map(|(number, (place, source, options))| {
                let place = folder("root").join(place);
                fs::create_dir_all(&place).unwrap();
                format!(
                    "{number} 1 8:{number} / {} rw - ext4 {source} {options}\n",
                    place.display()
                )
            })
            .collect();
        fs::write(folder("proc/self/mountinfo"), mountinfo).unwrap();
        let roots = Roots {
            procfs: folder("proc"),
            sysfs: folder("sys"),
            cgroupfs: folder("cgroup"),
            rootfs: folder("root"),
            kubelet: "/var/lib/kubelet".into(),
        };
        let mut names = Vec::new();
        Filesystems::new(&roots)
            .collect(Moment(Duration::ZERO), &mut |signal: &Signal, value: f64| {
                assert!((0.0..=100.0).contains(&value), "{value}");
                names.push(signal.name().to_owned());
            })
            .unwrap();
        names
    }

    #[test]
    fn a_node_with_a_snap_and_a_pods_volume_has_the_signals_of_its_own_disks() {
        let mounts = [
            ("", "/dev/vda1", "rw"),
            ("snap/core22/1380", "/dev/loop1", "ro,errors=continue"),
            ("var/lib/kubelet/pods/0a1b/volumes/kubernetes.io~csi/pvc-1/mount", "/dev/vdb", "rw"),
        ];
        // The tests' own file system may have no number of inodes.
        let expected = match usages(&std::env::temp_dir()) {
            [_, Some(_)] => vec!["fs_root_usage", "inode_root_usage", "fs_usage", "inode_usage"],
            [_, None] => vec!["fs_root_usage", "fs_usage"],
        };
        assert_eq!(signals(&mounts), expected);
        assert_eq!(signals(&mounts[1..]), [""; 0]);
        let data = [mounts[2], ("data", "/dev/vdc", "rw")];
        assert!(!signals(&data).contains(&"fs_usage".to_owned()), "no folder of pods is there");
        // As many volumes as leak, and the line at which the file is cut.
        let leaked =
            ("var/lib/kubelet/pods/0a1b/volumes/kubernetes.io~secret/token", "tmpfs", "rw");
        let mut many = mounts[..1].to_vec();
        many.resize(LIMIT as usize / 100, leaked);
        assert_eq!(signals(&many), expected);
    }

    #[test]
    fn a_file_system_that_makes_inodes_as_it_needs_them_has_no_usage_of_these() {
        assert_eq!(share(0, 0, 0), None);
        assert_eq!(share(1_000, 250, 250), Some(75.0));
    }

    #[test]
    fn space_reserved_for_root_is_not_free() {
        assert_eq!(share(100, 50, 40), Some(100.0 * 50.0 / 90.0));
        assert_eq!(share(0, 0, 0), None);
        assert_eq!(share(1, 2, 3), None);
    }

    proptest! {
        #[test]
        fn any_space_gives_a_percentage_or_nothing(blocks: u64, free: u64, available: u64) {
            let share = share(blocks, free, available);
            prop_assert!(share.is_none_or(|share| (0.0..=100.0).contains(&share)));
        }
    }
}
