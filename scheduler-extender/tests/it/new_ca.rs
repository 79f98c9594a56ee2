//! `end-with-ca` as a process, beside one that it ends.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::authority::Authority;

/// Ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_is_ended_once_its_ca_is_replaced_and_another_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, name) = (folder.path().join("ca.crt"), format!("ca-{}", std::process::id()));
    let program = folder.path().join(&name);
    fs::copy("/bin/sleep", &program).unwrap();
    let start = |program: &str| Running(Command::new(program).arg("1000").spawn().unwrap());
    let mut named = start(program.to_str().unwrap());
    let mut other = start("/bin/sleep");
    fs::write(&ca, Authority::new().pem()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_scheduler-extender"));
    command.arg("end-with-ca").arg(&ca).arg(&name).stderr(Stdio::null());
    let _beside = Running(command.spawn().unwrap());
    // It does not tell when it has looked: each time the CA is another than at any look before.
    let deadline = Instant::now() + Duration::from_secs(120);
    let ended = loop {
        assert!(Instant::now() < deadline, "not ended");
        fs::write(&ca, Authority::new().pem()).unwrap();
        sleep(Duration::from_millis(100));
        if let Some(status) = named.0.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(ended.signal(), Some(15));
    assert!(other.0.try_wait().unwrap().is_none());
}
