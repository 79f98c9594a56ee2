//! Numbers and texts of a file, little-endian, on a stream whose checksum is computed on the way.
//!
//! Samples go through it one by one. A serialiser would want all of a store at once: a second copy of up to 2.6 MiB at
//! the default `memoryLimit` of 12 MiB.

use std::io::{self, Read, Write};

/// A writer that computes the CRC-32 of all that it has written.
pub(super) struct ChecksumWriter<W> {
    inner: W,
    checksum: crc32fast::Hasher,
}

impl<W: Write> ChecksumWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, checksum: crc32fast::Hasher::new() }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.update(bytes);
        self.inner.write_all(bytes)
    }

    /// Writes a number that fits 32 bits.
    pub(super) fn put_number(&mut self, number: u64) -> io::Result<()> {
        let number = u32::try_from(number).map_err(io::Error::other)?;
        self.put(&number.to_le_bytes())
    }

    /// Writes the length in two bytes, then the text.
    pub(super) fn put_text(&mut self, text: &str) -> io::Result<()> {
        let length = u16::try_from(text.len()).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(text.as_bytes())
    }

    /// Ends the stream with the checksum.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let checksum = self.checksum.finalize();
        self.inner.write_all(&checksum.to_le_bytes())
    }
}

/// The CRC-32 of the next `length` bytes.
pub(super) fn checksum(input: &mut impl Read, length: u64) -> io::Result<u32> {
    let mut checksum = crc32fast::Hasher::new();
    let mut part = input.take(length);
    let mut buffer = [0; 4096];
    loop {
        match part.read(&mut buffer)? {
            0 => return Ok(checksum.finalize()),
            count => checksum.update(&buffer[..count]),
        }
    }
}

pub(super) fn read_bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn read_number(input: &mut impl Read) -> io::Result<u32> {
    read_bytes(input).map(u32::from_le_bytes)
}

/// `None` if the text is not UTF-8.
pub(super) fn read_text(input: &mut impl Read) -> io::Result<Option<String>> {
    let mut text = vec![0; u16::from_le_bytes(read_bytes(input)?).into()];
    input.read_exact(&mut text)?;
    Ok(String::from_utf8(text).ok())
}
