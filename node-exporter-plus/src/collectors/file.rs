//! Reading a file of the kernel's once a sample, in bounded memory.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::{CollectError, ParseError};

/// A file in `/proc` or `/sys`. Its buffer is kept between reads.
#[derive(Debug)]
pub struct ProcFile {
    path: PathBuf,
    limit: u64,
    buffer: Vec<u8>,
}

impl ProcFile {
    /// The file at `path`, of which at most `limit` bytes are read.
    #[must_use]
    pub fn new(path: &Path, limit: u64) -> Self {
        Self { path: path.to_owned(), limit, buffer: Vec::new() }
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
        File::open(&self.path)?.take(self.limit).read_to_end(&mut self.buffer)?;
        Ok(())
    }
}

/// The lines of a kernel file, numbered from 1. A line that is not UTF-8 counts as empty: the lines that are parsed are
/// always UTF-8.
pub(super) fn lines(content: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let lines = content.split(|byte| *byte == b'\n');
    lines.enumerate().map(|(index, line)| (index + 1, str::from_utf8(line).unwrap_or_default()))
}

/// Whether `path` exists; false if that cannot be determined.
pub(super) fn exists(path: &Path) -> bool {
    path.try_exists().unwrap_or(false)
}
