//! The policy file, as a source for [`daemon::follow`].

use std::path::Path;

use daemon::follow::{FileError, NamedFile, Source};
use daemon::metrics::{Gauge, Registry};
use placement::policy::LoadPolicy;

/// The file of a load policy.
///
/// # Examples
/// ```no_run
/// # fn main() -> Result<(), daemon::follow::FileError> {
/// use daemon::follow::Follower;
/// use settings::PolicyFile;
///
/// let path = std::path::Path::new("/etc/plimsoll/policy.yaml");
/// let (follower, current) = Follower::open(PolicyFile::new(path))?;
/// println!("{} metrics are fetched", current.borrow().sync.len());
/// # drop(follower);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PolicyFile(NamedFile);

impl PolicyFile {
    /// The policy file at that path.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self::of_flag("--policy-file", path)
    }

    /// The policy file that another flag names.
    #[must_use]
    pub fn of_flag(flag: &'static str, path: &Path) -> Self {
        Self(NamedFile { flag, path: path.to_owned() })
    }
}

impl Source for PolicyFile {
    type Value = LoadPolicy;
    const WHAT: &'static str = "policy";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<LoadPolicy, FileError> {
        let content = contents.first().map_or(&[][..], Vec::as_slice);
        let text = str::from_utf8(content).map_err(|_| self.0.error("it is no text in UTF-8"))?;
        LoadPolicy::from_yaml(text).map_err(|error| self.0.error(error.to_string()))
    }
}

/// The gauge of the warnings about the policy in force.
pub fn policy_warnings(registry: &mut Registry) -> Gauge {
    registry.gauge(
        "plimsoll_policy_warnings",
        "Parts of the policy in force that are probably not meant",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use daemon::follow::Follower;

    use super::*;

    const GOOD: &str =
        "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {}\n";

    /// What is said of a file with this content.
    fn error(content: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, content).unwrap();
        Follower::open(PolicyFile::new(&path)).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn a_fault_is_named_with_flag_file_line_and_field() {
        let error = error(GOOD.replace("Dynamic", "Static").as_bytes());
        assert!(error.starts_with("--policy-file /"), "{error}");
        assert!(error.contains("policy.yaml: line 2: kind: expected"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_text_is_named() {
        assert!(error(b"kind: \xff").ends_with("policy.yaml: it is no text in UTF-8"));
    }

    #[test]
    fn a_missing_file_is_named_and_its_cause_once() {
        let missing = PolicyFile::new(Path::new("/nowhere/policy.yaml"));
        let error = anyhow::Error::new(Follower::open(missing).map(drop).unwrap_err());
        let expected = "--policy-file /nowhere/policy.yaml: No such file or directory (os error 2)";
        assert_eq!(format!("{error:#}"), expected);
    }
}
