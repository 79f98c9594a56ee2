//! The policy file: read at the start, read again when it changes.
//!
//! Invariant: a file that cannot be read or parsed changes nothing but a counter and a log line.
//! The content decides, not the file's times: a ConfigMap's files are links that are swapped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use daemon::Shutdown;
use placement::policy::LoadPolicy;

use crate::metrics::Metrics;
use crate::view::View;

/// How often the file is looked at. Kubelets take up to a minute to bring a ConfigMap's change.
const LOOK: Duration = Duration::from_secs(5);

/// The policy file, and its text as last seen.
pub(crate) struct PolicyFile {
    path: PathBuf,
    text: String,
}

impl PolicyFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    ///
    /// Where there is no policy in it: a start with none would be a guess.
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<(Self, LoadPolicy)> {
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("--policy-file {}", path.display()))?;
        let policy = LoadPolicy::from_yaml(&text);
        let policy = policy.with_context(|| format!("--policy-file {}", path.display()))?;
        Ok((Self { path, text }, policy))
    }

    /// The policy, where the file's text has changed to one since the last look.
    pub(crate) fn changed(&mut self) -> anyhow::Result<Option<LoadPolicy>> {
        let text = std::fs::read_to_string(&self.path)?;
        if text == self.text {
            return Ok(None);
        }
        // Noted before it is parsed, so that a faulty text is told of once.
        self.text = text;
        Ok(Some(LoadPolicy::from_yaml(&self.text)?))
    }
}

/// Puts every good change of the file in force, until the shutdown.
pub(crate) async fn follow(
    mut file: PolicyFile,
    view: Arc<View>,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut looks = tokio::time::interval(LOOK);
    while shutdown.run_until_cancelled(looks.tick()).await.is_some() {
        look(&mut file, &view, &metrics);
    }
    Ok(())
}

fn look(file: &mut PolicyFile, view: &View, metrics: &Metrics) {
    match file.changed() {
        Ok(None) => {}
        Ok(Some(policy)) => {
            view.load.set_policy(policy);
            metrics.policy_read("changed");
            tracing::info!(file = %file.path.display(), "policy changed");
        }
        Err(error) => {
            metrics.policy_read("refused");
            let file = file.path.display();
            tracing::error!(%file, %error, "policy refused; the one before it stays in force");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "apiVersion: scheduler.policy.crane.io/v1alpha1\n\
                          kind: DynamicSchedulerPolicy\nspec: {}\n";

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_start_without_a_policy_is_refused_and_names_the_place() {
        let (_folder, path) =
            file(&POLICY.replace("spec: {}", "spec: {hotValue: [{timeRange: 5, count: 1}]}"));
        let error = format!("{:#}", PolicyFile::open(path).err().unwrap());
        assert!(error.starts_with("--policy-file /"), "{error}");
        assert!(error.contains("line 3: spec.hotValue[0].timeRange"), "{error}");
    }

    #[test]
    fn a_faulty_change_is_told_of_once_and_a_later_good_one_counts() {
        let (_folder, path) = file(POLICY);
        let (mut file, _) = PolicyFile::open(path.clone()).unwrap();
        assert!(file.changed().unwrap().is_none());
        std::fs::write(&path, "spec: [").unwrap();
        assert!(file.changed().is_err());
        assert!(file.changed().unwrap().is_none());
        std::fs::write(&path, format!("# again\n{POLICY}")).unwrap();
        assert!(file.changed().unwrap().is_some());
    }

    #[test]
    fn a_file_that_vanishes_for_a_moment_changes_nothing() {
        let (_folder, path) = file(POLICY);
        let (mut file, _) = PolicyFile::open(path.clone()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(file.changed().is_err());
        std::fs::write(&path, POLICY).unwrap();
        assert!(file.changed().unwrap().is_none());
    }
}
