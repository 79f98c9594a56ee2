//! The policy file, read at the start and again when it changes.
//!
//! Invariant: only a valid policy is ever given out. The content decides, not the file's times: the
//! kubelet brings a changed ConfigMap by swapping symbolic links.

use std::path::{Path, PathBuf};

use placement::policy::{LoadPolicy, PolicyError};

/// Why there is no policy in a file.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// The file cannot be read.
    #[error("--policy-file {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The file is no valid policy.
    #[error("--policy-file {path}: {source}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, field, and what would be right.
        source: PolicyError,
    },
}

/// The policy file, and what was last found in it.
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    /// The text, or what the kernel said instead: each is told of once.
    seen: Result<String, String>,
}

impl PolicyFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    ///
    /// Where there is no policy in it: a start without one would be a guess.
    pub fn open(path: &Path) -> Result<(Self, LoadPolicy), PolicyFileError> {
        let path = path.to_owned();
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let file = Self { path, seen: Ok(text) };
                let policy = file.parse()?;
                Ok((file, policy))
            }
            Err(source) => Err(PolicyFileError::Unreadable { path, source }),
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again; `None` where it is as it was the last time, good or bad.
    pub fn reload(&mut self) -> Option<Result<LoadPolicy, PolicyFileError>> {
        let read = std::fs::read_to_string(&self.path);
        let seen = read.as_ref().map(Clone::clone).map_err(ToString::to_string);
        if self.seen == seen {
            return None;
        }
        self.seen = seen;
        let path = self.path.clone();
        Some(match read {
            Ok(_) => self.parse(),
            Err(source) => Err(PolicyFileError::Unreadable { path, source }),
        })
    }

    fn parse(&self) -> Result<LoadPolicy, PolicyFileError> {
        let text = self.seen.as_deref().unwrap_or_default();
        let invalid = |source| PolicyFileError::Invalid { path: self.path.clone(), source };
        LoadPolicy::from_yaml(text).map_err(invalid)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str =
        "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {}\n";

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_fault_at_the_start_names_file_line_and_field() {
        let (_folder, path) = file(&GOOD.replace("Dynamic", "Static"));
        let error = PolicyFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("policy.yaml: line 2: kind: expected"), "{error}");
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = PolicyFile::open(Path::new("/nowhere/policy.yaml")).unwrap_err().to_string();
        assert!(error.starts_with("--policy-file /nowhere/policy.yaml: No such file"), "{error}");
    }

    #[test]
    fn each_change_is_told_of_once_good_or_bad() {
        let (_folder, path) = file(GOOD);
        let (mut policy, _) = PolicyFile::open(&path).unwrap();
        assert!(policy.reload().is_none());
        fs::write(&path, "nonsense").unwrap();
        assert!(policy.reload().is_some_and(|read| read.is_err()));
        assert!(policy.reload().is_none());
        fs::remove_file(&path).unwrap();
        assert!(policy.reload().is_some_and(|read| read.is_err()));
        assert!(policy.reload().is_none());
        fs::write(&path, GOOD).unwrap();
        assert!(policy.reload().is_some_and(|read| read.is_ok()));
    }
}
