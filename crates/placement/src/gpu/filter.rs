//! Which GPUs a pod accepts, by model, by UUID, and by the isolation that the node can enforce.

use super::Isolation;

/// Patterns that a list may have: each is matched against each GPU of each node.
const MAX_PATTERNS: usize = 64;

/// The longest list, in bytes: 64 names of 63 bytes. The lists of waiting pods are kept.
const MAX_LIST: usize = 4 << 10;

/// GPUs that a pod accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuFilter {
    /// By the product's name, as in `NVIDIA A10`.
    pub models: Patterns,
    /// By NVML's UUID.
    pub uuids: Patterns,
    /// The weakest isolation that the pod requires for its containers.
    pub isolation: Isolation,
}

impl GpuFilter {
    /// Whether a GPU of that model and UUID is accepted.
    pub fn accepts(&self, model: &str, uuid: &str) -> bool {
        self.models.accept(model) && self.uuids.accept(uuid)
    }

    /// Whether every GPU is.
    pub(crate) fn accepts_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a node that can enforce `strongest` at most can enforce what the pod requires. Without a report it is
    /// not known to.
    pub(crate) fn is_enforced_by(&self, strongest: Option<Isolation>) -> bool {
        self.isolation <= strongest.unwrap_or_default()
    }
}

/// A list of names, as in `NVIDIA A10, *A100*, !*80GB*`: with `!` those that are not accepted. `*` stands for any text;
/// upper and lower case are the same. Without a name that is accepted, all others are.
///
/// # Examples
///
/// ```
/// use placement::gpu::Patterns;
///
/// let patterns: Patterns = "NVIDIA A10, *A100*, !*80GB*".parse()?;
/// assert!(patterns.accept("nvidia a10") && patterns.accept("NVIDIA A100-PCIE-40GB"));
/// assert!(!patterns.accept("NVIDIA A100-SXM4-80GB") && !patterns.accept("Tesla T4"));
/// assert!("!Tesla*".parse::<Patterns>()?.accept("NVIDIA A10"));
/// # Ok::<(), placement::gpu::PatternError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Patterns {
    accepted: Vec<String>,
    refused: Vec<String>,
}

/// Why a text is no list of patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing between two commas, or after a `!`.
    #[error("an empty name: write names with a comma between them, as in `NVIDIA A10,!Tesla*`")]
    Empty,
    /// Too many.
    #[error("more than {MAX_PATTERNS} names")]
    TooMany,
    /// Too long.
    #[error("a list of {0} bytes: write at most 4 KiB")]
    TooLong(usize),
}

impl std::str::FromStr for Patterns {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.len() > MAX_LIST {
            return Err(PatternError::TooLong(text.len()));
        }
        let mut patterns = Self::default();
        for (count, item) in text.split(',').map(str::trim).enumerate() {
            if count >= MAX_PATTERNS {
                return Err(PatternError::TooMany);
            }
            let (list, name) = match item.strip_prefix('!') {
                Some(name) => (&mut patterns.refused, name.trim()),
                None => (&mut patterns.accepted, item),
            };
            if name.is_empty() {
                return Err(PatternError::Empty);
            }
            list.push(name.to_lowercase());
        }
        Ok(patterns)
    }
}

impl Patterns {
    /// The names that are accepted, in small letters, with `*` for any text; without one all are.
    pub fn accepted(&self) -> &[String] {
        &self.accepted
    }

    /// The names that are not, in the same form.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Whether a name that no pattern matches is accepted.
    pub(crate) fn accept_by_default(&self) -> bool {
        self.accepted.is_empty()
    }

    /// Whether a name is accepted.
    pub fn accept(&self, name: &str) -> bool {
        if self.accepted.is_empty() && self.refused.is_empty() {
            return true;
        }
        let lower = name.to_lowercase();
        !matches_any(&self.refused, &lower)
            && (self.accepted.is_empty() || matches_any(&self.accepted, &lower))
    }
}

fn matches_any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

/// Whether `*` in a pattern can be texts that make it the name. Takes pattern × name steps at most.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, others)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let (middle, last) = others.rsplit_once('*').unwrap_or(("", others));
    for part in middle.split('*') {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, matched) in [
            ("a10", "a10", true),
            ("a10", "a100", false),
            ("a10*", "a100", true),
            ("*a10", "nvidia a10", true),
            ("*a*0*", "nvidia a10", true),
            ("ab*ba", "aba", false),
            ("*", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), matched, "{pattern} {name}");
        }
    }

    #[test]
    fn an_empty_name_and_too_many_are_refused() {
        assert_eq!("a,,b".parse::<Patterns>(), Err(PatternError::Empty));
        assert_eq!("!".parse::<Patterns>(), Err(PatternError::Empty));
        assert_eq!("a,".repeat(65).parse::<Patterns>(), Err(PatternError::TooMany));
        assert!("a".repeat(4096).parse::<Patterns>().is_ok());
        assert_eq!("a".repeat(4097).parse::<Patterns>(), Err(PatternError::TooLong(4097)));
    }
}
