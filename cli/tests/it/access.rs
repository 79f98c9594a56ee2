//! How the command reaches the cluster: by kubectl, and by a port-forward that it opens and ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::command::{PLIMSOLL, Run, run};
use crate::server;
use crate::world::{BINDINGS, Extender, World};

const GPUS: &str = include_str!("../../../crates/api/tests/golden/all-cards.json");
const SHADOW: &str = r#"{"time":"2026-11-20T09:10:00Z","pods":[]}"#;
const FORBIDDEN: &str = r#"error: error upgrading connection: pods "x" is forbidden: User "jane" cannot create resource "pods/portforward" in API group "" in the namespace "plimsoll""#;

fn extender() -> Extender {
    Extender::new(&[("/v1/cards", GPUS), ("/shadow", SHADOW)])
}

#[test]
fn the_leaders_port_is_forwarded_and_the_forward_ends_with_the_command() {
    let extender = extender();
    let world = World::new().with_extender(&extender.url);
    world.run(&["gpus", "-o", "name"]).success();
    assert_eq!(extender.requests(), ["GET /v1/cards HTTP/1.1"]);
    assert!(
        world.calls().contains(
            "port-forward --address=127.0.0.1 --namespace=plimsoll pod/scheduler-extender-7c9f-x2k :19107\n"
        ),
        "{}",
        world.calls()
    );
    assert!(!world.runs("forward"));
}

#[test]
fn flags_of_the_connection_reach_every_call_of_kubectl() {
    let extender = extender();
    let world = World::new().with_extender(&extender.url);
    let flags = ["--context=east", "--kubeconfig=/k", "--as=jane", "--as-group=ops"];
    world.run(&[&["gpus", "-o", "name"][..], &flags].concat()).success();
    for call in world.calls().lines() {
        assert!(call.contains(&flags.join(" ")), "{call}");
    }
}

#[test]
fn a_lease_of_a_pod_that_is_gone_leads_to_any_replica() {
    let extender = extender();
    let world = World::new()
        .fails(
            "port-forward --address=127.0.0.1 --namespace=plimsoll pod/",
            "Error from server (NotFound): pods \"x\" not found",
        )
        .forwards("deployment/scheduler-extender", &extender.url)
        .with_extender(&extender.url);
    world.run(&["gpus", "-o", "name"]).success();
}

#[test]
fn a_leader_that_cannot_be_reached_leads_to_a_replica_that_is_ready() {
    for message in [
        "error: unable to forward port because pod is not running. Current status=Failed",
        "error: error upgrading connection: error dialing backend: dial tcp 10.0.0.4:10250: i/o timeout",
    ] {
        let extender = extender();
        let ready = |name: &str, status: &str| {
            json!({
                "metadata": {"name": name},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            })
        };
        let leader = "scheduler-extender-7c9f-x2k";
        let pods = [ready(leader, "True"), ready("starts", "False"), ready("other", "True")];
        let forward = "port-forward --address=127.0.0.1 --namespace=plimsoll pod/";
        let world = World::new()
            .forwards("pod/other", &extender.url)
            .fails(forward, message)
            .json("get pods --namespace=plimsoll", &json!({"items": pods}))
            .with_extender(&extender.url);
        world.run(&["gpus", "-o", "name"]).success();
        assert_eq!(world.calls().matches("port-forward").count(), 2, "{}", world.calls());
    }
}

#[test]
fn a_given_address_needs_no_kubectl() {
    let extender = extender();
    let nothing = tempfile::tempdir().unwrap();
    let output = Command::new(PLIMSOLL)
        .args(["policy", "diff"])
        .env("PATH", nothing.path())
        .env("PLIMSOLL_EXTENDER", &extender.url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn without_kubectl_it_says_where_to_get_it() {
    let nothing = tempfile::tempdir().unwrap();
    let output = Command::new(PLIMSOLL)
        .arg("gpus")
        .env("PATH", nothing.path())
        .env_remove("PLIMSOLL_EXTENDER")
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with("error: kubectl is not on the PATH"), "{stderr}");
    assert!(stderr.contains("--extender"), "{stderr}");
}

fn refused(message: &str) -> Run {
    World::new()
        .answer(BINDINGS, "")
        .fails("get lease", message)
        .fails("port-forward", message)
        .run(&["gpus"])
}

#[test]
fn without_the_right_to_forward_a_port_it_names_the_commands_that_grant_it() {
    let stderr = refused(FORBIDDEN).failure();
    for line in [
        "  kubectl --namespace plimsoll create role plimsoll-create-pods-portforward --verb=create --resource=pods/portforward\n",
        " --role=plimsoll-create-pods-portforward --user=jane\n",
    ] {
        assert!(stderr.contains(line), "{stderr}");
    }
}

#[test]
fn without_an_extender_it_says_how_to_name_one() {
    let missing = "Error from server (NotFound): deployments.apps \"scheduler-extender\" not found";
    let stderr = refused(missing).failure();
    assert!(stderr.contains("--plimsoll-namespace") && stderr.contains("--extender"), "{stderr}");
}

#[test]
fn without_a_context_it_says_how_to_choose_one() {
    let message = "The connection to the server localhost:8080 was refused - did you specify the right host or port?";
    let world = World::new().fails(BINDINGS, message);
    let stderr = world.run(&["gpus"]).failure();
    assert!(stderr.contains("kubectl config get-contexts"), "{stderr}");
}

/// Another namespace's Deployment with Plimsoll's labels is never asked for.
#[test]
fn the_namespace_is_that_of_the_extenders_cluster_role_binding() {
    let extender = extender();
    let world = World::new().bound("mine", "agents");
    let stderr = world.run(&["gpus"]).failure();
    assert!(!stderr.contains("several namespaces"), "{stderr}");
    let calls = world.calls();
    assert!(calls.contains("get lease plimsoll-scheduler-extender --namespace=mine"), "{calls}");
    assert!(calls.contains("port-forward --address=127.0.0.1 --namespace=mine"), "{calls}");
    assert!(!calls.contains("--all-namespaces"), "{calls}");
    // Who may not read it finds Plimsoll in its usual place, and never by a label.
    let forbidden =
        "Error from server (Forbidden): clusterrolebindings is forbidden: User \"jane\" cannot get";
    let world = World::new().fails(BINDINGS, forbidden).with_extender(&extender.url);
    world.run(&["gpus", "-o", "name"]).success();
}

/// The web page's port-forward lasts until a signal.
#[test]
fn a_signal_ends_the_forward_too() {
    let world = World::new().with_extender("http://127.0.0.1:9");
    let mut child = world.command(&["ui"]).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("http://127.0.0.1:") && line.ends_with("/ui/\n"), "{line}");
    assert!(world.runs("forward"));
    terminate(&mut child);
    assert!(!world.runs("forward"));
}

/// The answer to a request for a path of that port.
fn answer(port: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_is_at_an_address_with_a_token_and_nothing_is_without_it() {
    let extender = Extender::new(&[("/ui/", "page"), ("/v1/cards", GPUS), ("/explain", "why")]);
    let world = World::new().with_extender(&extender.url);
    let first = world.command(&["ui"]).spawn().unwrap();
    let second = world.command(&["ui"]).spawn().unwrap();
    let mut tokens = Vec::new();
    for mut child in [first, second] {
        let mut url = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut url).unwrap();
        let rest = url.strip_prefix("http://127.0.0.1:").unwrap();
        let [port, token, "ui", "\n"] = rest.split('/').collect::<Vec<_>>()[..] else {
            panic!("{url}")
        };
        assert_ne!(Some(port), extender.url.rsplit(':').next());
        let asked = extender.requests().len();
        for path in ["/", "/ui/", "/v1/cards", "/0123456789abcdef0123456789abcdef/ui/"] {
            let refused = answer(port, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert!(refused.starts_with("HTTP/1.1 404 "), "{refused}");
        }
        assert_eq!(extender.requests().len(), asked, "nothing reaches the extender");
        let page = answer(port, &format!("GET /{token}/ui/ HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("page"), "{page}");
        let post = format!("POST /{token}/explain HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}");
        assert!(answer(port, &post).ends_with("why"));
        let last = extender.requests();
        assert_eq!(last[asked..], ["GET /ui/ HTTP/1.1", "POST /explain HTTP/1.1 {}"]);
        tokens.push(token.to_owned());
        terminate(&mut child);
    }
    assert!(tokens[0].len() == 32 && tokens[0] != tokens[1], "{tokens:?}");
}

/// Ends it by a signal, and waits until it has ended as by that.
fn terminate(child: &mut Child) {
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

/// A login shows what its user is to do, and waits.
#[test]
fn what_a_login_says_is_shown_while_it_waits() {
    let script =
        "echo $$ > login; echo 'open https://login.example, code ABCD' >&2; exec sleep 1000";
    let world = World::new().acts(BINDINGS, script);
    let mut child = world.command(&["gpus"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "open https://login.example, code ABCD\n");
    terminate(&mut child);
    assert!(!world.runs("login"));
}

#[test]
fn what_kubectl_says_of_a_call_that_answers_is_not_shown() {
    let extender = extender();
    let world = World::new()
        .acts("get lease", "echo 'Warning: old' >&2; echo '{}'")
        .forwards("deployment/scheduler-extender", &extender.url)
        .with_extender(&extender.url);
    world.run(&["gpus", "-o", "name"]).success();
}

#[test]
fn a_watch_ends_with_its_reader_and_by_a_signal_and_takes_kubectl_with_it() {
    let event = r#"{"metadata":{"name":"e"},"reportingComponent":"plimsoll-annotator"}"#;
    let event = format!("echo '{event}'");
    let goes_on = format!("echo $$ > watch; while sleep 0.1; do {event}; done");
    let world = World::new()
        .answer("get events --all-namespaces --output=json", r#"{"items": []}"#)
        .acts("get events --all-namespaces --watch-only", &goes_on);
    let flags = ["events", "-w", "-o", "name"];
    for by_signal in [true, false] {
        let mut child = world.command(&flags).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "event/e\n");
        if by_signal {
            terminate(&mut child);
        } else {
            drop(stdout);
            assert_eq!(child.wait().unwrap().code(), Some(0));
        }
        assert!(!world.runs("watch"));
    }
}

#[test]
fn flags_of_the_cluster_can_stand_before_the_command() {
    let extender = extender();
    let world = World::new().with_extender(&extender.url);
    world.run(&["--context", "east", "--as-group=ops", "gpus", "-o", "name"]).success();
    for call in world.calls().lines() {
        assert!(call.contains("--context=east --as-group=ops"), "{call}");
    }
    let given = ["--extender", &extender.url, "policy", "diff", "--context=b"];
    run(given).success();
}

#[test]
fn an_extender_that_does_not_answer_is_an_error_that_says_what_to_do() {
    // Below the ports that the kernel gives out.
    let url = "http://127.0.0.1:1";
    let stderr = run(["gpus", "--extender", url]).failure();
    assert!(stderr.contains(url) && stderr.contains("refused"), "{stderr}");
    assert!(stderr.contains("without --extender and PLIMSOLL_EXTENDER"), "{stderr}");
    let stderr = World::new().with_extender(url).run(&["gpus"]).failure();
    assert!(stderr.contains("doctor") && !stderr.contains("without --extender"), "{stderr}");
}

#[test]
fn an_error_of_kubectl_has_its_word_once() {
    let stderr = refused("error: something is wrong").failure();
    assert_eq!(stderr, "error: something is wrong\n");
}

#[test]
fn other_answers_are_errors() {
    for (status, body, cause) in [
        ("404 Not Found", "", "an extender before this command's version"),
        ("200 OK", "<html>", "not the extender's answer"),
        ("200 OK", r#"{"nodes":[{}]}"#, "not the extender's answer"),
    ] {
        let (url, _server) = server::extender(status, body);
        let stderr = run(["gpus", "--extender", &url]).failure();
        assert!(stderr.contains(&url) && stderr.contains(cause), "{stderr}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let charge = r#"{"namespace":"n","name":"p","units":1,"cores":0,"basis":"recorded"},"#;
    let charges = charge.repeat(20_000);
    let mut gpus: serde_json::Value = serde_json::from_str(GPUS).unwrap();
    let charges = format!("[{}]", charges.trim_end_matches(','));
    gpus["nodes"][0]["cards"][0]["charges"] = serde_json::from_str(&charges).unwrap();
    for flags in [["gpus", "-o", "yaml"], ["gpus", "-o", "json"]] {
        let (url, server) = server::extender("200 OK", &gpus.to_string());
        let mut child = Command::new(PLIMSOLL)
            .args(flags)
            .args(["--extender", &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        server.join().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    }
}
