//! The temporary directory that holds every file of a run. It is deleted when its owner is dropped.

use anyhow::{Context, ensure};
use tempfile::TempDir;

/// Longest path of the directory, in bytes. A Unix socket's path has room for 107, and the longest one below the
/// directory takes 63: `/node-1000/var/lib/kubelet/device-plugins/plimsoll-gpu-mem.sock`.
const MAX_PATH: usize = 44;

/// Makes the directory, below `$TMPDIR`.
///
/// # Errors
/// When it cannot be made, or its path is longer than [`MAX_PATH`].
pub(crate) fn create() -> anyhow::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("plimsoll-").tempdir();
    let directory = directory.context("cannot make a temporary directory")?;
    let path = directory.path();
    ensure!(
        path.as_os_str().len() <= MAX_PATH,
        "{} is too long for sockets below it: set TMPDIR to a shorter one",
        path.display()
    );
    Ok(directory)
}
