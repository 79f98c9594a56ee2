//! Files that a running process follows: what they hold is taken over when it changes.
//!
//! Invariant: in force is the last good content. A faulty one changes nothing, and is told of once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::Shutdown;

/// How often files are read. The kubelet brings a changed Secret within about a minute, so this adds little.
pub const EVERY: Duration = Duration::from_secs(5);

/// A file, and the flag that names it.
#[derive(Debug, Clone)]
pub struct NamedFile {
    /// The flag.
    pub flag: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// What is wrong with a file. It never repeats what the file holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {path}: {problem}", path = path.display())]
pub struct FileError {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

impl NamedFile {
    /// The error that says what is wrong with this file, and what to do.
    pub fn error(&self, problem: impl Into<String>) -> FileError {
        FileError { flag: self.flag, path: self.path.clone(), problem: problem.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<Vec<u8>, FileError> {
        std::fs::read(&self.path).map_err(|error| self.error(error.to_string()))
    }
}

/// Files, and what is made of them.
pub trait Source {
    /// What is made of them.
    type Made;

    /// What they are, for the log.
    const WHAT: &'static str;

    /// The files.
    fn files(&self) -> Vec<&NamedFile>;

    /// Makes it of their contents, in the order of [`files`](Self::files).
    ///
    /// # Errors
    /// When a file does not hold what it should.
    fn make(&self, contents: &[Vec<u8>]) -> Result<Self::Made, FileError>;

    /// What the files hold now.
    ///
    /// # Errors
    /// When one of them cannot be read.
    fn read(&self) -> Result<Vec<Vec<u8>>, FileError> {
        self.files().into_iter().map(NamedFile::read).collect()
    }
}

/// What is in force; a look costs no file access.
pub type Current<T> = watch::Receiver<Arc<T>>;

/// Reads a source's files again and again.
#[derive(Debug)]
pub struct Follower<S: Source> {
    source: S,
    // Contents rather than times: a Secret changes by a swap of symbolic links.
    seen: Result<Vec<Vec<u8>>, FileError>,
    current: watch::Sender<Arc<S::Made>>,
}

impl<S: Source> Follower<S> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When they do not hold what they should: nothing could be in force.
    pub fn open(source: S) -> Result<(Self, Current<S::Made>), FileError> {
        let contents = source.read()?;
        let (current, receiver) = watch::channel(Arc::new(source.make(&contents)?));
        Ok((Self { source, seen: Ok(contents), current }, receiver))
    }

    /// Reads the files again; `None` where they are as they were the last time, good or bad.
    pub fn reload(&mut self) -> Option<Result<(), FileError>> {
        let seen = self.source.read();
        if self.seen == seen {
            return None;
        }
        let made = seen.clone().and_then(|contents| self.source.make(&contents));
        self.seen = seen;
        Some(made.map(|made| {
            self.current.send_replace(Arc::new(made));
        }))
    }

    /// Reads the files again and again until the shutdown, and tells `outcome` of each change, whether it was good.
    ///
    /// # Errors
    /// None; the type suits [`Context::spawn`](crate::Context::spawn).
    pub async fn follow(
        mut self,
        every: Duration,
        outcome: impl Fn(bool),
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        while shutdown.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            let Some(reloaded) = self.reload() else { continue };
            outcome(reloaded.is_ok());
            match reloaded {
                Ok(()) => tracing::info!("{} changed: taken over", S::WHAT),
                Err(error) => tracing::warn!("{error}; the {} before stays in force", S::WHAT),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number in a file.
    struct Number(NamedFile);

    impl Source for Number {
        type Made = u32;
        const WHAT: &'static str = "number";

        fn files(&self) -> Vec<&NamedFile> {
            vec![&self.0]
        }

        fn make(&self, contents: &[Vec<u8>]) -> Result<u32, FileError> {
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
    fn a_change_is_taken_over_and_no_change_is_silent() {
        let folder = tempfile::tempdir().unwrap();
        let (mut follower, current) = Follower::open(number(folder.path(), "1")).unwrap();
        assert_eq!(follower.reload(), None);
        number(folder.path(), "2");
        assert_eq!(follower.reload(), Some(Ok(())));
        assert_eq!(**current.borrow(), 2);
        assert_eq!(follower.reload(), None);
    }

    #[test]
    fn a_faulty_file_leaves_the_last_good_content_in_force_and_is_told_of_once() {
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
        assert_eq!(follower.reload(), Some(Ok(())));
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
        assert_eq!(follower.reload(), Some(Ok(())));
        assert_eq!(**current.borrow(), 2);
    }

    #[test]
    fn what_is_faulty_at_the_start_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Follower::open(number(folder.path(), "one")).is_err());
    }
}
