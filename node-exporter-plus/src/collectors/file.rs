//! Reading a file of the kernel's once a sample, in bounded memory.
//!
//! Invariant: of a file that is longer than its bound the whole lines within the bound are read. The number at which a
//! line is cut off would be another number.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, statfs};

use super::{CollectError, ParseError};

/// A file in `/proc` or `/sys`. Its buffer is kept between reads.
#[derive(Debug)]
pub struct ProcFile {
    path: PathBuf,
    limit: u64,
    buffer: Vec<u8>,
    /// Whether lines were left out at the last reading.
    cut: bool,
}

impl ProcFile {
    /// The file at `path`, of which at most `limit` bytes are read.
    #[must_use]
    pub fn new(path: &Path, limit: u64) -> Self {
        Self { path: path.to_owned(), limit, buffer: Vec::new(), cut: false }
    }

    /// Reads the file now and parses it.
    ///
    /// # Errors
    /// When either fails. The error names the path.
    pub fn parse<T>(
        &mut self,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Result<T, CollectError> {
        self.read().map_err(|cause| CollectError::Read { path: self.path.clone(), cause })?;
        parse(&self.buffer).map_err(|cause| CollectError::Parse { path: self.path.clone(), cause })
    }

    /// The same for a file that not every kernel has: `None` where it is missing, or switched off as PSI can be.
    ///
    /// # Errors
    /// When it is there and reading or parsing fails.
    pub fn parse_if_there<T>(
        &mut self,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Result<Option<T>, CollectError> {
        match self.parse(parse) {
            Err(CollectError::Read { cause, .. })
                if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) =>
            {
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    fn read(&mut self) -> std::io::Result<()> {
        self.buffer.clear();
        // Opened each time: the mount may have been replaced.
        File::open(&self.path)?.take(self.limit + 1).read_to_end(&mut self.buffer)?;
        let cut = self.buffer.len() as u64 > self.limit;
        if cut {
            let last = self.buffer.iter().rposition(|byte| *byte == b'\n');
            self.buffer.truncate(last.map_or(0, |last| last + 1));
        }
        if cut && !self.cut {
            let file = self.path.display();
            tracing::warn!(%file, bytes = self.limit, "the file is longer than what is read of it; lines are left out");
        }
        self.cut = cut;
        Ok(())
    }
}

/// Reads a short file, such as an attribute of `/sys`. `None` where it is missing, is no text or has more than 64 KiB.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(SHORT + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= SHORT).then_some(text)
}

/// A list of 8,192 CPUs of which every other one is missing has 20 KiB.
const SHORT: u64 = 64 << 10;

/// The lines of a kernel file, numbered from 1. A line that is not UTF-8 counts as empty: the lines that are parsed are
/// always UTF-8.
pub(super) fn lines(content: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let lines = content.split(|byte| *byte == b'\n');
    lines.enumerate().map(|(index, line)| (index + 1, str::from_utf8(line).unwrap_or_default()))
}

/// statfs(2): the type of file systems that a process serves.
const FUSE: FsWord = 0x6573_5546;

/// Whether a process serves the file, as lxcfs does: then it shows a container, and other files the host.
pub(super) fn is_of_container(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type == FUSE)
}

/// Whether `path` exists; false if that cannot be determined.
pub(super) fn exists(path: &Path) -> bool {
    path.try_exists().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_loses_the_line_that_is_cut_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (content, read) in [
            ("12\n34\n5678\n", "12\n34\n"),
            ("12\n34\n567", "12\n34\n"),
            ("12\n34\n56", "12\n34\n56"),
            ("12\n34\n5\n", "12\n34\n5\n"),
            ("123456789", ""),
        ] {
            std::fs::write(&path, content).unwrap();
            let mut file = ProcFile::new(&path, 8);
            let found = file.parse(|text| Ok(text.to_vec())).unwrap();
            assert_eq!(found, read.as_bytes(), "{content}");
        }
    }
}
