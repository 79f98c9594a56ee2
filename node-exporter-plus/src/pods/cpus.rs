//! The CPUs that pods share, and what best-effort pods have used of them, from the kubelet's control groups.
//!
//! A control group that has CPUs of its own (a partition) takes them off those of `kubepods`. The kubelet's CPU manager
//! (policy `static`) gives exclusive CPUs to containers of Guaranteed pods alone, and the containers of all other pods
//! a list of the rest, so these lists say which CPUs are shared. By the policy `none` there are no lists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgroups::PodFolder;

use super::files::read;
use super::hierarchy::Hierarchies;
use super::{MAX_PODS, find};
use crate::list::parse_list;

/// What the control groups say of the node's CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodCpus {
    /// The CPUs on which a pod without CPUs of its own may run. `None` where no control group says so: all of them.
    pub shared: Option<BTreeSet<u32>>,
    /// The CPU time of all best-effort pods since the boot. `None` where it cannot be read.
    pub best_effort: Option<Duration>,
}

/// Reads them. Where there is no control group of a kubelet, no CPU is a pod's alone, and no pod is best-effort.
#[must_use]
pub fn read_cpus(root: &Path) -> PodCpus {
    let Ok((hierarchies, kubepods)) = find(root) else {
        return PodCpus { shared: None, best_effort: Some(Duration::ZERO) };
    };
    let mut buffer = Vec::new();
    let mut best_effort = Some(Duration::ZERO);
    for folder in &kubepods {
        let class = best_effort_of(folder);
        if hierarchies.listed().join(&class).is_dir() {
            let used = hierarchies.cpu_time(&class, &mut buffer);
            best_effort = best_effort.zip(used).map(|(sum, used)| sum + used);
        }
    }
    PodCpus { shared: shared(&hierarchies, &kubepods), best_effort }
}

/// The folder of best-effort pods in the kubelet's folder: `kubepods/besteffort`, or
/// `kubepods.slice/kubepods-besteffort.slice`.
fn best_effort_of(kubepods: &Path) -> PathBuf {
    let name = kubepods.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.strip_suffix(".slice");
    kubepods.join(stem.map_or("besteffort".to_owned(), |stem| format!("{stem}-besteffort.slice")))
}

fn shared(hierarchies: &Hierarchies, kubepods: &[PathBuf]) -> Option<BTreeSet<u32>> {
    let cpusets = hierarchies.cpusets()?;
    let mut allowed = BTreeSet::new();
    for folder in kubepods {
        // The nearest group with the controller. The root has all CPUs but those of partitions.
        let nearest = folder.ancestors().map(|group| cpusets.join(group)).find_map(|group| {
            hierarchies.effective_cpus().iter().find_map(|file| list(&group.join(file)))
        });
        allowed.extend(parse_list(&nearest?)?);
    }
    let (mut common, mut exclusive) = (BTreeSet::new(), BTreeSet::new());
    let mut is_common_to_all = false;
    let (pods, _) = cgroups::pods(hierarchies.listed(), kubepods, MAX_PODS);
    for PodFolder { path, .. } in pods {
        let lists = container_lists(&cpusets.join(&path));
        if !is_of_class(&path) {
            exclusive.extend(lists.into_iter().flatten());
            continue;
        }
        // The sandbox never has a list. Where no container beside it has one, the pod runs anywhere.
        is_common_to_all |= lists.len() > 1 && lists.iter().all(Option::is_none);
        common.extend(lists.into_iter().flatten());
    }
    // Most containers have the same list, so each text is parsed once.
    let cpus = |lists: BTreeSet<String>| -> BTreeSet<u32> {
        lists.iter().filter_map(|list| parse_list(list)).flatten().collect()
    };
    let common = cpus(common);
    if is_common_to_all || common.is_empty() {
        // A Guaranteed pod that shares its CPUs has the list of all that are shared: there are others then.
        let rest = &allowed - &cpus(exclusive);
        return Some(if rest.is_empty() { allowed } else { rest });
    }
    allowed.retain(|cpu| common.contains(cpu));
    Some(allowed)
}

/// The CPUs of each container of the pod with this folder; `None` where it has no list of its own. In version 1 it then
/// has its pod's.
fn container_lists(pod: &Path) -> Vec<Option<String>> {
    let of_pod = list(&pod.join("cpuset.cpus"));
    let mut lists = Vec::new();
    for group in fs::read_dir(pod).into_iter().flatten().flatten() {
        if group.file_type().is_ok_and(|kind| kind.is_dir()) {
            let own = list(&group.path().join("cpuset.cpus"));
            lists.push(own.filter(|own| of_pod.as_ref() != Some(own)));
        }
    }
    lists
}

/// A list of CPUs that is not empty.
fn list(file: &Path) -> Option<String> {
    let mut buffer = Vec::new();
    let list = str::from_utf8(read(file, &mut buffer)?).ok()?.trim();
    (!list.is_empty()).then(|| list.to_owned())
}

/// Whether a pod is burstable or best-effort.
fn is_of_class(path: &Path) -> bool {
    let class = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    class.is_some_and(cgroups::is_class)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e5";

    /// What is read of a tree with these files.
    fn found(files: &[(String, &str)]) -> PodCpus {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{content}\n")).unwrap();
        }
        read_cpus(root.path())
    }

    /// Version 2 with the cgroupfs driver: the CPUs of `kubepods`, and the list of each container by its pod's class
    /// and number. A container `-` is the sandbox.
    fn shared(all: &str, containers: &[(&str, u8, &str, &str)]) -> Option<BTreeSet<u32>> {
        let mut files = vec![("cgroup.controllers".to_owned(), "cpuset cpu")];
        files.push(("kubepods/cpuset.cpus.effective".to_owned(), all));
        for (class, pod, container, list) in containers {
            let folder = format!("kubepods/{class}pod{POD}{pod}/{container}");
            files.push((format!("{folder}/cpuset.cpus"), list));
        }
        found(&files).shared
    }

    fn cpus(list: &str) -> Option<BTreeSet<u32>> {
        Some(parse_list(list).unwrap())
    }

    #[test]
    fn cpus_of_one_container_alone_are_not_shared() {
        let web = [("burstable/", 1, "-", ""), ("burstable/", 1, "web", "0-3")];
        let poll = [("", 2, "-", ""), ("", 2, "poll", "4-7")];
        assert_eq!(shared("0-7", &[&web[..], &poll].concat()), cpus("0-3"));
        // One whose container waits for its image or its next start, and a Guaranteed one without CPUs of its own.
        let waiting = [("besteffort/", 3, "-", "")];
        let sharing = [("", 4, "-", ""), ("", 4, "app", "0-3")];
        assert_eq!(shared("0-7", &[&web[..], &poll, &waiting, &sharing].concat()), cpus("0-3"));
        // CPUs that went offline, or to a partition.
        assert_eq!(shared("0-1,4-5", &[&web[..], &poll].concat()), cpus("0-1"));
        // There is none beside it.
        assert_eq!(shared("0-7", &poll), cpus("0-3"));
    }

    #[test]
    fn without_lists_pods_share_all_cpus_that_no_partition_has() {
        let web = [("burstable/", 1, "-", ""), ("burstable/", 1, "web", "")];
        assert_eq!(shared("0-7", &web), cpus("0-7"));
        assert_eq!(shared("0-5", &[]), cpus("0-5"));
        // Another pod is held to some of them.
        let held = [("besteffort/", 2, "-", ""), ("besteffort/", 2, "batch", "6-7")];
        assert_eq!(shared("0-7", &[web, held].concat()), cpus("0-7"));
        let each = [("burstable/", 1, "a", "0-1"), ("burstable/", 2, "a", "1,3")];
        assert_eq!(shared("0-7", &each), cpus("0-1,3"));
    }

    #[test]
    fn a_group_without_the_controller_has_the_cpus_of_the_one_above() {
        let root = [
            ("cgroup.controllers".to_owned(), "cpuset cpu"),
            ("cpuset.cpus.effective".to_owned(), "0-2"),
            ("kubepods.slice/cpu.stat".to_owned(), "usage_usec 1"),
        ];
        assert_eq!(found(&root).shared, cpus("0-2"));
        assert_eq!(found(&[root[0].clone(), root[2].clone()]).shared, None);
    }

    #[test]
    fn in_version_1_a_container_without_a_list_has_its_pods() {
        let file = |path: &str, list| {
            let path = path.replace("POD", &format!("pod{POD}"));
            (format!("cpuset/kubepods/{path}cpuset.cpus"), list)
        };
        let mut files: Vec<(String, &str)> = ["burstable/POD1", "POD2"]
            .map(|pod| pod.replace("POD", &format!("pod{POD}")))
            .map(|pod| (format!("cpuacct/kubepods/{pod}/cpuacct.usage"), "1"))
            .to_vec();
        files.extend([
            file("", "0-7"),
            file("burstable/POD1/", "0-7"),
            file("burstable/POD1/sandbox/", "0-7"),
            file("burstable/POD1/web/", "0-7"),
            file("POD2/", "0-7"),
            file("POD2/sandbox/", "0-7"),
        ]);
        assert_eq!(found(&files).shared, cpus("0-7"));
        files.extend([file("burstable/POD1/web/", "0-3"), file("POD2/poll/", "4-7")]);
        assert_eq!(found(&files).shared, cpus("0-3"));
        files.push(("cpuset/kubepods/cpuset.effective_cpus".to_owned(), "1-7"));
        assert_eq!(found(&files).shared, cpus("1-3"));
        // The controllers of CPU time alone are mounted.
        files.retain(|(path, _)| !path.starts_with("cpuset/"));
        assert_eq!(found(&files).shared, None);
    }

    #[test]
    fn best_effort_pods_have_used_what_their_group_has() {
        let used = |files: &[(&str, &str)]| {
            let files: Vec<_> =
                files.iter().map(|(path, text)| ((*path).to_owned(), *text)).collect();
            found(&files).best_effort
        };
        let two = ("cgroup.controllers", "cpu");
        let second = Some(Duration::from_secs(1));
        for class in ["kubepods/besteffort", "a.slice/a-kubepods.slice/a-kubepods-besteffort.slice"]
        {
            let file = format!("{class}/cpu.stat");
            assert_eq!(used(&[two, (&file, "usage_usec 1000000")]), second, "{class}");
            assert_eq!(used(&[two, (&file, "user_usec 1000000")]), None, "{class}");
        }
        assert_eq!(used(&[("cpuacct/kubepods/besteffort/cpuacct.usage", "1000000000")]), second);
        // There is no such class, no kubelet, and no control group.
        for none in [&[two, ("kubepods/cpu.stat", "usage_usec 5")][..], &[two], &[]] {
            assert_eq!(used(none), Some(Duration::ZERO), "{none:?}");
        }
    }
}
