//! A fatal error or panic on stderr and in the container's termination log.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic;
use std::path::{Path, PathBuf};

use crate::Causes;

/// The file that Kubernetes shows as a terminated container's message, where the manifest sets no other.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

/// Writes the error and its causes, one line, to stderr and to the termination log. That file is not created: only
/// Kubernetes does so.
pub fn report(program: &str, error: &anyhow::Error, termination_log: &Path) {
    let message = format!("{program}: {}\n", Causes(error.as_ref()));
    // The process ends: there is no other place to report a failure to.
    let _ = std::io::stderr().write_all(message.as_bytes());
    write(termination_log, &message);
}

/// Writes panics into the termination log too: released programs abort on a panic, before any other code could.
pub(crate) fn report_panics(program: &'static str, termination_log: PathBuf) {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        default(panic);
        write(&termination_log, &format!("{program}: {panic}\n"));
    }));
}

fn write(termination_log: &Path, message: &str) {
    let file = OpenOptions::new().write(true).truncate(true).open(termination_log);
    let _ = file.and_then(|mut file| file.write_all(message.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    fn error() -> anyhow::Error {
        Err::<(), _>(anyhow::anyhow!("no such file"))
            .context("--policy-file /etc/policy.yaml")
            .unwrap_err()
    }

    #[test]
    fn the_termination_log_holds_the_whole_chain_of_the_last_error() {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            log.path(),
            "an older and much longer message than the one that follows it here",
        )
        .unwrap();
        report("annotator", &error(), log.path());
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(text, "annotator: --policy-file /etc/policy.yaml: no such file\n");
    }

    #[test]
    fn outside_a_container_no_termination_log_appears() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("termination-log");
        report("annotator", &error(), &log);
        assert!(!log.exists());
    }
}
