//! What pods use of the GPUs, from NVML's stand-in, the kernel's files and the API server's pods to `/metrics`.

use std::fs;

use serde_json::{Value, json};
use sim::{PODS, pod};

use crate::rig::{A, B, NODE, RESOURCE, Rig, until};

pub const P: &str = "11111111-1111-4111-8111-111111111111";
const Q: &str = "22222222-2222-4222-8222-222222222222";
const MIB: u64 = 1 << 20;

/// A container's id, of one hexadecimal digit.
pub fn id(digit: &str) -> String {
    digit.repeat(64)
}

/// The rows of one metric: its labels as they stand on the page, and its value.
fn rows(rig: &Rig, metric: &str) -> Vec<(String, f64)> {
    rig.page().lines().filter_map(|line| row(line, metric)).collect()
}

fn row(line: &str, metric: &str) -> Option<(String, f64)> {
    let (labels, value) = line.strip_prefix(metric)?.strip_prefix('{')?.rsplit_once("} ")?;
    Some((labels.to_owned(), value.parse().unwrap()))
}

/// The only row with all of these labels.
fn value(rig: &Rig, metric: &str, labels: &[&str]) -> f64 {
    let rows = rows(rig, metric);
    let mut found = rows.clone();
    found.retain(|(text, _)| labels.iter().all(|label| text.contains(label)));
    let [(_, value)] = found[..] else { panic!("{metric} {labels:?} in {rows:#?}") };
    value
}

fn within_two_percent(shown: f64, told: u64) {
    let told = told as f64;
    assert!((shown - told).abs() <= told * 0.02, "{shown} of {told}");
}

/// Has the kernel show a process in this control group.
pub fn process(rig: &Rig, pid: &str, group: &str) {
    let folder = rig.dir.path().join("proc").join(pid);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cgroup"), format!("9:pids:/\n0::{group}\n")).unwrap();
}

/// Has the kubelet report a pod's containers.
pub fn report(rig: &Rig, pod: &str, containers: &[(&str, String)]) {
    let mut statuses = Vec::new();
    for (name, id) in containers {
        statuses.push(json!({"name": name, "containerID": format!("containerd://{id}")}));
    }
    rig.sim
        .change(PODS, "default", pod, |pod| pod["status"]["containerStatuses"] = json!(statuses));
}

/// Two GPUs. On A a container with two processes, one of another pod and one outside of all pods; on B a pod that
/// holds the GPU whole by another resource, and a process that has ended.
fn busy_gpus() -> [Value; 2] {
    let on_a = json!([
        {"pid": 10, "usedBytes": 4096 * MIB, "sm": 40},
        {"pid": 11, "usedBytes": 1024 * MIB, "sm": 5},
        {"pid": 12, "usedBytes": 7 * MIB, "sm": 0, "graphics": true},
        {"pid": 13, "usedBytes": 512 * MIB, "sm": 20},
    ]);
    let on_b = json!([
        {"pid": 20, "usedBytes": 8000 * MIB, "sm": 97},
        {"pid": 99, "usedBytes": MIB, "sm": 0},
    ]);
    [
        json!({
            "uuid": A,
            "minor": 3,
            "model": "NVIDIA A10",
            "memoryMiB": 8192,
            "usedMiB": 4096 + 1024 + 7 + 512,
            "processes": on_a,
        }),
        json!({"uuid": B, "model": "NVIDIA A10", "memoryMiB": 8192, "processes": on_b}),
    ]
}

pub async fn busy_rig(flags: &[&str]) -> Rig {
    let mut rig = Rig::new(&[(A, 8), (B, 8)]).await;
    rig.script(&busy_gpus());
    process(&rig, "1", "/init.scope");
    process(
        &rig,
        "self",
        &format!("/kubepods/besteffort/pod33333333-1111-4111-8111-111111111111/{}", id("f")),
    );
    process(&rig, "10", &format!("/kubepods/burstable/pod{P}/{}", id("a")));
    process(&rig, "11", &format!("/kubepods/burstable/pod{P}/{}/nested", id("a")));
    process(
        &rig,
        "12",
        &format!(
            "/../../kubepods-besteffort-pod{}.slice/crio-{}.scope",
            Q.replace('-', "_"),
            id("b")
        ),
    );
    process(&rig, "13", "/system.slice/jupyter.service");
    process(&rig, "20", &format!("/kubepods/besteffort/pod{Q}/{}", id("c")));
    rig.run(pod("p").uid(P).container("train", RESOURCE, 5), A).await.unwrap();
    rig.sim.put(pod("q").uid(Q).container("whole", "nvidia.com/gpu", 1).on(NODE));
    report(&rig, "p", &[("train", id("a"))]);
    report(&rig, "q", &[("sidecar", id("b")), ("whole", id("c"))]);
    rig.restart_with(flags).await;
    until("the processes", || rows(&rig, "plimsoll_gpu_memory_used_bytes").len() == 5).await;
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_sm_use_of_each_container_are_within_two_percent_of_nvml() {
    let rig = busy_rig(&[]).await;
    let memory = "plimsoll_gpu_memory_used_bytes";
    let sm = "plimsoll_gpu_sm_used_ratio";
    let train = [r#"container="train""#, r#"pod="p""#, r#"namespace="default""#, r#"owner="pod""#];
    until("the container's name", || {
        rows(&rig, memory).iter().any(|(labels, _)| labels.contains(train[0]))
    })
    .await;
    within_two_percent(value(&rig, memory, &train), (4096 + 1024) * MIB);
    within_two_percent(value(&rig, sm, &train) * 100.0, 45);
    let whole = [r#"container="whole""#, r#"pod="q""#, B];
    within_two_percent(value(&rig, memory, &whole), 8000 * MIB);
    within_two_percent(value(&rig, sm, &whole) * 100.0, 97);
    within_two_percent(value(&rig, memory, &[r#"container="sidecar""#, A]), 7 * MIB);
    let unmanaged = [r#"owner="unmanaged""#, r#"pod="""#, r#"container="""#, A];
    within_two_percent(value(&rig, memory, &unmanaged), 512 * MIB);
    within_two_percent(value(&rig, memory, &[r#"owner="unknown""#, B]), MIB);
    let on_a = rows(&rig, memory).into_iter().filter(|(labels, _)| labels.contains(A));
    within_two_percent(on_a.map(|(_, bytes)| bytes).sum(), (4096 + 1024 + 7 + 512) * MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_labels_are_those_of_dcgm_exporter() {
    let rig = busy_rig(&[]).await;
    until("the container's name", || rig.page().contains(r#"container="train""#)).await;
    let all = format!(
        r#"gpu="0",UUID="{A}",device="nvidia3",modelName="NVIDIA A10",Hostname="{NODE}",container="train",namespace="default",pod="p",owner="pod""#
    );
    for metric in ["plimsoll_gpu_memory_used_bytes", "plimsoll_gpu_sm_used_ratio"] {
        assert!(rows(&rig, metric).iter().any(|(labels, _)| *labels == all), "{}", rig.page());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs promtool: make oracle"]
async fn promtool_finds_no_fault_in_the_page_with_processes() {
    let rig = busy_rig(&[]).await;
    // promtool wants labels in snake case; this one is dcgm-exporter's, which the queries of its users name.
    support::promtool::check(&rig.page().replace("modelName=", "model_name="));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_gone_leaves_its_processes_under_no_name() {
    let rig = busy_rig(&[]).await;
    rig.sim.delete(PODS, "default", "p");
    let memory = "plimsoll_gpu_memory_used_bytes";
    until("a row of gone pods", || {
        rows(&rig, memory)
            .iter()
            .any(|(labels, _)| labels.contains(r#"owner="gone""#) && labels.contains(r#"pod="""#))
    })
    .await;
    within_two_percent(value(&rig, memory, &[r#"owner="gone""#, A]), (4096 + 1024) * MIB);
    assert!(!rig.page().contains(r#"pod="p""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_cannot_be_told_are_unknown_and_the_reason_is_shown() {
    let rig = busy_rig(&[]).await;
    let unknown = "plimsoll_gpu_processes_unknown";
    assert_eq!(rows(&rig, unknown), []);
    let split = json!({"uuid": B, "memoryMiB": 8192, "mig": true, "processes": []});
    rig.script(&[busy_gpus()[0].clone(), split]);
    until("MIG mode", || rows(&rig, unknown).iter().any(|(labels, _)| labels.contains("mig")))
        .await;
    rig.script(&[busy_gpus()[0].clone(), json!({"uuid": B, "memoryMiB": 8192})]);
    until("an old driver", || {
        rows(&rig, unknown).iter().any(|(labels, _)| labels.contains("driver"))
    })
    .await;
    // As in a pod without hostPID, whose own process is the first.
    process(
        &rig,
        "1",
        &format!("/kubepods/besteffort/pod33333333-1111-4111-8111-111111111111/{}", id("f")),
    );
    until("no rows", || rows(&rig, "plimsoll_gpu_memory_used_bytes").is_empty()).await;
    assert_eq!(value(&rig, unknown, &[A, r#"reason="pid_namespace""#]), 1.0);
}
