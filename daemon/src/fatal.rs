//! The last words of a process: a fatal error on stderr and in the container's termination log.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Where Kubernetes looks for a container's last words.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

/// Says why the process ends. The file is written only where it exists: Kubernetes makes it, nobody else does.
pub fn report(program: &str, error: &anyhow::Error, termination_log: &Path) {
    let message = format!("{program}: {error:#}\n");
    // Nothing is left to tell if telling fails.
    let _ = std::io::stderr().write_all(message.as_bytes());
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
