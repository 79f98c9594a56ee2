//! The table of all runs, as `lab/RESULTS.md` has it.

use std::fmt;

use crate::cell::Cell;
use crate::policies::Entry;
use crate::world::Figures;

/// A cell in which the reference has fewer minutes over 80% than this, a seed on average, is left out.
const LEAST_HOT_MINUTES: f64 = 100.0;
/// Mean waits up to this many minutes are not shown.
const SHORT_WAIT: f64 = 0.1;

/// One cell and one seed: the figures of each policy, in their order. The first is the reference.
#[derive(Debug, Clone)]
pub struct Run {
    /// The cell.
    pub cell: Cell,
    /// By policy.
    pub figures: Vec<Figures>,
}

/// A Markdown table with a row for each policy and a column for each cell: hot minutes by those of the reference, whose
/// own are a mean of the seeds, and in brackets the mean wait in minutes.
pub struct Table<'a> {
    /// The policies.
    pub policies: &'a [Entry],
    /// The runs of all cells and seeds.
    pub runs: &'a [Run],
}

/// Sums of one policy in one cell over the seeds.
struct Sum {
    seeds: f64,
    hot_minutes: f64,
    wait: f64,
}

impl Table<'_> {
    fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self.runs.iter().map(|run| run.cell).collect();
        cells.dedup();
        cells
    }

    fn sum(&self, cell: Cell, policy: usize) -> Sum {
        let mut sum = Sum { seeds: 0.0, hot_minutes: 0.0, wait: 0.0 };
        let mut pods = 0.0;
        for run in self.runs.iter().filter(|run| run.cell == cell) {
            let figures = &run.figures[policy];
            sum.seeds += 1.0;
            sum.hot_minutes += figures.hot_minutes;
            sum.wait += figures.wait_minutes;
            pods += figures.waited as f64;
        }
        sum.wait /= f64::max(pods, 1.0);
        sum
    }

    fn value(&self, cell: Cell, policy: usize) -> String {
        let reference = self.sum(cell, 0);
        if reference.hot_minutes < LEAST_HOT_MINUTES * reference.seeds {
            return "left out".to_owned();
        }
        let own = self.sum(cell, policy);
        let wait =
            if own.wait > SHORT_WAIT { format!(" ({:.1})", own.wait) } else { String::new() };
        if policy == 0 {
            return format!("{:.0}{wait}", own.hot_minutes / own.seeds);
        }
        format!("{:.2}{wait}", own.hot_minutes / reference.hot_minutes)
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = self.cells();
        write!(f, "| policy |")?;
        for cell in &cells {
            write!(f, " {cell} |")?;
        }
        writeln!(f, "\n|---|{}", "---|".repeat(cells.len()))?;
        for (place, policy) in self.policies.iter().enumerate() {
            write!(f, "| {policy} |")?;
            for cell in &cells {
                write!(f, " {} |", self.value(*cell, place))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_minutes_are_divided_by_those_of_the_reference() {
        let figures = |hot_minutes, wait_minutes| Figures {
            hot_minutes,
            wait_minutes,
            waited: 10,
            ..Figures::default()
        };
        let cell = |name: &str| name.parse::<Cell>().unwrap();
        let runs = [
            Run { cell: cell("S40"), figures: vec![figures(300.0, 5.0), figures(120.0, 0.0)] },
            Run { cell: cell("S40"), figures: vec![figures(100.0, 5.0), figures(80.0, 0.0)] },
            Run { cell: cell("U25"), figures: vec![figures(99.0, 0.0), figures(9.0, 0.0)] },
        ];
        let policies = ["crane-plugin", "default"].map(|name| name.parse().unwrap());
        let table = Table { policies: &policies, runs: &runs }.to_string();
        let expected = "| policy | S40 | U25 |\n|---|---|---|\n\
                        | crane-plugin | 200 (0.5) | left out |\n| default | 0.50 | left out |\n";
        assert_eq!(table, expected);
    }
}
