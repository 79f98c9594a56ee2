//! The file, both directions:
//!
//! ```text
//! "plimsoll-samples" | version | sample interval, s | boot id | signals | signal… | CRC-32 of all before
//! signal: name | kind | 0, or 1 and the instance | newest sample, ms since boot | last slot | slots | f32…
//! ```
//!
//! Numbers are little-endian `u32` (milliseconds `u64`), texts have a `u16` length before them, a gap is NaN.
//! Nothing is taken from a file before its checksum fits.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::Duration;

use super::wire::{Summing, bytes, number, sum, text};
use crate::collectors;
use crate::series::{Interval, Moment, Series, Signal, Slot};
use crate::store::{Entry, Store};

const MAGIC: &[u8; 16] = b"plimsoll-samples";
const VERSION: u32 = 1;
const SUM: u64 = 4;

/// A boot of a machine, by the kernel's own name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot(pub String);

/// What a whole file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Samples of so many signals, now in the store.
    Signals(usize),
    /// Samples of another boot.
    OtherBoot,
    /// Samples of this boot, so many seconds apart.
    OtherInterval(u32),
}

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It does not begin as ours do.
    #[error("it does not begin like a file of samples")]
    Foreign,
    /// A format of another time.
    #[error("its format is version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// It was cut off or altered.
    #[error("its checksum does not fit: it was cut off or altered")]
    Torn,
    /// The checksum fits and the content makes no sense.
    #[error("it holds {0}")]
    Nonsense(&'static str),
    /// It cannot be read at all.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for FormatError {
    fn from(error: io::Error) -> Self {
        // Past its checksum a file that ends early was written so.
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Nonsense("less than it says"),
            _ => Self::Io(error),
        }
    }
}

/// Writes the samples of `store`.
///
/// # Errors
/// When `out` refuses.
pub fn write(out: impl Write, boot: &Boot, store: &Store) -> io::Result<()> {
    let mut out = Summing::new(out);
    out.put(MAGIC)?;
    out.put(&VERSION.to_le_bytes())?;
    let interval = store.interval().duration().as_secs();
    put_number(&mut out, interval)?;
    out.put_text(&boot.0)?;
    let sampled = || store.entries().iter().filter(|entry| entry.series.newest().is_some());
    put_number(&mut out, sampled().count() as u64)?;
    sampled().try_for_each(|entry| write_entry(&mut out, entry))?;
    out.finish()
}

fn write_entry<W: Write>(out: &mut Summing<W>, entry: &Entry) -> io::Result<()> {
    let Entry { signal, series, .. } = entry;
    let (Some(newest), Some((end, samples))) = (series.newest(), series.samples()) else {
        return Ok(());
    };
    out.put_text(signal.name())?;
    out.put_text(signal.kind().name)?;
    out.put(&[u8::from(signal.instance().is_some())])?;
    signal.instance().map_or(Ok(()), |instance| out.put_text(instance))?;
    let newest = u64::try_from(newest.0.as_millis()).unwrap_or(u64::MAX);
    out.put(&newest.to_le_bytes())?;
    out.put(&end.to_le_bytes())?;
    put_number(out, samples.size_hint().0 as u64)?;
    for sample in samples {
        out.put(&sample.to_le_bytes())?;
    }
    Ok(())
}

fn put_number<W: Write>(out: &mut Summing<W>, number: u64) -> io::Result<()> {
    let number = u32::try_from(number).map_err(io::Error::other)?;
    out.put(&number.to_le_bytes())
}

/// Reads samples of `boot` into `store`; those of another boot or interval are left where they are.
///
/// # Errors
/// When the file is torn, foreign or unreadable; the store may then hold a part of it only if the checksum fits.
pub fn read(
    input: &mut (impl Read + Seek),
    boot: &Boot,
    store: &mut Store,
    now: Moment,
) -> Result<Content, FormatError> {
    check(input)?;
    let seconds = number(input)?;
    let written = text(input)?;
    if written.as_ref() != Some(&boot.0) {
        return Ok(Content::OtherBoot);
    }
    if u64::from(seconds) != store.interval().duration().as_secs() {
        return Ok(Content::OtherInterval(seconds));
    }
    let mut signals = 0;
    for _ in 0..number(input)? {
        signals += usize::from(read_signal(input, store, now)?);
    }
    Ok(Content::Signals(signals))
}

/// Checks the beginning and the sum, and leaves the stream behind the version.
fn check(input: &mut (impl Read + Seek)) -> Result<(), FormatError> {
    let length = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    let head = MAGIC.len() as u64 + SUM;
    if length < head + SUM || bytes(input)? != *MAGIC {
        return Err(FormatError::Foreign);
    }
    let version = number(input)?;
    if version != VERSION {
        return Err(FormatError::Version(version));
    }
    input.rewind()?;
    if sum(input, length - SUM)? != number(input)? {
        return Err(FormatError::Torn);
    }
    input.seek(SeekFrom::Start(head))?;
    Ok(())
}

/// Whether the signal is one that is still measured; of others the samples are passed over.
fn read_signal(input: &mut impl Read, store: &mut Store, now: Moment) -> Result<bool, FormatError> {
    let no_text = FormatError::Nonsense("a name that is no text");
    let (Some(name), Some(kind)) = (text(input)?, text(input)?) else { return Err(no_text) };
    let instance = match bytes(input)? {
        [0] => None,
        _ => Some(text(input)?.ok_or(no_text)?),
    };
    let samples = Samples::read(input, store.interval(), now)?;
    let kind = collectors::KINDS.iter().find(|known| known.name == kind);
    let signal = kind.and_then(|kind| Signal::named(kind, &name, instance.as_deref()));
    let series = signal.and_then(|signal| store.loaded(&signal, samples.count as usize));
    samples.replay(input, series)
}

/// Where a signal's samples belong.
struct Samples {
    interval: Interval,
    newest: Moment,
    end: Slot,
    count: u32,
}

impl Samples {
    fn read(input: &mut impl Read, interval: Interval, now: Moment) -> Result<Self, FormatError> {
        let newest = Moment(Duration::from_millis(u64::from_le_bytes(bytes(input)?)));
        let (end, count) = (number(input)?, number(input)?);
        if newest > now || end > interval.slot(now) {
            return Err(FormatError::Nonsense("samples of the future"));
        }
        if count > end.saturating_add(1) {
            return Err(FormatError::Nonsense("samples from before the boot"));
        }
        Ok(Self { interval, newest, end, count })
    }

    /// Records them one by one, as if they were taken now; every window is then what it was.
    fn replay(
        self,
        input: &mut impl Read,
        mut series: Option<&mut Series>,
    ) -> Result<bool, FormatError> {
        let newest = self.interval.slot(self.newest);
        // `count` is at most `end + 1`.
        let first = self.end + 1 - self.count.min(self.end + 1);
        for slot in first..first + self.count {
            let sample = f32::from_le_bytes(bytes(input)?);
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
