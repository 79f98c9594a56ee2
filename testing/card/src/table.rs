//! Owns the rows: what is promised, what was measured, and the verdict.
//!
//! Invariant: a question that fails is a row, and stops no other.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::progress::{line, step};
use serde_json::{Value, json};

/// What an answer says of its promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Holds,
    Fails,
    /// A figure beside which no promise stands.
    Measured,
    NotAsked,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "DOES NOT HOLD",
            Self::Measured => "measured",
            Self::NotAsked => "NOT ASKED",
        }
    }
}

/// An answer.
pub(crate) struct Answer {
    verdict: Verdict,
    text: String,
}

/// The promise holds or not.
pub(crate) fn promise(holds: bool, text: impl Into<String>) -> Answer {
    Answer { verdict: if holds { Verdict::Holds } else { Verdict::Fails }, text: text.into() }
}

/// A figure alone.
pub(crate) fn figure(text: impl Into<String>) -> Answer {
    Answer { verdict: Verdict::Measured, text: text.into() }
}

/// Nothing to ask here, and why.
pub(crate) fn not_asked(why: impl Into<String>) -> Answer {
    Answer { verdict: Verdict::NotAsked, text: why.into() }
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    promise: &'static str,
    measured: String,
    verdict: Verdict,
    took: Duration,
}

/// The rows so far.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Row>,
    begin: Instant,
    limit: Duration,
}

impl Table {
    /// No question begins when this much time has passed.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { rows: Vec::new(), begin: Instant::now(), limit }
    }

    /// The time in which questions may still begin.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begin.elapsed())
    }

    /// Adds a row, and prints it.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        promise: &'static str,
        took: Duration,
        answer: Result<Answer>,
    ) {
        let Answer { verdict, text } = answer
            .unwrap_or_else(|error| Answer { verdict: Verdict::Fails, text: format!("{error:#}") });
        let row = Row { name, promise, measured: text, verdict, took };
        step(&shown(&row));
        self.rows.push(row);
    }

    /// Prints the table, and writes it as JSON where a file is named. Returns whether all promises hold.
    pub(crate) fn finish(&self, facts: &Value, json: Option<&Path>) -> Result<bool> {
        line(&format!("\n{facts}\n"));
        // What fails comes last: long output is cut.
        let (fail, other): (Vec<_>, Vec<_>) =
            self.rows.iter().partition(|row| row.verdict == Verdict::Fails);
        other.into_iter().chain(fail).for_each(|row| line(&shown(row)));
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let (fails, not_asked) = (count(Verdict::Fails), count(Verdict::NotAsked));
        line(&format!(
            "\n{} promises hold, {fails} do not, {} figures, {not_asked} NOT ASKED; {:.0} s",
            count(Verdict::Holds),
            count(Verdict::Measured),
            self.begin.elapsed().as_secs_f64()
        ));
        if let Some(file) = json {
            fs::write(file, format!("{:#}\n", self.json(facts)))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(fails == 0)
    }

    fn json(&self, facts: &Value) -> Value {
        let row = |row: &Row| {
            json!({
                "name": row.name, "promise": row.promise, "measured": row.measured,
                "verdict": row.verdict.word(), "seconds": row.took.as_secs_f64(),
            })
        };
        json!({"facts": facts, "rows": self.rows.iter().map(row).collect::<Vec<_>>()})
    }
}

fn shown(row: &Row) -> String {
    let Row { name, promise, measured, verdict, took } = row;
    let took = took.as_secs_f64();
    format!("{:<13} {name} ({took:.1} s): {promise}\n{:22}{measured}", verdict.word(), "")
}
