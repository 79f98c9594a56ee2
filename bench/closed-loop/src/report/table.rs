//! Tables for people.

use std::fmt;

use super::{LEAST_HOT_MINUTES, Summary};
use crate::cell::Cell;
use crate::policies;

/// A table for each cell, and one of the ratios of all cells.
pub struct Tables<'a>(pub &'a [Summary]);

impl fmt::Display for Tables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = cells(self.0);
        for cell in &cells {
            of_cell(f, *cell, self.0)?;
        }
        if cells.len() > 1 {
            ratios(f, &cells, self.0)?;
        }
        Ok(())
    }
}

fn cells(summaries: &[Summary]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = summaries.iter().map(|summary| summary.cell).collect();
    cells.dedup();
    cells
}

fn title(policy: &str) -> &str {
    policies::find(policy).map_or(policy, |entry| entry.title)
}

fn of_cell(f: &mut fmt::Formatter<'_>, cell: Cell, summaries: &[Summary]) -> fmt::Result {
    let rows: Vec<&Summary> = summaries.iter().filter(|summary| summary.cell == cell).collect();
    let Some(first) = rows.first() else { return Ok(()) };
    writeln!(
        f,
        "{cell}, {} seeds; mean use {:.1}% of {}%",
        first.seeds, first.mean_use, cell.percent
    )?;
    writeln!(
        f,
        "node-minutes above 80% by one pod alone, which no placement avoids: {:.0}",
        first.alone_minutes[1]
    )?;
    if first.left_out {
        writeln!(f, "left out of comparisons: fewer than {LEAST_HOT_MINUTES} hot minutes a seed")?;
    }
    let head = "node-minutes  >65%      >80%    >100%  | >80% ratio  better | deviation  herd | wait mean  p50  p99 min  pending | evicted 2x  placements  writes/h";
    writeln!(f, "{:<32} {head}", "")?;
    for row in rows {
        let [warm, hot, full] = row.hot_minutes;
        let ratio = row.ratios[1].map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let [mean, median, p99] = row.wait;
        writeln!(
            f,
            "{:<32} {warm:>17.0} {hot:>9.0} {full:>8.0}  | {ratio:>10} {:>4}/{:<2} | {:>9.2} {:>5.1} | {mean:>9.2} {median:>4.1} {p99:>8.1} {:>8} | {:>10} {:>11} {:>9}",
            title(row.policy),
            row.better,
            row.seeds,
            row.deviation,
            row.herd_width,
            row.pending,
            row.evicted_twice,
            row.placements,
            row.writes_an_hour.map_or("-".to_owned(), |writes| format!("{writes:.1}")),
        )?;
    }
    writeln!(f)
}

/// The ratios of node-minutes over 80% to the reference's; the first row has the reference's own minutes, a seed.
fn ratios(f: &mut fmt::Formatter<'_>, cells: &[Cell], summaries: &[Summary]) -> fmt::Result {
    writeln!(
        f,
        "Node-minutes above 80%, by those of the first row (whose own are a mean of the seeds)"
    )?;
    write!(f, "{:<32}", "")?;
    for cell in cells {
        write!(f, " {:>9}", cell.to_string())?;
    }
    for percent in percents(cells) {
        write!(f, " {:>9}", format!("all {percent}%"))?;
    }
    writeln!(f)?;
    let mut names: Vec<&str> = Vec::new();
    for summary in summaries {
        if !names.contains(&summary.policy) {
            names.push(summary.policy);
        }
    }
    for name in names {
        write!(f, "{:<32}", title(name))?;
        for cell in cells {
            let found = summaries.iter().find(|row| row.cell == *cell && row.policy == name);
            write!(f, " {:>9}", found.map_or("-".to_owned(), ratio))?;
        }
        for percent in percents(cells) {
            write!(f, " {:>9}", sum_ratio(percent, name, summaries))?;
        }
        writeln!(f)?;
    }
    writeln!(
        f,
        "({LEAST_HOT_MINUTES} hot minutes a seed at least; cells with fewer are left out: -)"
    )
}

/// The uses of several cells.
fn percents(cells: &[Cell]) -> Vec<u32> {
    let mut percents: Vec<u32> = cells.iter().map(|cell| cell.percent).collect();
    percents.sort_unstable();
    percents.dedup();
    percents
}

/// The ratio of the sums over the cells of that use, but for those that are left out.
fn sum_ratio(percent: u32, policy: &str, summaries: &[Summary]) -> String {
    let own = hot_minutes(percent, policy, summaries);
    let reference = hot_minutes(percent, policies::REFERENCE, summaries);
    if reference > 0.0 { format!("{:.2}", own / reference) } else { "-".to_owned() }
}

/// The sum of a policy's minutes over 80% in the cells of that use, but for those that are left out.
fn hot_minutes(percent: u32, policy: &str, summaries: &[Summary]) -> f64 {
    let rows = summaries.iter().filter(|row| row.cell.percent == percent && !row.left_out);
    rows.filter(|row| row.policy == policy).map(|row| row.hot_minutes[1]).sum()
}

fn ratio(row: &Summary) -> String {
    match row.ratios[1] {
        _ if row.policy == policies::REFERENCE => {
            format!("{:.0}", row.hot_minutes[1] / row.seeds as f64)
        }
        Some(ratio) if !row.left_out => format!("{ratio:.2}"),
        _ => "-".to_owned(),
    }
}
