//! The file of the GPUs that this node had since its last boot, for a later process: a GPU that NVML can no longer
//! open then stays listed, and a GPU that failed stays failed.
//!
//! Invariant: the file is replaced as a whole. One that cannot be parsed counts as empty; a failed write is repeated at
//! the next change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use placement::units::{GpuId, MiB};
use serde::{Deserialize, Serialize};

/// The file's name.
const FILE: &str = "cards.json";

/// The largest file that is read, in bytes. 64 GPUs take some 20 KiB.
const MAX_FILE: u64 = 1 << 20;

/// A GPU of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedGpu {
    /// NVML's UUID.
    pub uuid: GpuId,
    /// NVML's index when it was last enumerated.
    pub index: u32,
    /// Product name.
    #[serde(default)]
    pub model: Option<String>,
    /// Memory that programs can have.
    #[serde(rename = "memoryMiB")]
    pub memory: MiB,
    /// The NUMA node that it is attached to.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// The critical error that it has not recovered from.
    #[serde(default)]
    pub failed: Option<SavedError>,
}

/// A critical error of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedError {
    /// NVIDIA's number of it, if the driver knew it.
    pub xid: Option<u64>,
}

/// The file.
#[derive(Debug)]
pub(crate) struct GpusFile {
    folder: PathBuf,
    written: Option<String>,
    failed: bool,
}

impl GpusFile {
    /// The file in that folder.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, written: None, failed: false }
    }

    /// The GPUs of earlier processes.
    pub(crate) fn read(&self) -> Vec<SavedGpu> {
        let path = self.folder.join(FILE);
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                tracing::warn!("{}: cannot read it: {error}", path.display());
                return Vec::new();
            }
        };
        serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!("{} counts as empty: {error}", path.display());
            Vec::new()
        })
    }

    /// Writes these GPUs unless the file has them.
    pub(crate) fn write(&mut self, gpus: &[SavedGpu]) {
        // Strings and numbers only: serialisation cannot fail.
        let text = serde_json::to_string(gpus).unwrap_or_default();
        if self.written.as_ref() == Some(&text) {
            return;
        }
        let written = self.replace(&text);
        if let Err(error) = &written
            && !self.failed
        {
            let folder = self.folder.display();
            tracing::warn!(
                "{folder}/{FILE}: cannot write it: {error}. Make it a writable folder of the host"
            );
        }
        self.failed = written.is_err();
        self.written = written.is_ok().then_some(text);
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let fresh = self.folder.join("fresh-cards");
        fs::create_dir_all(&self.folder)?;
        fs::write(&fresh, text)?;
        fs::rename(&fresh, self.folder.join(FILE))
    }
}

fn read(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > MAX_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_nonsense_counts_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let gpu = SavedGpu {
            uuid: "GPU-a".into(),
            index: 1,
            model: Some("NVIDIA A10".to_owned()),
            memory: MiB(4096),
            numa_node: None,
            failed: Some(SavedError { xid: Some(79) }),
        };
        let mut file = GpusFile::new(dir.path().join("state"));
        assert_eq!(file.read(), []);
        file.write(std::slice::from_ref(&gpu));
        assert_eq!(GpusFile::new(dir.path().join("state")).read(), [gpu]);
        fs::write(dir.path().join("state").join(FILE), "{").unwrap();
        assert_eq!(file.read(), []);
    }
}
