//! The folders of the kubelet's control groups: where they are, and which of them are pods.
//!
//! ```text
//! kubepods/{,burstable/,besteffort/}podUID                                           cgroupfs driver
//! kubepods.slice/{,kubepods-burstable.slice/,…}kubepods[-burstable]-podUID.slice     systemd driver
//! kubelet.slice/kubelet-kubepods.slice/…                                             below a --cgroup-root, as in kind
//! ```
//!
//! Folders of services, scopes and users are not entered: systemd can delegate them to a user, who then creates folders of
//! any name there. Neither is the folder of a pod.

use std::collections::BinaryHeap;
use std::fs;
use std::path::{Path, PathBuf};

use super::uid::PodUid;

/// How deep the kubelet's folder lies at most, the hierarchy's root not counted: a `--cgroup-root` of two folders.
const DEPTH: usize = 3;
/// How many folders of one depth are searched for the kubelet's at most.
const MAX_SEARCHED: usize = 1_024;
/// How many entries of one folder are looked at, its files included. A pod's folder is one entry.
const MAX_ENTRIES: usize = 8_192;

/// The control group of a pod.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodFolder {
    /// Whose it is.
    pub uid: PodUid,
    /// From the hierarchy's root.
    pub path: PathBuf,
}

/// The kubelet's folders of all pods, as paths from the hierarchy's root: one, unless there are several kubelets. Of
/// those at different depths, the least deep.
#[must_use]
pub fn kubepods(hierarchy: &Path) -> Vec<PathBuf> {
    let mut level = vec![PathBuf::new()];
    for _ in 0..DEPTH {
        let (mut found, mut next) = (Vec::new(), Vec::new());
        for (name, path) in level.iter().flat_map(|path| folders(hierarchy, path)) {
            if is_kubepods(&name) {
                found.push(path);
            } else if may_hold_kubepods(&name) && next.len() < MAX_SEARCHED {
                next.push(path);
            }
        }
        if !found.is_empty() {
            return found;
        }
        level = next;
    }
    Vec::new()
}

/// The pods below the kubelet's folders in the order of their UIDs, the first `most` of them; and how many more there are.
#[must_use]
pub fn pods(hierarchy: &Path, roots: &[PathBuf], most: usize) -> (Vec<PodFolder>, usize) {
    let classes = |root: &PathBuf| {
        let below = folders(hierarchy, root).filter(|(name, _)| is_class(name));
        below.map(|(_, path)| path).collect::<Vec<_>>()
    };
    let parents = roots.iter().flat_map(|root| [vec![root.clone()], classes(root)].concat());
    let pods = parents.flat_map(|parent| folders(hierarchy, &parent).collect::<Vec<_>>());
    let (mut kept, mut omitted) = (BinaryHeap::new(), 0);
    for (name, path) in pods {
        let Some(uid) = PodUid::of_folder(&name) else { continue };
        kept.push(PodFolder { uid, path });
        if kept.len() > most {
            kept.pop();
            omitted += 1;
        }
    }
    (kept.into_sorted_vec(), omitted)
}

/// Whether it is the kubelet's folder of all pods.
#[must_use]
pub fn is_kubepods(name: &str) -> bool {
    name == "kubepods" || name == "kubepods.slice" || name.ends_with("-kubepods.slice")
}

/// Whether a `--cgroup-root` may have this name.
#[must_use]
pub fn may_hold_kubepods(name: &str) -> bool {
    let slice =
        name.strip_suffix(".slice").is_some_and(|name| name.split('-').next() != Some("user"));
    slice || !name.contains('.')
}

/// Whether it is the folder of a class of quality of service. Pods of the third class are beside these folders.
#[must_use]
pub fn is_class(name: &str) -> bool {
    let class = name.strip_suffix(".slice").and_then(|slice| slice.rsplit_once('-'));
    matches!(class.map_or(name, |(_, class)| class), "burstable" | "besteffort")
}

/// The folders in the folder at `path`: their names, and their paths from the hierarchy's root. Links are none, and so is
/// what has a name that is no UTF-8.
fn folders(hierarchy: &Path, path: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(hierarchy.join(path)).into_iter().flatten().take(MAX_ENTRIES);
    let folders =
        entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(move |entry| {
        let name = entry.file_name().into_string().ok()?;
        let path = path.join(&name);
        Some((name, path))
    })
}
