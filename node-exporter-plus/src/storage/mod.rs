//! The day's samples in a small file, so that a restarted process knows what its forerunner knew.
//!
//! The file serves the boot that wrote it and no other: slots are counted from the boot. So it needs no fsync:
//! what the kernel has taken outlives the process, and what it loses in a crash nobody could use. It is replaced
//! in one step, and a file that is torn or not ours is set aside, never overwritten.

mod format;
mod wire;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::Shutdown;

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
    /// A file that is torn or not ours; it has been moved there, if that was possible.
    SetAside(PathBuf),
}

impl Storage {
    /// Samples of `boot` in `file`.
    #[must_use]
    pub fn new(file: PathBuf, boot: Boot) -> Self {
        Self { file, boot }
    }

    /// Fills `store` with the samples of this boot. Nothing that the file holds can stop the process.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn load(&self, store: &mut Store, now: Moment) -> io::Result<Loaded> {
        let file = match File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Loaded::Absent),
            file => file?,
        };
        match read(&mut BufReader::new(file), &self.boot, store, now) {
            Ok(Content::Signals(signals)) => Ok(Loaded::Signals(signals)),
            Ok(other) => Ok(Loaded::Other(other)),
            Err(FormatError::Io(error)) => Err(error),
            Err(reason) => Ok(self.set_aside(&reason)),
        }
    }

    fn set_aside(&self, reason: &FormatError) -> Loaded {
        let aside = beside(&self.file, "unreadable");
        let moved = fs::rename(&self.file, &aside);
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
    /// When the file system refuses; the file that was there stays.
    pub fn save(&self, store: &Store) -> io::Result<()> {
        let draft = beside(&self.file, "new");
        let mut out = BufWriter::new(File::create(&draft)?);
        write(&mut out, &self.boot, store)?;
        out.flush()?;
        fs::rename(draft, &self.file)
    }
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
    loop {
        let ended = shutdown.run_until_cancelled(tokio::time::sleep(SAVE_EVERY)).await.is_none();
        // On the one thread there is: half a megabyte into the page cache takes a millisecond.
        if let Err(error) = storage.save(&store.lock()) {
            tracing::warn!(file = %storage.file.display(), %error, "samples not saved");
        }
        if ended {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
