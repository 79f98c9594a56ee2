//! The folders of the kubelet's control groups: where they are, and which of them are pods.
//!
//! ```text
//! kubepods/{,burstable/,besteffort/}podUID                                           cgroupfs driver
//! kubepods.slice/{,kubepods-burstable.slice/,…}kubepods[-burstable]-podUID.slice     systemd driver
//! kubelet.slice/kubelet-kubepods.slice/…                                             below a --cgroup-root, as in kind
//! ```
//!
//! A runtime with the cgroupfs driver below a kubelet with systemd's makes its containers' folders elsewhere. The pod's
//! own folder is there then, and has no process:
//!
//! ```text
//! {,system.slice/}{,containerd.service/}kubepods-burstable-podUID.slice:cri-containerd:ID
//! ```
//!
//! Folders of services, scopes and users are not entered: systemd can delegate them to a user, who then creates folders
//! of any name there. Only a service of the system is looked into, for folders of that last form. Neither is the folder
//! of a pod entered.

use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

use super::tree::{Mounted, Tree, Unread};
use super::uid::PodUid;

/// The largest depth of the kubelet's folder below the hierarchy's root: a `--cgroup-root` of two folders.
const DEPTH: usize = 3;
/// The largest number of folders of one depth that are searched for the kubelet's folder.
const MAX_SEARCHED: usize = 1_024;

/// The control group of a pod, or of one of its containers outside of it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodFolder {
    /// The pod's UID.
    pub uid: PodUid,
    /// The path from the hierarchy's root.
    pub path: PathBuf,
}

/// The result of a search, and the first reason why it may be incomplete.
pub(crate) struct SearchResult<T> {
    pub(crate) found: Vec<T>,
    pub(crate) unread: Option<Unread>,
}

/// The kubelet's folders of all pods, as paths from the hierarchy's root: one, unless there are several kubelets. Only
/// folders of the smallest depth are returned.
#[must_use]
pub fn kubepods(hierarchy: &Path) -> Vec<PathBuf> {
    search(&Mounted(hierarchy), |found| !found.is_empty(), &mut Outside::default()).found
}

/// The kubelet's folders of all pods at any depth, and the containers outside of their pods' folders.
pub(crate) fn all_kubepods(tree: &impl Tree) -> (SearchResult<PathBuf>, Vec<PodFolder>) {
    let mut outside = Outside::default();
    let mut searched = search(tree, |_| false, &mut outside);
    for service in outside.services {
        let (names, unread) = tree.folders(&service);
        searched.unread =
            searched.unread.or(unread.filter(|why| why.hides_kubepods(false) && !why.is_denied()));
        outside.containers.extend(names.iter().filter_map(|name| container_in(&service, name)));
    }
    (searched, outside.containers)
}

/// What a search meets beside the kubelet's folders.
#[derive(Default)]
struct Outside {
    /// Containers outside of their pods' folders.
    containers: Vec<PodFolder>,
    /// Services of the system, which may have more of them.
    services: Vec<PathBuf>,
}

fn container_in(parent: &Path, name: &str) -> Option<PodFolder> {
    let (uid, _) = PodUid::of_container(name)?;
    Some(PodFolder { uid, path: parent.join(name) })
}

/// Searches one depth after the other, until `enough` is found.
fn search(
    tree: &impl Tree,
    enough: impl Fn(&[PathBuf]) -> bool,
    outside: &mut Outside,
) -> SearchResult<PathBuf> {
    let mut found = Vec::new();
    let mut first: Option<Unread> = None;
    let mut level = vec![PathBuf::new()];
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for parent in level {
            let (names, unread) = tree.folders(&parent);
            let is_root = parent.as_os_str().is_empty();
            let hiding = unread.filter(|unread| unread.hides_kubepods(is_root));
            // A reason that may hide more pods is kept before one that may hide fewer.
            first = first.filter(|first| !first.is_denied() || hiding.is_none()).or(hiding);
            for name in names {
                if is_kubepods(&name) {
                    found.push(parent.join(name));
                } else if let Some(container) = container_in(&parent, &name) {
                    outside.containers.push(container);
                } else if may_hold_kubepods(&name) && next.len() < MAX_SEARCHED {
                    next.push(parent.join(name));
                } else if is_service(&name) && outside.services.len() < MAX_SEARCHED {
                    outside.services.push(parent.join(name));
                }
            }
        }
        if enough(&found) {
            break;
        }
        level = next;
    }
    // If the kubelet's folder was found, a folder of another user has none of its pods.
    let unread = first.filter(|unread| found.is_empty() || !unread.is_denied());
    SearchResult { found, unread }
}

/// The first `most` pods below the kubelet's folders in the order of their UIDs, and the number of further ones.
#[must_use]
pub fn pods(hierarchy: &Path, roots: &[PathBuf], most: usize) -> (Vec<PodFolder>, usize) {
    let mut kept = BinaryHeap::new();
    let mut omitted = 0;
    for folder in all_pods(&Mounted(hierarchy), roots).found {
        kept.push(folder);
        if kept.len() > most {
            kept.pop();
            omitted += 1;
        }
    }
    (kept.into_sorted_vec(), omitted)
}

/// The pods below the kubelet's folders, in no order. A pod with several control groups is in the result several times.
pub(crate) fn all_pods(tree: &impl Tree, roots: &[PathBuf]) -> SearchResult<PodFolder> {
    let mut found = Vec::new();
    let mut first = None;
    let mut parents = roots.to_vec();
    while let Some(parent) = parents.pop() {
        let (names, unread) = tree.folders(&parent);
        first = first.or(unread);
        let is_root = roots.contains(&parent);
        for name in names {
            if let Some(uid) = PodUid::of_folder(&name) {
                found.push(PodFolder { uid, path: parent.join(name) });
            } else if is_root && is_class(&name) {
                parents.push(parent.join(name));
            }
        }
    }
    SearchResult { found, unread: first }
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

/// Whether it is the folder of a service, such as the container runtime's.
#[must_use]
pub fn is_service(name: &str) -> bool {
    name.ends_with(".service") && !name.starts_with("user@")
}

/// Whether it is the folder of a QoS class. The folders of Guaranteed pods are next to these folders.
#[must_use]
pub fn is_class(name: &str) -> bool {
    let class = name.strip_suffix(".slice").and_then(|slice| slice.rsplit_once('-'));
    matches!(class.map_or(name, |(_, class)| class), "burstable" | "besteffort")
}
