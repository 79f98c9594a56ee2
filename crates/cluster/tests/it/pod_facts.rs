//! What is read from a Pod object, and what is refused.

use std::collections::BTreeMap;

use cluster::{
    ClaimError, ContainerRuns, GpuRequestError, MpsConflict, NODE_FAULT, Pod, PodFacts, Wait,
};
use jiff::Timestamp;
use placement::gpu::{ContainerKind, GpuShare, Isolation, RequestError, Strategy};
use placement::load::PodKind;
use placement::names::Names;
use placement::units::{Cores, Units};
use serde_json::{Value, json};

fn facts(pod: Value) -> PodFacts {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pod.facts(&Names::default())
}

fn asking(amount: Value) -> Value {
    json!({
        "metadata": { "name": "train", "namespace": "ml", "uid": "u-1" },
        "spec": { "containers": [
            { "name": "main", "resources": { "limits": { "aliyun.com/gpu-mem": amount, "cpu": "500m" } } },
        ]},
    })
}

#[test]
fn a_plain_pod_asks_for_nothing() {
    let facts = facts(json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u-0", "creationTimestamp": null },
        "spec": { "containers": [{ "name": "c", "resources": {} }], "initContainers": null },
        "status": { "phase": "Pending", "conditions": null },
    }));
    assert_eq!(facts.gpu, Ok(None));
    assert_eq!(facts.node, None);
    assert_eq!(facts.kind, PodKind::Ordinary);
    assert!(!facts.finished && !facts.deleting);
}

fn may_run(spec: Value, status: Value) -> bool {
    facts(json!({ "metadata": {}, "spec": spec, "status": status })).may_run()
}

fn on_a_node_may_run(status: Value) -> bool {
    may_run(json!({ "nodeName": "n1" }), status)
}

fn started(init: &[&Value], apps: &[&Value]) -> Value {
    json!({ "startTime": "2026-11-20T09:00:00Z", "initContainerStatuses": init, "containerStatuses": apps })
}

#[test]
fn a_pod_may_run_from_its_binding_until_all_containers_have_ended() {
    let ended = json!({ "name": "a", "state": { "terminated": { "exitCode": 0 } } });
    let running = json!({ "name": "b", "state": { "running": { "startedAt": null } } });
    assert!(!may_run(json!({}), json!({})), "no kubelet knows of it");
    assert!(on_a_node_may_run(json!({})), "its kubelet may have let it in without having said so");
    assert!(on_a_node_may_run(started(&[], &[])));
    assert!(on_a_node_may_run(started(&[], &[&ended, &running])));
    assert!(on_a_node_may_run(started(&[&running], &[&ended])));
    assert!(!on_a_node_may_run(started(&[&ended], &[&ended])));
    let mut finished = started(&[], &[&running]);
    finished["phase"] = json!("Succeeded");
    assert!(!on_a_node_may_run(finished));
}

fn units(units: &str) -> Value {
    json!({ "limits": { "aliyun.com/gpu-mem": units } })
}

#[test]
fn containers_are_read_in_their_roles() {
    let facts = facts(json!({
        "metadata": { "name": "train", "uid": "u-1" },
        "spec": {
            "initContainers": [
                { "name": "fetch", "resources": units("4") },
                { "name": "log", "restartPolicy": "Always", "resources": units("1") },
            ],
            "containers": [{ "name": "idle" }, { "name": "main", "resources": units("2") }],
        },
    }));
    let gpu = facts.gpu.unwrap().unwrap();
    let asks = gpu.request.containers();
    let roles: Vec<_> = asks.iter().map(|a| (a.name.as_str(), a.kind, a.position)).collect();
    assert_eq!(
        roles,
        [
            ("fetch", ContainerKind::Init, 0),
            ("log", ContainerKind::Sidecar, 1),
            ("main", ContainerKind::App, 1),
        ]
    );
    assert_eq!(gpu.request.peak(), Units(4));
    assert_eq!(gpu.claim, Ok(None));
}

#[test]
fn a_quantity_that_is_no_count_is_an_error_that_names_the_container() {
    for (amount, shown) in [(json!("1500m"), "1500m"), (json!("lots"), "lots"), (json!(-1), "-1")] {
        let error = facts(asking(amount)).gpu.unwrap_err();
        let wanted = format!(
            "container `main`, limits of aliyun.com/gpu-mem: \
             expected a whole number from 0 to 4294967295, found `{shown}`"
        );
        assert_eq!(error.to_string(), wanted);
    }
}

#[test]
fn an_unreadable_quantity_of_another_resource_is_none_of_our_business() {
    let mut pod = asking(json!(3));
    pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("what");
    assert!(facts(pod).gpu.unwrap().is_some());
}

fn kind_owned_by(owners: Value) -> PodKind {
    facts(json!({ "metadata": { "name": "p", "ownerReferences": owners } })).kind
}

fn owner(kind: &str, controller: Value) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": kind, "name": "d", "controller": controller })
}

#[test]
fn a_pod_is_a_daemonsets_only_where_that_is_its_controller() {
    assert_eq!(kind_owned_by(json!([owner("DaemonSet", json!(true))])), PodKind::Daemon);
    assert_eq!(kind_owned_by(json!([{ "kind": "DaemonSet", "name": "d" }])), PodKind::Ordinary);
    for no in [json!(false), json!(null)] {
        let owners = json!([owner("ReplicaSet", json!(true)), owner("DaemonSet", no)]);
        assert_eq!(kind_owned_by(owners), PodKind::Ordinary);
    }
}

#[test]
fn the_binding_and_the_claim_are_read_back() {
    let mut pod = asking(json!("3"));
    pod["metadata"]["annotations"] = json!({
        "plimsoll.dev/gpu-claim": r#"{"main":{"GPU-a":3}}"#,
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    });
    pod["metadata"]["ownerReferences"] =
        json!([{ "kind": "DaemonSet", "name": "d", "controller": true }]);
    pod["spec"]["nodeName"] = json!("n1");
    pod["status"] = json!({
        "phase": "Failed",
        "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T08:00:00Z" },
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T09:00:00Z" },
        ],
    });
    let facts = facts(pod);
    assert_eq!(facts.node.unwrap().as_str(), "n1");
    assert_eq!(facts.kind, PodKind::Daemon);
    assert_eq!(facts.bound_at.unwrap().to_string(), "2026-11-20T09:00:00Z");
    assert!(facts.finished);
    let gpu = facts.gpu.unwrap().unwrap();
    assert!(gpu.assigned);
    assert_eq!(gpu.claim.unwrap().unwrap().gpus().keys().next().unwrap().as_str(), "GPU-a");
}

#[test]
fn a_bound_pod_has_what_its_claim_says_whatever_its_annotations_say_by_now() {
    let share = json!({ "units": 2, "cores": 60, "exclusive": true });
    let claim = json!({ "main": { "GPU-a": share, "GPU-b": share } }).to_string();
    for (key, value) in [("gpu-card-count", "many"), ("gpu-cores", "x"), ("gpu-card-count", "1")] {
        let mut pod = asking(json!("4"));
        pod["metadata"]["annotations"] = json!({ "plimsoll.dev/gpu-claim": claim });
        pod["metadata"]["annotations"][format!("plimsoll.dev/{key}")] = value.into();
        assert!(facts(pod.clone()).gpu.unwrap().unwrap().claim.is_err());
        pod["spec"]["nodeName"] = "n1".into();
        let gpu = facts(pod).gpu.unwrap().unwrap();
        let shares: Vec<_> = gpu.request.shares().iter().map(|share| share.exclusive).collect();
        assert_eq!((shares, gpu.claim.unwrap().unwrap().gpus().len()), (vec![true; 2], 2));
    }
}

#[test]
fn a_claim_that_does_not_match_the_spec_does_not_count_and_says_why() {
    let mut pod = asking(json!("3"));
    pod["metadata"]["annotations"] = json!({ "plimsoll.dev/gpu-claim": r#"{"main":{"GPU-a":1}}"# });
    let gpu = facts(pod).gpu.unwrap().unwrap();
    let reason = gpu.claim.unwrap_err().to_string();
    assert_eq!(reason, "the claim gives container `main` 1 units, its spec asks for 3");
}

fn container_name(container: usize) -> String {
    format!("c{container:03}")
}

fn gpu_container(container: usize) -> Value {
    let limits = json!({ "aliyun.com/gpu-mem": "40" });
    json!({ "name": container_name(container), "resources": { "limits": limits } })
}

/// A pod of 1,000 containers whose claim spreads each over 20 GPUs, 180 KiB of text: its charge was summed up for each
/// GPU over each container, which took 9 s.
#[test]
fn a_claim_that_is_longer_than_bind_would_write_it_is_refused_unread() {
    let mut claim = serde_json::Map::new();
    for container in 0..1000 {
        let units = (0..40).map(|gpu| (format!("{:x}", container * 40 + gpu), json!(1)));
        claim.insert(container_name(container), Value::Object(units.collect()));
    }
    let claim = Value::from(claim).to_string();
    let facts = facts(json!({
        "metadata": { "name": "train", "uid": "u-1", "annotations": { "plimsoll.dev/gpu-claim": claim } },
        "spec": { "containers": (0..1000).map(gpu_container).collect::<Vec<_>>() },
    }));
    let refused = facts.gpu.unwrap().unwrap().claim;
    let wanted =
        ClaimError::Unreadable(api::JsonError::TooLong { length: claim.len(), limit: 243_002 });
    assert_eq!(refused, Err(wanted));
}

#[test]
fn a_pod_that_is_not_yet_scheduled_has_no_binding_time() {
    let mut pod = asking(json!("3"));
    pod["status"] = json!({ "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastTransitionTime": "2026-11-20T09:00:00Z",
    }]});
    assert_eq!(facts(pod).bound_at, None);
}

fn wait(generation: Value, reason: &str, at: Value) -> cluster::Wait {
    let mut pod = asking(json!("3"));
    pod["metadata"]["generation"] = generation;
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": at });
    pod["status"] = json!({ "conditions": [condition] });
    serde_json::from_value::<Pod>(pod).unwrap().wait()
}

#[test]
fn a_condition_tells_since_when_a_pod_waits_unless_gates_may_have_kept_it() {
    let at = json!("2026-11-20T09:00:00Z");
    let since = Wait::Since("2026-11-20T09:00:00Z".parse().unwrap());
    assert_eq!(wait(json!(1), "Unschedulable", at.clone()), since);
    // Gates are gone, as each change of the spec; kube-scheduler has not looked since; or the API server writes no
    // generation.
    assert_eq!(wait(json!(2), "Unschedulable", at.clone()), Wait::Unknown);
    assert_eq!(wait(json!(2), "SchedulingGated", at.clone()), Wait::Unknown);
    assert_eq!(wait(json!(null), "Unschedulable", at.clone()), Wait::Unknown);
    assert_eq!(wait(json!(1), "Unschedulable", json!(null)), Wait::Unknown);
    // An extender's error, for instance of a GPU that is free within seconds.
    assert_eq!(wait(json!(1), "SchedulerError", at.clone()), since);
    assert_eq!(wait(json!(2), "SchedulerError", at.clone()), Wait::Unknown);
    assert_eq!(wait(json!(1), "Another", at), Wait::None);
    let pod: Pod = serde_json::from_value(asking(json!("3"))).unwrap();
    assert_eq!(pod.wait(), Wait::None);
}

/// The conflicts with MPS of a pod with these changes to its spec.
fn mps_conflicts(change: impl FnOnce(&mut Value)) -> BTreeMap<String, MpsConflict> {
    let mut pod = asking(json!(4));
    change(&mut pod["spec"]);
    facts(pod).gpu.unwrap().unwrap().mps_conflicts
}

fn mounted_twice(path: &str) -> Value {
    json!([{"name": "v", "mountPath": "/data"}, {"name": "v", "mountPath": path, "subPath": "a"}])
}

fn of_main(conflict: MpsConflict) -> BTreeMap<String, MpsConflict> {
    BTreeMap::from([("main".to_owned(), conflict)])
}

#[test]
fn a_container_of_any_kind_with_a_mount_of_its_own_where_mps_mounts_is_told() {
    assert_eq!(mps_conflicts(|_| {}), BTreeMap::new());
    for (path, conflict) in [
        ("/dev/shm", MpsConflict::SharedMemory),
        ("/dev/", MpsConflict::SharedMemory),
        ("/run/nvidia-mps", MpsConflict::Pipes),
    ] {
        let found =
            mps_conflicts(|spec| spec["containers"][0]["volumeMounts"] = mounted_twice(path));
        assert_eq!(found, of_main(conflict), "{path}");
    }
    let block = json!([{"name": "v", "devicePath": "/dev/shm"}]);
    let found = mps_conflicts(|spec| spec["containers"][0]["volumeDevices"] = block);
    assert_eq!(found, of_main(MpsConflict::SharedMemory));
    let found = mps_conflicts(|spec| {
        spec["initContainers"] =
            json!([{"name": "init", "volumeMounts": mounted_twice("/dev/shm")}]);
    });
    assert_eq!(found, BTreeMap::from([("init".to_owned(), MpsConflict::SharedMemory)]));
    let found = mps_conflicts(|spec| spec["hostIPC"] = json!(true));
    assert_eq!(found, of_main(MpsConflict::HostIpc));
}

#[test]
fn mounts_that_are_null_or_without_a_path_are_none() {
    let found = mps_conflicts(|spec| {
        spec["containers"][0]["volumeMounts"] =
            json!([{"name": "v", "mountPath": null}, {"name": "v"}]);
        spec["containers"][0]["volumeDevices"] = Value::Null;
        spec["hostIPC"] = Value::Null;
    });
    assert_eq!(found, BTreeMap::new());
}

fn with(annotations: Value) -> PodFacts {
    let mut pod = asking(json!(4));
    pod["metadata"]["annotations"] = annotations;
    facts(pod)
}

#[test]
fn a_pod_asks_for_gpus_and_compute_by_annotations() {
    let facts = with(json!({
        "plimsoll.dev/gpu-card-count": "2 exclusive",
        "plimsoll.dev/gpu-cores": r#"{"main":30}"#,
        "plimsoll.dev/gpu-mem-limit": "8",
        "plimsoll.dev/gpu-processes": "4",
        "plimsoll.dev/gpu-model": "NVIDIA A10, !*80GB*",
        "plimsoll.dev/gpu-placement": "spread",
        "plimsoll.dev/gpu-isolation": " mps ",
    }));
    let gpu = facts.gpu.unwrap().unwrap();
    assert_eq!(gpu.fault, None);
    let share = GpuShare { units: Units(2), cores: Cores(30), exclusive: true, processes: 4 };
    assert_eq!(gpu.request.shares(), [share; 2]);
    assert_eq!(gpu.request.containers()[0].gpu_use.limit, Some(Units(8)));
    assert_eq!(gpu.request.strategy(), Some(Strategy::Spread));
    assert!(gpu.request.filter().accepts("nvidia a10", "GPU-a"));
    assert_eq!(gpu.request.filter().isolation, Isolation::Mps);
    assert_eq!(gpu.isolation.as_deref(), Some("mps"), "what the device plugin reads");
}

#[test]
fn an_unreadable_annotation_is_a_fault_and_the_pod_is_charged() {
    for (key, value, says) in [
        (
            "gpu-card-count",
            "many",
            "expected 1 to 64 GPUs, `exclusive`, or both as in `2 exclusive`, found `many`",
        ),
        ("gpu-card-count", r#"{"side":2}"#, "no container `side` asks for GPU memory"),
        (
            "gpu-card-count",
            r#"{"main":[2]}"#,
            "neither one value nor an object as in `{\"main\":2}`: ",
        ),
        ("gpu-cores", "101", "expected 0 to 100 percent of each GPU, found `101`"),
        ("gpu-processes", "0", "expected 1 to 1024 processes, found `0`"),
        ("gpu-processes", r#"{"main":1025}"#, "expected 1 to 1024 processes, found `1025`"),
        ("gpu-mem-limit", "8Gi", "expected a whole number of units, found `8Gi`"),
        (
            "gpu-model",
            "A10,,T4",
            "an empty name: write names with a comma between them, as in `NVIDIA A10,!Tesla*`",
        ),
        ("gpu-placement", "best", "none of `least-fragmentation`, `pack` and `spread`"),
        ("gpu-isolation", "soft", "expected `driver`, `mps` or `none`"),
    ] {
        let facts = with(json!({ (format!("plimsoll.dev/{key}")): value }));
        let gpu = facts.gpu.unwrap().unwrap();
        let fault = gpu.fault.unwrap();
        let text = fault.to_string();
        assert!(text.starts_with(&format!("annotation plimsoll.dev/{key}: {says}")), "{text}");
        let reason = format!(
            "the pod's annotation {key} cannot be read (see: kubectl plimsoll explain pod)"
        );
        assert_eq!(fault.reason(), reason);
        assert_eq!(gpu.request.peak(), Units(4));
    }
}

#[test]
fn a_pod_that_was_refused_for_a_fault_of_its_node_is_told_from_others_that_failed() {
    let fault = format!("Allocate failed due to rpc error: no {NODE_FAULT}, which is unexpected");
    let of_the_pod = json!("Allocate failed due to rpc error: no, which is unexpected");
    let refused = |phase: &str, reason: Value| {
        let status = json!({ "phase": phase, "reason": reason, "message": fault });
        let pod: cluster::Pod = serde_json::from_value(json!({ "status": status })).unwrap();
        pod.facts(&Names::default()).refused
    };
    assert!(refused("Failed", json!("UnexpectedAdmissionError")));
    let own =
        json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": of_the_pod });
    assert!(!facts(json!({ "status": own })).refused);
    assert!(!refused("Failed", json!("Evicted")));
    assert!(!refused("Failed", Value::Null));
    assert!(!refused("Running", json!("UnexpectedAdmissionError")));
}

#[test]
fn a_kubelet_without_a_device_plugin_for_our_resource_is_a_fault_of_the_node() {
    let refused = |message: String| {
        let status = json!({
            "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message,
        });
        facts(json!({ "status": status })).refused
    };
    let own = [
        "no healthy devices present; cannot allocate unhealthy devices RESOURCE",
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices RESOURCE",
        "cannot allocate unregistered device RESOURCE",
        "unknown Device Plugin RESOURCE",
        "endpoint &{0xc000a 0xc000b /var/lib/kubelet/device-plugins/x.sock RESOURCE {{0 0}} {1 2 <nil>}} has been \
         stopped",
    ];
    for text in own {
        let of = |resource: &str| {
            format!(
                "Allocate failed due to {}, which is unexpected",
                text.replace("RESOURCE", resource)
            )
        };
        assert!(refused(of("aliyun.com/gpu-mem")), "{text}");
        for other in ["nvidia.com/gpu", "aliyun.com/gpu-mem-2", "not.aliyun.com/gpu-mem", ""] {
            assert!(!refused(of(other)), "{other}: {text}");
        }
    }
    // Other pods hold the rest.
    assert!(!refused(
        "Allocate failed due to requested number of devices unavailable for aliyun.com/gpu-mem. Requested: 3, \
         Available: 1, which is unexpected"
            .to_owned()
    ));
}

#[test]
fn shares_that_do_not_divide_are_a_fault() {
    let gpu = with(json!({ "plimsoll.dev/gpu-card-count": "3" })).gpu.unwrap().unwrap();
    assert!(matches!(gpu.fault, Some(GpuRequestError::Request(RequestError::Indivisible { .. }))));
}

fn container_with_id(name: &str, id: Value) -> Value {
    json!([{"name": name, "containerID": id}])
}

#[test]
fn containers_of_every_kind_that_were_started_have_their_ids() {
    let pod: cluster::Pod = serde_json::from_value(json!({
        "metadata": {},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]},
        "status": {
            "containerStatuses": container_with_id("main", json!("containerd://a")),
            "initContainerStatuses": container_with_id("init", json!("containerd://b")),
            "ephemeralContainerStatuses": container_with_id("debug", json!("containerd://c")),
        },
    }))
    .unwrap();
    let ids: Vec<_> = pod.container_ids().collect();
    assert_eq!(
        ids,
        [("main", "containerd://a"), ("init", "containerd://b"), ("debug", "containerd://c")]
    );
    assert!(pod.has_resource_claims());
    let waiting = json!({"status": {"containerStatuses": container_with_id("main", Value::Null)}});
    let waiting: cluster::Pod = serde_json::from_value(waiting).unwrap();
    assert_eq!((waiting.container_ids().count(), waiting.has_resource_claims()), (0, false));
    let made = json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "made"}}});
    assert!(serde_json::from_value::<cluster::Pod>(made).unwrap().has_resource_claims());
}

#[test]
fn a_pods_resource_claims_are_named_once_they_are_made() {
    let mut pod = json!({
        "spec": {"resourceClaims": [
            {"name": "own", "resourceClaimName": "one"},
            {"name": "made", "resourceClaimTemplateName": "t"},
            {"name": "waits", "resourceClaimTemplateName": "t"},
            {"name": "needless", "resourceClaimTemplateName": "t"},
        ]},
        "status": {
            "resourceClaimStatuses": [
                {"name": "made", "resourceClaimName": "p-made-x2k4p"},
                {"name": "needless", "resourceClaimName": null},
                {"name": "own", "resourceClaimName": "forged"},
            ],
            "extendedResourceClaimStatus": {"resourceClaimName": "p-extended"},
        },
    });
    let names = |pod: &Value| {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        pod.resource_claims().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&pod), ["one", "p-made-x2k4p", "p-extended"]);
    pod["status"] = Value::Null;
    assert_eq!(names(&json!({"spec": pod["spec"]})), ["one"]);
    assert!(names(&json!({"spec": {"resourceClaims": null}})).is_empty());
}

fn runs(containers: usize, statuses: &Value) -> Option<ContainerRuns> {
    let containers = vec![json!({ "name": "c" }); containers];
    let pod = json!({ "spec": { "containers": containers }, "status": { "containerStatuses": statuses } });
    serde_json::from_value::<Pod>(pod).unwrap().container_runs(second(1_000))
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(1_795_165_200 + second).unwrap()
}

fn running(from: i64) -> Value {
    json!({ "running": { "startedAt": second(from).to_string() } })
}

fn ended(from: i64, until: i64) -> Value {
    let from = second(from).to_string();
    let until = second(until).to_string();
    json!({ "terminated": { "startedAt": from, "finishedAt": until, "exitCode": 0 } })
}

fn ran(started: i64, from: i64, until: Option<i64>) -> Option<ContainerRuns> {
    let started_at = second(started);
    let from = second(from);
    Some(ContainerRuns { started_at, from, until: until.map(second) })
}

fn in_state(state: Value) -> Value {
    json!({ "name": "c", "state": state })
}

#[test]
fn a_pods_containers_run_from_the_start_of_the_last_to_the_end_of_the_first() {
    assert_eq!(runs(1, &json!([in_state(running(5))])), ran(5, 5, None));
    assert_eq!(runs(2, &json!([in_state(running(5)), in_state(running(9))])), ran(9, 9, None));
    assert_eq!(
        runs(2, &json!([in_state(ended(5, 20)), in_state(ended(9, 40))])),
        ran(9, 9, Some(20))
    );
    // After a restart, the mean over a time before it says nothing.
    let again = json!([{ "name": "c", "state": running(50), "lastState": ended(5, 48) }]);
    assert_eq!(runs(1, &again), ran(5, 50, None));
    let crashing = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let crashed = json!([{ "name": "c", "state": crashing, "lastState": ended(5, 7) }]);
    assert_eq!(runs(1, &crashed), ran(5, 5, Some(7)));
}

#[test]
fn volumes_of_claims_are_told_from_others() {
    let has = |volume: Value| {
        let pod = json!({ "spec": { "volumes": [{ "name": "a", "emptyDir": {} }, volume] } });
        serde_json::from_value::<Pod>(pod).unwrap().has_volume_claims()
    };
    assert!(has(json!({ "name": "v", "persistentVolumeClaim": { "claimName": "v" } })));
    assert!(has(json!({ "name": "v", "ephemeral": { "volumeClaimTemplate": {} } })));
    assert!(!has(json!({ "name": "v", "configMap": {}, "persistentVolumeClaim": null })));
}

#[test]
fn a_nodes_clock_moves_no_run_before_the_binding_or_beyond_now() {
    let bound = json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": second(100).to_string() });
    let runs = |state: Value| {
        let status = json!({ "conditions": [bound], "containerStatuses": [in_state(state)] });
        let pod = json!({ "spec": { "containers": [{ "name": "c" }] }, "status": status });
        serde_json::from_value::<Pod>(pod).unwrap().container_runs(second(200))
    };
    assert_eq!(runs(running(150)), ran(150, 150, None));
    assert_eq!(runs(running(-260)), ran(100, 100, None));
    assert_eq!(runs(running(9_000)), ran(200, 200, None));
    assert_eq!(runs(ended(-260, -230)), ran(100, 100, Some(100)));
    assert_eq!(runs(ended(150, 9_000)), ran(150, 150, Some(200)));
    let conditions = json!([bound, { "type": "Ready", "status": "False", "lastTransitionTime": second(9_000).to_string() }]);
    let ended = json!({ "status": { "phase": "Failed", "conditions": conditions } });
    let ended = serde_json::from_value::<Pod>(ended).unwrap().ended_at(second(200));
    assert_eq!(ended, Some(second(200)));
}

#[test]
fn a_pod_of_which_a_container_has_not_started_has_not_run() {
    let pulling = in_state(json!({ "waiting": { "reason": "ImagePullBackOff" } }));
    let epoch = json!({ "startedAt": "1970-01-01T00:00:00Z", "finishedAt": second(9).to_string() });
    let unstartable = json!({ "terminated": epoch });
    for statuses in [
        json!(null),
        json!([]),
        json!([pulling]),
        json!([in_state(unstartable.clone())]),
        json!([{ "name": "c", "state": { "waiting": {} }, "lastState": unstartable }]),
        json!([in_state(json!({ "terminated": { "startedAt": null, "exitCode": 137 } }))]),
        json!([{ "name": "c", "state": null, "lastState": null }]),
    ] {
        assert_eq!(runs(1, &statuses), None, "{statuses}");
    }
    assert_eq!(runs(2, &json!([in_state(running(5)), pulling])), None);
    assert_eq!(runs(2, &json!([in_state(running(5))])), None);
}

fn bound(claim: &str, annotations: &[(&str, &str)]) -> cluster::GpuPod {
    let mut pod = asking(json!(4));
    pod["spec"]["nodeName"] = json!("n1");
    pod["metadata"]["annotations"] = json!({ "plimsoll.dev/gpu-claim": claim });
    for (key, value) in annotations {
        pod["metadata"]["annotations"][format!("plimsoll.dev/{key}")] = json!(value);
    }
    facts(pod).gpu.unwrap().unwrap()
}

#[test]
fn a_bound_pod_has_what_its_claim_says_whatever_annotations_say() {
    let edited = [("gpu-card-count", "exclusive"), ("gpu-cores", "100"), ("gpu-mem-limit", "80")];
    let plain = bound(r#"{"main":{"GPU-a":4}}"#, &edited);
    let gpu_use = plain.request.containers()[0].gpu_use;
    assert_eq!(gpu_use, placement::gpu::GpuUse::default());
    let claim = plain.claim.unwrap().unwrap();
    let share = GpuShare { processes: 1, ..GpuShare::of(Units(4)) };
    assert_eq!(claim.gpus().values().next(), Some(&share));
    assert_eq!(claim.limit_of("main"), None);
    let more = r#"{"main":{"GPU-a":{"units":4,"cores":30,"limit":8}}}"#;
    for annotations in [&edited[..], &[]] {
        let gpu = bound(more, annotations);
        let gpu_use = gpu.request.containers()[0].gpu_use;
        assert_eq!((gpu_use.cores, gpu_use.limit), (Cores(30), Some(Units(8))));
        assert_eq!(gpu.claim.unwrap().unwrap().limit_of("main"), Some(Units(8)));
    }
}

fn with_gpu_containers(count: usize) -> Value {
    let containers: Vec<_> = (0..count).map(|number| json!({ "name": format!("c{number}"), "resources": { "limits": { "aliyun.com/gpu-mem": "1" } } })).collect();
    json!({ "spec": { "containers": containers } })
}

#[test]
fn a_pod_with_more_gpu_containers_or_longer_lists_than_are_kept_cannot_be_placed() {
    assert!(facts(with_gpu_containers(1_000)).gpu_pod().is_some());
    let refused = facts(with_gpu_containers(1_001)).gpu.unwrap_err();
    assert_eq!(refused, GpuRequestError::TooManyContainers(1_001));
    let mut pod = with_gpu_containers(1);
    let list =
        |bytes: usize| json!({ "annotations": { "plimsoll.dev/gpu-model": "a".repeat(bytes) } });
    pod["metadata"] = list(4 << 10);
    assert_eq!(facts(pod.clone()).gpu_pod().unwrap().fault, None);
    pod["metadata"] = list((4 << 10) + 1);
    let fault = facts(pod).gpu_pod().unwrap().fault.clone().unwrap().to_string();
    assert!(fault.contains("gpu-model") && fault.contains("at most 4 KiB"), "{fault}");
}
