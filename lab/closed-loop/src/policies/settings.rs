//! How a policy differs from its kind: `key=value` pairs on the command line.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};

/// Settings by key, in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings(Vec<(String, String)>);

impl Settings {
    /// Takes the value of a key out; `None` where it is not set.
    ///
    /// # Errors
    ///
    /// Names the key, where the value cannot be read.
    pub fn take<T: FromStr>(&mut self, key: &str) -> anyhow::Result<Option<T>> {
        let Some(place) = self.0.iter().position(|(other, _)| other == key) else {
            return Ok(None);
        };
        let (_, value) = self.0.remove(place);
        let read = value.parse().ok();
        read.map(Some).with_context(|| format!("setting `{key}` cannot be `{value}`"))
    }

    /// As [`Settings::take`], for `on` and `off`.
    ///
    /// # Errors
    ///
    /// As [`Settings::take`].
    pub fn take_switch(&mut self, key: &str) -> anyhow::Result<Option<bool>> {
        match self.take::<String>(key)?.as_deref() {
            None => Ok(None),
            Some("on") => Ok(Some(true)),
            Some("off") => Ok(Some(false)),
            Some(value) => bail!("setting `{key}` cannot be `{value}`, expected `on` or `off`"),
        }
    }

    /// Checks that all were taken.
    ///
    /// # Errors
    ///
    /// Names the first that was not.
    pub fn none_is_left(&self) -> anyhow::Result<()> {
        match self.0.first() {
            Some((key, _)) => bail!("it has no setting `{key}`"),
            None => Ok(()),
        }
    }
}

impl FromStr for Settings {
    type Err = anyhow::Error;

    /// Reads `period=20,scale=30`.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut settings: Vec<(String, String)> = Vec::new();
        for pair in text.split(',') {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("expected `key=value`, found `{pair}`");
            };
            if settings.iter().any(|(other, _)| other == key) {
                bail!("setting `{key}` is there twice");
            }
            settings.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self(settings))
    }
}

/// Writes `[period=20,scale=30]`, or nothing where none is set.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let pairs: Vec<String> =
            self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        write!(f, "[{}]", pairs.join(","))
    }
}
