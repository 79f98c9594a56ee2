//! The seeds of each target: fixtures and golden files of the repository, and the target's own examples.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Target;

/// The longest file that is a seed, in bytes; longer ones slow a fuzzer down.
const LONGEST: u64 = 8 << 10;

impl Target {
    /// Its seeds: the files', then the examples.
    #[must_use]
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let files = files(self.files).into_iter().map(|(_, bytes)| bytes);
        files.chain((self.examples)()).collect()
    }
}

/// Path and content of every file at and below these paths from the repository's root, up to [`LONGEST`], sorted by
/// path.
pub(crate) fn files(places: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    places.iter().for_each(|place| gather(&root().join(place), &mut found));
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Adds the files at and below `path`. A missing file is no error: `tests/it/stable.rs` checks that every target has a
/// seed.
fn gather(path: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        gather(&entry.path(), found);
    }
    if fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= LONGEST) {
        found.extend(fs::read(path).ok().map(|bytes| (path.display().to_string(), bytes)));
    }
}

/// Writes a target's seeds into a folder, one file each.
///
/// # Errors
/// When a file cannot be written.
pub fn write(target: &Target, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (number, seed) in target.seeds().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:04}")), seed)?;
    }
    Ok(())
}
