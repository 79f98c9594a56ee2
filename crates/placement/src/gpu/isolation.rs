//! How a container is limited to its share of a GPU: what a pod requires, and what a node can enforce.

use std::fmt;
use std::str::FromStr;

/// A mode of isolation, from the weakest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isolation {
    /// Not at all: a container can use the whole GPU.
    #[default]
    None,
    /// By NVIDIA's MPS server, for programs that do not change their own environment.
    Mps,
    /// By NVIDIA's driver, on the container's control group.
    Driver,
}

/// A text that is no mode of isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `driver`, `mps` or `none`")]
pub struct UnknownIsolation;

impl Isolation {
    /// All modes, the weakest first.
    pub const ALL: [Self; 3] = [Self::None, Self::Mps, Self::Driver];

    /// Its name in annotations, flags and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mps => "mps",
            Self::Driver => "driver",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isolation {
    type Err = UnknownIsolation;

    fn from_str(text: &str) -> Result<Self, UnknownIsolation> {
        Self::ALL.into_iter().find(|isolation| isolation.name() == text).ok_or(UnknownIsolation)
    }
}
