//! The node's mounts that count, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Each file system on a block device and each dataset of ZFS counts once, at its shortest path. Whatever its type, so
//! does the one that holds the kubelet's root, containers' logs or the images of a container runtime: pods can fill it,
//! also where it is an overlay or in memory, as on nodes without disks, or where a folder of it is mounted alone, as in
//! nodes that are containers. Left out are
//! - read-only file systems of whatever type (squashfs of a snap, iso9660, erofs, ext4 mounted `ro`): they are full by
//!   design, and nothing can fill them. The file system's own option decides, not the mount's: a container may see the
//!   node's root through a read-only mount while others write to it.
//! - mounts below the kubelet's root, which are volumes of pods, and below the folders where container runtimes mount
//!   containers' disks. A disk that is mounted at such a folder itself is the node's, and counts.
//! - file systems on which a call can block for ever, and this process with it: those behind a network, a process
//!   (FUSE) or an automounter, and those reached through one. A file system on a block device answers from memory.
//!
//! A runtime's folder may be anywhere. The overlays of its containers name it, as the place of what they change.
//!
//! Memory is bounded by the node's own mounts: of those of pods, which may be thousands, nothing is kept.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::collectors::ParseError;
use crate::collectors::file::lines;

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The path for this process.
    pub path: PathBuf,
    /// The path on the node, which is that without `--host-root`.
    pub shown: String,
    /// Whether it holds a folder that pods fill.
    pub is_filled_by_pods: bool,
}

/// Types without a block device on which no call blocks for ever. A path may lead through them.
const IN_MEMORY: [&str; 9] =
    ["devtmpfs", "overlay", "proc", "ramfs", "rootfs", "squashfs", "sysfs", "tmpfs", "zfs"];

/// Folders where container runtimes mount containers' disks (containerd with devmapper, Docker, CRI-O, k3s).
const RUNTIMES: [&str; 5] = [
    "/run/containerd",
    "/run/k3s/containerd",
    "/var/lib/containerd",
    "/var/lib/containers/storage",
    "/var/lib/docker",
];

/// Folders that pods fill: those where container runtimes keep images and containers' changes, and containers' logs.
const FILLED_BY_PODS: [&str; 5] = [
    "/var/lib/containerd",
    "/var/lib/containers/storage",
    "/var/lib/docker",
    "/var/lib/rancher",
    "/var/log/pods",
];

/// Types that pods can fill, beside those on a block device.
const FILLABLE: [&str; 4] = ["overlay", "ramfs", "tmpfs", "zfs"];

/// How many folders of runtimes are looked for beside those: a node has one.
const MAX_RUNTIMES: usize = 8;

/// The mounts that count, those that pods fill first. `rootfs` is the node's root as this process sees it,
/// `kubelet_root` a path on the node. `look` gives a path of the node back if it is a folder, and where it leads if it
/// is a link; it is asked only for paths on which no call blocks.
///
/// # Errors
/// When a line has too few columns.
pub fn parse(
    mountinfo: &[u8],
    rootfs: &Path,
    kubelet_root: &Path,
    look: impl Fn(&Path) -> Option<PathBuf>,
) -> Result<Vec<Mount>, ParseError> {
    let mut below_root: Vec<(Line<'_>, Mount)> = Vec::new();
    let mut found: Vec<(&str, Mount)> = Vec::new();
    let mut may_block: Vec<PathBuf> = Vec::new();
    let mut folders: BTreeSet<PathBuf> = FILLED_BY_PODS.iter().map(PathBuf::from).collect();
    folders.insert(kubelet_root.to_owned());
    for (line, text) in lines(mountinfo).filter(|(_, text)| !text.is_empty()) {
        let problem = ParseError::Line { line, problem: "has fewer columns than a mount has" };
        let line = Line::parse(text).ok_or(problem)?;
        if folders.len() < FILLED_BY_PODS.len() + MAX_RUNTIMES {
            folders.extend(line.folder_of_runtime());
        }
        let mount = line.mount(rootfs);
        if mount
            .as_ref()
            .is_some_and(|mount| is_of_containers(Path::new(&mount.shown), kubelet_root))
        {
            continue;
        }
        if line.may_block() {
            may_block.push(unescaped(line.place).into());
        }
        let Some(mount) = mount else { continue };
        below_root.push((line, mount.clone()));
        if !line.counts(&mount) {
            continue;
        }
        match found.iter_mut().find(|(device, _)| *device == line.device) {
            Some((_, known)) if mount.shown.len() < known.shown.len() => *known = mount,
            Some(_) => {}
            None => found.push((line.device, mount)),
        }
    }
    found.retain(|(_, mount)| is_below_none(&mount.path, &may_block));
    let look = |folder: &Path| {
        let seen = rootfs.join(folder.strip_prefix("/").unwrap_or(folder));
        if is_below_none(&seen, &may_block) { look(folder) } else { None }
    };
    for folder in folders {
        let Some(folder) = real(folder, look) else { continue };
        let Some((line, mount)) = holder(&below_root, &folder) else { continue };
        if !line.can_be_filled() {
            continue;
        }
        match found.iter_mut().find(|(device, _)| *device == line.device) {
            Some((_, known)) => known.is_filled_by_pods = true,
            None => found.push((line.device, Mount { is_filled_by_pods: true, ..mount.clone() })),
        }
    }
    let mut mounts: Vec<Mount> = found.into_iter().map(|(_, mount)| mount).collect();
    // First, since a bounded number is sampled.
    mounts.sort_by_key(|mount| !mount.is_filled_by_pods);
    Ok(mounts)
}

fn is_below_none(path: &Path, places: &[PathBuf]) -> bool {
    !places.iter().any(|place| path.starts_with(place))
}

/// Where a folder really is. `None` if it is not there, or leads to where calls can block.
fn real(mut folder: PathBuf, look: impl Fn(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
    // The kernel follows as many links.
    for _ in 0..40 {
        let next = look(&folder)?;
        if next == folder {
            return Some(folder);
        }
        folder = PathBuf::new();
        for part in next.components() {
            match part {
                Component::ParentDir => drop(folder.pop()),
                part => folder.push(part),
            }
        }
    }
    None
}

/// The mount that holds `folder`: the deepest, and of several at one place the last.
fn holder<'a, 'b>(mounts: &'b [(Line<'a>, Mount)], folder: &Path) -> Option<&'b (Line<'a>, Mount)> {
    mounts
        .iter()
        .filter(|(_, mount)| folder.starts_with(&mount.shown))
        .max_by_key(|(_, mount)| Path::new(&mount.shown).components().count())
}

/// The columns of a line that are used.
#[derive(Clone, Copy)]
struct Line<'a> {
    /// `MAJOR:MINOR`.
    device: &'a str,
    /// The folder of the file system that is mounted.
    root: &'a str,
    /// The mount point, with escapes.
    place: &'a str,
    /// The file system's type.
    kind: &'a str,
    /// `/dev/sda1`, or what the type puts there.
    source: &'a str,
    /// The file system's options, not those of this mount.
    options: &'a str,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        // A dash ends a variable number of optional columns of the mount.
        let (of_mount, of_filesystem) = text.split_once(" - ")?;
        let mut mount = of_mount.split(' ').skip(2);
        let mut filesystem = of_filesystem.split(' ');
        Some(Self {
            device: mount.next()?,
            root: mount.next()?,
            place: mount.next()?,
            kind: filesystem.next()?,
            source: filesystem.next()?,
            options: filesystem.next().unwrap_or_default(),
        })
    }

    fn is_on_device(&self) -> bool {
        // ntfs-3g and others have a block device, and a process that serves it.
        self.source.starts_with("/dev/") && !self.kind.starts_with("fuse")
    }

    fn may_block(&self) -> bool {
        !self.is_on_device() && !IN_MEMORY.contains(&self.kind)
    }

    fn counts(&self, mount: &Mount) -> bool {
        // A bind mount of a folder is no further file system. Subvolumes of btrfs look the same, and count. So does the
        // root of an ostree deployment.
        let whole = self.root == "/" || self.kind == "btrfs" || mount.shown == "/";
        (self.is_on_device() || self.kind == "zfs") && whole && !self.is_read_only()
    }

    /// Where a runtime keeps what containers change, if this is the overlay of one: `upperdir` is two folders below.
    fn folder_of_runtime(&self) -> Option<PathBuf> {
        let options = (self.kind == "overlay").then_some(self.options)?;
        let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir=/"))?;
        Some(PathBuf::from(unescaped(&format!("/{upper}"))).parent()?.parent()?.to_owned())
    }

    /// Whether pods can fill the file system, where it has a folder of theirs.
    fn can_be_filled(&self) -> bool {
        (self.is_on_device() || FILLABLE.contains(&self.kind)) && !self.is_read_only()
    }

    fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }

    /// The mount; `None` if it is not below `rootfs`.
    fn mount(&self, rootfs: &Path) -> Option<Mount> {
        let path = PathBuf::from(unescaped(self.place));
        let shown = format!("/{}", path.strip_prefix(rootfs).ok()?.to_str()?);
        Some(Mount { path, shown, is_filled_by_pods: false })
    }
}

/// Whether a mount belongs to pods or their containers.
fn is_of_containers(shown: &Path, kubelet_root: &Path) -> bool {
    let is_below = |folder: &Path| shown != folder && shown.starts_with(folder);
    RUNTIMES.iter().any(|folder| is_below(Path::new(folder))) || is_below(kubelet_root)
}

/// A path without the kernel's escapes: spaces, tabs, newlines and backslashes are written as octal numbers.
fn unescaped(place: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(place.to_owned(), |place, (escape, letter)| place.replace(escape, letter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KUBELET: &str = "/var/lib/kubelet";

    fn shown(mountinfo: &str, rootfs: &str) -> Vec<String> {
        let mounts = parse(mountinfo.as_bytes(), Path::new(rootfs), Path::new(KUBELET), |path| {
            Some(path.to_owned())
        })
        .unwrap();
        mounts.into_iter().map(|mount| mount.shown).collect()
    }

    /// Recorded on a node and in a container: see tests/fixtures/ORIGIN.md.
    #[test]
    fn read_only_file_systems_and_pods_volumes_are_left_out() {
        let node = include_str!("../../../tests/fixtures/mounts/node");
        let container = include_str!("../../../tests/fixtures/mounts/container");
        let expected = ["/", KUBELET, "/data", "/home", "/mnt/disks/ssd1"];
        assert_eq!(shown(node, "/"), expected);
        assert_eq!(shown(container, "/host/root"), expected);
    }

    /// The mounts that pods fill on a node whose links lead so.
    fn filled(mountinfo: &str, links: &[(&str, &str)]) -> Vec<String> {
        let look = |path: &Path| {
            let link = links.iter().find(|(from, _)| path == Path::new(from));
            Some(link.map_or(path, |(_, to)| Path::new(to)).to_owned())
        };
        let mounts = parse(mountinfo.as_bytes(), Path::new("/"), Path::new(KUBELET), look).unwrap();
        mounts
            .into_iter()
            .filter(|mount| mount.is_filled_by_pods)
            .map(|mount| mount.shown)
            .collect()
    }

    #[test]
    fn pods_fill_what_holds_their_folders_and_no_boot_partition() {
        let mounts = "\
22 1 254:1 / / rw - ext4 /dev/vda1 rw
23 22 254:2 / /boot rw - ext4 /dev/vda2 rw
24 23 254:3 / /boot/efi rw - vfat /dev/vda3 rw
25 22 254:4 / /data rw - xfs /dev/vdb rw
26 22 254:5 / /var/log rw - xfs /dev/vdc rw
";
        assert_eq!(shown(mounts, "/"), ["/", "/var/log", "/boot", "/boot/efi", "/data"]);
        assert_eq!(filled(mounts, &[]), ["/", "/var/log"]);
        // Images are elsewhere: behind a link, or as the overlays of containers say.
        let linked =
            [("/var/lib/docker", "/var/lib/../../mnt/docker"), ("/mnt/docker", "/data/docker")];
        assert_eq!(filled(mounts, &linked), ["/", "/data", "/var/log"]);
        let overlay = "40 22 0:90 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/0a1b/rootfs rw - overlay overlay \
                       rw,lowerdir=/x,upperdir=/data/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/7/fs,workdir=/y\n";
        assert_eq!(filled(&format!("{mounts}{overlay}"), &[]), ["/", "/data", "/var/log"]);
        // A link that leads in a circle, and one into what may block.
        let circle = [("/var/log/pods", "/a"), ("/a", "/var/log/pods")];
        assert_eq!(filled(mounts, &circle), ["/"]);
        let blocking = format!("{mounts}41 22 0:91 / /nfs rw - nfs4 server:/nfs rw\n");
        assert_eq!(filled(&blocking, &[("/var/log/pods", "/nfs/logs")]), ["/"]);
    }

    #[test]
    fn the_root_of_a_deployment_is_the_root() {
        let ostree = "\
22 1 254:4 /ostree/deploy/os/deploy/0a1b.0 / rw shared:1 - xfs /dev/vda4 rw
23 22 254:4 / /sysroot ro shared:2 - xfs /dev/vda4 rw
24 22 254:4 /ostree/deploy/os/var /var rw shared:3 - xfs /dev/vda4 rw
25 22 254:3 / /boot ro - ext4 /dev/vda3 rw
";
        assert_eq!(shown(ostree, "/"), ["/", "/boot"]);
        assert_eq!(filled(ostree, &[]), ["/"]);
        // An image that cannot be written: what pods fill is below it.
        let image = ostree.replacen(
            "254:4 /ostree/deploy/os/deploy/0a1b.0 / rw shared:1 - xfs /dev/vda4 rw",
            "0:30 / / ro - overlay composefs ro,lowerdir=/a::/b",
            1,
        );
        assert_eq!(filled(&image, &[]), ["/sysroot"]);
    }

    #[test]
    fn a_cd_is_read_only() {
        let cd = "36 22 11:0 / /media/cdrom rw,nosuid,nodev,relatime shared:120 - iso9660 /dev/sr0 ro,nojoliet,check=s,map=n\n";
        assert_eq!(shown(cd, "/"), [""; 0]);
        let dvd = cd.replace("iso9660 /dev/sr0 ro,", "udf /dev/sr0 rw,");
        assert_eq!(shown(&dvd, "/"), ["/media/cdrom"]);
    }

    #[test]
    fn containers_disks_are_left_out_and_the_disk_that_holds_all_of_them_is_not() {
        let mounts = "\
22 1 254:1 / / rw - ext4 /dev/vda1 rw
23 22 253:4 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/0a1b/rootfs rw - xfs /dev/mapper/pool-snap-7 rw
24 22 254:2 / /var/lib/containerd rw - xfs /dev/vdb rw
25 24 253:5 / /var/lib/containerd/tmpmounts/containerd-mount12 rw - xfs /dev/mapper/pool-snap-8 rw
26 22 253:6 / /var/lib/docker/devicemapper/mnt/0a1b rw - ext4 /dev/mapper/docker-0a1b rw
";
        assert_eq!(shown(mounts, "/"), ["/", "/var/lib/containerd"]);
    }

    #[test]
    fn the_kubelets_root_can_be_elsewhere() {
        let mounts = "\
22 1 254:1 / /host/opt/kubelet rw - ext4 /dev/vda1 rw
23 1 254:2 / /host/opt/kubelet/pods/0a1b/volumes/kubernetes.io~csi/pvc-1/mount rw - ext4 /dev/vdb rw
24 1 254:3 / /host/opt/kubelet-backup rw - ext4 /dev/vdc rw
";
        let mounts =
            parse(mounts.as_bytes(), Path::new("/host"), Path::new("/opt/kubelet"), |path| {
                Some(path.to_owned())
            })
            .unwrap();
        let shown: Vec<&str> = mounts.iter().map(|mount| mount.shown.as_str()).collect();
        assert_eq!(shown, ["/opt/kubelet", "/opt/kubelet-backup"]);
    }

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
        assert_eq!(shown(MOUNTS, "/host/root"), ["/", "/srv/my data"]);
        let mounts =
            parse(MOUNTS.as_bytes(), Path::new("/host/root"), Path::new(KUBELET), |path| {
                Some(path.to_owned())
            })
            .unwrap();
        assert_eq!(mounts[1].path, PathBuf::from("/host/root/srv/my data"));
    }

    #[test]
    fn file_systems_that_can_block_are_left_out_and_so_is_what_lies_behind_them() {
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
        assert_eq!(shown(mounts, "/"), ["/", "/run/media", "/mnt2"]);
    }

    #[test]
    fn each_dataset_of_zfs_counts_and_those_of_containers_do_not() {
        let mounts = "\
22 1 0:25 / / rw,relatime - zfs rpool/ROOT/node rw,xattr
23 22 0:26 / /var/lib/kubelet rw - zfs rpool/kubelet rw,xattr
24 22 0:27 / /var/lib/containerd/io.containerd.snapshotter.v1.zfs/snapshots/7 rw - zfs rpool/c/7 rw
25 22 0:28 / /.zfs/snapshot/daily ro - zfs rpool/ROOT/node@daily ro
26 23 0:29 / /var/lib/kubelet/pods/0a1b/volumes/kubernetes.io~csi/pvc-1/mount rw - zfs data/pvc-1 rw
";
        assert_eq!(shown(mounts, "/"), ["/", KUBELET]);
    }

    #[test]
    fn what_holds_the_folders_of_pods_counts_whatever_its_type() {
        // A node that is a container: its root is an overlay, and `/var` a folder of the host's disk.
        let kind = "\
22 1 0:50 / / rw - overlay overlay rw,upperdir=/u
23 22 254:1 /var/lib/docker/volumes/0a/_data /var rw - ext4 /dev/vda1 rw
24 22 254:1 /var/lib/docker/containers/0a/hosts /etc/hosts rw - ext4 /dev/vda1 rw
25 22 0:51 / /run rw - tmpfs tmpfs rw
";
        assert_eq!(shown(kind, "/"), ["/var"]);
        // A node without disks.
        let diskless = "22 1 0:50 / / rw - overlay overlay rw\n23 22 0:51 / /var/lib/kubelet rw - tmpfs tmpfs rw\n";
        assert_eq!(shown(diskless, "/"), ["/", KUBELET]);
        // The last mount at one place hides the one before.
        let hidden =
            format!("{diskless}24 22 0:60 / /var/lib/kubelet ro - squashfs /dev/loop3 ro\n");
        assert_eq!(shown(&hidden, "/"), ["/"]);
        let behind =
            "22 1 0:50 / / rw - overlay overlay rw\n23 22 0:51 / /var rw - nfs4 server:/var rw\n";
        assert_eq!(shown(behind, "/"), [""; 0]);
    }

    #[test]
    fn a_container_without_these_folders_has_no_file_system_of_the_node() {
        let own = "22 1 0:50 / / rw - overlay overlay rw\n";
        let root = Path::new("/");
        let mounts = parse(own.as_bytes(), root, root, |_| None).unwrap();
        assert_eq!(mounts, []);
    }

    #[test]
    fn a_line_cut_off_is_named() {
        let root = Path::new("/");
        for cut in ["22 1 254:1 / /\n", "22 1 254:1 / / rw - ext4\n"] {
            let error =
                parse(cut.as_bytes(), root, Path::new(KUBELET), |path| Some(path.to_owned()))
                    .unwrap_err()
                    .to_string();
            assert_eq!(error, "line 1: has fewer columns than a mount has");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes, Path::new("/"), Path::new(KUBELET), |path| Some(path.to_owned()));
        }
    }
}
