//! The temporary directory that a command keeps everything in. It goes away with its owner.

use anyhow::{Context, ensure};
use tempfile::TempDir;

/// A Unix socket's path has room for 107 bytes, and the longest below the directory takes 47:
/// `/node-1000/device-plugins/plimsoll-gpu-mem.sock`. A little less leaves `KUBECONFIG=` and the path of
/// the kubeconfig whole in 80 columns.
pub(crate) const LONGEST: usize = 56;

/// Makes one.
///
/// # Errors
/// Where that cannot be done, or its path is longer than [`LONGEST`].
pub(crate) fn directory() -> anyhow::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("plimsoll-").tempdir();
    let directory = directory.context("cannot make a temporary directory")?;
    let path = directory.path();
    ensure!(
        path.as_os_str().len() <= LONGEST,
        "{} is too long for sockets below it: set TMPDIR to a shorter one",
        path.display()
    );
    Ok(directory)
}
