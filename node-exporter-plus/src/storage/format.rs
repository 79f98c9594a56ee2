//! The format of a file of samples, in both directions.
//!
//! ```text
//! "plimsoll-samples" | version | sample interval, s | boot id | signals | signal… | CRC-32 of all before
//! signal: name | kind | 0, or 1 and the device | newest sample, ms since boot | last slot | slots | f32…
//! ```
//!
//! Numbers are little-endian `u32` (milliseconds `u64`), texts have a `u16` length before them, a gap is NaN.
//!
//! Invariant: no sample is loaded from a file with a wrong checksum.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::Duration;

use super::wire::{ChecksumWriter, checksum, read_bytes, read_number, read_text};
use crate::collectors;
use crate::series::{Interval, Moment, Series, Signal, Slot};
use crate::store::{Entry, Store};

const MAGIC: &[u8; 16] = b"plimsoll-samples";
const VERSION: u32 = 1;
/// The bytes of the version, and of the checksum.
const NUMBER: u64 = 4;

/// The kernel's id of one boot of a machine, from `/proc/sys/kernel/random/boot_id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootId(pub String);

/// The content of a valid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Samples of so many signals, which are in the store now.
    Signals(usize),
    /// Samples of another boot.
    OtherBoot,
    /// Samples of this boot at another interval, in seconds.
    OtherInterval(u32),
}

/// Why a file is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It is a file of another kind.
    #[error("it does not begin like a file of samples")]
    NotSamples,
    /// It has another version of the format.
    #[error("its format is version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// It was cut off or altered.
    #[error("its checksum does not fit: it was cut off or altered")]
    Checksum,
    /// Its checksum fits, but its content is impossible.
    #[error("it holds {0}")]
    Impossible(&'static str),
    /// It cannot be read.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for FormatError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The checksum fits by now, so the file was written like this.
            io::ErrorKind::UnexpectedEof => Self::Impossible("less than it says"),
            _ => Self::Io(error),
        }
    }
}

/// Writes the samples of `store`.
///
/// # Errors
/// Those of `out`.
pub fn write(out: impl Write, boot: &BootId, store: &Store) -> io::Result<()> {
    let mut out = ChecksumWriter::new(out);
    out.put(MAGIC)?;
    out.put(&VERSION.to_le_bytes())?;
    out.put_number(store.interval().duration().as_secs())?;
    out.put_text(&boot.0)?;
    let sampled = store.entries().iter().filter(|entry| entry.series.newest().is_some());
    out.put_number(sampled.clone().count() as u64)?;
    for entry in sampled {
        write_entry(&mut out, entry)?;
    }
    out.finish()
}

fn write_entry<W: Write>(out: &mut ChecksumWriter<W>, entry: &Entry) -> io::Result<()> {
    let Entry { signal, series, .. } = entry;
    let (Some(newest), Some((end, samples))) = (series.newest(), series.samples()) else {
        return Ok(());
    };
    out.put_text(signal.name())?;
    out.put_text(signal.kind().name)?;
    out.put(&[u8::from(signal.device().is_some())])?;
    signal.device().map_or(Ok(()), |device| out.put_text(device))?;
    let newest = u64::try_from(newest.0.as_millis()).unwrap_or(u64::MAX);
    out.put(&newest.to_le_bytes())?;
    out.put(&end.to_le_bytes())?;
    out.put_number(samples.size_hint().0 as u64)?;
    for sample in samples {
        out.put(&sample.to_le_bytes())?;
    }
    Ok(())
}

/// Reads samples of `boot` into `store`. Those of another boot or interval are not read.
///
/// # Errors
/// When the file is no file of samples, damaged or unreadable. Samples that come before an impossible one stay in the
/// store; of a file whose checksum does not fit it gets none.
pub fn read(
    input: &mut (impl Read + Seek),
    boot: &BootId,
    store: &mut Store,
    now: Moment,
) -> Result<Content, FormatError> {
    check(input)?;
    let seconds = read_number(input)?;
    let written = read_text(input)?;
    if written.as_ref() != Some(&boot.0) {
        return Ok(Content::OtherBoot);
    }
    if u64::from(seconds) != store.interval().duration().as_secs() {
        return Ok(Content::OtherInterval(seconds));
    }
    let mut signals = 0;
    for _ in 0..read_number(input)? {
        signals += usize::from(read_signal(input, store, now)?);
    }
    Ok(Content::Signals(signals))
}

/// Checks beginning, version and checksum, and leaves the stream behind the version.
fn check(input: &mut (impl Read + Seek)) -> Result<(), FormatError> {
    let length = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    let head = MAGIC.len() as u64 + NUMBER;
    if length < head + NUMBER || read_bytes(input)? != *MAGIC {
        return Err(FormatError::NotSamples);
    }
    let version = read_number(input)?;
    if version != VERSION {
        return Err(FormatError::Version(version));
    }
    input.rewind()?;
    if checksum(input, length - NUMBER)? != read_number(input)? {
        return Err(FormatError::Checksum);
    }
    input.seek(SeekFrom::Start(head))?;
    Ok(())
}

/// Reads a signal. False if it is not measured any more, or there is no room for it: its samples are skipped.
fn read_signal(input: &mut impl Read, store: &mut Store, now: Moment) -> Result<bool, FormatError> {
    let no_text = FormatError::Impossible("a name that is no text");
    let (Some(name), Some(kind)) = (read_text(input)?, read_text(input)?) else {
        return Err(no_text);
    };
    let device = match read_bytes(input)? {
        [0] => None,
        _ => Some(read_text(input)?.ok_or(no_text)?),
    };
    let samples = Samples::read(input, store.interval(), now)?;
    let kind = collectors::KINDS.iter().find(|known| known.name == kind);
    let signal = kind.and_then(|kind| Signal::with_name(kind, &name, device.as_deref()));
    let series = signal.and_then(|signal| store.series_to_load(&signal, samples.count as usize));
    samples.replay(input, series)
}

/// The slots of a signal's samples, which follow in the stream.
struct Samples {
    interval: Interval,
    /// The time of the newest sample.
    newest: Moment,
    /// The last slot, which may be a gap.
    end: Slot,
    /// How many slots there are, at most `end + 1`.
    count: u32,
}

impl Samples {
    fn read(input: &mut impl Read, interval: Interval, now: Moment) -> Result<Self, FormatError> {
        let newest = Moment(Duration::from_millis(u64::from_le_bytes(read_bytes(input)?)));
        let end = read_number(input)?;
        let count = read_number(input)?;
        if newest > now || end > interval.slot(now) {
            return Err(FormatError::Impossible("samples of the future"));
        }
        if count > end.saturating_add(1) {
            return Err(FormatError::Impossible("samples from before the boot"));
        }
        Ok(Self { interval, newest, end, count })
    }

    /// Records them in order, as if they were taken now, so that every window becomes what it was. False without a
    /// series.
    fn replay(
        self,
        input: &mut impl Read,
        mut series: Option<&mut Series>,
    ) -> Result<bool, FormatError> {
        let newest = self.interval.slot(self.newest);
        let first = self.end + 1 - self.count.min(self.end + 1);
        for slot in first..first + self.count {
            let sample = f32::from_le_bytes(read_bytes(input)?);
            let at = if slot == newest { self.newest } else { self.interval.start(slot) };
            if let Some(series) = &mut series {
                series.record(at, sample.into());
            }
        }
        if let Some(series) = &mut series {
            series.advance(self.interval.start(self.end));
        }
        Ok(series.is_some())
    }
}
