//! Our CDI specification: one device for each card, with the environment that a container must see.
//!
//! Invariants: the file is replaced in one step, so that a runtime never reads half of it. A device
//! once written stays while this process runs, since a container that restarts refers to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::card_env;
use crate::cards::{Card, Cards};

/// Value of `NVIDIA_VISIBLE_DEVICES` in a container whose card comes by CDI. NVIDIA's runtime then adds
/// nothing of its own.
const VOID: &str = "void";

/// The file with our specification.
#[derive(Debug, Clone)]
pub struct SpecFile {
    path: PathBuf,
    kind: String,
}

/// The specification could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write the CDI specification {path}: {cause}. Mount the host's CDI directory (--cdi-dir) writable"
)]
pub struct CdiError {
    path: PathBuf,
    cause: io::Error,
}

impl SpecFile {
    /// The file of devices of `kind` (`vendor/class`) in `directory`.
    pub fn new(directory: &Path, kind: &str) -> Self {
        Self {
            path: directory.join(format!("{}.json", kind.replace('/', "-"))),
            kind: kind.to_owned(),
        }
    }

    /// Its path: the kind with `-` for `/`, ending in `.json`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the specification for `cards` unless the file holds it already.
    ///
    /// # Errors
    /// When the directory cannot be made or the file cannot be written.
    pub fn write(&self, cards: &Cards) -> Result<(), CdiError> {
        let text = self.spec(cards).to_string();
        let unchanged = fs::read_to_string(&self.path).is_ok_and(|old| old == text);
        if unchanged { Ok(()) } else { self.replace(&text) }
    }

    fn replace(&self, text: &str) -> Result<(), CdiError> {
        // A runtime reads *.json and *.yaml only.
        let fresh = self.path.with_extension("tmp");
        let directory = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = directory
            .and_then(|()| fs::write(&fresh, text))
            .and_then(|()| fs::rename(&fresh, &self.path));
        written.map_err(|cause| CdiError { path: self.path.clone(), cause })
    }

    fn spec(&self, cards: &Cards) -> Value {
        let devices: Vec<Value> = cards.iter().map(device).collect();
        json!({ "cdiVersion": "0.5.0", "kind": self.kind, "devices": devices })
    }
}

fn device(card: &Card) -> Value {
    let env: Vec<String> =
        card_env(card, VOID).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    json!({ "name": card.uuid.as_str(), "containerEdits": { "env": env } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::cards;

    #[test]
    fn the_spec_has_a_device_for_each_card() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(&dir.path().join("cdi"), "plimsoll.dev/gpu-mem");
        file.write(&cards(&[("GPU-a1b2c3d4-1", 16)])).unwrap();
        assert!(file.path().ends_with("cdi/plimsoll.dev-gpu-mem.json"));
        let spec: Value = serde_json::from_str(&fs::read_to_string(file.path()).unwrap()).unwrap();
        let expected = json!({
            "cdiVersion": "0.5.0",
            "kind": "plimsoll.dev/gpu-mem",
            "devices": [{ "name": "GPU-a1b2c3d4-1", "containerEdits": { "env": [
                "NVIDIA_VISIBLE_DEVICES=void",
                "PLIMSOLL_GPU_UUID=GPU-a1b2c3d4-1",
                "ALIYUN_COM_GPU_MEM_IDX=0",
                "ALIYUN_COM_GPU_MEM_DEV=16",
            ] } }],
        });
        assert_eq!(spec, expected);
    }

    #[test]
    fn an_unchanged_spec_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem");
        file.write(&cards(&[("GPU-a1b2c3d4-1", 16)])).unwrap();
        let written = fs::metadata(file.path()).unwrap();
        file.write(&cards(&[("GPU-a1b2c3d4-1", 16)])).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(file.path()).unwrap().ino(), written.ino());
    }

    #[test]
    fn a_directory_that_cannot_be_made_says_which_flag() {
        let file = SpecFile::new(Path::new("/dev/null/cdi"), "plimsoll.dev/gpu-mem");
        assert!(file.write(&Cards::default()).unwrap_err().to_string().contains("--cdi-dir"));
    }
}
