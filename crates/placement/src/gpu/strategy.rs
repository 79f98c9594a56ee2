//! How a card is chosen among those that a request fits.

use std::fmt;
use std::str::FromStr;

/// Which of several cards, or nodes, with room a pod goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// The one that it fills best: large requests find room later.
    #[default]
    Pack,
    /// The one with the most room: neighbours disturb each other least.
    Spread,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Pack, Self::Spread];

    /// Its name in annotations and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Spread => "spread",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("neither `pack` nor `spread`")]
pub struct UnknownStrategy;

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == text).ok_or(UnknownStrategy)
    }
}
