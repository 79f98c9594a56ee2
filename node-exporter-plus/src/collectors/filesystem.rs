//! How full the file systems are: `fs_mountpoint_usage` of each, `fs_usage` of the fullest.
//!
//! As `df` counts: used, of used and free to all but root. The mounts are those that this process sees below
//! `--path.rootfs` (its own `/proc/self/mountinfo`, so neither `hostPID` nor root is needed); each device counts
//! once, at its shortest path.
//!
//! Only file systems on block devices that the kernel serves itself, and only where the way to them leads through
//! nothing else: one behind a network, a process (FUSE) or an automounter can hang, and would hang us with it. What a
//! file system on a block device is asked here it answers from memory.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::file::lines;
use super::{CollectError, Collector, ParseError, ProcFile, Record, Roots};
use crate::series::{Kind, Moment, Signal};

/// How full a file system is.
pub static MOUNT_USAGE: Kind =
    Kind { name: "fs_mountpoint_usage", help: "space in use, percent", label: Some("mountpoint") };
/// How full the fullest is.
pub static USAGE: Kind = Kind {
    name: "fs_usage",
    help: "space in use on the fullest file system, percent",
    label: None,
};

/// A node with 250 pods has a few thousand mounts of 200 bytes.
const LIMIT: u64 = 2 << 20;
/// So many file systems at most are looked at.
const MOST: usize = 64;

/// Samples the mounted file systems.
#[derive(Debug)]
pub struct Filesystems {
    mounts: ProcFile,
    rootfs: PathBuf,
}

impl Filesystems {
    /// A collector over these roots.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        let mounts = ProcFile::new(&roots.procfs.join("self/mountinfo"), LIMIT);
        Self { mounts, rootfs: roots.rootfs.clone() }
    }
}

impl Collector for Filesystems {
    fn name(&self) -> &'static str {
        "filesystem"
    }

    fn collect(&mut self, _: Moment, record: &mut Record<'_>) -> Result<(), CollectError> {
        let rootfs = &self.rootfs;
        let mounts = self.mounts.parse_if_there(|text| parse(text, rootfs))?.unwrap_or_default();
        let mut fullest: Option<f64> = None;
        for Mount { path, shown } in mounts.into_iter().take(MOST) {
            let Some(usage) = usage(&path) else { continue };
            record(&Signal::of(&MOUNT_USAGE, &shown), usage);
            fullest = fullest.into_iter().chain([usage]).reduce(f64::max);
        }
        fullest.into_iter().for_each(|usage| record(&Signal::of_node(&USAGE), usage));
        Ok(())
    }
}

/// None when it cannot be asked (unmounted meanwhile, or out of reach), or has no size.
fn usage(path: &Path) -> Option<f64> {
    let space = statvfs(path).ok()?;
    share(space.f_blocks, space.f_bfree, space.f_bavail)
}

fn share(blocks: u64, free: u64, available: u64) -> Option<f64> {
    let used = blocks.checked_sub(free)?;
    let reachable = used.checked_add(available)?;
    (reachable > 0).then(|| 100.0 * used as f64 / reachable as f64)
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where we see it.
    pub path: PathBuf,
    /// Where the node sees it.
    pub shown: String,
}

/// Kernel file systems without a device of their own, through which a path may lead.
const IN_MEMORY: [&str; 9] =
    ["devtmpfs", "overlay", "proc", "ramfs", "rootfs", "squashfs", "sysfs", "tmpfs", "zfs"];

/// Reads the file systems on block devices that are mounted below `rootfs` (proc_pid_mountinfo(5)), each once.
///
/// # Errors
/// When a line has too few columns.
pub fn parse(mountinfo: &[u8], rootfs: &Path) -> Result<Vec<Mount>, ParseError> {
    let mut found: Vec<(&str, Mount)> = Vec::new();
    let mut may_hang: Vec<PathBuf> = Vec::new();
    for (line, text) in lines(mountinfo).filter(|(_, text)| !text.is_empty()) {
        let problem = ParseError::Line { line, problem: "has fewer columns than a mount has" };
        let columns: Vec<&str> = text.split(' ').collect();
        let [_, _, device, root, place, ..] = columns[..] else { return Err(problem) };
        let dash = columns.iter().position(|word| *word == "-").ok_or(problem)?;
        let (kind, source) = columns.get(dash + 1).zip(columns.get(dash + 2)).ok_or(problem)?;
        // ntfs-3g and its like have a block device, and a process that serves it.
        let on_device = source.starts_with("/dev/") && !kind.starts_with("fuse");
        if !on_device && !IN_MEMORY.contains(kind) {
            may_hang.push(unescaped(place).into());
        }
        // A folder bound to another place is no file system of its own; btrfs mounts its subvolumes so.
        let whole = root == "/" || *kind == "btrfs";
        let Some(mount) = mount(place, rootfs).filter(|_| whole && on_device) else { continue };
        match found.iter_mut().find(|(known, _)| *known == device) {
            Some((_, known)) if mount.shown.len() < known.shown.len() => *known = mount,
            Some(_) => {}
            None => found.push((device, mount)),
        }
    }
    let reachable = |mount: &Mount| !may_hang.iter().any(|place| mount.path.starts_with(place));
    Ok(found.into_iter().map(|(_, mount)| mount).filter(reachable).collect())
}

fn mount(place: &str, rootfs: &Path) -> Option<Mount> {
    let path = PathBuf::from(unescaped(place));
    let below = path.strip_prefix(rootfs).ok()?.to_str()?;
    let shown = format!("/{below}");
    Some(Mount { path, shown })
}

/// Spaces, tabs, newlines and backslashes are written as three octal digits.
fn unescaped(place: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(place.to_owned(), |place, (escape, letter)| place.replace(escape, letter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOUNTS: &str = "\
22 1 254:1 / /host/root rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 254:1 /var/lib/kubelet /host/root/var/lib/kubelet rw - ext4 /dev/vda1 rw
31 22 254:2 / /host/root/srv/my\\040data rw - xfs /dev/vdb rw
32 22 0:25 / /host/root/proc rw - proc proc rw
33 22 0:40 / /host/root/mnt rw - nfs4 server:/export rw
34 1 0:50 / / rw - overlay overlay rw
35 1 254:9 /etc/hosts /host/root/etc/hosts rw - ext4 /dev/vdz rw
36 1 254:8 / /etc/hosts rw - ext4 /dev/vdy rw
";

    #[test]
    fn each_device_below_the_root_counts_once_and_under_the_nodes_own_path() {
        let mounts = parse(MOUNTS.as_bytes(), Path::new("/host/root")).unwrap();
        let shown: Vec<&str> = mounts.iter().map(|mount| mount.shown.as_str()).collect();
        assert_eq!(shown, ["/", "/srv/my data"]);
        assert_eq!(mounts[1].path, PathBuf::from("/host/root/srv/my data"));
    }

    #[test]
    fn what_can_hang_is_not_asked_and_not_passed_through() {
        let mounts = "\
22 1 254:1 / / rw - ext4 /dev/vda1 rw
23 22 0:41 / /home rw - fuse /dev/fuse rw
24 22 8:1 / /ntfs rw - fuseblk /dev/sda1 rw
25 22 0:42 / /mnt rw - nfs4 server:/export rw
26 25 8:2 / /mnt/below rw - ext4 /dev/sda2 rw
27 22 0:43 / /boot rw - autofs systemd-1 rw
28 27 8:3 / /boot rw - vfat /dev/sda3 rw
29 22 0:44 / /run rw - tmpfs tmpfs rw
30 29 8:4 / /run/media rw - ext4 /dev/sda4 rw
31 22 8:5 / /mnt2 rw - ext4 /dev/sda5 rw
";
        let mounts = parse(mounts.as_bytes(), Path::new("/")).unwrap();
        let shown: Vec<&str> = mounts.iter().map(|mount| mount.shown.as_str()).collect();
        assert_eq!(shown, ["/", "/run/media", "/mnt2"]);
    }

    #[test]
    fn a_line_cut_off_is_named() {
        let error = parse(b"22 1 254:1 / /\n", Path::new("/")).unwrap_err().to_string();
        assert_eq!(error, "line 1: has fewer columns than a mount has");
    }

    #[test]
    fn space_kept_for_root_is_no_free_space() {
        assert_eq!(share(100, 50, 40), Some(100.0 * 50.0 / 90.0));
        assert_eq!(share(0, 0, 0), None);
        assert_eq!(share(1, 2, 3), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes, Path::new("/"));
        }

        #[test]
        fn any_space_gives_a_percentage_or_nothing(blocks: u64, free: u64, available: u64) {
            let share = share(blocks, free, available);
            prop_assert!(share.is_none_or(|share| (0.0..=100.0).contains(&share)));
        }
    }
}
