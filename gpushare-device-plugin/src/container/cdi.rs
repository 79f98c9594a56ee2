//! Our CDI specification: one device for each card, with the environment that a container must see, and one for each limit of
//! a container.
//!
//! Invariants: the file is replaced atomically, so a runtime never reads a part of it. A written device stays, since a container
//! that restarts refers to it: the device of a card while this process runs, that of a limit for as long as the file exists. A
//! deleted file is written again, without its limits if it had the largest number of them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::card_env;
use crate::cards::{Card, Cards};
use crate::isolation::limit::Limit;

/// Value of `NVIDIA_VISIBLE_DEVICES` in a container that gets its card by CDI. NVIDIA's runtime then adds no
/// devices itself.
const VOID: &str = "void";

/// The largest number of different limits in the file. Runtimes read it at each start of a container.
const MAX_LIMITS: usize = 4096;

/// The file with our specification.
#[derive(Debug)]
pub struct SpecFile {
    path: PathBuf,
    kind: String,
    /// The folder of MPS on the host.
    mps: Option<PathBuf>,
    content: Mutex<Content>,
}

/// The content of the file.
#[derive(Debug, Default)]
struct Content {
    cards: Cards,
    limits: BTreeSet<Limit>,
}

/// The specification could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// The file cannot be replaced.
    #[error(
        "cannot write the CDI specification {path}: {cause}. Mount the host's CDI directory (--cdi-dir) writable"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// There are too many devices already.
    #[error(
        "the CDI specification {0} has {MAX_LIMITS} different limits already: delete the file once no GPU pod runs on the node"
    )]
    Full(PathBuf),
}

impl SpecFile {
    /// The file of devices of `kind` (`vendor/class`) in `directory`; existing limits are read from it. `mps` is the folder of MPS
    /// on the host.
    pub fn new(directory: &Path, kind: &str, mps: Option<PathBuf>) -> Self {
        let path = directory.join(format!("{}.json", kind.replace('/', "-")));
        let limits = fs::read_to_string(&path).map(|text| limits(&text)).unwrap_or_default();
        let content = Mutex::new(Content { cards: Cards::default(), limits });
        Self { path, kind: kind.to_owned(), mps, content }
    }

    /// Its path: the kind with `-` for `/`, ending in `.json`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the specification for `cards` unless the file is up to date.
    ///
    /// # Errors
    /// If the directory cannot be made or the file cannot be written.
    pub fn write(&self, cards: &Cards) -> Result<(), CdiError> {
        let mut content = self.content();
        content.cards = cards.clone();
        self.bring_up_to_date(&content)
    }

    /// Writes the specification again if the file was deleted or changed. Must not be called before the first [`SpecFile::write`].
    ///
    /// # Errors
    /// As [`SpecFile::write`].
    pub fn restore(&self) -> Result<(), CdiError> {
        self.bring_up_to_date(&self.content())
    }

    /// Adds the device of a limit if it is missing. The container runtime reads the file when it creates the container.
    ///
    /// # Errors
    /// As [`SpecFile::write`], and if there are too many limits.
    pub fn add(&self, limit: Limit) -> Result<(), CdiError> {
        let mut content = self.content();
        if content.limits.contains(&limit) {
            return self.bring_up_to_date(&content);
        }
        if content.limits.len() >= MAX_LIMITS {
            return Err(CdiError::Full(self.path.clone()));
        }
        content.limits.insert(limit);
        let written = self.bring_up_to_date(&content);
        if written.is_err() {
            content.limits.remove(&limit);
        }
        written
    }

    fn bring_up_to_date(&self, content: &Content) -> Result<(), CdiError> {
        let text = self.spec(content).to_string();
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
        written.map_err(|cause| CdiError::Write { path: self.path.clone(), cause })
    }

    fn spec(&self, content: &Content) -> Value {
        let cards = content.cards.iter().map(device);
        let limits = content.limits.iter().map(|limit| limit.device(self.mps.as_deref()));
        let devices: Vec<Value> = cards.chain(limits).collect();
        json!({ "cdiVersion": "0.5.0", "kind": self.kind, "devices": devices })
    }

    // Every change is one assignment or insert, so a panic cannot leave a partial change.
    fn content(&self) -> MutexGuard<'_, Content> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        // The fix that the text of CdiError::Full names.
        if content.limits.len() >= MAX_LIMITS && matches!(self.path.try_exists(), Ok(false)) {
            content.limits.clear();
        }
        content
    }
}

/// The limits of a specification that an earlier process wrote.
fn limits(text: &str) -> BTreeSet<Limit> {
    let spec: Value = serde_json::from_str(text).unwrap_or_default();
    let devices = spec["devices"].as_array().into_iter().flatten();
    let names = devices.filter_map(|device| device["name"].as_str());
    names.filter_map(|name| name.parse().ok()).take(MAX_LIMITS).collect()
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
    use placement::units::MiB;

    #[test]
    fn the_spec_has_a_device_for_each_card() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(&dir.path().join("cdi"), "plimsoll.dev/gpu-mem", None);
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
        let file = SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem", None);
        file.write(&cards(&[("GPU-a1b2c3d4-1", 16)])).unwrap();
        let written = fs::metadata(file.path()).unwrap();
        file.write(&cards(&[("GPU-a1b2c3d4-1", 16)])).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(file.path()).unwrap().ino(), written.ino());
    }

    fn limit_of(mib: u64) -> Limit {
        Limit::Driver { request: MiB(mib), limit: MiB(mib) }
    }

    fn names(file: &SpecFile) -> Vec<String> {
        let spec: Value = serde_json::from_str(&fs::read_to_string(file.path()).unwrap()).unwrap();
        let devices = spec["devices"].as_array().unwrap();
        devices.iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_device_of_a_limit_outlives_the_process_that_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let open = || SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem", None);
        let cards = cards(&[("GPU-a1b2c3d4-1", 16)]);
        let first = open();
        first.write(&cards).unwrap();
        first.add(limit_of(2048)).unwrap();
        let second = open();
        second.write(&cards).unwrap();
        second.add(limit_of(1024)).unwrap();
        assert_eq!(names(&second), ["GPU-a1b2c3d4-1", "driver-1024-1024", "driver-2048-2048"]);
    }

    #[test]
    fn a_file_that_someone_deletes_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem", None);
        file.write(&cards(&[("GPU-a1b2c3d4-1", 16)])).unwrap();
        file.add(limit_of(1)).unwrap();
        for again in [SpecFile::restore, |file: &SpecFile| file.add(limit_of(1))] {
            fs::remove_file(file.path()).unwrap();
            again(&file).unwrap();
            assert_eq!(names(&file), ["GPU-a1b2c3d4-1", "driver-1-1"]);
        }
    }

    #[test]
    fn deleting_a_full_file_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem", None);
        file.write(&Cards::default()).unwrap();
        file.content().limits = (1..=MAX_LIMITS as u64).map(limit_of).collect();
        file.restore().unwrap();
        assert!(matches!(file.add(limit_of(9999)), Err(CdiError::Full(_))));
        file.add(limit_of(1)).unwrap();
        fs::remove_file(file.path()).unwrap();
        file.restore().unwrap();
        file.add(limit_of(9999)).unwrap();
        assert_eq!(names(&file), ["driver-9999-9999"]);
    }

    #[test]
    fn a_limit_that_cannot_be_written_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(&dir.path().join("cdi"), "plimsoll.dev/gpu-mem", None);
        fs::write(dir.path().join("cdi"), "").unwrap();
        assert!(file.add(limit_of(1)).is_err());
        fs::remove_file(dir.path().join("cdi")).unwrap();
        file.add(limit_of(1)).unwrap();
        assert_eq!(names(&file), ["driver-1-1"]);
    }

    #[test]
    fn a_directory_that_cannot_be_made_says_which_flag() {
        let file = SpecFile::new(Path::new("/dev/null/cdi"), "plimsoll.dev/gpu-mem", None);
        assert!(file.write(&Cards::default()).unwrap_err().to_string().contains("--cdi-dir"));
    }
}
