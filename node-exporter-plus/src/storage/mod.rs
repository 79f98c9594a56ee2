//! The day's samples in a small file, so that a restarted process knows what its forerunner knew.
//!
//! The file serves the boot that wrote it and no other: slots are counted from the boot. So it needs no fsync:
//! what the kernel has taken outlives the process, and what it loses in a crash nobody could use. It is replaced
//! in one step, and a file that is torn or not ours is set aside, never overwritten. What is no regular file is neither
//! opened, moved nor replaced. Nothing of this stops the process: without its file it starts with nothing.

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

pub use format::{Boot, Content, FormatError, read, write};

/// How much of a day a killed process loses; one that is asked to stop loses nothing. A day of sixteen signals
/// is 0.5 MiB, so saving it costs the disk 2 KiB/s.
const SAVE_EVERY: Duration = Duration::from_secs(300);

/// Where the samples are kept, and for which boot.
#[derive(Debug, Clone)]
pub struct Storage {
    file: PathBuf,
    boot: Boot,
}

/// What a file held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    /// So many signals' samples.
    Signals(usize),
    /// There is no file yet.
    Absent,
    /// Samples of another boot, or taken at another interval: of no use, and not in doubt.
    Other(Content),
    /// A file that is torn, not ours or not to be read; it has been moved there, if that was possible.
    SetAside(PathBuf),
    /// What is there is no regular file, or nobody can tell: it is left alone.
    Unusable,
}

impl Storage {
    /// Samples of `boot` in `file`.
    #[must_use]
    pub fn new(file: PathBuf, boot: Boot) -> Self {
        Self { file, boot }
    }

    /// Fills `store` with the samples of this boot. Nothing that the file is or holds can stop the process: what is
    /// wrong with it is in the log. A file half written by a forerunner that was killed is taken away: it would hold
    /// memory for nothing.
    pub fn load(&self, store: &mut Store, now: Moment) -> Loaded {
        if let Err(error) = remove(&self.draft()) {
            tracing::warn!(file = %self.draft().display(), %error, "a file half written stays");
        }
        let held = match is_there(&self.file) {
            Ok(false) => return Loaded::Absent,
            Ok(true) => open(&self.file).map_err(FormatError::Io),
            Err(error) => {
                let file = self.file.display();
                tracing::warn!(%file, %error, "no samples of earlier, and none can be kept there");
                return Loaded::Unusable;
            }
        };
        let content = held.and_then(|file| read(&mut BufReader::new(file), &self.boot, store, now));
        match content {
            Ok(Content::Signals(signals)) => Loaded::Signals(signals),
            Ok(other) => Loaded::Other(other),
            Err(reason) => self.set_aside(&reason),
        }
    }

    /// Where a file is written before it takes the other's place.
    fn draft(&self) -> PathBuf {
        beside(&self.file, "new")
    }

    fn set_aside(&self, reason: &FormatError) -> Loaded {
        let aside = beside(&self.file, "unreadable");
        let moved = is_there(&aside).and_then(|_| fs::rename(&self.file, &aside));
        let (file, aside_shown) = (self.file.display(), aside.display());
        match moved {
            Ok(()) => {
                tracing::warn!(%file, aside = %aside_shown, %reason, "set aside: no samples of ours")
            }
            Err(error) => {
                tracing::warn!(%file, %reason, %error, "no samples of ours, and cannot be set aside")
            }
        }
        Loaded::SetAside(aside)
    }

    /// Replaces the file by the samples of `store`.
    ///
    /// # Errors
    /// When the file system refuses, or what is there is no regular file; it then stays.
    pub fn save(&self, store: &Store) -> io::Result<()> {
        let draft = self.draft();
        is_there(&self.file)?;
        remove(&draft)?;
        let saved = self.write(&draft, store).and_then(|()| fs::rename(&draft, &self.file));
        // A part of a file is of no use, and may be why there is no room.
        saved.or_else(|error| remove(&draft).and(Err(error)))
    }

    fn write(&self, draft: &Path, store: &Store) -> io::Result<()> {
        let mut out = BufWriter::new(File::create_new(draft)?);
        write(&mut out, &self.boot, store)?;
        out.flush()
    }
}

/// Whether there is a file. It is looked at, not opened: to open a pipe can wait for ever, and to open a device can
/// do anything.
///
/// # Errors
/// When what is there is no regular file, or nobody can tell.
fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(io::Error::other("it is no regular file; it is left as it is")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a file, even if it has become something else since it was looked at.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> io::Result<()> {
    if is_there(path)? { fs::remove_file(path) } else { Ok(()) }
}

/// Makes the file's folder and gives it to a user (and the group of that number), as root does for an exporter
/// that is not.
///
/// # Errors
/// When the file system refuses.
pub fn prepare(file: &Path, user: u32) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    std::os::unix::fs::chown(folder, Some(user), Some(user))
}

/// The file's name with one more ending.
fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Saves every five minutes, and once more at the shutdown.
pub(crate) async fn forever(
    storage: Storage,
    store: SharedStore,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut failure = None;
    loop {
        let ended = shutdown.run_until_cancelled(tokio::time::sleep(SAVE_EVERY)).await.is_none();
        // On the one thread there is: half a megabyte into the page cache takes a millisecond.
        let outcome = storage.save(&store.lock()).map_err(|error| error.to_string()).err();
        if let Some(error) = outcome.as_ref().filter(|_| outcome != failure) {
            tracing::warn!(file = %storage.file.display(), error, "samples not saved");
        }
        failure = outcome;
        if ended {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
