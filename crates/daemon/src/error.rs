//! Errors as one line of text.

use std::error::Error;
use std::fmt;

/// An error and its causes in one line, joined by `: `. A cause that the text before already ends with is left out, since
/// many libraries' errors repeat their causes.
///
/// # Examples
/// ```
/// use anyhow::Context;
/// let error = Err::<(), _>(std::io::Error::other("disk full")).context("/run/samples").unwrap_err();
/// assert_eq!(daemon::Causes(error.as_ref()).to_string(), "/run/samples: disk full");
/// ```
pub struct Causes<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.0.to_string();
        let causes = std::iter::successors(self.0.source(), |error| (*error).source());
        for cause in causes.map(ToString::to_string) {
            if !line.ends_with(&cause) {
                line.push_str(": ");
                line.push_str(&cause);
            }
        }
        formatter.write_str(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A library's error that repeats its source.
    #[derive(Debug, thiserror::Error)]
    #[error("cannot read {path}: {source}")]
    struct Repeating {
        path: &'static str,
        source: io::Error,
    }

    #[test]
    fn a_cause_that_is_repeated_is_named_once() {
        let source = io::Error::from_raw_os_error(2);
        let error = Repeating { path: "/x", source };
        let line = Causes(&error).to_string();
        assert_eq!(line, "cannot read /x: No such file or directory (os error 2)");
        let line = Causes(anyhow::Error::new(error).context("--kubeconfig").as_ref()).to_string();
        assert_eq!(line, "--kubeconfig: cannot read /x: No such file or directory (os error 2)");
    }
}
