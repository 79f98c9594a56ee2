//! An asciicast (version 2): what went to the terminal, with its times, one JSON array a line.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::json;

/// A recording; clones write to the same file.
#[derive(Debug, Clone)]
pub(super) struct Cast(Arc<Mutex<Recording>>);

#[derive(Debug)]
struct Recording {
    file: BufWriter<File>,
    start: Instant,
    buffer: Vec<u8>,
}

impl Cast {
    /// Begins a recording of a terminal of this size.
    pub(super) fn create(path: &Path, width: u16, height: u16) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        let header = json!({
            "version": 2, "width": width, "height": height, "title": "Plimsoll",
            "env": {"TERM": "xterm-256color"},
        });
        writeln!(file, "{header}")?;
        Ok(Self(Arc::new(Mutex::new(Recording {
            file,
            start: Instant::now(),
            buffer: Vec::new(),
        }))))
    }
}

impl Write for Cast {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// A frame ends here.
    fn flush(&mut self) -> io::Result<()> {
        let mut recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recording.buffer.is_empty() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&recording.buffer).into_owned();
        recording.buffer.clear();
        let seconds = recording.start.elapsed().as_millis() as f64 / 1000.0;
        writeln!(recording.file, "{}", json!([seconds, "o", text]))?;
        recording.file.flush()
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
}
