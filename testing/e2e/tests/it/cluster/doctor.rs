//! Tests of the operators' command as a person runs it: by kubectl and its own port-forward. Each fault that `doctor`
//! is to find is seeded, found, and taken away again.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::Node;
use e2e::cluster::install::{self, Setup};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::pods::{
    BINDING, bound, create, gpu_container, idle_container, pod, unschedulable,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("doctor_fails_nothing_on_a_cluster_that_works", healthy).takes(20).smoke(),
    on_our_nodes(
        "why_pending_gpus_and_top_reach_the_extender_by_a_port_forward_of_their_own",
        reports,
    )
    .takes(30)
    .smoke(),
    on_our_nodes("doctor_finds_a_second_kube_scheduler_without_the_extender", one_of_two).takes(30),
    on_our_nodes("doctor_finds_a_configuration_that_an_upgrade_has_taken_out", after_upgrade)
        .takes(120),
    on_our_nodes("doctor_finds_a_certificate_that_ends_within_the_given_days", certificate)
        .takes(20),
    on_our_nodes("doctor_finds_that_kube_scheduler_sends_whole_nodes", whole_nodes).takes(120),
    on_our_nodes("doctor_finds_a_kubelet_whose_clock_is_off", clock).takes(20),
    on_our_nodes("doctor_finds_silent_exporters", silent_exporters).takes(150),
    on_our_nodes("doctor_finds_a_second_writer_of_readings", second_writer).takes(40),
    on_our_nodes("doctor_finds_a_missing_role_binding", missing_right).takes(30),
    on_our_nodes("doctor_finds_an_admission_policy_that_only_audits", audited).takes(30),
    on_our_nodes("doctor_finds_a_runtime_that_honours_nvidia_visible_devices", honouring_runtime)
        .takes(20),
    on_our_nodes("doctor_finds_a_missing_cdi_specification", missing_cdi).takes(90),
    on_our_nodes("doctor_finds_a_unit_that_is_too_small", small_unit).takes(180),
    on_our_nodes("doctor_finds_another_device_plugin_on_the_cards", other_plugin).takes(30),
    on_our_nodes("doctor_finds_a_gpu_node_without_the_device_plugin", gpu_node).takes(20),
    on_our_nodes("doctor_finds_programs_of_several_versions", versions).takes(20),
];

/// What a check needs to see of a change: an event, a metric, a log.
const SEEN: Duration = Duration::from_secs(240);
const SYSTEM: &str = "kube-system";
const PLUGIN: &str = "daemonset/gpushare-device-plugin";
/// Where `plimsoll scheduler enable` puts the configuration, below a node's root.
const SCHEDULER_FOLDER: &str = "etc/kubernetes/plimsoll";

/// What the command prints, with kubectl's configuration and no address. `doctor` ends with 1 where it finds a fault,
/// and with 3 where something is not known.
fn plimsoll(env: &TestEnv, words: &[&str]) -> Result<String> {
    let output = env.operators_command(words)?.output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(said.is_empty(), "plimsoll {}: {said}", words.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

fn json(env: &TestEnv, words: &[&str]) -> Result<Value> {
    let text = plimsoll(env, &[words, &["-o", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| text)
}

/// The findings of one check.
fn findings(env: &TestEnv, check: &str, flags: &[&str]) -> Result<Vec<Value>> {
    let report = json(env, &[&["doctor", "--only", check], flags].concat())?;
    report["findings"].as_array().cloned().context("no findings")
}

/// Waits until a check finds this, and says what to do.
fn finds(env: &TestEnv, check: &str, level: &str, text: &str) -> Result<()> {
    wait_for(&format!("doctor to find {text:?}"), SEEN, || {
        finds_now(env, check, level, text).map(Some)
    })
}

fn finds_now(env: &TestEnv, check: &str, level: &str, text: &str) -> Result<()> {
    let found = findings(env, check, &[])?;
    let fitting = found.iter().find(|finding| {
        finding["level"] == level
            && finding["what"].as_str().is_some_and(|what| what.contains(text))
    });
    let fitting = fitting.with_context(|| format!("{found:?}"))?;
    ensure!(fitting["todo"].is_string(), "{fitting}");
    Ok(())
}

/// Waits until a check finds no fault.
fn is_well(env: &TestEnv, check: &str) -> Result<()> {
    wait_for(&format!("{check} to be well again"), SEEN, || {
        let found = findings(env, check, &[])?;
        let faults: Vec<&Value> =
            found.iter().filter(|finding| finding["level"] == "fail").collect();
        ensure!(faults.is_empty(), "{faults:?}");
        Ok(Some(()))
    })
}

/// Seeds a fault, has it found, and takes it away also after an error.
fn seeded(
    env: &TestEnv,
    check: &str,
    seed: impl FnOnce() -> Result<()>,
    found: impl FnOnce() -> Result<()>,
    mend: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let done = seed().and_then(|()| found());
    let mended = mend();
    done.and(mended)?;
    is_well(env, check)
}

fn kubectl(env: &TestEnv, words: &[&str]) -> Result<()> {
    env.cluster()?.kubectl_run(words).map(drop)
}

/// Creates or changes an object from a file of its own.
fn apply(env: &TestEnv, object: &Value) -> Result<()> {
    let file = env.cluster()?.settings().state.join("doctor-object.json");
    fs::write(&file, object.to_string())?;
    kubectl(
        env,
        &["apply", "--server-side", "--force-conflicts", "--filename", &file.to_string_lossy()],
    )
}

fn healthy(env: &TestEnv) -> Result<()> {
    wait_for("doctor to fail nothing", SEEN, || {
        let report = json(env, &["doctor"])?;
        let all = report["findings"].as_array().context("no findings")?;
        let faults: Vec<&Value> = all.iter().filter(|finding| finding["level"] == "fail").collect();
        ensure!(faults.is_empty(), "{faults:?}");
        // Everything may be read here.
        ensure!(!report.to_string().contains("not checked"), "{report}");
        Ok(Some(()))
    })
}

fn reports(env: &TestEnv) -> Result<()> {
    create(env, pod("fits", &[gpu_container("main", 2)]))?;
    create(env, pod("too-large", &[gpu_container("main", 17)]))?;
    bound(env, "fits", BINDING)?;
    unschedulable(env, "too-large", BINDING)?;
    wait_for("the reports to tell of both pods", BINDING, || {
        let why = json(env, &["why", "fits", "-n", NAMESPACE])?;
        ensure!(why["basis"] == "decision" && why["node"].is_string(), "{why}");
        let holders = plimsoll(env, &["gpus"])?;
        ensure!(holders.contains(&format!("{NAMESPACE}/fits 2")), "{holders}");
        let holders = plimsoll(env, &["top", "pods", "-n", NAMESPACE, "-o", "name"])?;
        ensure!(holders.contains("pod/fits"), "{holders}");
        let waiting = plimsoll(env, &["pending", "-n", NAMESPACE])?;
        ensure!(waiting.contains("pod/too-large") && waiting.contains("17"), "{waiting}");
        let room = json(env, &["capacity", "--size", "16"])?;
        ensure!(room["total"]["pods"].as_u64().is_some_and(|pods| pods > 0), "{room}");
        ensure!(plimsoll(env, &["top", "nodes"])?.contains("LIMIT RATIO"), "no table");
        Ok(Some(()))
    })
}

/// A pod as that of another control-plane node, which waits so that it runs nothing.
fn one_of_two(env: &TestEnv) -> Result<()> {
    let second = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kube-scheduler-second", "namespace": SYSTEM, "labels": {"component": "kube-scheduler"}},
        "spec": {
            "schedulingGates": [{"name": "plimsoll.dev/test"}],
            "containers": [{"name": "kube-scheduler", "image": "none", "command": ["kube-scheduler", "--leader-elect=true"]}],
        },
    });
    seeded(
        env,
        "kube-scheduler",
        || apply(env, &second),
        || {
            finds(
                env,
                "kube-scheduler",
                "fail",
                "no --config, so it does not ask the extender (1 of 2 schedulers)",
            )
        },
        || kubectl(env, &["-n", SYSTEM, "delete", "pod", "kube-scheduler-second"]),
    )
}

/// kubeadm writes the manifest anew, and leaves the note of where `enable` has run.
fn after_upgrade(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let name = cluster.nodes().first().context("no node")?.name();
    let note = format!("plimsoll.dev/kube-scheduler-nodes={name}");
    seeded(
        env,
        "kube-scheduler",
        || {
            install::disable_scheduler(cluster)?;
            kubectl(
                env,
                &["-n", SYSTEM, "annotate", "configmap", "kubeadm-config", "--overwrite", &note],
            )
        },
        || finds(env, "kube-scheduler", "fail", "though `enable` has run there"),
        || install::enable_scheduler(cluster, Setup::Tested),
    )
}

/// The certificates of the tests are good for a year.
fn certificate(env: &TestEnv) -> Result<()> {
    let found = findings(env, "certificate", &["--certificate-days", "400"])?;
    let warned = found.iter().any(|finding| {
        let what = finding["what"].as_str().unwrap_or_default();
        finding["level"] == "warn" && what.contains("of Secret scheduler-extender-tls ends in")
    });
    ensure!(warned, "{found:?}");
    is_well(env, "certificate")
}

/// The configurations on the control-plane node.
fn configurations(node: &Node) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(node.path(SCHEDULER_FOLDER))? {
        let path = entry?.path();
        let is_config = path.extension().is_some_and(|it| it == "yaml") && !path.is_symlink();
        files.extend(is_config.then_some(path));
    }
    Ok(files)
}

/// Replaces a text in them, and has kube-scheduler start with that.
fn reconfigure(env: &TestEnv, from: &str, to: &str) -> Result<()> {
    let node = env.cluster()?.nodes().first().context("no node")?;
    for file in configurations(node)? {
        let text = fs::read_to_string(&file)?;
        fs::write(&file, text.replace(from, to))?;
    }
    let scheduler = processes_of_scheduler(env)?;
    processes::kill_all(&scheduler)?;
    wait_for("kube-scheduler to run again", SEEN, || {
        let now = processes_of_scheduler(env)?;
        Ok((!now.is_empty() && now != scheduler).then_some(()))
    })
}

fn processes_of_scheduler(env: &TestEnv) -> Result<Vec<Pid>> {
    let id = "--output=jsonpath={.items[0].status.containerStatuses[0].containerID}";
    let words = ["-n", SYSTEM, "get", "pod", "-l", "component=kube-scheduler", id];
    let id = env.cluster()?.kubectl_run(&words)?;
    processes::of_container(id.trim().rsplit('/').next().unwrap_or_default())
}

fn whole_nodes(env: &TestEnv) -> Result<()> {
    let [capable, not] = ["nodeCacheCapable: true", "nodeCacheCapable: false"];
    seeded(
        env,
        "kube-scheduler",
        || {
            reconfigure(env, capable, not)?;
            create(env, pod("asked-about", &[idle_container("main")]))
        },
        || finds(env, "requests", "fail", "nodeCacheCapable is false"),
        || reconfigure(env, not, capable),
    )
}

/// A kubelet writes its own time into its Lease, again and again: of one that was not renewed for long nothing is said.
fn clock(env: &TestEnv) -> Result<()> {
    let renew = || {
        let early = Timestamp::now() - SignedDuration::from_secs(100);
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "late-clock", "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": "late-clock", "renewTime": format!("{early:.6}")},
        });
        apply(env, &lease)
    };
    seeded(
        env,
        "clocks",
        renew,
        || {
            wait_for("doctor to find the late clock", SEEN, || {
                renew()?;
                finds_now(env, "clocks", "fail", "late-clock: its clock is -1").map(Some)
            })
        },
        || kubectl(env, &["-n", "kube-node-lease", "delete", "lease", "late-clock"]),
    )
}

/// The DaemonSet selects no node.
fn silent_exporters(env: &TestEnv) -> Result<()> {
    let set =
        ["-n", "plimsoll", "patch", "daemonset", "node-exporter-plus", "--type=merge", "--patch"];
    let selector = |value: &Value| {
        json!({"spec": {"template": {"spec": {"nodeSelector": {"plimsoll.dev/test": value}}}}})
            .to_string()
    };
    let [none, as_before] = [json!("none"), Value::Null].map(|value| selector(&value));
    seeded(
        env,
        "readings",
        || kubectl(env, &[&set[..], &[&none]].concat()),
        || finds(env, "readings", "fail", "exporters do not answer the annotator"),
        || kubectl(env, &[&set[..], &[&as_before]].concat()),
    )
}

/// Something writes a metric of the policy on one node; the annotator overwrites it within minutes.
fn second_writer(env: &TestEnv) -> Result<()> {
    let state = json(env, &["top", "nodes"])?;
    let metric = state["items"][0]["metrics"][0]["name"].as_str().context("no metric")?.to_owned();
    let node = env.cluster()?.nodes().first().context("no node")?.name();
    wait_for("doctor to find the second writer", SEEN, || {
        let now = format!("{:.0}", Timestamp::now());
        let reading = format!("{metric}=0.5,{now}");
        kubectl(
            env,
            &["annotate", "node", node, "--overwrite", "--field-manager=crane", &reading],
        )?;
        let found = findings(env, "writers", &[])?;
        let told = found.iter().any(|finding| {
            finding["what"].as_str().is_some_and(|what| what.contains("crane (1 node)"))
        });
        ensure!(told, "{found:?}");
        Ok(Some(()))
    })?;
    // The annotator's next write makes the reading its own again.
    kubectl(env, &["annotate", "node", node, "--field-manager=crane", &format!("{metric}-")])?;
    is_well(env, "writers")
}

fn missing_right(env: &TestEnv) -> Result<()> {
    let cluster = env.cluster()?;
    let binding = ["get", "clusterrolebinding", "plimsoll-annotator", "--output=json"];
    let mut saved: Value = serde_json::from_str(&cluster.kubectl_run(&binding)?)?;
    for field in ["resourceVersion", "uid", "creationTimestamp", "managedFields"] {
        saved["metadata"].as_object_mut().context("no metadata")?.remove(field);
    }
    seeded(
        env,
        "rights",
        || kubectl(env, &["delete", "clusterrolebinding", "plimsoll-annotator"]),
        || finds(env, "rights", "fail", "annotator may not list nodes"),
        || apply(env, &saved),
    )
}

fn audited(env: &TestEnv) -> Result<()> {
    let binding =
        ["patch", "validatingadmissionpolicybinding", "plimsoll-claims", "--type=merge", "--patch"];
    let actions = |action: &str| json!({"spec": {"validationActions": [action]}}).to_string();
    let [audit, deny] = ["Audit", "Deny"].map(actions);
    seeded(
        env,
        "admission",
        || kubectl(env, &[&binding[..], &[&audit]].concat()),
        || finds(env, "admission", "fail", "binding plimsoll-claims is Audit, not Deny"),
        || kubectl(env, &[&binding[..], &[&deny]].concat()),
    )
}

/// The GPU operator's DaemonSet, on no node.
fn honouring_runtime(env: &TestEnv) -> Result<()> {
    let name = "nvidia-container-toolkit-daemonset";
    let labels = json!({"app": name});
    let container = json!({
        "name": "toolkit", "image": "none",
        "env": [{"name": "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED", "value": "true"}],
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeSelector": {"plimsoll.dev/test": "none"}, "containers": [container]},
            },
        },
    });
    seeded(
        env,
        "runtime",
        || apply(env, &set),
        || {
            finds(
                env,
                "runtime",
                "fail",
                "honours NVIDIA_VISIBLE_DEVICES of unprivileged containers",
            )
        },
        || kubectl(env, &["-n", NAMESPACE, "delete", "daemonset", name]),
    )
}

fn missing_cdi(env: &TestEnv) -> Result<()> {
    let node = env.cluster()?.nodes().last().context("no node")?;
    seeded(
        env,
        "cdi",
        || node.set_cdi(false),
        || finds(env, "cdi", "fail", &format!("cards take no pods: {}", node.name())),
        || node.set_cdi(true),
    )
}

/// 4 cards of 16 GiB have 65,536 units of 1 MiB.
fn small_unit(env: &TestEnv) -> Result<()> {
    env.delete_all_pods()?;
    seeded(
        env,
        "gpu-nodes",
        || kubectl(env, &["-n", "plimsoll", "set", "env", PLUGIN, "PLIMSOLL_UNIT_MIB=1"]),
        || finds(env, "unit", "fail", "the unit is too small"),
        || {
            kubectl(env, &["-n", "plimsoll", "set", "env", PLUGIN, "PLIMSOLL_UNIT_MIB-"])?;
            kubectl(env, &["-n", "plimsoll", "rollout", "status", PLUGIN, "--timeout=400s"])
        },
    )
}

/// NVIDIA's resource on a node with cards of ours.
fn other_plugin(env: &TestEnv) -> Result<()> {
    let node = env.cluster()?.nodes().last().context("no node")?.name();
    let patch = ["patch", "node", node, "--subresource=status", "--type=merge", "--patch"];
    let amounts = |amount: &Value| {
        let both = json!({"nvidia.com/gpu": amount});
        json!({"status": {"capacity": both, "allocatable": both}}).to_string()
    };
    let [four, none] = [json!("4"), Value::Null].map(|amount| amounts(&amount));
    seeded(
        env,
        "other-plugins",
        || kubectl(env, &[&patch[..], &[&four]].concat()),
        || finds(env, "other-plugins", "fail", &format!("{node} (nvidia.com/gpu: 4)")),
        || kubectl(env, &[&patch[..], &[&none]].concat()),
    )
}

/// A node with GPU Feature Discovery's label alone.
fn gpu_node(env: &TestEnv) -> Result<()> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "fake-gpu-node", "labels": {"nvidia.com/gpu.present": "true"}},
        "spec": {"unschedulable": true},
    });
    seeded(
        env,
        "gpu-nodes",
        || apply(env, &node),
        || finds(env, "gpu-nodes", "warn", "without Plimsoll's device plugin: fake-gpu-node"),
        || kubectl(env, &["delete", "node", "fake-gpu-node"]),
    )
}

/// A pod as of an upgrade that has not ended, which waits so that it runs nothing.
fn versions(env: &TestEnv) -> Result<()> {
    let labels =
        json!({"app.kubernetes.io/name": "annotator", "app.kubernetes.io/part-of": "plimsoll"});
    let old = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "annotator-old", "namespace": install::NAMESPACE, "labels": labels},
        "spec": {
            "schedulingGates": [{"name": "plimsoll.dev/test"}],
            "containers": [{"name": "annotator", "image": "none/annotator:0.0.1"}],
        },
    });
    seeded(
        env,
        "versions",
        || apply(env, &old),
        || finds(env, "versions", "warn", "annotator 0.0.1"),
        || kubectl(env, &["-n", install::NAMESPACE, "delete", "pod", "annotator-old"]),
    )
}
