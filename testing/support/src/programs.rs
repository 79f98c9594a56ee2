//! Programs that tests write and run.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a script that can be run at once.
///
/// A process of its own writes it: whatever another test's thread starts meanwhile would have the file open for writing
/// too, and Linux does not run such a file (`ETXTBSY`). It takes the place of an earlier one whole: a shell that runs a
/// script reads it as it goes.
pub fn write_script(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "cat > \"$1.new\" && chmod 755 \"$1.new\" && mv \"$1.new\" \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped());
    let mut writer = shell.spawn().unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let status = writer.wait().unwrap();
    assert!(status.success(), "{} was not written", path.display());
}
