//! `/v1/pods`: over HTTP at a time that the test sets, and what is read of trees that no kubelet makes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use node_exporter_plus::pods::{CgroupError, MAX_PODS, PodUsages, Version, read};
use serde_json::{Value, json};

use crate::cgroups::{Cgroups, Driver};
use crate::endpoints::{Exporter, golden};
use crate::node::{Answer, Procfs, get};
use crate::process::{self, HANG};

const ONE: &str = "1c2d3e4f-0000-4000-8000-000000000001";
const TWO: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";
const STATIC: &str = "04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e";

async fn pods(exporter: &Exporter) -> Answer {
    get(exporter.address, "/v1/pods", "*/*").await
}

fn json_of(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap()
}

fn uids(usages: &PodUsages) -> Vec<&str> {
    usages.pods.iter().map(|pod| pod.uid.as_str()).collect()
}

#[tokio::test]
async fn every_layout_of_control_groups_gives_its_golden_answer() {
    for (version, golden_file) in [(Version::V1, "pods.v1.json"), (Version::V2, "pods.v2.json")] {
        for driver in [Driver::Systemd, Driver::Cgroupfs] {
            for above in [&[][..], &["kubelet"], &["my-cluster", "node-a"]] {
                let cgroups = Cgroups::new(version, driver, above);
                cgroups.pod("burstable", TWO);
                cgroups.pod("besteffort", ONE);
                cgroups.pod("", STATIC);
                cgroups.set("", STATIC, "memory.stat", b"");
                let exporter = Exporter::of_pods(cgroups.root()).await;
                let answer = pods(&exporter).await;
                assert_eq!(answer.status, 200, "{version:?} {driver:?} {above:?}: {}", answer.body);
                assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
                golden(golden_file, &answer.body);
            }
        }
    }
}

#[tokio::test]
async fn the_groups_are_read_at_most_once_in_five_seconds() {
    let cgroups = Cgroups::usual();
    cgroups.pod("", ONE);
    let mut exporter = Exporter::of_pods(cgroups.root()).await;
    let first = pods(&exporter).await.body;
    cgroups.set("", ONE, "cpu.stat", b"usage_usec 5000000\n");
    exporter.pass(4);
    assert_eq!(pods(&exporter).await.body, first);
    exporter.pass(1);
    let second = json_of(&pods(&exporter).await);
    assert_eq!(second["pods"][0]["cpu_seconds_total"], 5.0, "{second}");
    assert_eq!(second["time"], "2023-11-14T23:13:25.000Z");
}

#[tokio::test]
async fn a_node_without_a_kubelets_groups_answers_404_with_what_to_mount() {
    let folder = tempfile::tempdir().unwrap();
    let mut exporter = Exporter::of_pods(folder.path()).await;
    let answer = pods(&exporter).await;
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("no control groups are mounted there; mount the host's /sys"));
    fs::create_dir_all(folder.path().join("memory/system.slice/sshd.service")).unwrap();
    exporter.pass(5);
    let answer = pods(&exporter).await;
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("no control group there is named kubepods"), "{}", answer.body);
    // Those that appear later are found.
    fs::create_dir_all(folder.path().join("memory/kubepods")).unwrap();
    exporter.pass(5);
    assert_eq!(json_of(&pods(&exporter).await)["pods"], json!([]));
}

#[test]
fn a_value_that_cannot_be_read_is_absent_and_the_others_are_there() {
    let cgroups = Cgroups::usual();
    cgroups.pod("", ONE);
    cgroups.pod("burstable", TWO);
    cgroups.pod("besteffort", STATIC);
    let file = |class, uid, name| cgroups.root().join(cgroups.pod_path(class, uid)).join(name);
    // The memory controller is off, cpu.stat is cut off, and the third pod has ended since its folder was seen.
    fs::remove_file(file("", ONE, "memory.current")).unwrap();
    cgroups.set("burstable", TWO, "cpu.stat", b"usage_usec 12");
    for name in ["cpu.stat", "memory.current", "memory.stat"] {
        fs::remove_file(file("besteffort", STATIC, name)).unwrap();
    }
    let usages = read(cgroups.root()).unwrap();
    assert_eq!(uids(&usages), [ONE, TWO]);
    assert!(usages.pods[0].cpu.is_some() && usages.pods[0].memory.is_none());
    assert!(usages.pods[1].cpu.is_none() && usages.pods[1].memory.is_some());
}

#[test]
fn what_a_pod_has_swapped_counts_and_memory_alone_where_no_swap_is_counted() {
    for (version, memory, file, swapped) in [
        (Version::V2, "memory.current", "memory.swap.current", 700_000_000),
        (Version::V1, "memory.usage_in_bytes", "memory.memsw.usage_in_bytes", 1_200_000_000),
    ] {
        let cgroups = Cgroups::new(version, Driver::Systemd, &[]);
        cgroups.pod("burstable", ONE);
        cgroups.set("burstable", ONE, memory, b"500000000\n");
        let alone = read(cgroups.root()).unwrap().pods[0].memory.unwrap();
        let [_, hierarchy] = cgroups.hierarchies();
        let file = hierarchy.join(cgroups.pod_path("burstable", ONE)).join(file);
        fs::write(&file, format!("{swapped}\n")).unwrap();
        assert_eq!(read(cgroups.root()).unwrap().pods[0].memory, Some(alone + 700_000_000));
        fs::write(&file, "max\n").unwrap();
        assert_eq!(read(cgroups.root()).unwrap().pods[0].memory, Some(alone));
    }
}

#[test]
fn a_line_behind_the_first_16_kib_of_a_file_is_not_read() {
    let cgroups = Cgroups::usual();
    cgroups.pod("", ONE);
    let stat = ["x 1\n".repeat(4_095).as_bytes(), b"inactive_file 1234567\n"].concat();
    cgroups.set("", ONE, "memory.stat", &stat);
    let usages = read(cgroups.root()).unwrap();
    assert!(usages.pods[0].cpu.is_some() && usages.pods[0].memory.is_none(), "{usages:?}");
}

#[test]
fn a_pod_whose_containers_are_in_no_group_of_its_own_is_unknown_and_not_idle() {
    for version in [Version::V1, Version::V2] {
        let cgroups = Cgroups::new(version, Driver::Systemd, &[]);
        cgroups.pod("", ONE);
        cgroups.pod("burstable", TWO);
        cgroups.pod("besteffort", STATIC);
        let all = read(cgroups.root()).unwrap();
        cgroups.set_tasks("", ONE, 0);
        cgroups.set_tasks("burstable", TWO, 2);
        assert_eq!(uids(&read(cgroups.root()).unwrap()), [STATIC, TWO], "{version:?}");
        // An idle pod has processes, and its counters stand still.
        cgroups.set_tasks("", ONE, 2);
        assert_eq!(read(cgroups.root()).unwrap(), all, "{version:?}");
    }
}

#[test]
fn a_pod_whose_sandbox_runs_alone_is_unknown() {
    let cgroups = Cgroups::usual();
    cgroups.pod("", ONE);
    cgroups.set("", ONE, "memory.stat", b"active_file 0\ninactive_file 0\nslab_reclaimable 0\n");
    cgroups.set_tasks("", ONE, 1);
    assert_eq!(uids(&read(cgroups.root()).unwrap()), [ONE], "one process, of a container");
    cgroups.set("", ONE, "memory.current", b"400000\n");
    assert_eq!(read(cgroups.root()).unwrap(), PodUsages::default());
}

#[test]
fn counters_of_0_are_unknown_where_processes_are_not_counted() {
    let cgroups = Cgroups::usual();
    cgroups.pod("", ONE);
    cgroups.set("", ONE, "cpu.stat", b"usage_usec 0\nuser_usec 0\n");
    cgroups.set("", ONE, "memory.current", b"0\n");
    assert_eq!(read(cgroups.root()).unwrap(), PodUsages::default());
    cgroups.pod("burstable", TWO);
    let folder = cgroups.root().join(cgroups.pod_path("burstable", TWO));
    for (populated, expected) in [("populated 1\n", vec![TWO]), ("populated 0\n", Vec::new())] {
        fs::write(folder.join("cgroup.events"), populated).unwrap();
        assert_eq!(uids(&read(cgroups.root()).unwrap()), expected, "{populated}");
    }
}

fn numbered_uid(number: usize) -> String {
    format!("{number:08x}-0d4c-4a63-9d6e-2f6a1c0b7e55")
}

#[test]
fn of_too_many_pods_the_first_are_read_and_the_others_counted() {
    let cgroups = Cgroups::new(Version::V2, Driver::Cgroupfs, &[]);
    for number in (0..MAX_PODS + 5).rev() {
        cgroups.pod(["", "burstable", "besteffort"][number % 3], &numbered_uid(number));
    }
    let usages = read(cgroups.root()).unwrap();
    assert_eq!(usages.omitted, 5);
    assert_eq!(uids(&usages), (0..MAX_PODS).map(numbered_uid).collect::<Vec<_>>());
}

#[test]
fn names_that_no_kubelet_gives_are_passed_over() {
    let cgroups = Cgroups::new(Version::V2, Driver::Cgroupfs, &[]);
    cgroups.pod("burstable", ONE);
    let class = cgroups.root().join("kubepods/burstable");
    fs::create_dir(class.join("x".repeat(255))).unwrap();
    fs::create_dir(class.join(format!("pod{}", "0".repeat(252)))).unwrap();
    fs::create_dir(class.join(std::ffi::OsStr::from_bytes(b"pod\xff\xfe"))).unwrap();
    fs::create_dir(class.join("pod\"},{\"uid\":\"x\"")).unwrap();
    fs::write(class.join(format!("pod{TWO}")), "a file").unwrap();
    symlink(format!("pod{ONE}"), class.join(format!("pod{STATIC}"))).unwrap();
    let inside = class.join(format!("pod{ONE}")).join(format!("pod{TWO}"));
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("cpu.stat"), "usage_usec 1\n").unwrap();
    let usages = read(cgroups.root()).unwrap();
    assert_eq!((uids(&usages), usages.omitted), (vec![ONE], 0));
}

#[test]
fn a_link_and_a_pipe_are_no_files_of_a_group() {
    let cgroups = Cgroups::usual();
    cgroups.pod("", ONE);
    let folder = cgroups.root().join(cgroups.pod_path("", ONE));
    for file in ["cpu.stat", "memory.current"] {
        fs::rename(folder.join(file), cgroups.root().join(file)).unwrap();
    }
    symlink(cgroups.root().join("cpu.stat"), folder.join("cpu.stat")).unwrap();
    // Opening a pipe without a writer would wait for one.
    let pipe = std::process::Command::new("mkfifo").arg(folder.join("memory.current")).status();
    assert!(pipe.unwrap().success());
    assert_eq!(read(cgroups.root()).unwrap(), PodUsages::default());
}

#[test]
fn folders_that_a_user_can_make_are_not_taken_for_the_kubelets() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
    for delegated in [
        "user.slice/user-1000.slice/user@1000.service",
        "user.slice/user-1000.slice",
        "system.slice/ci.service",
        "machine.slice/machine-1.scope",
        "a/b/c",
    ] {
        let pod = folder.path().join(delegated).join("kubepods").join(format!("pod{ONE}"));
        fs::create_dir_all(&pod).unwrap();
        fs::write(pod.join("cpu.stat"), "usage_usec 1\n").unwrap();
    }
    let error = read(folder.path()).unwrap_err();
    assert_eq!(error, CgroupError::NoKubelet(folder.path().to_owned()));
    // Beside the kubelet's, a deeper one of the name counts for nothing.
    fs::create_dir_all(folder.path().join("kubelet/kubepods")).unwrap();
    fs::create_dir_all(folder.path().join("a/b/kubepods").join(format!("pod{ONE}"))).unwrap();
    assert_eq!(read(folder.path()).unwrap(), PodUsages::default());
}

#[test]
fn a_pod_with_groups_of_two_drivers_is_one_with_the_sum_of_both() {
    let cgroups = Cgroups::usual();
    cgroups.pod("burstable", TWO);
    let alone = read(cgroups.root()).unwrap();
    let old = cgroups.root().join(format!("kubepods/burstable/pod{TWO}"));
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("cpu.stat"), "usage_usec 1000000\n").unwrap();
    let both = read(cgroups.root()).unwrap();
    assert_eq!(uids(&both), [TWO]);
    let [one, two] = [&alone, &both].map(|usages| &usages.pods[0]);
    assert_eq!(two.cpu, one.cpu.map(|cpu| cpu + Duration::from_secs(1)));
    assert_eq!(two.memory, one.memory);
}

#[test]
fn several_kubelets_of_one_depth_are_read_together() {
    let cgroups = Cgroups::new(Version::V1, Driver::Cgroupfs, &["cluster", "node-a"]);
    cgroups.pod("", ONE);
    for hierarchy in cgroups.hierarchies() {
        let folder = hierarchy.join("cluster/node-b/kubepods").join(format!("pod{TWO}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cpuacct.usage"), "7\n").unwrap();
    }
    assert_eq!(uids(&read(cgroups.root()).unwrap()), [ONE, TWO]);
}

#[test]
fn pods_that_come_and_go_meanwhile_have_true_values_or_none() {
    let cgroups = Cgroups::new(Version::V2, Driver::Cgroupfs, &[]);
    cgroups.pod("", ONE);
    let stays = read(cgroups.root()).unwrap().pods.remove(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cgroups.pod("burstable", TWO);
                let folder = cgroups.root().join(cgroups.pod_path("burstable", TWO));
                fs::remove_dir_all(folder).unwrap();
            }
        });
        for _ in 0..300 {
            let usages = read(cgroups.root()).unwrap();
            assert_eq!(usages.pods[0], stays);
            let goes = usages.pods.get(1);
            let true_or_none = goes.is_none_or(|pod| {
                pod.uid.as_str() == TWO
                    && pod.cpu.is_none_or(|cpu| Some(cpu) == stays.cpu)
                    && pod.memory.is_none_or(|bytes| Some(bytes) == stays.memory)
            });
            assert!(true_or_none, "{goes:?}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[tokio::test]
async fn the_real_exporter_serves_pods_and_logs_once_that_there_are_none() {
    let life = async {
        let procfs = Procfs::new();
        let cgroups = Cgroups::usual();
        let host = procfs.host();
        cgroups.pod("burstable", TWO);
        let mounted = Path::new(host).join("sys/fs/cgroup");
        std::fs::create_dir(mounted.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(cgroups.root(), &mounted).unwrap();
        let mut exporter = process::Exporter::start_with(host, &[]);
        let address = exporter.address("/metrics and /statistics").await;
        let pods = json_of(&get(address, "/v1/pods", "*/*").await);
        assert_eq!(pods["pods"][0]["uid"], TWO, "{pods}");
        assert_eq!(exporter.terminate().await.code(), Some(0));

        std::fs::remove_file(&mounted).unwrap();
        let mut exporter = process::Exporter::start_with(host, &[]);
        let line =
            exporter.line("the control groups of pods cannot be read: /v1/pods answers 404").await;
        assert!(line["error"].as_str().unwrap().contains("below --host-root"), "{line}");
        let address = exporter.address("/metrics and /statistics").await;
        assert_eq!(get(address, "/v1/pods", "*/*").await.status, 404);
        assert_eq!(get(address, "/statistics", "*/*").await.status, 200);
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}
