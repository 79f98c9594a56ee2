//! An asciicast (version 2): what went to the terminal, with its times, one JSON array a line.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

/// A recording; clones write to the same file. Writing to it never fails: at the first error it ends, and
/// [`Self::broken`] tells why.
#[derive(Debug, Clone)]
pub(crate) struct Cast(Arc<Mutex<Recording>>);

#[derive(Debug)]
struct Recording {
    file: File,
    start: Instant,
    buffer: Vec<u8>,
    /// Bytes of whole lines in the file.
    whole: u64,
    broken: Option<String>,
}

impl Cast {
    /// Begins a recording of a terminal of this size.
    ///
    /// # Errors
    /// Where the file cannot be made.
    pub(crate) fn create(path: &Path, width: u16, height: u16) -> io::Result<Self> {
        let mut recording = Recording {
            file: File::create(path)?,
            start: Instant::now(),
            buffer: Vec::new(),
            whole: 0,
            broken: None,
        };
        recording.line(&json!({
            "version": 2, "width": width, "height": height, "title": "Plimsoll",
            "env": {"TERM": "xterm-256color"},
        }));
        Ok(Self(Arc::new(Mutex::new(recording))))
    }

    /// Why the recording has ended before the run did, if it has.
    pub(crate) fn broken(&self) -> Option<String> {
        self.lock().broken.clone()
    }

    // Half a line is cut off below.
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recording {
    fn line(&mut self, event: &Value) {
        let line = format!("{event}\n");
        if self.broken.is_some() {
            return;
        }
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => self.whole += line.len() as u64,
            Err(error) => {
                self.broken = Some(error.to_string());
                // What was recorded before can still be played, without half a line at its end.
                let _ = self.file.set_len(self.whole);
            }
        }
    }
}

impl Write for Cast {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// A frame ends here.
    fn flush(&mut self) -> io::Result<()> {
        let mut recording = self.lock();
        let frame = std::mem::take(&mut recording.buffer);
        if !frame.is_empty() {
            let seconds = recording.start.elapsed().as_millis() as f64 / 1000.0;
            recording.line(&json!([seconds, "o", String::from_utf8_lossy(&frame)]));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flush_is_one_line_of_json() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut cast = Cast::create(file.path(), 80, 24).unwrap();
        cast.write_all("a\u{1b}[1m".as_bytes()).unwrap();
        cast.flush().unwrap();
        cast.flush().unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["version"], &lines[1][2]), (&json!(2), &json!("a\u{1b}[1m")));
    }
    #[test]
    fn a_full_disk_ends_the_recording_and_nothing_else() {
        let mut cast = Cast::create(Path::new("/dev/full"), 80, 24).unwrap();
        cast.write_all(b"a").unwrap();
        cast.flush().unwrap();
        assert!(cast.broken().unwrap().contains("No space left on device"));
    }
}
