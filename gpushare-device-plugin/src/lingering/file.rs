//! The file of grants, for a later process of this node.
//!
//! Invariant: the file is replaced as a whole, and only after its content has been loaded. A failed write is retried.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::metrics::Metrics;
use crate::records::{Records, SavedGrants};

/// The file's name.
const FILE: &str = "gpushare-device-plugin.json";
/// Its mode. It names pods, and the folder is the host's: other users of the node need not read it.
const OWNER_ONLY: u32 = 0o600;

/// The file of grants.
pub struct GrantsFile {
    folder: PathBuf,
    metrics: Metrics,
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    /// Whether the grants of earlier processes are loaded.
    loaded: bool,
    /// Why the last read or write failed, as logged.
    failure: Option<String>,
}

impl GrantsFile {
    /// The file in that folder.
    pub fn new(folder: PathBuf, metrics: Metrics) -> Self {
        Self { folder, metrics, state: Mutex::default() }
    }

    /// Adds the saved grants to `records`, once. Returns whether they are loaded.
    pub fn load_into(&self, records: &mut Records) -> bool {
        let mut state = self.state();
        if !state.loaded {
            let read = read(&self.path());
            state.loaded = read.is_ok();
            match read {
                Ok(saved) => records.add_saved(saved),
                Err(error) => {
                    self.set_failure(&mut state, Some(format!("cannot read it: {error}")))
                }
            }
        }
        state.loaded
    }

    /// Writes the grants in `records`, after the saved ones have been added to them.
    pub fn save(&self, records: &mut Records) {
        if !self.load_into(records) {
            return;
        }
        let written = self.write(&records.to_json());
        let failure = written.err().map(|error| format!("cannot write it: {error}"));
        self.set_failure(&mut self.state(), failure);
    }

    /// Whether the last save failed and must be retried.
    pub fn has_unsaved(&self) -> bool {
        self.state().failure.is_some()
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let fresh = self.folder.join("fresh");
        fs::create_dir_all(&self.folder)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(OWNER_ONLY)
            .open(&fresh)?;
        // A file that an earlier process left there would keep its mode.
        if file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
        }
        file.write_all(text.as_bytes())?;
        fs::rename(&fresh, self.path())
    }

    fn set_failure(&self, state: &mut FileState, failure: Option<String>) {
        self.metrics.state_behind.set(failure.is_some().into());
        if failure == state.failure {
            return;
        }
        let path = self.path();
        match &failure {
            Some(why) => tracing::warn!(
                "{}: {why}; trying again. Make its folder a writable one of the host: without the file a plugin \
                 that \
                 restarts knows nothing of pods that were deleted by force",
                path.display()
            ),
            None => tracing::info!("{}: written again", path.display()),
        }
        state.failure = failure;
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    // Each change is one assignment, so a panic cannot leave a partial change.
    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the file at `path`. A file that does not parse never becomes readable and counts as empty.
fn read(path: &Path) -> io::Result<SavedGrants> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SavedGrants::default()),
        Err(error) => return Err(error),
    };
    Ok(SavedGrants::from_json(&bytes).unwrap_or_else(|error| {
        tracing::warn!(
            "{} is none of this plugin's files and counts as empty: {error}",
            path.display()
        );
        SavedGrants::default()
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fixtures::{A, B, ids, simple};

    fn granted(pods: &[(&str, &str)]) -> Records {
        let mut records = Records::default();
        for (pod, gpu) in pods {
            let first = format!("{}-0", &gpu[4..12]);
            records.grant(&simple(pod, gpu, 1), "main", ids([first.as_str()]));
        }
        records
    }

    fn file(folder: &Path) -> GrantsFile {
        GrantsFile::new(folder.to_owned(), Metrics::default())
    }

    /// The grants that a new process loads.
    fn saved(folder: &Path) -> String {
        let mut records = Records::default();
        assert!(file(folder).load_into(&mut records));
        records.to_json()
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_replaced_before_it_could_be() {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path()).save(&mut granted(&[("earlier", A)]));
        let path = folder.path().join(FILE);
        let away = folder.path().join("away");
        fs::rename(&path, &away).unwrap();
        symlink(&path, &path).unwrap();
        let later = file(folder.path());
        let mut records = Records::default();
        assert!(!later.load_into(&mut records));
        records = granted(&[("later", B)]);
        later.save(&mut records);
        assert!(later.has_unsaved());
        assert_eq!(later.metrics.state_behind.get(), 1);
        fs::rename(&away, &path).unwrap();
        later.save(&mut records);
        assert!(!later.has_unsaved());
        let both = granted(&[("earlier", A), ("later", B)]).to_json();
        assert_eq!((records.to_json(), saved(folder.path())), (both.clone(), both));
    }

    #[test]
    fn other_users_of_the_node_cannot_read_it() {
        let folder = tempfile::tempdir().unwrap();
        // As an earlier process that was killed left it.
        let fresh = folder.path().join("fresh");
        fs::write(&fresh, "").unwrap();
        fs::set_permissions(&fresh, Permissions::from_mode(0o644)).unwrap();
        for pods in [&[("first", A)][..], &[("first", A), ("second", B)]] {
            file(folder.path()).save(&mut granted(pods));
            let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, OWNER_ONLY);
        }
    }

    #[test]
    fn what_could_not_be_written_is_behind_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let written = file(folder.path());
        let mut records = granted(&[("first", A)]);
        written.save(&mut records);
        let blocked = folder.path().join("fresh");
        fs::create_dir(&blocked).unwrap();
        records.grant(&simple("second", B, 1), "main", ids(["bbbbbbbb-0"]));
        written.save(&mut records);
        assert!(written.has_unsaved());
        assert_eq!(saved(folder.path()), granted(&[("first", A)]).to_json(), "as it was");
        fs::remove_dir(&blocked).unwrap();
        written.save(&mut records);
        assert!(!written.has_unsaved());
        assert_eq!(saved(folder.path()), records.to_json());
    }

    #[test]
    fn a_full_disk_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let written = file(folder.path());
        written.save(&mut granted(&[("first", A)]));
        // Writes to it fail for want of space.
        symlink("/dev/full", folder.path().join("fresh")).unwrap();
        written.save(&mut granted(&[("first", A), ("second", B)]));
        assert!(written.has_unsaved());
        assert_eq!(saved(folder.path()), granted(&[("first", A)]).to_json());
    }

    #[test]
    fn a_file_that_is_cut_off_counts_as_empty_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let text = granted(&[("first", A)]).to_json();
        for cut in [&b""[..], &text.as_bytes()[..text.len() / 2], b"\xff"] {
            fs::write(folder.path().join(FILE), cut).unwrap();
            let later = file(folder.path());
            later.save(&mut granted(&[("later", B)]));
            assert!(!later.has_unsaved());
            assert_eq!(saved(folder.path()), granted(&[("later", B)]).to_json());
        }
    }
}
