//! The time since the machine's boot, from `/proc/uptime`.
//!
//! Not from `btime` of `/proc/stat`, which is a wall clock's time and moves when that is set: `/proc/uptime` counts
//! from the boot itself, suspension included. Below `--host-root` it is the host's, also for an exporter in a
//! container.

use std::path::Path;
use std::time::Duration;

use super::file::lines;
use super::{ParseError, ProcFile};
use crate::series::Moment;

/// The file has one line of some 20 bytes.
const LIMIT: u64 = 1 << 10;

/// `/proc/uptime`, which is read at each request.
#[derive(Debug)]
pub struct UptimeFile(ProcFile);

impl UptimeFile {
    /// The file in the procfs at `procfs`.
    #[must_use]
    pub fn new(procfs: &Path) -> Self {
        Self(ProcFile::new(&procfs.join("uptime"), LIMIT))
    }

    /// The time since the boot. `None` where the file is missing or cannot be parsed.
    pub fn read(&mut self) -> Option<Moment> {
        self.0.parse(parse).ok()
    }
}

/// Reads the first of `350735.47 234388.90`: seconds since the boot.
///
/// # Errors
/// When it is no number of seconds.
pub fn parse(uptime: &[u8]) -> Result<Moment, ParseError> {
    let problem = ParseError::Line { line: 1, problem: "is no uptime in seconds" };
    let (_, text) = lines(uptime).next().ok_or(problem)?;
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse().ok()).ok_or(problem)?;
    Duration::try_from_secs_f64(seconds).map(Moment).map_err(|_| problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_uptime_is_seconds() {
        assert_eq!(parse(b"12.50 40.00\n"), Ok(Moment(Duration::from_millis(12_500))));
        for bad in ["", "-1 2\n", "NaN 1\n", "soon\n"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes);
        }
    }
}
