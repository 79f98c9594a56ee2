//! An asciicast of version 2: a line of JSON with the terminal's size, then for each frame one with the seconds since
//! the start and what was written to the terminal.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

/// A recording; clones write to the same file. Writing to it never fails: after the first error nothing more is
/// written, and [`Self::error`] returns it.
#[derive(Debug, Clone)]
pub(super) struct Asciicast(Arc<Mutex<Recording>>);

#[derive(Debug)]
struct Recording {
    file: File,
    start: Instant,
    /// The present frame.
    frame: Vec<u8>,
    /// The file's length up to the last complete line, in bytes.
    complete: u64,
    error: Option<String>,
}

impl Asciicast {
    /// Starts a recording of a terminal of this size in characters.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn create(path: &Path, width: u16, height: u16) -> io::Result<Self> {
        let mut recording = Recording {
            file: File::create(path)?,
            start: Instant::now(),
            frame: Vec::new(),
            complete: 0,
            error: None,
        };
        recording.write_line(&json!({
            "version": 2, "width": width, "height": height, "title": "Plimsoll",
            "env": {"TERM": "xterm-256color"},
        }));
        Ok(Self(Arc::new(Mutex::new(recording))))
    }

    /// The error after which nothing more was written.
    pub(super) fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    // After a panic the last frame may be missing, and nothing else.
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recording {
    fn write_line(&mut self, event: &Value) {
        let line = format!("{event}\n");
        if self.error.is_some() {
            return;
        }
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => self.complete += line.len() as u64,
            Err(error) => {
                self.error = Some(error.to_string());
                // Without half a line at its end the file can still be played.
                let _ = self.file.set_len(self.complete);
            }
        }
    }
}

impl Write for Asciicast {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().frame.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Ends a frame.
    fn flush(&mut self) -> io::Result<()> {
        let mut recording = self.lock();
        let frame = std::mem::take(&mut recording.frame);
        if !frame.is_empty() {
            let seconds = recording.start.elapsed().as_millis() as f64 / 1000.0;
            recording.write_line(&json!([seconds, "o", String::from_utf8_lossy(&frame)]));
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
        let mut recording = Asciicast::create(file.path(), 80, 24).unwrap();
        recording.write_all("a\u{1b}[1m".as_bytes()).unwrap();
        recording.flush().unwrap();
        recording.flush().unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["version"], &lines[1][2]), (&json!(2), &json!("a\u{1b}[1m")));
    }
    #[test]
    fn a_full_disk_ends_the_recording_and_nothing_else() {
        let mut recording = Asciicast::create(Path::new("/dev/full"), 80, 24).unwrap();
        recording.write_all(b"a").unwrap();
        recording.flush().unwrap();
        assert!(recording.error().unwrap().contains("No space left on device"));
    }
}
