//! Owns the part of `bench/RESULTS.md` that a run on a GPU writes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use e2e::command::{command, run};
use serde_json::Value;

/// The section's heading. What stands below it before the mark is written by hand.
const HEADING: &str = "## On a real GPU\n";
/// What begins the part that is written here; it ends at the next heading.
const MARK: &str = "<!-- make card -->\n";

/// Writes the figures of `run --json` into the page.
pub(crate) fn record(figures: &Path, page: &Path) -> Result<()> {
    let figures: Value = serde_json::from_str(&read(figures)?)
        .with_context(|| format!("{} holds no figures of `run --json`", figures.display()))?;
    ensure!(figures["facts"]["fake"] == false, "figures of a stand-in are none of a GPU");
    let time = figures["facts"]["unixTime"].as_u64().context("the figures have no unixTime")?;
    let day = run(command("date").args(["-u", "+%F", "-d", &format!("@{time}")]))?;
    fs::write(page, written(&read(page)?, &figures, day.trim())?)
        .with_context(|| format!("cannot write {}", page.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn written(page: &str, figures: &Value, day: &str) -> Result<String> {
    let Some((before, rest)) = page.split_once(HEADING) else {
        bail!("the page has no heading `{}`", HEADING.trim());
    };
    let end = rest.find("\n## ").map_or(rest.len(), |at| at + 1);
    let (section, after) = rest.split_at(end);
    let by_hand = section.split(MARK).next().unwrap_or(section).trim_end();
    Ok(format!("{before}{HEADING}{by_hand}\n\n{MARK}{}\n{after}", table(figures, day)?))
}

fn table(figures: &Value, day: &str) -> Result<String> {
    let facts = &figures["facts"];
    let fact = |name: &str| facts[name].as_str().unwrap_or("unknown");
    let mut text = format!(
        "By `make card`: {}, driver {}, {}, {day}.\n\n| promise | measured | |\n|---|---|---|\n",
        fact("gpu"),
        fact("driver"),
        fact("commit")
    );
    for row in figures["rows"].as_array().context("the figures have no rows")? {
        let cell = |name: &str| {
            row[name].as_str().unwrap_or_default().replace('|', "\\|").replace('\n', " ")
        };
        text += &format!("| {} | {} | {} |\n", cell("promise"), cell("measured"), cell("verdict"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_replaces_what_a_run_has_written_and_nothing_else() {
        let figures = |measured: &str| {
            json!({
                "facts": {"gpu": "NVIDIA H100", "driver": "580.1", "commit": "abc", "fake": false},
                "rows": [{"promise": "p | q", "measured": measured, "verdict": "holds"}],
            })
        };
        let page = format!("# Page\n\n{HEADING}\nBy hand.\n\n## Next\n\ntext\n");
        let once = written(&page, &figures("one"), "2026-01-01").unwrap();
        assert!(
            once.contains(
                "By hand.\n\n<!-- make card -->\nBy `make card`: NVIDIA H100, driver 580.1"
            )
        );
        assert!(once.contains("| p \\| q | one | holds |\n\n## Next\n\ntext\n"), "{once}");
        let twice = written(&once, &figures("two"), "2026-01-01").unwrap();
        assert_eq!(twice, once.replace("one", "two"));
    }

    #[test]
    fn the_page_of_results_has_the_heading() {
        let page = e2e::settings::sources().unwrap().join("bench/RESULTS.md");
        assert_eq!(read(&page).unwrap().matches(HEADING).count(), 1);
    }
}
