//! Tests of what the shipped ValidatingAdmissionPolicies cost: the largest pods that the API server takes stay
//! writable, lists whose length an author chooses have an end, and one command lifts the policies. The times are
//! figures; no test fails because of them.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::callers::{Caller, Verb};
use crate::support::gpu_audit::CLAIM;
use crate::support::pods::{BINDING, gated, gpu_container, idle_container, pod};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("a_pod_with_58800_annotations_stays_writable_whatever_its_author_adds", largest)
        .takes(15)
        .smoke(),
    on_our_nodes("a_gpu_pod_with_too_long_lists_is_refused_by_a_text_that_says_so", long_lists)
        .takes(5)
        .smoke(),
    on_our_nodes("one_command_lifts_every_policy_and_the_manifests_bring_them_back", lifted)
        .takes(9),
];

const PODS: &str = "/api/v1/namespaces/plimsoll-e2e/pods";
const ENVIRONMENT: &str = "plimsoll-gpu-environment";
/// The command of docs/security.md that lifts the policies.
const LIFT: [&str; 4] =
    ["delete", "validatingadmissionpolicybindings", "-l", "app.kubernetes.io/part-of=plimsoll"];
/// The bytes of a pod's annotations that Kubernetes allows.
const ANNOTATION_BYTES: usize = 256 << 10;

/// Annotations with keys of three letters and values of one.
fn annotations(numbers: std::ops::Range<usize>) -> Value {
    numbers.map(|number| (key(number), json!("x"))).collect::<serde_json::Map<_, _>>().into()
}

fn key(number: usize) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let base = LETTERS.len();
    let places = [number / (base * base), number / base % base, number % base];
    places.map(|place| char::from(LETTERS[place % base])).iter().collect::<String>()
}

fn timed(env: &TestEnv, what: &str, call: impl FnOnce() -> Result<Value>) -> Result<Value> {
    let start = Instant::now();
    let done = call()?;
    env.figure(&format!("admission_ms {what}"), start.elapsed().as_millis().to_string());
    Ok(done)
}

/// Where a policy looks at each annotation, a request's cost grows with their number, and a request above the API
/// server's budget is refused: the kubelet's, too. With one long value more, no later write of the pod passed.
fn largest(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    let before = checks(env)?;
    let count = 58_800;
    let small = gated(pod("small", &[idle_container("main")]));
    timed(env, "create 0 annotations", || user.done(env, Verb::Create, PODS, &small))?;
    let mut large = gated(pod("large", &[idle_container("main")]));
    large["metadata"]["annotations"] = annotations(0..55_000);
    timed(env, "create 55000 annotations", || user.done(env, Verb::Create, PODS, &large))?;
    let path = format!("{PODS}/large");
    let more = json!({"metadata": {"annotations": annotations(55_000..count)}});
    timed(env, "patch 58800 annotations", || user.done(env, Verb::Merge, &path, &more))?;
    let long = "y".repeat(ANNOTATION_BYTES - 4 * count - 4);
    let longest = json!({"metadata": {"annotations": {"long": long}}});
    user.done(env, Verb::Merge, &path, &longest)?;
    let status = format!("{path}/status");
    let told = json!({"status": {"message": "from a kubelet"}});
    timed(env, "status 58801 annotations", || user.done(env, Verb::Merge, &status, &told))?;
    let labelled = json!({"metadata": {"labels": {"team": "mine"}}});
    timed(env, "label 58801 annotations", || user.done(env, Verb::Merge, &path, &labelled))?;
    let emptied = json!([{"op": "remove", "path": "/metadata/annotations"}]);
    user.done(env, Verb::JsonPatch, &path, &emptied)?;
    for (policy, (seconds, count)) in checks(env)? {
        let (earlier, checked) = before.get(&policy).copied().unwrap_or_default();
        let milliseconds = 1000.0 * (seconds - earlier) / (count - checked).max(1.0);
        env.figure(&format!("admission_check_ms {policy}"), format!("{milliseconds:.3}"));
    }
    Ok(())
}

/// The seconds that checks of each policy of Plimsoll took, and their number, by the API server's own count.
fn checks(env: &TestEnv) -> Result<std::collections::BTreeMap<String, (f64, f64)>> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let page = env.block_on(env.client().request_text(request))?;
    let mut found = std::collections::BTreeMap::<String, (f64, f64)>::new();
    for line in page.lines() {
        let name = "apiserver_validating_admission_policy_check_duration_seconds_";
        let Some((part, rest)) = line.strip_prefix(name).and_then(|line| line.split_once('{'))
        else {
            continue;
        };
        let policy = rest.split("policy=\"").nth(1).and_then(|rest| rest.split('"').next());
        let Some(policy) = policy.filter(|policy| policy.starts_with("plimsoll-")) else {
            continue;
        };
        let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
        let value: f64 = value.with_context(|| format!("no number in {line}"))?;
        let entry = found.entry(policy.to_owned()).or_default();
        match part {
            "sum" => entry.0 += value,
            "count" => entry.1 += value,
            _ => {}
        }
    }
    Ok(found)
}

fn long_lists(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    for counts in [&[30_000][..], &[1001, 1000]] {
        let pod = with_variables(counts);
        let text = user.refusal(env, Verb::Create, PODS, &pod, ENVIRONMENT)?;
        ensure!(text.contains("2000 environment variables"), "{text}");
    }
    let most = with_variables(&[1000, 1000]);
    timed(env, "create 2000 variables", || user.done(env, Verb::Create, PODS, &most))?;
    let text = user.refusal(env, Verb::Create, PODS, &with_containers(257), ENVIRONMENT)?;
    ensure!(text.contains("256 containers") && text.contains("257"), "{text}");
    let many = with_containers(256);
    timed(env, "create 256 containers", || user.done(env, Verb::Create, PODS, &many))?;
    // What asks for no GPU memory may have any environment.
    let mut plain = gated(pod("plain", &[idle_container("main")]));
    plain["spec"]["containers"][0]["env"] = variables(30_000);
    timed(env, "create 30000 variables, no GPU", || user.done(env, Verb::Create, PODS, &plain))?;
    let path = format!("{PODS}/variables/ephemeralcontainers");
    let debug: Vec<Value> = (0..257).map(|n| idle_container(&format!("d{n}"))).collect();
    let debug = json!({"spec": {"ephemeralContainers": debug}});
    let text = user.refusal(env, Verb::Strategic, &path, &debug, ENVIRONMENT)?;
    ensure!(text.contains("256 ephemeral containers"), "{text}");
    // The pod is as writable as before.
    let status = json!({"status": {"message": "from a kubelet"}});
    user.done(env, Verb::Merge, &format!("{PODS}/variables/status"), &status).map(drop)
}

/// A pod that asks for GPU memory and whose containers have so many variables.
fn with_variables(counts: &[usize]) -> Value {
    let containers = [gpu_container("c0", 1), idle_container("c1")];
    let mut pod = gated(pod("variables", &containers));
    for (n, count) in counts.iter().enumerate() {
        pod["spec"]["containers"][n]["env"] = variables(*count);
    }
    pod
}

fn with_containers(count: usize) -> Value {
    let containers: Vec<Value> = (0..count).map(|n| idle_container(&format!("c{n}"))).collect();
    gated(pod("many", &containers))
}

fn variables(count: usize) -> Value {
    (0..count).map(|n| json!({"name": format!("V{n}")})).collect::<Vec<_>>().into()
}

/// What a user is refused while the policies are in force.
fn forged() -> Value {
    let mut forged = gated(pod("forged", &[idle_container("main")]));
    forged["metadata"]["annotations"] = json!({CLAIM: "{}"});
    forged
}

fn lifted(env: &TestEnv) -> Result<()> {
    let user = Caller::administrator(env)?;
    wait_for_status(env, &user, "the policies to be in force", 403)?;
    env.cluster()?.kubectl_run(&LIFT)?;
    let gone = wait_for_status(env, &user, "the policies to be lifted", 201);
    let lifted = gone.and_then(|()| {
        let mut large = gated(pod("large", &[idle_container("main")]));
        large["metadata"]["annotations"] = annotations(0..55_000);
        let what = "create 55000 annotations without policies";
        timed(env, what, || user.done(env, Verb::Create, PODS, &large)).map(drop)
    });
    env.cluster()?.apply("tested")?;
    wait_for_status(env, &user, "the policies to be back", 403)?;
    lifted
}

/// Waits until a user who forges a claim gets this answer: the API server follows the policies after a moment.
fn wait_for_status(env: &TestEnv, user: &Caller, what: &str, wanted: u16) -> Result<()> {
    wait_for(what, BINDING, || {
        let path = format!("{PODS}?dryRun=All");
        let (status, _) = user.call(env, Verb::Create, &path, &forged())?;
        Ok((status == wanted).then_some(()))
    })
}
