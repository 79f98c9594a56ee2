//! Files that a running process polls: a change takes effect without a restart.
//!
//! Invariant: the last good content is in force. A faulty change is logged once and has no other effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::Shutdown;

/// The period of reads. Short compared to the minute or so in which the kubelet updates a changed Secret or ConfigMap.
pub const EVERY: Duration = Duration::from_secs(5);

/// A file, and the flag that names it.
#[derive(Debug, Clone)]
pub struct NamedFile {
    /// The flag, as `--policy-file`.
    pub flag: &'static str,
    /// The file's path.
    pub path: PathBuf,
}

/// A file that does not hold what it should, or cannot be read. The text names flag, path and problem, and never
/// repeats what the file holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {path}: {problem}", path = path.display())]
pub struct FileError {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

impl NamedFile {
    /// The file of a flag that may be left out.
    #[must_use]
    pub fn optional(flag: &'static str, path: Option<&PathBuf>) -> Option<Self> {
        path.map(|path| Self { flag, path: path.clone() })
    }

    /// An error about this file; `problem` says what is wrong and what to do.
    pub fn error(&self, problem: impl Into<String>) -> FileError {
        FileError { flag: self.flag, path: self.path.clone(), problem: problem.into() }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<Vec<u8>, FileError> {
        std::fs::read(&self.path).map_err(|error| self.error(error.to_string()))
    }
}

/// Files, and the value that they hold together: a policy, or a certificate and its key.
///
/// # Examples
/// ```
/// use daemon::follow::{FileError, Follower, NamedFile, Source};
///
/// struct Greeting(NamedFile);
///
/// impl Source for Greeting {
///     type Value = String;
///     const WHAT: &'static str = "greeting";
///
///     fn files(&self) -> Vec<&NamedFile> {
///         vec![&self.0]
///     }
///
///     fn parse(&self, contents: &[Vec<u8>]) -> Result<String, FileError> {
///         String::from_utf8(contents.concat()).map_err(|_| self.0.error("expected UTF-8"))
///     }
/// }
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("greeting");
/// std::fs::write(&path, "hello").unwrap();
/// let file = NamedFile { flag: "--greeting-file", path };
/// let (_follower, current) = Follower::open(Greeting(file)).unwrap();
/// assert_eq!(current.borrow().as_str(), "hello");
/// ```
pub trait Source {
    /// What the files hold together.
    type Value;

    /// What that is, for the log, as `policy`.
    const WHAT: &'static str;

    /// The files.
    fn files(&self) -> Vec<&NamedFile>;

    /// The value that these contents mean; they come in the order of [`files`](Self::files).
    ///
    /// # Errors
    /// When a file does not hold what it should.
    fn parse(&self, contents: &[Vec<u8>]) -> Result<Self::Value, FileError>;

    /// The files' contents as they are now.
    ///
    /// # Errors
    /// When one of them cannot be read.
    fn read(&self) -> Result<Vec<Vec<u8>>, FileError> {
        self.files().into_iter().map(NamedFile::read).collect()
    }
}

/// The value in force. Borrowing it reads no file.
pub type Current<T> = watch::Receiver<Arc<T>>;

/// Polls a source's files.
#[derive(Debug)]
pub struct Follower<S: Source> {
    source: S,
    // The contents decide, not the files' times: a Secret or ConfigMap changes by a swap of symbolic links.
    seen: Result<Vec<Vec<u8>>, FileError>,
    current: watch::Sender<Arc<S::Value>>,
}

impl<S: Source> Follower<S> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When they do not hold what they should: there is no value before that could stay in force.
    pub fn open(source: S) -> Result<(Self, Current<S::Value>), FileError> {
        let contents = source.read()?;
        let (current, receiver) = watch::channel(Arc::new(source.parse(&contents)?));
        Ok((Self { source, seen: Ok(contents), current }, receiver))
    }

    /// Reads the files again, and puts a good change in force. `None` where they are as they were the last time, good
    /// or faulty.
    pub fn reload(&mut self) -> Option<Result<Arc<S::Value>, FileError>> {
        let seen = self.source.read();
        if self.seen == seen {
            return None;
        }
        let parsed = seen.clone().and_then(|contents| self.source.parse(&contents));
        self.seen = seen;
        Some(parsed.map(|value| {
            let value = Arc::new(value);
            self.current.send_replace(Arc::clone(&value));
            value
        }))
    }

    /// Reads the files after each `pause` until the shutdown. `on_change` is called after each change, with the new
    /// value where it is good.
    ///
    /// # Errors
    /// None; the type suits [`Context::spawn`](crate::Context::spawn).
    pub async fn follow<P: Future<Output = ()>>(
        mut self,
        pause: impl Fn() -> P,
        mut on_change: impl FnMut(Result<Arc<S::Value>, &FileError>),
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        while shutdown.run_until_cancelled(pause()).await.is_some() {
            match self.reload() {
                None => {}
                Some(Ok(value)) => {
                    tracing::info!("{} changed", S::WHAT);
                    on_change(Ok(value));
                }
                Some(Err(error)) => {
                    tracing::error!("{error}; the {} before stays in force", S::WHAT);
                    on_change(Err(&error));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Program};

    /// A number in a file.
    struct Number(NamedFile);

    impl Source for Number {
        type Value = u32;
        const WHAT: &'static str = "number";

        fn files(&self) -> Vec<&NamedFile> {
            vec![&self.0]
        }

        fn parse(&self, contents: &[Vec<u8>]) -> Result<u32, FileError> {
            let text = String::from_utf8_lossy(&contents[0]);
            text.parse().map_err(|_| self.0.error("expected a number"))
        }
    }

    fn number(folder: &Path, text: &str) -> Number {
        let path = folder.join("number");
        std::fs::write(&path, text).unwrap();
        Number(NamedFile { flag: "--number-file", path })
    }

    #[test]
    fn a_good_change_is_in_force_and_no_change_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (mut follower, current) = Follower::open(number(folder.path(), "1")).unwrap();
        assert_eq!(follower.reload(), None);
        number(folder.path(), "2");
        assert!(follower.reload().is_some_and(|change| change.is_ok()));
        assert_eq!(**current.borrow(), 2);
        assert_eq!(follower.reload(), None);
    }

    #[test]
    fn a_faulty_file_is_an_error_once_and_the_last_good_content_stays_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let (mut follower, current) = Follower::open(number(folder.path(), "1")).unwrap();
        number(folder.path(), "one");
        let error = follower.reload().unwrap().unwrap_err().to_string();
        let path = folder.path().join("number");
        assert_eq!(error, format!("--number-file {}: expected a number", path.display()));
        assert_eq!(follower.reload(), None);
        std::fs::remove_file(&path).unwrap();
        assert!(follower.reload().unwrap().unwrap_err().to_string().contains("No such file"));
        assert_eq!(follower.reload(), None);
        assert_eq!(**current.borrow(), 1);
        number(folder.path(), "3");
        assert!(follower.reload().is_some_and(|change| change.is_ok()));
        assert_eq!(**current.borrow(), 3);
    }

    #[cfg(unix)]
    #[test]
    fn a_swapped_symbolic_link_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("old", "1"), ("new", "2")] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("number"), text).unwrap();
        }
        let data = folder.path().join("..data");
        std::os::unix::fs::symlink("old", &data).unwrap();
        let file = NamedFile { flag: "--number-file", path: data.join("number") };
        let (mut follower, current) = Follower::open(Number(file)).unwrap();
        let draft = folder.path().join("..draft");
        std::os::unix::fs::symlink("new", &draft).unwrap();
        std::fs::rename(&draft, &data).unwrap();
        assert!(follower.reload().is_some_and(|change| change.is_ok()));
        assert_eq!(**current.borrow(), 2);
    }

    #[test]
    fn a_file_that_is_faulty_at_the_start_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Follower::open(number(folder.path(), "one")).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn each_change_is_passed_on_once_until_the_shutdown() {
        let folder = tempfile::tempdir().unwrap();
        let (follower, _current) = Follower::open(number(folder.path(), "1")).unwrap();
        let shutdown = Shutdown::new();
        let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let following = tokio::spawn(follower.follow(
            || tokio::time::sleep(EVERY),
            move |change: Result<Arc<u32>, &FileError>| {
                let _ = sender.send(change.ok().map(|value| *value));
            },
            shutdown.clone(),
        ));
        for (text, expected) in [("2", Some(2)), ("two", None), ("3", Some(3))] {
            number(folder.path(), text);
            assert_eq!(changes.recv().await.unwrap(), expected);
        }
        shutdown.cancel();
        following.await.unwrap().unwrap();
        assert_eq!(changes.recv().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_change_shows_in_the_metrics_until_a_good_one() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::new(Program { name: "test", version: "1", git: None });
        let (follower, _current) = Follower::open(number(folder.path(), "1")).unwrap();
        let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
        context.follow(
            "number",
            follower,
            || tokio::time::sleep(EVERY),
            move |_| {
                let _ = sender.send(());
            },
        );
        let refused = |state: u8| {
            let sample = format!("plimsoll_files_refused{{file=\"number\"}} {state}\n");
            context.metrics().unwrap().contains(&sample)
        };
        assert!(refused(0));
        for (text, state) in [("two", 1), ("three", 1), ("4", 0)] {
            number(folder.path(), text);
            changes.recv().await.unwrap();
            assert!(refused(state), "{text}");
        }
        context.shutdown().cancel();
    }
}
