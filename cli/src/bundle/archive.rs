//! A tar archive with gzip, in the form of POSIX (ustar) that every tar reads.

use std::fs::File;
use std::io::Write;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

/// The size of a block.
const BLOCK: usize = 512;
/// The longest name.
const NAME: usize = 99;

/// An archive that is being written.
pub(super) struct Archive<W: Write = File> {
    gzip: GzEncoder<W>,
    time: Timestamp,
}

impl<W: Write> Archive<W> {
    /// Into this file; all files in it are of this time.
    pub(super) fn new(file: W, time: Timestamp) -> Self {
        Self { gzip: GzEncoder::new(file, Compression::default()), time }
    }

    /// Adds a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let content = text.as_bytes();
        let seconds = u64::try_from(self.time.as_second()).unwrap_or_default();
        self.gzip.write_all(&header(name, content.len() as u64, seconds))?;
        self.gzip.write_all(content)?;
        let rest = content.len() % BLOCK;
        if rest > 0 {
            self.gzip.write_all(&vec![0; BLOCK - rest])?;
        }
        Ok(())
    }

    /// Writes the end.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn finish(mut self) -> Result<()> {
        self.gzip.write_all(&[0; 2 * BLOCK])?;
        let mut file = self.gzip.finish()?;
        file.flush().context("the archive")
    }
}

/// The block before a file. Numbers are octal texts.
fn header(name: &str, size: u64, seconds: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    put(&mut block, 0, &name.as_bytes()[..name.len().min(NAME)]);
    put(&mut block, 100, b"0000600\0");
    put(&mut block, 108, b"0000000\0");
    put(&mut block, 116, b"0000000\0");
    put(&mut block, 124, format!("{size:011o}\0").as_bytes());
    put(&mut block, 136, format!("{seconds:011o}\0").as_bytes());
    // The checksum is that of the block with blanks in its place.
    put(&mut block, 148, b"        ");
    put(&mut block, 156, b"0");
    put(&mut block, 257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut block, 148, format!("{sum:06o}\0 ").as_bytes());
    block
}

fn put(block: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}
