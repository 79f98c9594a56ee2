//! The container `drain` of the MPS daemon, run as it is, with a stand-in of `nvidia-cuda-mps-control` that records
//! what it is told.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::programs::write_script;
use tempfile::TempDir;

use crate::manifests::{Manifests, items_named, strings};

const P: &str = "11111111-aaaa-4111-8111-111111111111";
const Q: &str = "22222222-2222-4222-8222-222222222222";

/// One server, whose clients are in a file. What it answers besides is no number.
const TOOL: &str = r#"#!/bin/sh
read -r command
echo "$command" >> "$RECORD"
case "$command" in
get_server_list) echo 42; echo "a line that is no number 43" ;;
"get_client_list 42") cat "$CLIENTS" ;;
"terminate_client 42 7") exec sleep 1000 ;;
terminate_client*) echo 0 ;;
esac
"#;

/// The container, and the node's files.
struct Drain {
    dir: TempDir,
    shell: Child,
    pods: File,
}

impl Drop for Drain {
    fn drop(&mut self) {
        // No test waits for it.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Waits until this holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(50), "{what}");
        sleep(Duration::from_millis(10));
    }
}

fn container() -> Value {
    items_named(&Manifests::of_mps().pod("mps-control-daemon")["containers"], "drain").remove(0)
}

impl Drain {
    /// With these clients, each with its control group.
    fn start(clients: &[(u32, String)]) -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        write_script(&at("nvidia-cuda-mps-control"), TOOL);
        let mut list = String::from("PID\n-1\n$(touch \"$RECORD.run\")\n");
        for (pid, group) in clients {
            fs::create_dir_all(at("proc").join(pid.to_string())).unwrap();
            fs::write(at("proc").join(format!("{pid}/cgroup")), format!("0::{group}\n")).unwrap();
            list += &format!("{pid}\n");
        }
        fs::write(at("clients"), list).unwrap();
        let command = strings(&container()["command"]);
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let shell = Command::new(&command[0])
            .args(&command[1..])
            .env("PATH", path)
            .env("PODS", at("pods"))
            .env("PROC", at("proc"))
            .env("RECORD", at("record"))
            .env("CLIENTS", at("clients"))
            .stdout(File::create(at("log")).unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        until("its pipe", || at("pods").exists());
        // As the device plugin does; without a reader it would wait here.
        let pods = File::options().write(true).open(at("pods")).unwrap();
        Self { dir, shell, pods }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ask(&mut self, line: &str) {
        self.pods.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// What the tool was told to terminate.
    fn terminated(&self) -> Vec<String> {
        let record = fs::read_to_string(self.path("record")).unwrap_or_default();
        let lines = record.lines().filter_map(|line| line.strip_prefix("terminate_client "));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn until_terminated(&self, expected: &[&str]) {
        until(&format!("{expected:?}, {:?}", self.terminated()), || self.terminated() == expected);
    }
}

fn by_systemd(pod: &str) -> String {
    let pod = pod.replace('-', "_");
    format!("/../../kubepods-burstable-pod{pod}.slice/cri-containerd-0123.scope")
}

#[test]
fn the_clients_of_the_pod_are_terminated_and_no_others() {
    let mut drain = Drain::start(&[
        (7, format!("/kubepods/pod{P}/0123")),
        (8, by_systemd(Q)),
        (9, by_systemd(P)),
        (10, "/system.slice/jupyter.service".to_owned()),
    ]);
    drain.ask(P);
    // Client 7 never answers.
    drain.until_terminated(&["42 7", "42 9"]);
    drain.ask(Q);
    drain.until_terminated(&["42 7", "42 8", "42 9"]);
    until("the log", || {
        fs::read_to_string(drain.path("log"))
            .unwrap()
            .contains(&format!("pod {Q}: terminate_client 42 8"))
    });
}

#[test]
fn what_is_no_uid_and_no_number_is_not_run() {
    let mut drain = Drain::start(&[(9, by_systemd(P))]);
    let hostile = "$(touch RUN); terminate_client 42 9";
    for line in ["", "1111", "1111111*-*", hostile, "quit", ".*", &P.to_uppercase(), &P[1..]] {
        drain.ask(line);
    }
    drain.ask(P);
    drain.until_terminated(&["42 9"]);
    let record = fs::read_to_string(drain.path("record")).unwrap();
    assert_eq!(record, "get_server_list\nget_client_list 42\nterminate_client 42 9\n");
    assert!(!drain.path("record.run").exists());
}

#[test]
fn its_pipe_is_roots_alone_and_outlives_it() {
    let mut drain = Drain::start(&[]);
    let mode = fs::metadata(drain.path("pods")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(drain.shell.try_wait().unwrap().is_none(), "it runs");
    let spec = Manifests::of_mps().pod("mps-control-daemon");
    let init = items_named(&spec["initContainers"], "shared-memory").remove(0);
    let init = strings(&init["command"]).join(" ");
    assert!(init.contains(r#"mkdir -p -m 700 "$FOLDER/pipes/daemon" "$FOLDER/pipes/drain";"#));
    let mut variables = container()["env"].as_array().unwrap().clone();
    variables.retain(|variable| variable["name"] == "PODS");
    // Where the device plugin looks, below its --mps-dir.
    assert_eq!(variables[0]["value"], "/run/plimsoll-mps/pipes/drain/pods");
}
