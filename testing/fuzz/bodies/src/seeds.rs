//! Inputs to start from: the repository's own fixtures and golden files, and what the targets make.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::Target;

/// Longer ones only slow a fuzzer down.
const LONGEST: u64 = 8 << 10;

impl Target {
    /// Where it starts from.
    #[must_use]
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let files = files(self.files).into_iter().map(|(_, bytes)| bytes);
        files.chain((self.made)()).collect()
    }
}

/// Every file at and below these places of the repository, by path; none that is long.
pub(crate) fn files(places: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    places.iter().for_each(|place| gather(&root().join(place), &mut found));
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// What is not there is no seed; `tests/stable.rs` sees to it that every target has some.
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
/// When the file system refuses.
pub fn write(target: &Target, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (number, seed) in target.seeds().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:04}")), seed)?;
    }
    Ok(())
}
