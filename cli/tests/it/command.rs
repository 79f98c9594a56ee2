//! Runs the binary, and compares what it writes with golden files.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The binary that cargo built for these tests.
pub(crate) const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// What a run wrote, and its exit status.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

/// Runs `plimsoll` with no PLIMSOLL_ variable set.
pub(crate) fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Run {
    run_as(Path::new(PLIMSOLL), args, "")
}

/// Runs the binary under another path, with a text on its stdin.
pub(crate) fn run_as(
    program: &Path,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    stdin: &str,
) -> Run {
    let mut child = Command::new(program)
        .args(args)
        .env_remove("PLIMSOLL_EXTENDER")
        // A kubectl of this machine reaches no cluster.
        .env("KUBECONFIG", "/dev/null")
        .env("COLUMNS", "100")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Run { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

pub(crate) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

impl Run {
    /// Its stdout; a run that failed or wrote to stderr fails the test.
    pub(crate) fn success(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{}", self.stdout);
        self.stdout
    }

    /// Its stderr; a run that did not exit with 1, or wrote to stdout, fails the test.
    pub(crate) fn failure(self) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (Some(1), ""), "{}", self.stderr);
        self.stderr
    }
}

/// Compares a text with `tests/golden/NAME`.
pub(crate) fn assert_golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("PLIMSOLL_REGENERATE").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(text == golden, "tests/golden/{name} holds\n{golden}\nand this was written:\n{text}");
}
