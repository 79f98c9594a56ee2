//! The file of samples, from which a restarted process continues.
//!
//! A file serves the boot in which it was written and no other, since slots are counted from the boot. So it needs no
//! fsync: what the kernel has taken outlives the process, and after a crash of the machine the file is of no use. It is
//! replaced in one step. A file that is damaged or of another kind is renamed, never overwritten; what is no regular
//! file (a link, pipe, device or folder) is neither opened, renamed nor replaced.
//!
//! Invariant: no kind or content of the file stops the process. Without a file it starts without samples.

mod format;
mod wire;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::Shutdown;
use rustix::fs::OFlags;

use crate::SharedStore;
use crate::series::Moment;
use crate::store::Store;

pub use format::{BootId, Content, FormatError, read, write};

/// The time between two saves. A killed process loses the samples of this time at most; one that shuts down loses none.
/// A day of 16 signals is 0.5 MiB, which is 2 KiB/s.
const SAVE_EVERY: Duration = Duration::from_secs(300);

/// The file of `--storage.file`, and the boot that it is for.
#[derive(Debug, Clone)]
pub struct Storage {
    file: PathBuf,
    boot: BootId,
}

/// The result of loading the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    /// Samples of so many signals, which are in the store now.
    Signals(usize),
    /// No file.
    Absent,
    /// A good file of another boot or interval. It stays until it is replaced.
    Other(Content),
    /// A file that is damaged, of another kind or not readable. It was renamed to this, if that was possible.
    SetAside(PathBuf),
    /// Not a regular file, or its metadata cannot be read. It is not changed.
    Unusable,
}

impl Storage {
    /// The samples of `boot` are in `file`.
    #[must_use]
    pub fn new(file: PathBuf, boot: BootId) -> Self {
        Self { file, boot }
    }

    /// Fills `store` with the samples of this boot. What is wrong with the file is logged. A draft that a killed
    /// process left behind is removed, since a file in /run takes memory.
    pub fn load(&self, store: &mut Store, now: Moment) -> Loaded {
        if let Err(error) = remove(&self.draft()) {
            tracing::warn!(file = %self.draft().display(), %error, "cannot remove the unfinished file of an earlier process");
        }
        let opened = match is_regular_file(&self.file) {
            Ok(false) => return Loaded::Absent,
            Ok(true) => open(&self.file).map_err(FormatError::Io),
            Err(error) => {
                let file = self.file.display();
                tracing::warn!(%file, %error, "this is no regular file: samples are neither read from it nor saved to it");
                return Loaded::Unusable;
            }
        };
        let content =
            opened.and_then(|file| read(&mut BufReader::new(file), &self.boot, store, now));
        match content {
            Ok(Content::Signals(signals)) => Loaded::Signals(signals),
            Ok(other) => Loaded::Other(other),
            Err(reason) => self.set_aside(&reason),
        }
    }

    /// The file that is written and then renamed to the real one.
    fn draft(&self) -> PathBuf {
        add_extension(&self.file, "new")
    }

    fn set_aside(&self, reason: &FormatError) -> Loaded {
        let aside = add_extension(&self.file, "unreadable");
        let moved = is_regular_file(&aside).and_then(|_| fs::rename(&self.file, &aside));
        let file = self.file.display();
        let aside_shown = aside.display();
        match moved {
            Ok(()) => {
                tracing::warn!(%file, aside = %aside_shown, %reason, "the file cannot be read as samples, and was renamed: this process starts without samples")
            }
            Err(error) => {
                tracing::warn!(%file, %reason, %error, "the file cannot be read as samples, and it cannot be renamed either")
            }
        }
        Loaded::SetAside(aside)
    }

    /// Replaces the file by the samples of `store`.
    ///
    /// # Errors
    /// Those of the file system; and when what is there is no regular file, which then stays.
    pub fn save(&self, store: &Store) -> io::Result<()> {
        let draft = self.draft();
        is_regular_file(&self.file)?;
        remove(&draft)?;
        let saved = self.write(&draft, store).and_then(|()| fs::rename(&draft, &self.file));
        // A part of a file is of no use, and may have taken the last space.
        saved.or_else(|error| remove(&draft).and(Err(error)))
    }

    fn write(&self, draft: &Path, store: &Store) -> io::Result<()> {
        let mut out = BufWriter::new(File::create_new(draft)?);
        write(&mut out, &self.boot, store)?;
        out.flush()
    }
}

/// Whether there is a regular file; false if the path does not exist. It reads metadata and does not open the file:
/// opening a pipe can block for ever, and opening a device has side effects.
///
/// # Errors
/// If the path is no regular file, or its metadata cannot be read.
fn is_regular_file(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(io::Error::other("it is no regular file; it is left as it is")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a file without blocking and without following links, in case it has become a pipe or a link since the check.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> io::Result<()> {
    if is_regular_file(path)? { fs::remove_file(path) } else { Ok(()) }
}

/// Makes the file's folder and gives it to a user, and to the group of the same number. Root does this for an exporter
/// that does not run as root.
///
/// # Errors
/// Those of the file system.
pub fn prepare(file: &Path, user: u32) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    std::os::unix::fs::chown(folder, Some(user), Some(user))
}

/// The file's path with one more extension.
fn add_extension(file: &Path, extension: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Saves every five minutes and at the shutdown.
pub(crate) async fn forever(
    storage: Storage,
    store: SharedStore,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut failure = None;
    loop {
        let ended = shutdown.run_until_cancelled(tokio::time::sleep(SAVE_EVERY)).await.is_none();
        // It blocks the only thread: writing 0.5 MiB into the page cache takes a millisecond.
        let outcome = storage.save(&store.lock()).map_err(|error| error.to_string()).err();
        if let Some(error) = &outcome
            && outcome != failure
        {
            tracing::warn!(file = %storage.file.display(), error, "cannot save the samples");
        }
        failure = outcome;
        if ended {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
