//! Errors as one line of text.

use std::error::Error;
use std::fmt;

/// An error and its causes in one line, joined by `: `. A cause that the text before already ends with is left out,
/// since many libraries' errors repeat their causes.
///
/// # Examples
/// ```
/// use anyhow::Context;
/// let error = Err::<(), _>(std::io::Error::other("disk full")).context("/run/samples").unwrap_err();
/// assert_eq!(daemon::Causes(error.as_ref()).to_string(), "/run/samples: disk full");
/// ```
pub struct Causes<'a>(pub &'a (dyn Error + 'static));

impl<'a> Causes<'a> {
    /// The text of the last cause alone, where the errors around it only repeat what was tried.
    #[must_use]
    pub fn innermost(&self) -> String {
        self.chain().last().unwrap_or(self.0).to_string()
    }

    /// Whether the line holds the text of each error once; for tests of the errors that operators see.
    #[must_use]
    pub fn are_named_once(&self) -> bool {
        let line = self.to_string();
        self.chain().all(|error| line.matches(&error.to_string()).count() == 1)
    }

    /// The error, and each cause of the one before.
    fn chain(&self) -> impl Iterator<Item = &'a (dyn Error + 'static)> + use<'a> {
        std::iter::successors(Some(self.0), |error| (*error).source())
    }
}

impl fmt::Display for Causes<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.0.to_string();
        for cause in self.chain().skip(1).map(ToString::to_string) {
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

    /// A library's error that names its source in its own text too.
    #[derive(Debug)]
    struct Repeating(io::Error);

    impl fmt::Display for Repeating {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "cannot read /x: {}", self.0)
        }
    }

    impl Error for Repeating {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_innermost_cause_is_the_error_itself_where_there_is_none() {
        let error = anyhow::Error::new(io::Error::other("disk full"));
        let outer = anyhow::Error::new(io::Error::other("disk full")).context("a").context("b");
        assert_eq!(Causes(error.as_ref()).innermost(), "disk full");
        assert_eq!(Causes(outer.as_ref()).innermost(), "disk full");
    }

    #[test]
    fn a_cause_in_the_middle_of_a_text_is_found_to_be_named_twice() {
        let cause = anyhow::Error::new(io::Error::from_raw_os_error(2));
        let text = format!("the file ({cause}) is missing");
        assert!(!Causes(cause.context(text).as_ref()).are_named_once());
    }

    #[test]
    fn a_cause_that_is_repeated_is_named_once() {
        let error = Repeating(io::Error::from_raw_os_error(2));
        assert!(Causes(&error).are_named_once());
        let line = Causes(&error).to_string();
        assert_eq!(line, "cannot read /x: No such file or directory (os error 2)");
        let line = Causes(anyhow::Error::new(error).context("--kubeconfig").as_ref()).to_string();
        assert_eq!(line, "--kubeconfig: cannot read /x: No such file or directory (os error 2)");
    }
}
