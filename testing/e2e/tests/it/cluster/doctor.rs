//! Tests of the operators' command as a person runs it: by kubectl and its own port-forward. Faults that show in what
//! other programs write are seeded, found by `doctor`, and taken away again; `cli` tries each check with recorded
//! facts.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::install::{self, Setup};
use e2e::command::wait_for;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::env::{NAMESPACE, TestEnv};
use crate::support::pods::{BINDING, bound, create, gpu_container, pod, unschedulable};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("doctor_fails_nothing_on_a_cluster_that_works", healthy).takes(20).smoke(),
    on_our_nodes(
        "why_pending_gpus_and_top_reach_the_extender_by_a_port_forward_of_their_own",
        reports,
    )
    .takes(30)
    .smoke(),
    on_our_nodes("doctor_finds_a_configuration_that_an_upgrade_has_taken_out", after_upgrade)
        .takes(120),
    on_our_nodes("doctor_finds_silent_exporters", silent_exporters).takes(150),
    on_our_nodes("doctor_finds_a_second_writer_of_readings", second_writer).takes(40),
    on_our_nodes("doctor_finds_a_missing_cdi_specification", missing_cdi).takes(90),
    on_our_nodes("doctor_finds_a_unit_that_is_too_small", small_unit).takes(180),
];

/// What a check needs to see of a change: an event, a metric, a log.
const SEEN: Duration = Duration::from_secs(240);
const SYSTEM: &str = "kube-system";
const PLUGIN: &str = "daemonset/gpushare-device-plugin";

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
fn findings(env: &TestEnv, check: &str) -> Result<Vec<Value>> {
    let report = json(env, &["doctor", "--only", check])?;
    report["findings"].as_array().cloned().context("no findings")
}

/// Waits until a check finds this, and says what to do.
fn finds(env: &TestEnv, check: &str, level: &str, text: &str) -> Result<()> {
    wait_for(&format!("doctor to find {text:?}"), SEEN, || {
        let found = findings(env, check)?;
        let fitting = found.iter().find(|finding| {
            finding["level"] == level
                && finding["what"].as_str().is_some_and(|what| what.contains(text))
        });
        let fitting = fitting.with_context(|| format!("{found:?}"))?;
        ensure!(fitting["todo"].is_string(), "{fitting}");
        Ok(Some(()))
    })
}

/// Waits until a check finds no fault.
fn is_well(env: &TestEnv, check: &str) -> Result<()> {
    wait_for(&format!("{check} to be well again"), SEEN, || {
        let found = findings(env, check)?;
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
        let found = findings(env, "writers")?;
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

fn missing_cdi(env: &TestEnv) -> Result<()> {
    let node = env.cluster()?.nodes().last().context("no node")?;
    seeded(
        env,
        "cdi",
        || node.set_cdi(false),
        || finds(env, "cdi", "fail", &format!("GPUs take no pods: {}", node.name())),
        || node.set_cdi(true),
    )
}

/// 4 GPUs of 16 GiB have 65,536 units of 1 MiB.
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
