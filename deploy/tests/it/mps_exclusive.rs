//! The MPS daemon's sidecar of `mps.exclusive`, run as it is, with a stand-in of `nvidia-smi` that records its calls.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::programs::write_script;
use tempfile::TempDir;

use crate::manifests::{Manifests, items_named, strings};

fn sidecar() -> Value {
    let pod = Manifests::of_mps().pod("mps-control-daemon");
    items_named(&pod["initContainers"], "compute-mode").remove(0)
}

/// Runs these words with the stand-in.
fn run(words: &[String], dir: &TempDir) -> Command {
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command.env("PATH", path).env("RECORD", dir.path().join("record"));
    command
}

#[test]
fn the_mode_is_set_before_the_daemon_starts_and_taken_back_at_the_end() {
    let dir = TempDir::new().unwrap();
    let lists = "[ \"$1\" = --query-gpu=uuid ] && { echo GPU-a; echo GPU-b; exit; }";
    let fails = "[ \"$2\" != GPU-a ]";
    let tool = format!("#!/bin/sh\n{lists}\necho \"$*\" >> \"$RECORD\"\n{fails}\n");
    write_script(&dir.path().join("nvidia-smi"), &tool);
    // Tells when the trap is set.
    let sleeps = "#!/bin/sh\necho $$ > \"$RECORD.pid\"\necho \"sleep $*\" >> \"$RECORD\"\nexec tail -f /dev/null\n";
    write_script(&dir.path().join("sleep"), sleeps);
    let recorded = || fs::read_to_string(dir.path().join("record")).unwrap_or_default();
    let sidecar = sidecar();
    // A restartable init container: the others wait for its hook, and end before it.
    assert_eq!(sidecar["restartPolicy"], "Always");
    let mut shell = run(&strings(&sidecar["command"]), &dir).spawn().unwrap();
    let begin = Instant::now();
    while recorded().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(50), "it does not run");
        sleep(Duration::from_millis(10));
    }
    let hook = strings(&sidecar["lifecycle"]["postStart"]["exec"]["command"]);
    assert!(run(&hook, &dir).status().unwrap().success());
    // The first GPU takes no mode.
    let set = "sleep infinity\n-i GPU-a -c EXCLUSIVE_PROCESS\n-i GPU-b -c EXCLUSIVE_PROCESS\n";
    assert_eq!(recorded(), set);
    assert!(shell.try_wait().unwrap().is_none(), "it waits for the end");
    let pid = shell.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(shell.wait().unwrap().success());
    // The runtime ends what is left of a container.
    let left = fs::read_to_string(dir.path().join("record.pid")).unwrap();
    assert!(Command::new("kill").arg(left.trim()).status().unwrap().success());
    assert_eq!(recorded(), format!("{set}-c DEFAULT\n"));
}

#[test]
fn one_server_of_mps_serves_clients_of_every_user() {
    let command = strings(&Manifests::of_mps().container("mps-control-daemon")["command"]);
    let command = command.join(" ");
    assert!(command.contains(" nvidia-cuda-mps-control -f -multiuser-server &"), "{command}");
}

#[test]
fn the_mps_daemon_which_speaks_by_pipes_has_no_network() {
    let mps = Manifests::of_mps();
    let policy = mps.object("NetworkPolicy", "mps-control-daemon");
    let daemon = mps.workload("mps-control-daemon");
    assert_eq!(policy["spec"]["podSelector"], daemon["spec"]["selector"]);
    assert_eq!(strings(&policy["spec"]["policyTypes"]), ["Ingress", "Egress"]);
    assert!(policy["spec"]["ingress"].is_null() && policy["spec"]["egress"].is_null());
}
