//! The file that keeps what was granted, for a later process of this node.
//!
//! Invariant: the file is replaced whole, and only once what was in it has been taken in. What could not be written is written later.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::metrics::Metrics;
use crate::records::holders::Holders;

/// The file's name.
const FILE: &str = "gpushare-device-plugin.json";

/// The file of what was granted.
pub struct GrantsFile {
    folder: PathBuf,
    metrics: Metrics,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether what an earlier process wrote was taken in.
    taken_in: bool,
    /// Why the file lacks something, as logged.
    behind: Option<String>,
}

impl GrantsFile {
    /// The file in that folder.
    pub fn new(folder: PathBuf, metrics: Metrics) -> Self {
        Self { folder, metrics, state: Mutex::default() }
    }

    /// Adds to `holders` what an earlier process wrote, once. Returns whether that is done.
    pub fn take_in(&self, holders: &mut Holders) -> bool {
        let mut state = self.state();
        if !state.taken_in {
            let read = read(&self.path());
            state.taken_in = read.is_ok();
            match read {
                Ok(earlier) => holders.add(earlier),
                Err(error) => self.note(&mut state, Some(format!("cannot read it: {error}"))),
            }
        }
        state.taken_in
    }

    /// Writes `holders`, after what an earlier process wrote has been added to them.
    pub fn save(&self, holders: &mut Holders) {
        if !self.take_in(holders) {
            return;
        }
        let written = self.write(&holders.to_json());
        let behind = written.err().map(|error| format!("cannot write it: {error}"));
        self.note(&mut self.state(), behind);
    }

    /// Whether the file lacks something, so that it is to be saved again.
    pub fn is_behind(&self) -> bool {
        self.state().behind.is_some()
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let fresh = self.folder.join("fresh");
        fs::create_dir_all(&self.folder)?;
        fs::write(&fresh, text)?;
        fs::rename(&fresh, self.path())
    }

    fn note(&self, state: &mut State, behind: Option<String>) {
        self.metrics.state_behind.set(behind.is_some().into());
        if behind == state.behind {
            return;
        }
        let path = self.path();
        match &behind {
            Some(why) => tracing::warn!(
                "{}: {why}; trying again. Make --state-dir a writable folder of the host: without the file a plugin that \
                 restarts knows nothing of pods that were deleted by force",
                path.display()
            ),
            None => tracing::info!("{}: written again", path.display()),
        }
        state.behind = behind;
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    // Each change is one assignment, so that a panic leaves nothing half done.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a file at `path` holds. One of another form never becomes readable and counts as empty.
fn read(path: &Path) -> io::Result<Holders> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holders::default()),
        Err(error) => return Err(error),
    };
    Ok(Holders::from_json(&bytes).unwrap_or_else(|error| {
        tracing::warn!(
            "{} is none of this plugin's files and counts as empty: {error}",
            path.display()
        );
        Holders::default()
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fixtures::{A, B, ids, simple};

    fn granted(pods: &[(&str, &str)]) -> Holders {
        let mut holders = Holders::default();
        let first = |card: &str| format!("{}-0", &card[4..12]);
        for (pod, card) in pods {
            holders.note(&simple(pod, card, 1), &ids([first(card).as_str()]));
        }
        holders
    }

    fn file(folder: &Path) -> GrantsFile {
        GrantsFile::new(folder.to_owned(), Metrics::default())
    }

    /// What a process that starts now reads.
    fn kept(folder: &Path) -> String {
        let mut holders = Holders::default();
        assert!(file(folder).take_in(&mut holders));
        holders.to_json()
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_replaced_before_it_could_be() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).save(&mut granted(&[("earlier", A)]));
        let (path, away) = (folder.path().join(FILE), folder.path().join("away"));
        fs::rename(&path, &away).unwrap();
        symlink(&path, &path).unwrap();
        let later = file(folder.path());
        let mut holders = Holders::default();
        assert!(!later.take_in(&mut holders));
        holders = granted(&[("later", B)]);
        later.save(&mut holders);
        assert!(later.is_behind());
        assert_eq!(later.metrics.state_behind.get(), 1);
        fs::rename(&away, &path).unwrap();
        later.save(&mut holders);
        assert!(!later.is_behind());
        let both = granted(&[("earlier", A), ("later", B)]).to_json();
        assert_eq!((holders.to_json(), kept(folder.path())), (both.clone(), both));
    }

    #[test]
    fn what_could_not_be_written_is_behind_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let written = file(folder.path());
        let mut holders = granted(&[("first", A)]);
        written.save(&mut holders);
        let blocked = folder.path().join("fresh");
        fs::create_dir(&blocked).unwrap();
        holders.note(&simple("second", B, 1), &ids(["bbbbbbbb-0"]));
        written.save(&mut holders);
        assert!(written.is_behind());
        assert_eq!(kept(folder.path()), granted(&[("first", A)]).to_json(), "as it was");
        fs::remove_dir(&blocked).unwrap();
        written.save(&mut holders);
        assert!(!written.is_behind());
        assert_eq!(kept(folder.path()), holders.to_json());
    }

    #[test]
    fn a_full_disk_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let written = file(folder.path());
        written.save(&mut granted(&[("first", A)]));
        // Writes to it fail for want of space.
        symlink("/dev/full", folder.path().join("fresh")).unwrap();
        written.save(&mut granted(&[("first", A), ("second", B)]));
        assert!(written.is_behind());
        assert_eq!(kept(folder.path()), granted(&[("first", A)]).to_json());
    }

    #[test]
    fn a_file_that_is_cut_off_counts_as_empty_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let text = granted(&[("first", A)]).to_json();
        for cut in [&b""[..], &text.as_bytes()[..text.len() / 2], b"\xff"] {
            fs::write(folder.path().join(FILE), cut).unwrap();
            let later = file(folder.path());
            later.save(&mut granted(&[("later", B)]));
            assert!(!later.is_behind());
            assert_eq!(kept(folder.path()), granted(&[("later", B)]).to_json());
        }
    }
}
