//! The words between who asks for a context and the process that opens it: one line each way.
//!
//! Invariant: what parses is bounded, and has no character that could forge another line of a log.

use std::fmt;
use std::path::PathBuf;

/// The longest line in bytes, without its end.
pub const MAX_LINE: usize = 1024;
/// The longest reason in characters, of up to four bytes each.
const LONGEST_WHY: usize = MAX_LINE / 4 - 8;
/// The longest UUID in bytes; NVIDIA's have 40.
const MAX_UUID: usize = 96;

/// Asks for a context on one GPU: `GPU-… none`, or `GPU-… mps /FOLDER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The GPU.
    pub uuid: String,
    /// The folder of MPS's pipes, absolute; `None` without MPS.
    pub mps: Option<PathBuf>,
}

impl Question {
    /// The question of a line without its end; `None` for any other text.
    pub fn parse(line: &str) -> Option<Self> {
        let (uuid, way) = is_plain(line).then(|| line.split_once(' '))??;
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if uuid.is_empty() || uuid.len() > MAX_UUID || !uuid.bytes().all(known) {
            return None;
        }
        let mps = match way.split_once(' ') {
            None if way == "none" => None,
            Some(("mps", folder)) if folder.starts_with('/') => Some(PathBuf::from(folder)),
            _ => return None,
        };
        Some(Self { uuid: uuid.to_owned(), mps })
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mps {
            Some(folder) => write!(f, "{} mps {}", self.uuid, folder.display()),
            None => write!(f, "{} none", self.uuid),
        }
    }
}

/// What came of it: `passed`, `failed WHY` or `unknown WHY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The context opened and the GPU's memory held what was written.
    Passed,
    /// A program of a pod would fail too, for this reason.
    Failed(String),
    /// Nothing is known about the GPU, for this reason.
    Unknown(String),
}

impl Answer {
    /// The answer of a line without its end; `None` for any other text.
    pub fn parse(line: &str) -> Option<Self> {
        match is_plain(line).then(|| line.split_once(' ').unwrap_or((line, "")))? {
            ("passed", "") => Some(Self::Passed),
            ("failed", why) if !why.is_empty() => Some(Self::Failed(why.to_owned())),
            ("unknown", why) if !why.is_empty() => Some(Self::Unknown(why.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(why) => write!(f, "failed {}", one_line(why)),
            Self::Unknown(why) => write!(f, "unknown {}", one_line(why)),
        }
    }
}

fn is_plain(line: &str) -> bool {
    line.len() <= MAX_LINE && !line.contains(char::is_control)
}

/// A text that fits into an answer.
fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.chars().take(LONGEST_WHY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_one_gpu_and_one_way() {
        for line in ["GPU-a none", "GPU-7f2a-5afe mps /run/plimsoll/mps/pipe", "a mps /with space"]
        {
            assert_eq!(Question::parse(line).unwrap().to_string(), line);
        }
        let long = format!("{} none", "a".repeat(MAX_UUID + 1));
        for line in [
            "",
            "GPU-a",
            " none",
            "GPU-a  none",
            "GPU-a none ",
            "GPU-a mps",
            "GPU-a mps pipe",
            "GPU_a none",
            "GPU-a mps /x\ny",
            "../x none",
            long.as_str(),
        ] {
            assert_eq!(Question::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn an_answer_is_one_bounded_line() {
        let failed = Answer::Failed("two\nlines\u{7}".to_owned() + &"ä".repeat(4000));
        let line = failed.to_string();
        assert!(line.starts_with("failed two lines ä") && line.len() <= MAX_LINE, "{line}");
        assert_eq!(Answer::parse(&line).unwrap().to_string(), line);
        assert_eq!(Answer::parse("passed"), Some(Answer::Passed));
        assert_eq!(Answer::parse("unknown why"), Some(Answer::Unknown("why".to_owned())));
        for line in ["", "passed it", "failed", "failed ", "failed a\rb", "ok", &"x".repeat(2000)] {
            assert_eq!(Answer::parse(line), None, "{line:?}");
        }
    }
}
