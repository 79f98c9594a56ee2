//! Little-endian numbers and short texts on a stream that is summed up as it passes.

use std::io::{self, Read, Write};

/// A writer that knows the checksum of all that it has written.
pub(super) struct Summing<W> {
    inner: W,
    sum: crc32fast::Hasher,
}

impl<W: Write> Summing<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, sum: crc32fast::Hasher::new() }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }

    /// Its length in two bytes, then the text.
    pub(super) fn put_text(&mut self, text: &str) -> io::Result<()> {
        let length = u16::try_from(text.len()).map_err(io::Error::other)?;
        self.put(&length.to_le_bytes())?;
        self.put(text.as_bytes())
    }

    /// Ends the stream with its checksum.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let sum = self.sum.finalize();
        self.inner.write_all(&sum.to_le_bytes())
    }
}

/// The checksum of the next `length` bytes.
pub(super) fn sum(input: &mut impl Read, length: u64) -> io::Result<u32> {
    let mut sum = crc32fast::Hasher::new();
    let mut input = input.take(length);
    let mut buffer = [0; 4096];
    loop {
        match input.read(&mut buffer)? {
            0 => return Ok(sum.finalize()),
            count => sum.update(&buffer[..count]),
        }
    }
}

pub(super) fn bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn number(input: &mut impl Read) -> io::Result<u32> {
    bytes(input).map(u32::from_le_bytes)
}

/// None if the text is not UTF-8.
pub(super) fn text(input: &mut impl Read) -> io::Result<Option<String>> {
    let mut text = vec![0; u16::from_le_bytes(bytes(input)?).into()];
    input.read_exact(&mut text)?;
    Ok(String::from_utf8(text).ok())
}
