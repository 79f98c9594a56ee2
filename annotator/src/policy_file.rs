//! The policy file, read again while the program runs.
//!
//! Invariant: the policy in force is valid; a faulty file changes nothing but a gauge and the log.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon::Shutdown;
use jiff::SignedDuration;
use placement::policy::{LoadPolicy, PolicyError};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::metrics::Metrics;

/// How often the file is read. The kubelet itself takes up to a minute to bring a changed ConfigMap
/// into a pod. A file that was replaced through a symbolic link, as the kubelet does, has no events
/// of its own to wait for.
const EVERY: SignedDuration = SignedDuration::from_secs(5);

/// Why a policy file is not in force.
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

/// The policy file, and the text that was last read from it.
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    text: Result<String, String>,
}

impl PolicyFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it cannot be read or is no valid policy.
    pub fn open(path: &Path) -> Result<(Self, Arc<LoadPolicy>), PolicyFileError> {
        let mut file = Self { path: path.to_owned(), text: Err(String::new()) };
        match file.reload() {
            Some(policy) => policy.map(|policy| (file, policy)),
            None => Err(file.unreadable(std::io::ErrorKind::Other.into())),
        }
    }

    /// Reads the file again; `None` where it is as it was the last time, good or bad.
    pub fn reload(&mut self) -> Option<Result<Arc<LoadPolicy>, PolicyFileError>> {
        let read = std::fs::read_to_string(&self.path);
        let text = read.as_ref().map(Clone::clone).map_err(ToString::to_string);
        if self.text == text {
            return None;
        }
        self.text = text;
        let invalid = |source| PolicyFileError::Invalid { path: self.path.clone(), source };
        Some(match read {
            Ok(text) => LoadPolicy::from_yaml(&text).map(Arc::new).map_err(invalid),
            Err(source) => Err(self.unreadable(source)),
        })
    }

    fn unreadable(&self, source: std::io::Error) -> PolicyFileError {
        PolicyFileError::Unreadable { path: self.path.clone(), source }
    }

    /// Reads the file again and again, and sends on each good policy.
    ///
    /// # Errors
    /// None; the type suits [`daemon::Context::spawn`].
    pub async fn follow(
        mut self,
        policies: watch::Sender<Arc<LoadPolicy>>,
        clock: Clock,
        metrics: Metrics,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        loop {
            let next = clock.now().checked_add(EVERY).ok();
            if shutdown.run_until_cancelled(clock.wait(next)).await.is_none() {
                return Ok(());
            }
            let Some(reloaded) = self.reload() else { continue };
            metrics.policy_read(reloaded.is_ok());
            match reloaded {
                Ok(policy) => {
                    tracing::info!(path = %self.path.display(), "policy read again");
                    policies.send_replace(policy);
                }
                Err(error) => tracing::error!("{error}; the policy before stays in force"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: scheduler.policy.crane.io/v1alpha1\n\
                        kind: DynamicSchedulerPolicy\n\
                        spec:\n  syncPolicy:\n  - {name: cpu_usage_avg_5m, period: 3m}\n";

    fn file(text: &str) -> (tempfile::NamedTempFile, PathBuf) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_owned();
        (file, path)
    }

    #[test]
    fn a_changed_file_is_read_and_an_unchanged_one_is_not() {
        let (_guard, path) = file(GOOD);
        let (mut file, policy) = PolicyFile::open(&path).unwrap();
        assert_eq!(policy.sync.len(), 1);
        assert!(file.reload().is_none());
        std::fs::write(&path, GOOD.replace("3m", "1m")).unwrap();
        let policy = file.reload().unwrap().unwrap();
        assert_eq!(policy.sync[0].period, SignedDuration::from_mins(1));
    }

    #[test]
    fn a_fault_is_told_once_with_file_line_and_field() {
        let (_guard, path) = file(GOOD);
        let (mut file, _) = PolicyFile::open(&path).unwrap();
        std::fs::write(&path, GOOD.replace("3m", "soon")).unwrap();
        let error = file.reload().unwrap().unwrap_err().to_string();
        assert!(error.contains("line 5: spec.syncPolicy[0].period"), "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(file.reload().is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.reload(), Some(Err(PolicyFileError::Unreadable { .. }))));
        assert!(file.reload().is_none());
        std::fs::write(&path, GOOD).unwrap();
        assert!(file.reload().unwrap().is_ok());
    }

    #[test]
    fn a_missing_or_faulty_file_is_an_error_at_the_start() {
        let error = PolicyFile::open(Path::new("/nonexistent/policy.yaml")).unwrap_err();
        assert!(
            error.to_string().starts_with("--policy-file /nonexistent/policy.yaml: "),
            "{error}"
        );
        let (_guard, path) = file("{}");
        assert!(matches!(PolicyFile::open(&path), Err(PolicyFileError::Invalid { .. })));
    }
}
