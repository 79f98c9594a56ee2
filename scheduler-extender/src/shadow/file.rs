//! The file of the shadow policy.

use std::path::Path;

use daemon::follow::{FileError, NamedFile, Source};
use placement::policy::LoadPolicy;
use settings::PolicyFile;

/// The file of `--shadow-policy-file`. A missing or faulty file is no error, also at the start: scheduling must not
/// depend on a policy that is only tried.
#[derive(Debug, Clone)]
pub struct ShadowFile(PolicyFile);

impl ShadowFile {
    /// The file at that path.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(PolicyFile::of_flag("--shadow-policy-file", path))
    }
}

impl Source for ShadowFile {
    type Value = Result<LoadPolicy, FileError>;
    const WHAT: &'static str = "shadow policy file";

    fn files(&self) -> Vec<&NamedFile> {
        self.0.files()
    }

    fn read(&self) -> Result<Vec<Vec<u8>>, FileError> {
        Ok(self.0.read().unwrap_or_default())
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<Self::Value, FileError> {
        if !contents.is_empty() {
            return Ok(self.0.parse(contents));
        }
        // The file could not be read. Reading it again says why.
        match self.0.read() {
            Err(error) => Ok(Err(error)),
            Ok(_) => Ok(Err(self.files()[0].error("it appeared while it was read"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use daemon::follow::Follower;

    use super::*;

    const POLICY: &str =
        "apiVersion: scheduler.policy.crane.io/v1alpha1\nkind: DynamicSchedulerPolicy\nspec: {}\n";

    fn error(value: &Result<LoadPolicy, FileError>) -> String {
        value.clone().unwrap_err().to_string()
    }

    #[test]
    fn a_missing_or_faulty_file_is_a_value_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shadow.yaml");
        let (mut follower, current) = Follower::open(ShadowFile::new(&path)).unwrap();
        let missing = error(&current.borrow());
        assert!(missing.starts_with("--shadow-policy-file /"), "{missing}");
        assert!(missing.ends_with("No such file or directory (os error 2)"), "{missing}");
        fs::write(&path, POLICY).unwrap();
        assert!(follower.reload().unwrap().unwrap().is_ok());
        fs::write(&path, POLICY.replace("Dynamic", "Static")).unwrap();
        let faulty = error(&follower.reload().unwrap().unwrap());
        assert!(faulty.contains("shadow.yaml: line 2: kind: expected"), "{faulty}");
        assert!(follower.reload().is_none());
    }
}
