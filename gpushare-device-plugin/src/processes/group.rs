//! The control group of a process: its pod and container.
//!
//! Supported are the kubelet's folders of the cgroupfs and the systemd driver, at the hierarchy's root or below a
//! `--cgroup-root`, and the containers' folders of containerd, CRI-O and cri-dockerd:
//!
//! ```text
//! /kubepods/burstable/podUID/ID
//! /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
//! /../../kubepods-besteffort-podUID.slice/crio-ID.scope     from within a control group namespace
//! /system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID   the drivers differ
//! ```
//!
//! Invariant: the outermost folder of a pod counts. Folders below a service, a scope or a user's slice do not: other
//! programs than the kubelet may create folders of any name there. A container of the last form counts in a service of
//! the system too, where the runtime makes it.

use cgroups::{is_class, is_kubepods, is_service, may_hold_kubepods};
use placement::units::PodUid;

use crate::pods::ContainerId;

/// The control group of a pod, or of one of its containers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodGroup {
    /// The pod's UID. For a static pod it differs from the UID in the API server.
    pub pod: PodUid,
    /// The container; `None` if the folder's name has an unknown form.
    pub container: Option<ContainerId>,
}

/// The id in the name of a container's control group: `ID` or `RUNTIME-ID`, with `.scope` by the systemd driver.
pub(crate) fn container_of_folder(name: &str) -> Option<ContainerId> {
    ContainerId::parse(name.strip_suffix(".scope").unwrap_or(name).rsplit('-').next()?)
}

impl PodGroup {
    /// The group in a file `/proc/PID/cgroup`, which has a line for each hierarchy. `None` if the process is in no pod.
    ///
    /// # Examples
    /// ```
    /// use gpushare_device_plugin::processes::group::PodGroup;
    ///
    /// let id = "0123456789abcdef".repeat(4);
    /// let file = format!("1:name=systemd:/\n4:memory:/kubepods/pod8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55/{id}\n");
    /// let group = PodGroup::of_file(&file).unwrap();
    /// assert_eq!(group.pod.as_str(), "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55");
    /// assert_eq!(group.container.unwrap().as_str(), id);
    /// assert_eq!(PodGroup::of_file("0::/system.slice/sshd.service\n"), None);
    /// ```
    pub fn of_file(text: &str) -> Option<Self> {
        let group = |line: &str| Self::of_path(line.splitn(3, ':').nth(2)?);
        // A group with a container is preferred to one without.
        text.lines().filter_map(group).max_by_key(|group| group.container.is_some())
    }

    /// The group of a path in one hierarchy. From within a control group namespace it begins with `/..` for each folder
    /// up.
    fn of_path(path: &str) -> Option<Self> {
        let mut folders = path.split('/').filter(|folder| !folder.is_empty()).peekable();
        let mut inside = false;
        while folders.next_if_eq(&"..").is_some() {
            // The namespace's root may be among the kubelet's folders, or above them.
            inside = true;
        }
        while let Some(folder) = folders.next() {
            if inside && let Some(uid) = cgroups::PodUid::of_folder(folder) {
                let pod = PodUid::from(uid.as_str());
                let container = folders.next().and_then(container_of_folder);
                return Some(Self { pod, container });
            }
            let in_service = is_service(folder).then(|| folders.next()).flatten();
            if let Some((uid, id)) = cgroups::PodUid::of_container(in_service.unwrap_or(folder)) {
                let pod = PodUid::from(uid.as_str());
                return Some(Self { pod, container: ContainerId::parse(id) });
            }
            if is_kubepods(folder) || (inside && is_class(folder)) {
                inside = true;
            } else if may_hold_kubepods(folder) {
                inside = false;
            } else {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";
    const HASHED: &str = "04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e";
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn found(path: &str) -> Option<(String, Option<String>)> {
        let group = PodGroup::of_path(path)?;
        Some((group.pod.to_string(), group.container.map(|id| id.to_string())))
    }

    #[test]
    fn both_drivers_and_all_runtimes_name_pod_and_container() {
        let slice = UID.replace('-', "_");
        for path in [
            format!("/kubepods/pod{UID}/{ID}"),
            format!("/kubepods/burstable/pod{UID}/{ID}/nested/{ID}"),
            format!("/kubepods/besteffort/pod{UID}/crio-{ID}"),
            format!("/a/b/kubepods/besteffort/pod{UID}/{ID}"),
            format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{ID}.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/crio-{ID}.scope"
            ),
            format!(
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice/docker-{ID}.scope/init"
            ),
            format!("/../../kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope"),
            format!(
                "/../../../kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope"
            ),
            format!("/../../pod{UID}/{ID}"),
            format!("/../../../../kubepods/pod{UID}/{ID}"),
        ] {
            assert_eq!(found(&path), Some((UID.to_owned(), Some(ID.to_owned()))), "{path}");
        }
    }

    #[test]
    fn a_container_outside_of_its_pods_folder_is_its_pods() {
        let name =
            format!("kubepods-burstable-pod{}.slice:cri-containerd:{ID}", UID.replace('-', "_"));
        for above in [
            "",
            "/system.slice",
            "/system.slice/containerd.service",
            "/kuberuntime.slice/containerd.service",
            "/..",
            "/docker/0123/system.slice/containerd.service",
        ] {
            let path = format!("{above}/{name}");
            assert_eq!(found(&path), Some((UID.to_owned(), Some(ID.to_owned()))), "{path}");
        }
        for above in [
            "/user.slice",
            "/user.slice/user-1000.slice/user@1000.service",
            "/system.slice/x.service/y",
            "/system.slice/x.scope",
        ] {
            assert_eq!(found(&format!("{above}/{name}")), None, "{above}");
        }
    }

    #[test]
    fn a_pods_own_group_and_one_of_unknown_form_have_no_container() {
        for end in ["", "/", "/conmon", "/short-0123", "/kata_overhead/x"] {
            let path = format!("/kubepods/pod{HASHED}{end}");
            assert_eq!(found(&path), Some((HASHED.to_owned(), None)), "{path}");
        }
    }

    #[test]
    fn the_outermost_pod_counts() {
        let other = "11111111-2222-3333-4444-555555555555";
        let path = format!("/kubepods/pod{UID}/{ID}/kubepods/pod{other}/{ID}");
        assert_eq!(found(&path).unwrap().0, UID);
    }

    #[test]
    fn what_others_than_the_kubelet_may_make_is_no_pod() {
        let slice = UID.replace('-', "_");
        for path in [
            "/".to_owned(),
            "/init.scope".to_owned(),
            format!("/pod{UID}/{ID}"),
            format!("/docker/pod{UID}/{ID}"),
            format!("/kubepods-pod{slice}.slice/{ID}"),
            format!("/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}"),
            format!("/../../user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}"),
            format!("/../../system.slice/x.service/kubepods/pod{UID}/{ID}"),
            format!("/../../a/pod{UID}/{ID}"),
            format!("/kubepods/pod{UID}0/{ID}"),
            format!("/kubepods/x/pod{UID}/{ID}"),
        ] {
            assert_eq!(found(&path), None, "{path}");
        }
    }

    #[test]
    fn of_several_hierarchies_the_one_with_a_container_counts() {
        let file = format!(
            "9:pids:/\n8:cpu,cpuacct:/kubepods/pod{UID}\n4:memory:/kubepods/pod{UID}/{ID}\n0::/\n"
        );
        assert!(PodGroup::of_file(&file).unwrap().container.is_some());
        for none in ["", "\n", "x", "1:a", "0::", "0:::/"] {
            assert_eq!(PodGroup::of_file(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_status_names_its_container_behind_the_runtime() {
        let id = ContainerId::of_status(&format!("containerd://{ID}"));
        assert_eq!(id.unwrap().as_str(), ID);
        for none in ["", ID, "containerd://", "docker://abc"] {
            assert_eq!(ContainerId::of_status(none), None, "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn no_file_panics(text in "([0-9]:[a-z]*:)?(/(\\.\\.|kubepods(\\.slice)?|[a-z-]*pod[0-9a-f_é-]{30,38}(\\.slice)?|[0-9a-f]{63,65}|.{0,5})){0,6}\n?") {
            if let Some(group) = PodGroup::of_file(&text) {
                prop_assert!(text.replace('_', "-").contains(group.pod.as_str()));
            }
        }
    }
}
