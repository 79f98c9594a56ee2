//! `plimsoll support-bundle`: no secret gets into it, wherever one stands.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::world::{Extender, World};

/// Secrets in several forms. None of them may be in the archive.
const SECRETS: [&str; 11] = [
    "hunter2-canary",
    "eyJhbGciOiJub25lIn0.eyJjYW5hcnkiOjF9.Y2FuYXJ5",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "AKIACANARYCANARY1234",
    "Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5MTIz",
    "MIGHAgEAcanary",
    "c2VjcmV0LWNhbmFyeQ==",
    "short-canary",
    "horse-canary",
    "abcdef.0123456789abcdef",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
];

/// Each secret as it might stand in a line of a log or a message.
fn lines() -> String {
    let [password, jwt, hex, access, mixed, key, ..] = SECRETS;
    format!(
        "password={password} ok\nAuthorization: Bearer {jwt}\ntoken is {hex}\nkey {access} and {mixed}\n\
         -----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n{{\"clientSecret\": \"{password}\"}}\n\
         http://jane:{password}@host/path?access_token={jwt}\nkept-line\n{}\n",
        written_otherwise()
    )
}

/// Secrets behind names and signs of other forms.
fn written_otherwise() -> String {
    let [.., short, horse, bootstrap, access] = SECRETS;
    [
        format!("password = {short}"),
        format!("\"password\" : \"{short}\""),
        format!("sh -c 'app --password {short}'"),
        format!("{{\"msg\":\"x\",\"password\":\"correct {horse} x\"}}"),
        format!("password=/{short}"),
        format!("password=a&{short}"),
        format!("\u{130} password={short}"),
        format!(
            "--db-pass={short} PGPASS={short} passphrase={short} pwd={short} private_key={short}"
        ),
        format!("{{\"auth\":\"{short}\"}}"),
        format!("Cookie: session={short}"),
        format!("X-Auth-Key: {short}"),
        format!("sig={short}"),
        format!("https://{short}@host"),
        format!("curl -u user:{short} host"),
        format!("join --token {bootstrap}, or {bootstrap}"),
        format!("aws {access}"),
    ]
    .join("\n")
}

fn pod() -> Value {
    let [password, jwt, hex, access, _, _, encoded, short, ..] = SECRETS;
    let spec = json!({"env": [{"name": "DATABASE", "value": short}]}).to_string();
    json!({
        "kind": "Pod",
        "metadata": {
            "name": "extender-a", "namespace": "plimsoll",
            "labels": {"app.kubernetes.io/name": "scheduler-extender", "app.kubernetes.io/part-of": "plimsoll"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"env\": \"{short}\"}}"),
                "kapp.k14s.io/original": spec, "objectset.rio.cattle.io/applied": short,
                "note": format!("token: {password}"), "plimsoll.dev/kept-key": "kept-annotation",
            },
            "managedFields": [{"manager": short}],
        },
        "spec": {
            "containers": [{
                "name": "scheduler-extender", "args": [format!("--api-token={password}"), "--password", short],
                "command": ["sh", "-c", format!("login --token {jwt} --password {short} -u user:{short}")],
                "env": [
                    {"name": "DATABASE", "value": short}, {"name": "PLIMSOLL_TOKEN", "value": short},
                    {"name": "PLIMSOLL_LOG_LEVEL", "value": "kept-value"}, {"name": "PLIMSOLL_X", "value": hex},
                ],
            }],
            "initContainers": [{"env": [{"name": "A", "value": access}]}],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{"restartCount": 1, "state": {"waiting": {"message": format!("secret={encoded}")}}}],
        },
    })
}

fn world() -> World {
    let decisions = json!({"decisions": [], "note": lines()}).to_string();
    let metrics = format!("plimsoll_extender_leader 1\nx{{token=\"{}\"}} 1\n", SECRETS[0]);
    let extender = Extender::new(&[("/metrics", &metrics), ("/v1/", &decisions)]);
    let list = json!({"items": [pod()]});
    let secret = json!({"items": [{"kind": "Secret", "data": {"token": SECRETS[6]}}, {"kind": "Role", "metadata": {"name": "kept-role"}}]});
    let event =
        |writer: &str| json!({"reportingComponent": writer, "reason": "X", "message": lines()});
    let events = json!({"items": [event("plimsoll-annotator"), event("other")]});
    let policy = json!({"data": {"policy.yaml": lines()}});
    World::new()
        .json("get deployments,daemonsets", &list)
        .json("get pods --namespace=plimsoll", &list)
        .json("get serviceaccounts,roles,rolebindings", &secret)
        .json("get configmap policy", &policy)
        .json("get events", &events)
        .answer("logs extender-a", &lines())
        .forwards("pod/extender-a", &extender.url)
        .with_extender(&extender.url)
}

/// The files of the archive by name.
fn files(archive: &[u8]) -> BTreeMap<String, String> {
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(archive).read_to_end(&mut tar).unwrap();
    let mut files = BTreeMap::new();
    let mut at = 0;
    while tar[at] != 0 {
        let text = |from: usize, to: usize| {
            let bytes = &tar[at + from..at + to];
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8(bytes[..end].to_vec()).unwrap()
        };
        let size = usize::from_str_radix(&text(124, 136), 8).unwrap();
        let content = tar[at + 512..at + 512 + size].to_vec();
        files.insert(text(0, 100), String::from_utf8(content).unwrap());
        at += 512 + size.div_ceil(512) * 512;
    }
    files
}

#[test]
fn no_secret_is_in_it_and_no_secret_is_asked_for() {
    let world = world();
    let file = world.path().join("bundle.tar.gz");
    let name = file.to_str().unwrap();
    let said = world.run(&["support-bundle", "--file", name]).success();
    assert!(said.starts_with(&format!("{name} written: ")), "{said}");
    let files = files(&fs::read(&file).unwrap());
    for (name, content) in &files {
        for secret in SECRETS {
            assert!(!content.contains(secret), "{secret} is in {name}:\n{content}");
        }
    }
    assert!(!world.calls().to_lowercase().contains("secret"), "{}", world.calls());
    // What a report needs is there.
    for name in [
        "doctor.txt",
        "doctor.json",
        "events.json",
        "health/extender-a.json",
        "metrics/extender-a.txt",
        "extender/state.json",
        "problems.txt",
    ] {
        assert!(files.contains_key(name), "{name} is not in {:?}", files.keys());
    }
    assert!(files["logs/extender-a.log"].contains("kept-line"));
    assert!(files["logs/extender-a-before.log"].contains("kept-line"));
    let workloads = &files["objects/workloads.json"];
    assert!(files["objects/rights.json"].contains("kept-role"));
    assert!(!files["events.json"].contains("\"other\""), "{}", files["events.json"]);
    assert!(
        workloads.contains("kept-value") && workloads.contains("kept-annotation"),
        "{workloads}"
    );
    for (name, content) in files.iter().filter(|(name, _)| name.ends_with(".json")) {
        assert!(serde_json::from_str::<Value>(content).is_ok(), "{name}: {content}");
    }
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// In another namespace everybody who may write there can set Plimsoll's labels.
#[test]
fn objects_and_logs_are_those_of_the_namespaces_that_the_bindings_name() {
    let named = |name: &str, namespace: &str| {
        let labels = json!({"app.kubernetes.io/name": "node-exporter-plus"});
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels});
        json!({"items": [{"metadata": metadata, "status": {"phase": "Running"}}]})
    };
    let world = World::new()
        .json("get pods --namespace=plimsoll", &named("extender-a", "plimsoll"))
        .json("get pods --namespace=agents", &named("exporter-a", "agents"))
        .json("get deployments,daemonsets,pods", &json!({"items": []}))
        .json("get serviceaccounts,roles,rolebindings", &json!({"items": []}))
        .answer("logs", "a line")
        .bound("plimsoll", "agents")
        .json("get pods --namespace=kube-system", &json!({"items": []}));
    let file = world.path().join("bundle.tar.gz");
    world.run(&["support-bundle", "--file", file.to_str().unwrap()]).success();
    let files = files(&fs::read(&file).unwrap());
    for name in [
        "logs/extender-a.log",
        "logs/exporter-a.log",
        "objects/workloads.json",
        "objects/rights.json",
        "objects/agents/workloads.json",
        "objects/kube-system/rights.json",
    ] {
        assert!(files.contains_key(name), "{name} is not in {:?}", files.keys());
    }
    let calls = world.calls();
    // No port-forward reaches an exporter.
    assert!(!calls.contains("pod/exporter-a"), "{calls}");
    let all = calls.lines().filter(|call| call.contains("--all-namespaces"));
    for call in all {
        let cluster = ["clusterroles", "validatingadmission", "events", "nvidia"];
        assert!(cluster.iter().any(|kind| call.contains(kind)), "{call}");
    }
}

#[test]
fn an_answer_that_is_no_json_is_a_problem() {
    let world = world().answer("get leases", "a warning");
    let file = world.path().join("bundle.tar.gz");
    world.run(&["support-bundle", "--file", file.to_str().unwrap()]).success();
    let files = files(&fs::read(&file).unwrap());
    assert!(!files.contains_key("objects/leases.json"), "{:?}", files.keys());
    let problems = &files["problems.txt"];
    assert!(problems.contains("objects/leases.json: kubectl's answer is no JSON"), "{problems}");
}

#[test]
fn an_archive_that_is_there_is_not_replaced() {
    let world = world();
    let file = world.path().join("bundle.tar.gz");
    fs::write(&file, "mine").unwrap();
    let stderr = world.run(&["support-bundle", "--file", file.to_str().unwrap()]).failure();
    assert!(stderr.contains("bundle.tar.gz"), "{stderr}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn other_programs_read_the_archive() {
    let world = world();
    let file = world.path().join("bundle.tar.gz");
    world.run(&["support-bundle", "--file", file.to_str().unwrap()]).success();
    let listed = std::process::Command::new("tar").arg("-tzf").arg(&file).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.starts_with("command.txt\n") && listed.contains("doctor.txt\n"), "{listed}");
}
