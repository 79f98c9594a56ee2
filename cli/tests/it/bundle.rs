//! `plimsoll support-bundle`: no secret gets into it, wherever one stands.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use serde_json::{Value, json};

use crate::world::{Extender, World};

/// Secrets in several forms. None of them may be in the archive.
const SECRETS: [&str; 8] = [
    "hunter2-canary",
    "eyJhbGciOiJub25lIn0.eyJjYW5hcnkiOjF9.Y2FuYXJ5",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "AKIACANARYCANARY1234",
    "Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5Q2FuYXJ5MTIz",
    "MIGHAgEAcanary",
    "c2VjcmV0LWNhbmFyeQ==",
    "short-canary",
];

/// Each secret as it might stand in a line of a log or a message.
fn lines() -> String {
    let [password, jwt, hex, access, mixed, key, ..] = SECRETS;
    format!(
        "password={password} ok\nAuthorization: Bearer {jwt}\ntoken is {hex}\nkey {access} and {mixed}\n\
         -----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n{{\"clientSecret\": \"{password}\"}}\n\
         http://jane:{password}@host/path?access_token={jwt}\nkept-line\n"
    )
}

fn pod() -> Value {
    let [password, jwt, hex, access, _, _, encoded, short] = SECRETS;
    json!({
        "kind": "Pod",
        "metadata": {
            "name": "extender-a", "namespace": "plimsoll",
            "labels": {"app.kubernetes.io/name": "scheduler-extender", "app.kubernetes.io/part-of": "plimsoll"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"env\": \"{short}\"}}"),
                "note": format!("token: {password}"),
            },
            "managedFields": [{"manager": short}],
        },
        "spec": {
            "containers": [{
                "name": "scheduler-extender", "args": [format!("--api-token={password}"), "--password", short],
                "command": ["sh", "-c", format!("login --token {jwt}")],
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
        .json("get pods --all-namespaces", &list)
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
    assert!(workloads.contains("kept-value"), "{workloads}");
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
