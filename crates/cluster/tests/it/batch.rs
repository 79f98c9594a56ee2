//! The workload of pods that run once: the same in each run, and another for what is not alike.

use cluster::Pod;
use placement::workload::WorkloadId;
use proptest::prelude::*;
use serde_json::{Value, json};

fn workload(pod: &Value) -> WorkloadId {
    serde_json::from_value::<Pod>(pod.clone()).unwrap().workload().unwrap()
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{ "apiVersion": "v1", "kind": kind, "name": name, "uid": name, "controller": true }])
}

fn container(image: &str, words: &[&str]) -> Value {
    json!({
        "name": "main", "image": image, "command": ["run"], "args": words,
        "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } },
    })
}

fn pod(name: &str, owners: Value, containers: &[Value]) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "ci", "ownerReferences": owners },
        "spec": { "containers": containers },
    })
}

/// A pod of a CI's Job, by the names that the Job controller gives.
fn ci_job(job: &str, suffix: &str, image: &str, words: &[&str]) -> Value {
    let mut pod = pod(&format!("{job}-{suffix}"), owner("Job", job), &[container(image, words)]);
    pod["metadata"]["generateName"] = json!(format!("{job}-"));
    pod
}

/// Two runs of the same, as each generator names them.
fn runs() -> Vec<(&'static str, Value, Value)> {
    let commit = |sha: &str| {
        let image = format!("registry.example:5000/shop/ci:{sha}");
        ci_job(&format!("build-{sha}"), "x8d2k", &image, &["--commit", sha])
    };
    let argo = |name: &str, hash: &str, date: &str| {
        let words = ["emissary", "--loglevel", "info", "--", "extract.py", "--date", date];
        let name_of_pod = format!("{name}-extract-{hash}");
        let wait = json!({ "name": "wait", "image": "quay.io/argoproj/argoexec:v3.6.2" });
        let main = container("shop/etl:1.4", &words);
        pod(&name_of_pod, owner("Workflow", name), &[wait, main])
    };
    let spark = |app: &str, number: u32| {
        let owner = owner("Pod", &format!("orders-{app}-driver"));
        pod(&format!("orders-{app}-exec-{number}"), owner, &[container("spark:4.0", &["executor"])])
    };
    let airflow = |suffix: &str, run: &str| {
        let words = ["airflow", "tasks", "run", "orders", "load", run, "--local"];
        pod(&format!("orders-load-{suffix}"), json!([]), &[container("airflow:3", &words)])
    };
    let tekton = |run: &str, digest: &str| {
        let image = format!("golang@sha256:{digest}");
        let words = ["-entrypoint", "/tekton/scripts/script-0-8xkqz", "--", run];
        pod(&format!("{run}-pod"), owner("TaskRun", run), &[container(&image, &words)])
    };
    let runner = |suffix: &str| {
        let name = format!("set-{suffix}-runner-{suffix}");
        pod(&name, owner("EphemeralRunner", &name), &[container("actions-runner:2", &[])])
    };
    vec![
        ("CI", commit("8f3a1c9"), commit("0be77d2")),
        ("Argo", argo("etl-7xk2p", "1280", "2026-11-20"), argo("etl-bqzrv", "77", "2026-11-21")),
        ("Spark", spark("81f0c2d34a5b6e79", 1), spark("2c4d6e8f01a3b5c7", 17)),
        (
            "Airflow",
            airflow("k3jd9x2p", "scheduled__2026-11-20T00:00:00+00:00"),
            airflow("0a9s8d7f", "scheduled__2026-11-21T17:03:59.123456+00:00"),
        ),
        ("Tekton", tekton("lint-x7k2p", &"a1".repeat(32)), tekton("lint-zzvbn", &"9c".repeat(32))),
        ("GitHub", runner("x7k2p"), runner("q4wzt")),
    ]
}

#[test]
fn the_next_run_is_of_the_workload_of_the_last_whoever_names_its_pods() {
    for (what, one, next) in runs() {
        assert_eq!(workload(&one), workload(&next), "{what}");
    }
}

#[test]
fn the_workload_of_a_run_shows_the_controllers_kind_and_the_image() {
    let all = runs().into_iter().map(|(_, pod, _)| workload(&pod));
    let shown: Vec<_> = all
        .map(|id| format!("{} {}", id.kind, id.name.split('@').next().unwrap_or_default()))
        .collect();
    assert_eq!(
        shown,
        [
            "Job ci",
            "Workflow argoexec",
            "Pod spark",
            "Pod airflow",
            "TaskRun golang",
            "EphemeralRunner actions-runner"
        ]
    );
}

#[test]
fn extender_and_annotator_of_two_releases_agree() {
    let id = workload(&ci_job("build-8f3a1c", "x8d2k", "shop/ci:8f3a1c", &["--fast"]));
    assert_eq!((&*id.name, id.template), ("ci@1b857ce1094faf2a", 14_033_308_561_442_929_380));
}

/// Which of name and template differ from those of a Job's pod.
fn differs(other: &Value) -> (bool, bool) {
    let first = workload(&ci_job("build-8f3a1c", "x8d2k", "shop/ci:8f3a1c", &["--fast"]));
    let other = workload(other);
    (first.name != other.name || first.kind != other.kind, first.template != other.template)
}

#[test]
fn pods_that_are_not_alike_are_of_other_workloads() {
    let job = |image: &str, words: &[&str]| ci_job("build-8f3a1c", "x8d2k", image, words);
    assert_eq!(differs(&job("shop/ci:0be77d2", &["--fast"])), (false, false));
    // The same image and requests: the estimate of one that is not known, and no more.
    assert_eq!(differs(&job("shop/ci:8f3a1c", &["--slow"])), (false, true));
    assert_eq!(differs(&ci_job("train", "x8d2k", "shop/ci:8f3a1c", &["--fast"])), (false, true));
    assert!(differs(&job("shop/train:8f3a1c", &["--fast"])).0);
    assert!(differs(&job("localhost:5000/shop/ci:8f3a1c", &["--fast"])).0);
    let mut pod = job("shop/ci:8f3a1c", &["--fast"]);
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("1024Mi");
    assert_eq!(differs(&pod), (false, false));
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("8Gi");
    assert!(differs(&pod).0);
    let mut pod = job("shop/ci:8f3a1c", &["--fast"]);
    pod["metadata"]["ownerReferences"] = json!([]);
    assert!(differs(&pod).0);
}

#[test]
fn a_cron_jobs_runs_and_what_lasts_have_their_controllers_name() {
    for (kind, name, wanted) in [
        ("Job", "report-29712345", "report"),
        ("CloneSet", "web", "web"),
        ("VirtualMachineInstance", "vm-01", "vm-01"),
    ] {
        let id = workload(&pod("x", owner(kind, name), &[container("a", &[])]));
        assert_eq!(&*id.name, wanted);
    }
}

/// An image may be any text.
#[test]
fn a_name_is_short_whatever_the_image_is() {
    for image in ["", "é".repeat(500).as_str(), "a/b/", "@", ":", "x:5000/é@sha256:0"] {
        let id = workload(&pod("x", json!([]), &[container(image, &[])]));
        assert!(id.name.len() <= 117 && id.name.contains('@'), "{}", id.name);
    }
    let id = workload(&json!({ "metadata": { "name": "x", "namespace": "ci" } }));
    assert!(id.name.starts_with('@'));
}

fn arb_suffix() -> impl Strategy<Value = String> {
    "[bcdfghjklmnpqrstvwxz2456789]{5}"
}

proptest! {
    /// Names, tags and dates are others in each run. What the kubelet and kube-scheduler add says nothing.
    #[test]
    fn another_run_is_of_the_same_workload_and_another_namespace_never(
        words in prop::collection::vec("[a-z]{1,8}", 0..4),
        suffixes in [arb_suffix(), arb_suffix()],
        commits in ["[0-9][0-9a-f]{6}", "[0-9][0-9a-f]{6}"],
        days in [10_u32..29, 10_u32..29],
    ) {
        let run = |at: usize| {
            let date = format!("--date=2026-11-{}", days[at]);
            let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
            args.push(&date);
            let image = format!("shop/etl:{}", commits[at]);
            ci_job(&format!("etl-{}", suffixes[at]), &suffixes[1 - at], &image, &args)
        };
        let (first, mut next) = (workload(&run(0)), run(1));
        prop_assert_eq!(&workload(&next), &first);
        next["spec"]["nodeName"] = json!("worker-1");
        next["metadata"]["labels"] = json!({ "done": "x" });
        next["status"] = json!({ "phase": "Running", "containerStatuses": [{
            "name": "main", "resources": { "requests": { "cpu": "4" } },
            "allocatedResources": { "cpu": "4" },
        }] });
        prop_assert_eq!(&workload(&next), &first);
        next["metadata"]["namespace"] = json!("bank");
        let elsewhere = workload(&next);
        prop_assert_eq!(&*elsewhere.namespace, "bank");
        prop_assert_ne!(elsewhere, first);
    }
}
