//! `plimsoll doctor`, with a kubectl that answers from texts.

use serde_json::{Value, json};

use crate::command::json as parsed;
use crate::world::{Extender, World};

const HEALTH: &str = r#"{"program": "scheduler-extender", "version": "0.1.0", "conditions": [{"id": "requests", "state": "ok", "text": "7 calls answered since the start", "since": "2026-11-26T12:00:00Z"}]}"#;

fn labels(program: &str) -> Value {
    json!({"app.kubernetes.io/name": program, "app.kubernetes.io/part-of": "plimsoll"})
}

fn deployment(program: &str) -> Value {
    let secret = format!("{program}-certificate");
    let volume =
        json!({"name": "x", "secret": {"secretName": secret, "items": [{"key": "tls.crt"}]}});
    json!({
        "kind": "Deployment", "metadata": {"name": program, "namespace": "plimsoll", "labels": labels(program)},
        "spec": {"replicas": 1, "template": {"spec": {
            "containers": [{"name": program, "args": ["--policy-config-map=plimsoll/mine"]}], "volumes": [volume],
        }}},
        "status": {"readyReplicas": 1},
    })
}

/// A cluster of which only what follows can be read.
fn world() -> World {
    let extender = Extender::new(&[("/v1/health", HEALTH)]);
    let pod = json!({
        "metadata": {"name": "extender-a", "namespace": "plimsoll", "labels": labels("scheduler-extender")},
        "spec": {"nodeName": "cp-1"}, "status": {"phase": "Running"},
    });
    let scheduler = json!({
        "metadata": {"name": "kube-scheduler-cp-1", "namespace": "kube-system"},
        "spec": {"nodeName": "cp-1", "containers": [{"command": ["kube-scheduler"]}]},
    });
    let workloads = json!({"items": [deployment("scheduler-extender"), deployment("annotator")]});
    World::new()
        .fails("get configmap kubeadm-config", "Error from server (NotFound): configmaps not found")
        .json("get deployments,daemonsets", &workloads)
        .json("get nodes", &json!({"items": []}))
        .json("get events", &json!({"items": []}))
        .json("get pods --namespace=plimsoll", &json!({"items": [pod]}))
        .json("get pods --namespace=kube-system", &json!({"items": [scheduler]}))
        .forwards("pod/extender-a", &extender.url)
        .with_extender(&extender.url)
}

#[test]
fn what_is_wrong_ends_with_1_and_says_what_to_do() {
    let run = world().run(&["doctor", "--only", "kube-scheduler,requests"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(1), ""));
    let expected = "\
FAIL     kube-scheduler   cp-1: no --config, so it does not ask the extender (1 of 1 schedulers)
                          -> run `plimsoll scheduler enable` on cp-1
ok       requests         7 calls answered since the start

1 FAIL, 0 warn, 0 unknown
";
    assert_eq!(run.stdout, expected);
}

#[test]
fn what_cannot_be_read_is_not_known_and_ends_nothing() {
    let run = world().run(&["doctor", "-o", "json"]);
    assert_eq!(run.code, Some(1));
    let report = parsed(&run.stdout);
    let findings = report["findings"].as_array().unwrap();
    let of = |check: &str| findings.iter().find(|finding| finding["check"] == check).unwrap();
    assert_eq!(of("admission")["level"], "unknown");
    let what = of("admission")["what"].as_str().unwrap();
    assert!(
        what.starts_with("not checked: ValidatingAdmissionPolicies: no rule for get"),
        "{what}"
    );
    assert_eq!(of("kube-scheduler")["level"], "fail");
}

#[test]
fn where_everything_is_forbidden_each_check_is_not_known_and_the_exit_status_is_3() {
    let forbidden = r#"Error from server (Forbidden): x is forbidden: User "jane" cannot list resource "x" in API group "" at the cluster scope"#;
    let run = World::new().fails("", forbidden).run(&["doctor", "-o", "json"]);
    assert_eq!(run.code, Some(3), "{}", run.stdout);
    let report = parsed(&run.stdout);
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["level"] == "unknown"), "{}", run.stdout);
    let mut checks: Vec<&str> =
        findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect();
    checks.dedup();
    assert_eq!(checks.len(), 19, "{checks:?}");
}

#[test]
fn only_what_the_chosen_checks_look_at_is_asked_for() {
    let world = world();
    world.run(&["doctor", "--only", "rights"]);
    let calls = world.calls();
    let calls: Vec<&str> = calls.lines().map(|call| call.split(" --").next().unwrap()).collect();
    assert_eq!(
        calls,
        [
            "get clusterrolebindings plimsoll-scheduler-extender plimsoll-annotator plimsoll-gpushare-device-plugin",
            "get deployments,daemonsets",
            "get pods",
            "create"
        ]
    );
}

#[test]
fn rights_are_asked_about_in_one_call_of_kubectl() {
    let allowed = json!({"kind": "SubjectAccessReview", "status": {"allowed": true}}).to_string();
    let refused = json!({"kind": "SubjectAccessReview", "status": {"allowed": false}}).to_string();
    let answers = format!("{}{refused}{allowed}", allowed.repeat(13));
    let world = world().answer("create --filename=- --output=json", &answers);
    let run = world.run(&["doctor", "--only", "rights"]);
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(
        run.stdout.contains("scheduler-extender may not get configmaps mine in plimsoll\n"),
        "{}",
        run.stdout
    );
}

#[test]
fn of_a_secret_only_the_certificate_is_asked_for() {
    let params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
    let mut params = params;
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    params.not_before = rcgen::date_time_ymd(2019, 1, 1);
    let pem = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pem);
    // The name that the Deployment gives.
    let world = world().answer("get secret scheduler-extender-certificate", &encoded);
    let run = world.run(&["doctor", "--only", "certificate"]);
    assert!(
        run.stdout.contains("Secret scheduler-extender-certificate has ended"),
        "{}",
        run.stdout
    );
    for call in world.calls().lines().filter(|call| call.contains("secret")) {
        assert!(call.contains(r"--output=jsonpath={.data.tls\.crt}"), "{call}");
    }
}

#[test]
fn an_unknown_check_is_an_error_that_names_those_there_are() {
    let world = world();
    let stderr = world.run(&["doctor", "--only", "weather"]).failure();
    assert_eq!(world.calls(), "");
    assert!(stderr.contains("there is no such check; there are extender, annotator"), "{stderr}");
}
